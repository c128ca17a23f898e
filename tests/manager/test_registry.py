from dataclasses import replace

import pytest

from hansa.errors import UsageError
from hansa.manager.registry import FederationRegistry
from hansa.manager.rows import NodeState
from hansa.manager.store import ManagerStore
from hansa.manager.types import JoiningNode, NodeReport, RequestRefused
from hansa.topology.graph import is_connected, make_graph


def agent(number: int) -> str:
    return f"{number + 160:016x}"


class Scene:
    """A registry with agents that apply their assignments and report them."""

    def __init__(self, store: ManagerStore, count: int = 0, **settings: object) -> None:
        self.events: list[str] = []
        self.federation = FederationRegistry(
            store, lambda rows: self.events.extend(f"{row.kind} {row.nodes}" for row in rows)
        )
        if settings:
            self.federation.change_settings(settings, 0.0)
        self.now = 0.0
        self.silent: set[int] = set()
        self.dead: set[int] = set()
        self.count = count
        for number in range(count):
            self.join(number)
        self.run(10)

    def join(self, number: int, **more):
        who = JoiningNode(link=f"h{number}:10500", node=agent(number), name=f"n{number}", **more)
        return self.federation.join(who, self.now)

    def links(self) -> set[tuple[int, int]]:
        return {(link.a, link.b) for link, _, _ in self.federation.links()}

    def run(self, seconds: float) -> None:
        """Advance time: a tick every second, a report of every running agent every 5 s."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            if self.now % 5 == 0:
                self.report()
            self.federation.tick(self.now)

    def report(self) -> None:
        alive = [n for n in range(self.count) if n not in self.dead]
        links = {link for link in self.links() if self.dead.isdisjoint(link)}
        graph = make_graph(map(str, alive), [(str(a), str(b)) for a, b in links])
        for number in alive:
            if number not in self.silent:
                near: dict[str, float | None] = {
                    agent(int(other)): 2.0 for other in graph[str(number)]
                }
                seen = frozenset(agent(n) for n in alive)
                self.federation.report(number, NodeReport(0.5, near, seen), self.now)

    def states(self) -> list[NodeState]:
        return [node.state for node in self.federation.nodes()]

    def degree(self, number: int) -> int:
        return sum(number in link for link in self.links())


def test_ids_are_sequential_and_neighbours_follow_the_paper(store):
    scene = Scene(store)
    first = scene.join(0)
    assert (first.node.id, first.neighbours) == (0, [])
    second = scene.join(1)
    assert (second.node.id, [n.node.id for n in second.neighbours]) == (1, [0])
    third = scene.join(2)
    assert (third.node.id, [n.node.id for n in third.neighbours]) == (2, [0, 1])
    assert [n.dial for n in third.neighbours] == [True, True]  # the newer dials the older
    assert [n.dial for n in scene.federation.topology(0).neighbours] == [False, False]
    assert scene.events == [
        "joined (0,)", "joined (1,)", "link added (0, 1)",
        "joined (2,)", "link added (0, 2)", "link added (1, 2)",
    ]  # fmt: skip


def test_rejoining_agent_keeps_its_id(store):
    scene = Scene(store, 3)
    again = scene.join(1)
    assert (again.node.id, len(scene.federation.nodes())) == (1, 3)
    old_kind = scene.federation.join(JoiningNode(ip="tcp://a:1883"), 1.0)
    assert scene.federation.join(JoiningNode(ip="tcp://a:1883"), 2.0).node.id == old_kind.node.id
    by_link = scene.federation.join(JoiningNode(link="a:10500"), 3.0)
    assert scene.federation.join(JoiningNode(link="a:10500"), 4.0).node.id == by_link.node.id
    assert len(scene.federation.nodes()) == 5


def test_state_survives_a_restart(database):
    from hansa.manager.store import open_store

    first = open_store(database)
    scene = Scene(first, 4, degree_max=7)
    links, version = scene.links(), scene.federation.topology(0).version
    first.close()
    second = open_store(database)
    again = FederationRegistry(second)
    assert {(link.a, link.b) for link, _, _ in again.links()} == links
    assert again.topology(0).version == version
    assert again.settings.degree_max == 7
    second.close()


def test_node_is_gone_after_two_missed_reports_and_replaced(store):
    scene = Scene(store, 9)
    scene.dead = {0, 7}
    scene.run(9)
    assert NodeState.GONE not in scene.states()
    scene.run(10)
    assert [n for n, state in enumerate(scene.states()) if state is NodeState.GONE] == [0, 7]
    scene.run(10)
    left = [str(n) for n in range(9) if n not in (0, 7)]
    names = [(str(a), str(b)) for a, b in scene.links()]
    assert is_connected(make_graph(left, names))
    assert all("0" not in link and "7" not in link for link in names)
    assert scene.federation.plan() == []


def test_reachable_node_without_reports_is_not_gone(store):
    scene = Scene(store, 4)
    scene.silent = {2}
    scene.run(60)
    assert scene.states() == [NodeState.UP] * 4
    assert scene.federation.suspected(scene.now) == {2}


def test_federator_with_unreachable_broker_is_gone(store):
    """The client of its broker reports for a federator of the paper."""
    scene = Scene(store, 3)
    papers = [f"tcp://paper-{n}:1883" for n in range(3)]
    numbers = [scene.federation.join(JoiningNode(ip=ip), scene.now).node.id for ip in papers]
    for _ in range(12):
        scene.run(5)
        for number in numbers:
            scene.federation.report(number, NodeReport(0.5), scene.now)
    assert scene.states() == [NodeState.UP] * 6
    # No report says whether these links are established.
    assert [scene.degree(number) for number in numbers] == [2, 2, 2]
    scene.run(15)
    assert scene.states() == [NodeState.UP] * 3 + [NodeState.GONE] * 3
    scene.federation.report(numbers[0], NodeReport(0.5), scene.now)
    assert scene.states() == [NodeState.UP] * 4 + [NodeState.GONE] * 2


def test_node_is_bound_to_its_secret_except_for_operators(store):
    federation = Scene(store).federation
    who = JoiningNode(link="h:1", node=agent(0), secret="digest")
    assert federation.join(who, 0.0, trusted=False).node.id == 0
    federation.join(who, 1.0, trusted=False)
    for secret in ("", "other"):
        with pytest.raises(RequestRefused, match="joined with another secret"):
            federation.join(replace(who, secret=secret), 2.0, trusted=False)
    federation.join(replace(who, secret=""), 3.0)  # by an operator; the node keeps its secret
    federation.require_owner(0, "digest")
    with pytest.raises(RequestRefused, match="joined with another secret"):
        federation.require_owner(0, "")


def test_no_node_is_gone_without_any_report(store):
    scene = Scene(store, 4)
    links = scene.links()
    scene.silent = {0, 1, 2, 3}
    scene.run(600)
    assert scene.states() == [NodeState.UP] * 4
    assert scene.links() == links


def test_restarted_manager_waits_for_reports(store):
    scene = Scene(store, 4)
    again = FederationRegistry(store)
    again.tick(scene.now + 3600)
    again.tick(scene.now + 3601)
    assert [node.state for node in again.nodes()] == [NodeState.UP] * 4


def test_returning_node_is_linked_again(store):
    scene = Scene(store, 5)
    scene.dead = {2}
    scene.run(30)
    assert scene.states()[2] is NodeState.GONE
    assert scene.degree(2) == 0
    scene.dead = set()
    scene.run(10)
    assert scene.states()[2] is NodeState.UP
    assert scene.degree(2) == 2
    assert "returned (2,)" in scene.events


def test_leave_is_immediate_and_permanent(store):
    scene = Scene(store, 4)
    scene.federation.leave(3, scene.now)
    scene.federation.leave(3, scene.now)
    assert scene.degree(3) == 0
    assert scene.events.count("left (3,)") == 1
    with pytest.raises(RequestRefused, match="node 3 has left"):
        scene.federation.report(3, NodeReport(), scene.now)
    assert scene.join(3).node.id == 3


def test_self_made_links_are_adopted(store):
    scene = Scene(store, 6)
    free = next((a, b) for a in range(6) for b in range(a + 1, 6) if (a, b) not in scene.links())
    report = NodeReport(0.5, {agent(free[1]): 3.0}, frozenset(agent(n) for n in range(6)))
    answer = scene.federation.report(free[0], report, scene.now)
    assert free[1] in [neighbour.node.id for neighbour in answer.neighbours]


def test_recently_removed_link_is_not_adopted(store):
    scene = Scene(store, 5)
    before = {link for link in scene.links() if 0 in link}
    scene.federation.drain(0, True, scene.now)
    while not (gone := sorted(before - scene.links())):
        scene.run(1)
        assert scene.now < 100
    everybody = frozenset(agent(n) for n in range(5))
    still = NodeReport(0.5, {agent(gone[0][1]): 3.0}, everybody)
    scene.federation.drain(0, False, scene.now)
    fresh = Scene(store)  # a new manager does not know that it was removed
    scene.federation.report(0, still, scene.now)
    taken = {link for link, _, _ in scene.federation.links() if link.origin == "healed"}
    assert gone[0] not in {(link.a, link.b) for link in taken}
    fresh.federation.report(0, still, scene.now)
    assert gone[0] in fresh.links()


def test_failed_link_is_replaced(store):
    scene = Scene(store, 4)
    scene.join(4)
    scene.count = 5
    never = {link for link in scene.links() if 4 in link}
    real = scene.links
    scene.links = lambda: real() - never  # type: ignore[method-assign]  # nobody can dial these
    scene.run(40)
    assert real() & never == set()
    assert sum(4 in link for link in real()) >= 2


def test_link_timeout_restarts_after_a_rejoin_or_restart(store):
    scene = Scene(store, 4)
    before = scene.links()
    scene.join(0)  # restarted; its links are established again soon
    none: dict[str, float | None] = {}
    for number in range(4):
        seen = frozenset(agent(n) for n in range(4))
        scene.federation.report(number, NodeReport(0.5, none, seen), scene.now)
    scene.federation.tick(scene.now + 1)
    assert {link for link in before if 0 in link} <= scene.links()

    later = FederationRegistry(store)
    for number in range(4):
        later.report(number, NodeReport(0.5, none, frozenset()), scene.now + 100)
    later.tick(scene.now + 100)
    assert {(link.a, link.b) for link, _, _ in later.links()} == scene.links()


def test_draining_node_keeps_one_link_after_others_are_linked(store):
    scene = Scene(store, 5)
    scene.federation.drain(0, True, scene.now)
    scene.run(60)
    assert scene.degree(0) == 1
    rest = make_graph("1234", [(str(a), str(b)) for a, b in scene.links()])
    assert is_connected(rest)
    scene.federation.drain(0, False, scene.now)
    scene.run(30)
    assert scene.degree(0) >= 2


def test_draining_survives_a_rejoin_but_not_a_leave(store):
    scene = Scene(store, 5)
    scene.federation.drain(0, True, scene.now)
    assert scene.join(0).node.draining
    scene.federation.leave(0, scene.now)
    assert not scene.join(0).node.draining


def test_planner_respects_links_of_the_operator(store):
    scene = Scene(store, 6, degree_max=3)
    free = [(a, b) for a in range(6) for b in range(a + 1, 6) if (a, b) not in scene.links()]
    scene.federation.add_link(*free[0], scene.now)
    scene.federation.add_link(free[1][1], free[1][0], scene.now)
    old = sorted(scene.links() - set(free))[0]
    scene.federation.remove_link(*old, scene.now)
    scene.run(100)
    assert set(free[:2]) <= scene.links()
    assert old not in scene.links()


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (lambda f: f.leave(9, 0.0), "there is no node 9"),
        (lambda f: f.topology(9), "there is no node 9"),
        (lambda f: f.add_link(1, 1, 0.0), "cannot be linked to itself"),
        (lambda f: f.add_link(0, 9, 0.0), "there is no node 9"),
        (lambda f: f.remove_link(0, 9, 0.0), "there is no node 9"),
    ],
)
def test_impossible_requests_are_refused(store, wish, said):
    scene = Scene(store, 2)
    with pytest.raises(RequestRefused, match=said):
        wish(scene.federation)


def test_invalid_settings_are_not_applied(store):
    scene = Scene(store, 2)
    with pytest.raises(UsageError, match="degree_max must be from 3 to 64"):
        scene.federation.change_settings({"degree_max": 1}, 0.0)
    assert scene.federation.settings.degree_max == 5


def test_agents_and_paper_federators_are_planned_separately(store):
    federation = Scene(store).federation
    for number in range(5):
        federation.join(JoiningNode(link=f"h{number}:1", node=agent(number)), 0.0)
        federation.join(JoiningNode(ip=f"tcp://paper-{number}:1883"), 0.0)
    links = [(str(link.a), str(link.b)) for link, _, _ in federation.links()]
    assert all(int(a) % 2 == int(b) % 2 for a, b in links)
    assert is_connected(make_graph("02468", links))
    assert is_connected(make_graph("13579", links))
    with pytest.raises(RequestRefused, match="only one of 0 and 1 is an agent"):
        federation.add_link(0, 1, 0.0)


def test_operator_link_is_kept_for_a_gone_node(store):
    scene = Scene(store, 6)
    free = [(a, b) for a in range(6) for b in range(a + 1, 6) if (a, b) not in scene.links()]
    scene.federation.add_link(*free[0], scene.now)
    scene.run(10)
    scene.dead = {free[0][0]}
    scene.run(30)
    assert {link for link in scene.links() if free[0][0] in link} == {free[0]}
    near = scene.federation.topology(free[0][1]).neighbours
    assert free[0][0] not in [each.node.id for each in near]
    scene.dead = set()
    scene.run(10)
    near = scene.federation.topology(free[0][1]).neighbours
    assert free[0][0] in [each.node.id for each in near]
    scene.federation.leave(free[0][0], scene.now)
    assert free[0] not in scene.links()


def test_links_behind_a_split_are_kept(store):
    scene = Scene(store, 8)
    far = {2, 3, 4, 5, 6, 7}
    beyond = {link for link in scene.links() if far.issuperset(link)}
    scene.dead = far
    scene.run(30)
    assert scene.states() == [NodeState.UP] * 2 + [NodeState.GONE] * 6
    assert beyond <= scene.links()
    members = frozenset(map(agent, far))
    scene.federation.report(2, NodeReport(0.5, {}, members), scene.now)  # it reaches others
    assert scene.states() == [NodeState.UP] * 8
    assert beyond <= scene.links()


def test_unmeasured_broker_is_treated_as_slow(store):
    scene = Scene(store, 3)
    scene.federation.report(1, NodeReport(None), scene.now)
    assert [node.latency_ms for node in scene.federation.nodes()] == [0.5, None, 0.5]
    scene.join(3)
    assert {link for link in scene.links() if 3 in link} == {(0, 3), (2, 3)}


def test_round_trip_of_either_end_is_used(store):
    scene = Scene(store, 2)
    everybody = frozenset({agent(0), agent(1)})
    scene.federation.report(0, NodeReport(0.5, {agent(1): None}, everybody), scene.now)
    scene.federation.report(1, NodeReport(0.5, {agent(0): 7.0}, everybody), scene.now)
    assert [rtt for _, _, rtt in scene.federation.links()] == [7.0]


def reinstall(scene: Scene, number: int) -> int:
    """Node `number` crashes, and a new agent joins at its address; return its number."""
    scene.dead.add(number)
    link = f"h{number}:10500"
    who = JoiningNode(link=link, node=agent(scene.count), name=f"n{number}")
    scene.count += 1
    return scene.federation.join(who, scene.now).node.id


def test_reinstalled_agent_replaces_the_gone_node_at_its_address(store):
    scene = Scene(store, 4)
    scene.federation.add_link(0, 1, scene.now)
    new = reinstall(scene, 1)
    scene.run(20)
    assert scene.states() == [
        NodeState.UP,
        NodeState.LEFT,
        NodeState.UP,
        NodeState.UP,
        NodeState.UP,
    ]
    assert not [link for link in scene.links() if 1 in link]
    assert (0, new) in scene.links()  # the operator's link goes to the new node
    events = [row.reason for row in store.history(limit=1000) if row.kind == "left"]
    assert events == [f"{new} (n1) replaced 1 (n1) at h1:10500"]


def test_reinstalled_agent_inherits_removed_links(store, caplog):
    caplog.set_level("INFO", "hansa.manager")
    scene = Scene(store, 4)
    scene.federation.add_link(0, 1, scene.now)
    scene.federation.remove_link(0, 1, scene.now)
    new = reinstall(scene, 1)
    scene.run(20)
    assert scene.states()[1] is NodeState.LEFT
    assert (0, new) not in scene.links()
    assert (0, new) in store.barred()
    assert f"node replaced old=1 new={new} name='n1' address=h1:10500" in caplog.text
    events = [
        (row.kind, row.nodes) for row in store.history(limit=1000) if "replaced" in row.reason
    ]
    assert events[0] == ("left", (1,))


def test_decisions_for_the_new_node_have_precedence(store):
    scene = Scene(store, 4)
    scene.federation.add_link(0, 1, scene.now)
    scene.federation.remove_link(0, 1, scene.now)
    new = reinstall(scene, 1)
    scene.federation.add_link(0, new, scene.now)
    scene.run(20)
    assert (0, new) in scene.links()
    assert (0, new) not in store.barred()


def test_two_live_agents_at_one_address_are_both_kept(store):
    scene = Scene(store, 4)
    reinstall(scene, 1)
    scene.dead.clear()
    scene.run(60)
    assert scene.states() == [NodeState.UP] * 5


def test_with_approval_only_urgent_changes_are_made(store):
    scene = Scene(store, 3, approval=True)
    assert len(scene.links()) == 2  # connected, but a lost link would split it
    (change,) = scene.federation.plan()
    a, b = map(int, change.link)
    assert (change.kind, (a, b) in scene.links()) == ("add", False)
    scene.federation.apply_change("add", b, a, scene.now)
    assert len(scene.links()) == 3
    with pytest.raises(RequestRefused, match="no longer in the plan"):
        scene.federation.apply_change("add", a, b, scene.now)


def test_with_approval_links_of_a_gone_node_are_replaced(store):
    scene = Scene(store, 4, approval=True)
    middle = max(range(4), key=scene.degree)
    scene.dead.add(middle)
    scene.run(60)
    alive = [str(number) for number in range(4) if number != middle]
    assert is_connected(make_graph(alive, [(str(a), str(b)) for a, b in scene.links()]))
