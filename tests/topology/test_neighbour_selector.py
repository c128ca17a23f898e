import json
import random
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from hansa.errors import UsageError
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId
from hansa.topology.healing import node_name
from hansa.topology.neighbour_selector import (
    FORMER_ADDRESS_LIFETIME_S,
    FORMER_ADDRESSES_MAX,
    RELEASE_AFTER_ROUNDS,
    NeighbourSelector,
)
from hansa.topology.planner import PlannerLimits


class Scene:
    """What one node, 1, sees; and what its steering does to its links."""

    def __init__(self, links: str, known: int = 6) -> None:
        self.done: list[str] = []
        self.callers: set[int] = set()
        """Neighbours that dialled us."""
        self.known: Any = MappingProxyType({})
        self.neighbours: Any = {}
        self.reachable: Any = ()
        self.see(links, known)
        me, seen = NodeId(1), cast(MembershipView, self)
        self.steering = NeighbourSelector(
            seen, me, self, PlannerLimits(degree_max=5), random.Random(1)
        )

    def see(self, links: str, known: int = 6) -> None:
        pairs = [tuple(map(int, text.split("-"))) for text in links.split()]
        near: dict[int, list[tuple[int, int]]] = {node: [] for node in range(1, known + 1)}
        for a, b in pairs:
            near[a].append((b, 1000))
            near[b].append((a, 1000))
        reach, queue = {1}, [1]
        for node in queue:
            new = [b for b, _ in near[node] if b not in reach]
            reach.update(new)
            queue += new
        self.reachable = reach
        self.digest = hash(links)
        self.neighbours = {b: SimpleNamespace(dialled=b not in self.callers) for b, _ in near[1]}
        self.known = {
            node: NodeRecord(node, 1, 1, 1, b"", "", (f"h{node}:1",), 1.0, tuple(links))  # type: ignore[arg-type]
            for node, links in near.items()
        }

    def keep_dialling(self, address: str) -> None:
        if address == "bad":
            raise UsageError("no address")
        self.done.append(f"keep {address}")

    def stop_dialling(self, address: str) -> None:
        self.done.append(f"forget {address}")

    def dial_once(self, address: str) -> None:
        self.done.append(f"try {address}")

    def close(self, node: NodeId, reason: str) -> None:
        self.done.append(f"close {node}")

    def assign(self, *wanted: tuple[int, bool]) -> None:
        known = {node_name(number): f"h{number}:1" for number, _ in wanted}
        dialled = {node_name(number): f"h{number}:1" if dial else "" for number, dial in wanted}
        self.steering.apply_assignment(dialled, known, degree_max=5)

    def look(self, times: int = 1, planning: bool = False) -> list[str]:
        self.done.clear()
        for number in range(times):
            self.steering.update_links(float(number), planning)
        return list(self.done)


RING = "1-2 2-3 3-4 1-4"


def test_what_the_manager_wants_is_kept_by_who_shall_dial():
    scene = Scene(RING, 4)
    scene.assign((2, True), (4, False))
    assert scene.done == ["keep h2:1"]
    assert scene.look() == []


def test_what_it_wants_no_more_is_closed_if_nobody_needs_it():
    scene = Scene(RING + " 1-3", 4)
    scene.assign((2, True), (3, True), (4, False))
    scene.done.clear()
    scene.assign((2, True), (4, False))
    assert scene.done == ["forget h3:1"]
    assert scene.look() == ["close 3"]


def test_a_manager_that_is_wrong_does_not_cut_the_only_way_to_somebody():
    scene = Scene("1-2 2-3 1-3 1-4", 4)
    scene.assign((2, True), (3, True), (4, True))
    scene.assign((2, True), (3, True))
    assert scene.look() == []
    scene.see("1-2 2-3 1-3 1-4 3-4", 4)  # there is another way now
    assert scene.look() == ["close 4"]


def test_links_are_closed_one_at_a_time():
    scene = Scene(RING + " 1-3", 4)
    scene.assign((2, True), (3, True), (4, True))
    scene.assign()
    assert scene.look() == ["close 2"]


def test_alone_it_tries_those_it_knows_whoever_plans():
    scene = Scene("", 4)
    tried = scene.look()
    assert len(tried) == 2
    assert set(tried) < {"try h2:1", "try h3:1", "try h4:1"}
    assert scene.steering.status()["healed_count"] == 2


def test_with_the_manager_away_it_plans_by_itself_and_with_it_does_not():
    scene = Scene("1-2 2-3 3-4", 4)
    assert scene.look(3, planning=False) == []
    assert scene.look(2, planning=True) == ["try h4:1"]


def test_addresses_from_elsewhere_may_be_anything():
    scene = Scene(RING, 4)
    scene.steering.apply_assignment({node_name(2): "bad"}, {}, degree_max=5)
    assert scene.done == []


def test_a_restart_starts_from_what_was_known():
    scene = Scene(RING, 4)
    scene.assign((2, True), (4, False))
    kept = scene.steering.encode_state()
    again = Scene("", 1)
    again.steering.restore_state(kept)
    assert again.done == ["keep h2:1"]
    assert again.look() == ["try h4:1"]  # known from the file only; h2 is being dialled already
    for nonsense in (
        b"{",
        b"[]",
        b'{"known": {"x": 1}}',
        b'{"neighbours": 1}',
        b'{"minutes": {"1": []}}',
    ):
        assert not Scene("", 1).steering.restore_state(nonsense)
    assert Scene("", 1).steering.restore_state(b"")


def test_what_was_no_address_is_forgotten_without_a_word():
    scene = Scene(RING, 4)
    scene.steering.apply_assignment({node_name(3): "bad"}, {}, degree_max=5)
    scene.steering.apply_assignment({}, {}, degree_max=5)
    assert scene.done == []


def test_who_did_not_dial_an_unwanted_link_closes_it_only_if_the_other_end_does_not():
    scene = Scene(RING + " 1-3", 4)
    scene.callers = {3}
    scene.see(RING + " 1-3", 4)
    scene.assign((2, True), (3, False), (4, False))
    scene.assign((2, True), (4, False))
    assert scene.look(RELEASE_AFTER_ROUNDS) == []
    assert scene.look() == ["close 3"]
    assert scene.look(5) == []  # whoever dials it now has a reason


def test_an_unwanted_link_that_was_just_coming_up_is_closed_too():
    scene = Scene(RING, 4)
    scene.assign((2, True), (3, True), (4, False))
    scene.assign((2, True), (4, False))
    scene.look()
    scene.see(RING + " 1-3", 4)
    assert scene.look() == ["close 3"]


def test_who_is_full_is_not_dialled_until_there_is_room():
    scene = Scene("1-3 3-4 3-5 2-3 2-4 2-5 2-6 2-7 2-8 1-4", 8)
    scene.done.clear()
    scene.assign((2, True))
    assert scene.done == scene.look() == []
    scene.see("1-3 3-4 3-5 2-3 2-4 2-5 2-6 2-7 7-8 1-4", 8)
    assert scene.look() == ["keep h2:1"]
    scene.see("1-3 3-4 3-5 2-3 2-4 2-5 2-6 2-7 2-8 1-4", 8)  # others were quicker
    assert scene.look() == ["forget h2:1"]


def test_who_is_full_is_dialled_if_that_is_the_only_way():
    scene = Scene("2-3 2-4 2-5 2-6 2-7 2-8", 8)
    scene.done.clear()
    scene.assign((2, True))
    assert scene.done == ["keep h2:1"]


def test_far_too_many_neighbours_are_given_up_whatever_the_manager_wants():
    ring = "2-3 3-4 4-5 5-6 6-7 7-8 2-8"
    spokes = " ".join(f"1-{n}" for n in range(2, 9))
    scene = Scene(f"{ring} {spokes}", 8)
    scene.assign(*((n, False) for n in range(2, 9)))
    assert [done.split()[0] for done in scene.look()] == ["close"]
    scene.see(f"{ring} {spokes.replace('1-8', '')}", 8)
    assert scene.look() == []  # one more than allowed may be what a plan needs for a while


def test_a_neighbour_that_has_dialled_us_is_not_dialled_too():
    scene = Scene(RING, 4)
    scene.callers = {2}
    scene.see(RING, 4)
    scene.assign((2, True), (4, False))
    assert scene.done == []
    scene.see("1-4 3-4 2-3", 4)
    assert scene.look() == ["keep h2:1"]


def test_who_does_not_come_back_is_forgotten_in_the_end_whatever_restarts_lie_between():
    kept = b'{"known": {"9": "h9:1"}}'
    for _ in range(2):  # each life is a little more than half of the time
        scene = Scene("", 1)
        assert scene.steering.restore_state(kept)
        assert b"h9:1" in scene.steering.encode_state()
        scene.steering.update_links(0.0, is_planning=False)
        scene.steering.update_links(FORMER_ADDRESS_LIFETIME_S / 2 + 60, is_planning=False)
        kept = scene.steering.encode_state()
    assert b"h9:1" not in kept


def test_whom_the_manager_names_again_is_young_again():
    scene = Scene("", 1)
    for now in (0.0, FORMER_ADDRESS_LIFETIME_S - 1, FORMER_ADDRESS_LIFETIME_S + 1):
        scene.assign((9, True))
        scene.steering.update_links(now, is_planning=False)
    assert b"h9:1" in scene.steering.encode_state()


def test_former_nodes_have_a_bound():
    scene = Scene("", 1)
    known = {node_name(number): "h:1" for number in range(2, FORMER_ADDRESSES_MAX + 10)}
    scene.steering.apply_assignment({}, known, degree_max=5)
    assert scene.steering.encode_state().count(b"h:1") == FORMER_ADDRESSES_MAX
    assert scene.steering.restore_state(json.dumps({"known": known}).encode())
    assert scene.steering.encode_state().count(b"h:1") == FORMER_ADDRESSES_MAX


def reinstalled(scene: Scene, old: int, new: int) -> None:
    """The agent at the address of node `old` has lost its state and is node `new` now."""
    record = scene.known[new]
    scene.known[new] = NodeRecord(
        record.node, 2, 1, 2, b"", "", scene.known[old].addresses, 1.0, record.links
    )


def test_address_of_a_reinstalled_agent_is_not_dialled_for_its_former_id():
    scene = Scene("1-3 3-5 1-5", 5)  # 2 and 4 are out of reach
    scene.callers = {3}
    scene.see("1-3 3-5 1-5", 5)
    reinstalled(scene, old=2, new=3)
    scene.assign((2, True), (5, True))
    assert scene.done == ["keep h5:1"]
    tries = {attempt for _ in range(50) for attempt in scene.look()}
    assert tries == {"try h4:1"}


def test_address_assigned_for_two_ids_is_kept_for_its_present_owner():
    scene = Scene("1-3 3-5 1-5 3-4", 5)
    reinstalled(scene, old=2, new=3)
    scene.steering.apply_assignment({node_name(3): "h2:1", node_name(2): "h2:1"}, {}, degree_max=5)
    assert scene.done == ["keep h2:1"]
    assert scene.look() == []
    scene.steering.apply_assignment({node_name(2): "h2:1"}, {}, degree_max=5)
    assert scene.done == ["forget h2:1"]


def test_own_address_is_not_dialled_for_the_id_of_a_former_installation():
    scene = Scene("1-3", 3)
    reinstalled(scene, old=2, new=1)
    assert [scene.look() for _ in range(50)] == [[]] * 50


def test_of_two_absent_nodes_at_one_address_only_the_newer_is_dialled():
    scene = Scene("", 3)
    reinstalled(scene, old=2, new=3)
    assert scene.look() == ["try h2:1"]
    assert scene.steering.status()["healed"] == [node_name(3)]
