import json
import random
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from hansa.errors import UsageError
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId
from hansa.topology.former_addresses import FORMER_ADDRESS_LIFETIME_S, FORMER_ADDRESSES_MAX
from hansa.topology.healing import node_name
from hansa.topology.neighbour_selector import RELEASE_AFTER_ROUNDS, NeighbourSelector
from hansa.topology.planner import PlannerLimits


class Scene:
    """The view of node 1, and what its neighbour selector does to its links."""

    def __init__(self, links: str, known: int = 6) -> None:
        self.actions: list[str] = []
        self.callers: set[int] = set()
        """Neighbours that dialled node 1."""
        self.known: Any = MappingProxyType({})
        self.neighbours: Any = {}
        self.reachable: Any = ()
        self.see(links, known)
        membership = cast(MembershipView, self)
        self.selector = NeighbourSelector(
            membership, NodeId(1), self, PlannerLimits(degree_max=5), random.Random(1)
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
        self.actions.append(f"keep {address}")

    def stop_dialling(self, address: str) -> None:
        self.actions.append(f"stop {address}")

    def dial_once(self, address: str) -> None:
        self.actions.append(f"dial {address}")

    def close(self, node: NodeId, reason: str) -> None:
        self.actions.append(f"close {node}")

    def assign(self, *assigned: tuple[int, bool]) -> None:
        known = {node_name(number): f"h{number}:1" for number, _ in assigned}
        dialled = {node_name(number): f"h{number}:1" if dial else "" for number, dial in assigned}
        self.selector.apply_assignment(dialled, known, degree_max=5)

    def update(self, times: int = 1, planning: bool = False) -> list[str]:
        self.actions.clear()
        for number in range(times):
            self.selector.update_links(float(number), planning)
        return list(self.actions)


RING = "1-2 2-3 3-4 1-4"


def test_only_the_dialling_end_keeps_an_assigned_link():
    scene = Scene(RING, 4)
    scene.assign((2, True), (4, False))
    assert scene.actions == ["keep h2:1"]
    assert scene.update() == []


def test_released_link_is_closed():
    scene = Scene(RING + " 1-3", 4)
    scene.assign((2, True), (3, True), (4, False))
    scene.actions.clear()
    scene.assign((2, True), (4, False))
    assert scene.actions == ["stop h3:1"]
    assert scene.update() == ["close 3"]


def test_released_bridge_stays_open():
    scene = Scene("1-2 2-3 1-3 1-4", 4)
    scene.assign((2, True), (3, True), (4, True))
    scene.assign((2, True), (3, True))
    assert scene.update() == []
    scene.see("1-2 2-3 1-3 1-4 3-4", 4)  # there is another path now
    assert scene.update() == ["close 4"]


def test_released_links_are_closed_one_per_round():
    scene = Scene(RING + " 1-3", 4)
    scene.assign((2, True), (3, True), (4, True))
    scene.assign()
    assert scene.update() == ["close 2"]


def test_isolated_node_dials_known_nodes_although_the_manager_plans():
    scene = Scene("", 4)
    tried = scene.update()
    assert len(tried) == 2
    assert set(tried) < {"dial h2:1", "dial h3:1", "dial h4:1"}
    assert scene.selector.status()["healed_count"] == 2


def test_node_plans_only_without_a_manager():
    scene = Scene("1-2 2-3 3-4", 4)
    assert scene.update(3, planning=False) == []
    assert scene.update(2, planning=True) == ["dial h4:1"]


def test_invalid_assigned_address_is_ignored():
    scene = Scene(RING, 4)
    scene.selector.apply_assignment({node_name(2): "bad"}, {}, degree_max=5)
    assert scene.actions == []


def test_restart_restores_addresses_and_assignment():
    scene = Scene(RING, 4)
    scene.assign((2, True), (4, False))
    state = scene.selector.encode_state()
    again = Scene("", 1)
    again.selector.restore_state(state)
    assert again.actions == ["keep h2:1"]
    assert again.update() == ["dial h4:1"]  # known only from the state; h2 is already being dialled
    for invalid in (
        b"{",
        b"[]",
        b'{"known": {"x": 1}}',
        b'{"neighbours": 1}',
        b'{"minutes": {"1": []}}',
    ):
        assert not Scene("", 1).selector.restore_state(invalid)
    assert Scene("", 1).selector.restore_state(b"")


def test_invalid_address_is_released_silently():
    scene = Scene(RING, 4)
    scene.selector.apply_assignment({node_name(3): "bad"}, {}, degree_max=5)
    scene.selector.apply_assignment({}, {}, degree_max=5)
    assert scene.actions == []


def test_accepting_end_closes_a_released_link_after_some_rounds():
    scene = Scene(RING + " 1-3", 4)
    scene.callers = {3}
    scene.see(RING + " 1-3", 4)
    scene.assign((2, True), (3, False), (4, False))
    scene.assign((2, True), (4, False))
    assert scene.update(RELEASE_AFTER_ROUNDS) == []
    assert scene.update() == ["close 3"]
    assert scene.update(5) == []  # a new dial of the other end is accepted


def test_released_link_that_comes_up_later_is_closed():
    scene = Scene(RING, 4)
    scene.assign((2, True), (3, True), (4, False))
    scene.assign((2, True), (4, False))
    scene.update()
    scene.see(RING + " 1-3", 4)
    assert scene.update() == ["close 3"]


def test_full_node_is_not_dialled_until_it_has_room():
    scene = Scene("1-3 3-4 3-5 2-3 2-4 2-5 2-6 2-7 2-8 1-4", 8)
    scene.actions.clear()
    scene.assign((2, True))
    assert scene.actions == scene.update() == []
    scene.see("1-3 3-4 3-5 2-3 2-4 2-5 2-6 2-7 7-8 1-4", 8)
    assert scene.update() == ["keep h2:1"]
    scene.see("1-3 3-4 3-5 2-3 2-4 2-5 2-6 2-7 2-8 1-4", 8)  # other nodes were faster
    assert scene.update() == ["stop h2:1"]


def test_full_node_is_dialled_if_it_is_unreachable():
    scene = Scene("2-3 2-4 2-5 2-6 2-7 2-8", 8)
    scene.actions.clear()
    scene.assign((2, True))
    assert scene.actions == ["keep h2:1"]


def test_surplus_links_are_closed_although_the_manager_assigned_them():
    ring = "2-3 3-4 4-5 5-6 6-7 7-8 2-8"
    spokes = " ".join(f"1-{n}" for n in range(2, 9))
    scene = Scene(f"{ring} {spokes}", 8)
    scene.assign(*((n, False) for n in range(2, 9)))
    assert [action.split()[0] for action in scene.update()] == ["close"]
    scene.see(f"{ring} {spokes.replace('1-8', '')}", 8)
    assert scene.update() == []  # one more than allowed is tolerated while the manager plans


def test_neighbour_that_dialled_is_not_dialled():
    scene = Scene(RING, 4)
    scene.callers = {2}
    scene.see(RING, 4)
    scene.assign((2, True), (4, False))
    assert scene.actions == []
    scene.see("1-4 3-4 2-3", 4)
    assert scene.update() == ["keep h2:1"]


def test_former_address_expires_across_restarts():
    state = b'{"known": {"9": "h9:1"}}'
    for _ in range(2):  # each incarnation lasts a little more than half of the lifetime
        scene = Scene("", 1)
        assert scene.selector.restore_state(state)
        assert b"h9:1" in scene.selector.encode_state()
        scene.selector.update_links(0.0, is_planning=False)
        scene.selector.update_links(FORMER_ADDRESS_LIFETIME_S / 2 + 60, is_planning=False)
        state = scene.selector.encode_state()
    assert b"h9:1" not in state


def test_age_of_an_address_restarts_when_the_manager_names_it():
    scene = Scene("", 1)
    for now in (0.0, FORMER_ADDRESS_LIFETIME_S - 1, FORMER_ADDRESS_LIFETIME_S + 1):
        scene.assign((9, True))
        scene.selector.update_links(now, is_planning=False)
    assert b"h9:1" in scene.selector.encode_state()


def test_number_of_former_addresses_is_bounded():
    scene = Scene("", 1)
    known = {node_name(number): "h:1" for number in range(2, FORMER_ADDRESSES_MAX + 10)}
    scene.selector.apply_assignment({}, known, degree_max=5)
    assert scene.selector.encode_state().count(b"h:1") == FORMER_ADDRESSES_MAX
    assert scene.selector.restore_state(json.dumps({"known": known}).encode())
    assert scene.selector.encode_state().count(b"h:1") == FORMER_ADDRESSES_MAX


def reinstall(scene: Scene, old: int, new: int) -> None:
    """Let the agent at the address of node `old` be reinstalled as node `new`."""
    record = scene.known[new]
    scene.known[new] = NodeRecord(
        record.node, 2, 1, 2, b"", "", scene.known[old].addresses, 1.0, record.links
    )


def test_address_of_a_reinstalled_agent_is_not_dialled_for_its_former_id():
    scene = Scene("1-3 3-5 1-5", 5)  # 2 and 4 are unreachable
    scene.callers = {3}
    scene.see("1-3 3-5 1-5", 5)
    reinstall(scene, old=2, new=3)
    scene.assign((2, True), (5, True))
    assert scene.actions == ["keep h5:1"]
    actions = {action for _ in range(50) for action in scene.update()}
    assert actions == {"dial h4:1"}


def test_address_assigned_for_two_ids_is_kept_for_its_present_owner():
    scene = Scene("1-3 3-5 1-5 3-4", 5)
    reinstall(scene, old=2, new=3)
    scene.selector.apply_assignment({node_name(3): "h2:1", node_name(2): "h2:1"}, {}, degree_max=5)
    assert scene.actions == ["keep h2:1"]
    assert scene.update() == []
    scene.selector.apply_assignment({node_name(2): "h2:1"}, {}, degree_max=5)
    assert scene.actions == ["stop h2:1"]


def test_own_address_is_not_dialled_for_the_id_of_a_former_installation():
    scene = Scene("1-3", 3)
    reinstall(scene, old=2, new=1)
    assert [scene.update() for _ in range(50)] == [[]] * 50


def test_of_two_absent_nodes_at_one_address_only_the_newer_is_dialled():
    scene = Scene("", 3)
    reinstall(scene, old=2, new=3)
    assert scene.update() == ["dial h2:1"]
    assert scene.selector.status()["self_dialled"] == [node_name(3)]
