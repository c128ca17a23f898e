import random

from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.topology.graph import (
    bridges,
    connected_components,
    is_connected,
    make_graph,
    make_link_pair,
)
from hansa.topology.healing import (
    RETRY_PAUSE_MAX_S,
    LinkActions,
    LocalTopology,
    TopologyHealer,
    choose_absent_to_dial,
    make_local_topology,
    node_name,
    plan_own_links,
)
from hansa.topology.planner import PlannerLimits

LIMITS = PlannerLimits(degree_max=5)


def topology_of(me: str, links: str, absent: str = "") -> LocalTopology:
    pairs = frozenset(make_link_pair(*text.split("-")) for text in links.split())
    reach = tuple(sorted({me, *(name for link in pairs for name in link)}))
    return LocalTopology(me, reach, tuple(absent), pairs)


def always_dial() -> random.Random:
    rng = random.Random(1)
    rng.random = lambda: 0.0  # type: ignore[method-assign]
    return rng


def test_sound_topology_needs_no_action():
    assert plan_own_links(topology_of("a", "a-b b-c a-c"), LIMITS) == LinkActions()


def test_isolated_node_dials_degree_min_nodes():
    alone = topology_of("a", "", "bcd")
    dialled = choose_absent_to_dial(alone, "bcd", LIMITS, random.Random(1))
    assert len(dialled) == 2
    assert set(dialled) <= set("bcd")
    assert choose_absent_to_dial(alone, "", LIMITS, random.Random(1)) == []


def test_only_the_ends_of_a_line_close_the_ring():
    dialled = {me: plan_own_links(topology_of(me, "a-b b-c c-d"), LIMITS).dial for me in "abcd"}
    assert dialled == {"a": ("d",), "b": (), "c": (), "d": ("a",)}


def test_unreachable_node_is_dialled_at_random():
    known = topology_of("a", "a-b b-c a-c", absent="x")
    rng = random.Random(7)
    tried = sum(choose_absent_to_dial(known, "x", LIMITS, rng) == ["x"] for _ in range(900))
    assert 500 < tried < 700  # two of three nodes each time


def test_surplus_links_are_closed_only_if_self_dialled():
    links = " ".join(f"{a}-{b}" for a in "abcde" for b in "abcde" if a < b)
    known = topology_of("a", links)
    healer = TopologyHealer(PlannerLimits(degree_max=3), always_dial())
    (drop,) = {healer.next_actions(known, frozenset("bcde"), now).drop for now in (0.0, 1.0)}
    assert drop == ("b", "c")
    assert healer.next_actions(known, frozenset("bcde") - set(drop), 2.0) == LinkActions()


def test_link_to_a_leaf_is_a_bridge():
    known = topology_of("a", "a-b b-c a-c a-d")
    assert [known.is_bridge_to(name) for name in known.neighbours] == [False, False, True]


@given(st.integers(2, 14), st.sets(st.tuples(st.integers(0, 13), st.integers(0, 13))), st.data())
@settings(deadline=None, max_examples=60)
def test_nodes_become_connected_from_any_topology(count, edges, data):
    """Model of a federation without a manager: all nodes act in turn, and every dial succeeds."""
    names = [f"n{number:02}" for number in range(count)]
    links = {make_link_pair(names[a], names[b]) for a, b in edges if a < b < count}
    rng = random.Random(data.draw(st.integers(0, 99)))
    healers = {name: TopologyHealer(LIMITS, rng) for name in names}
    own: dict[str, set[str]] = {name: set() for name in names}
    for now in range(300):
        for me in names:
            (part,) = [
                part for part in connected_components(make_graph(names, links)) if me in part
            ]
            inside = frozenset(link for link in links if link[0] in part)
            absent = tuple(name for name in names if name not in part)
            known = LocalTopology(me, tuple(part), absent, inside)
            actions = healers[me].next_actions(known, frozenset(own[me]), float(now))
            links |= {make_link_pair(me, other) for other in actions.dial}
            links -= {make_link_pair(me, other) for other in actions.drop}
            own[me] |= set(actions.dial)
    end = make_graph(names, links)
    assert is_connected(end)
    if count > 2:
        assert bridges(end) == set()


def test_planned_dial_is_made_when_two_plans_agree():
    healer = TopologyHealer(LIMITS, always_dial())
    line = topology_of("a", "a-b b-c c-d")
    assert healer.next_actions(line, frozenset(), 0.0) == LinkActions()
    assert healer.next_actions(line, frozenset(), 1.0) == LinkActions(dial=("d",))
    assert healer.next_actions(topology_of("a", "a-b b-c a-c"), frozenset(), 2.0) == LinkActions()
    assert healer.next_actions(line, frozenset(), 3.0) == LinkActions()


def test_while_the_manager_plans_only_unreachable_nodes_are_dialled():
    healer = TopologyHealer(LIMITS, always_dial())
    for now in (0.0, 1.0):
        known = topology_of("a", "a-b b-c c-d")
        assert healer.next_actions(known, frozenset(), now, is_planning=False) == LinkActions()
    apart = topology_of("a", "a-b", absent="x")
    assert healer.next_actions(apart, frozenset(), 2.0, is_planning=False) == LinkActions(
        dial=("x",)
    )
    alone = topology_of("a", "", absent="xy")
    assert healer.next_actions(alone, frozenset(), 3.0, is_planning=False).dial != ()


def test_pauses_between_dials_of_an_unreachable_node_grow():
    healer = TopologyHealer(LIMITS, random.Random(3))
    alone = topology_of("a", "", absent="x")
    tries = [now for now in range(600) if healer.next_actions(alone, frozenset(), float(now)).dial]
    pauses = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]
    assert 12 <= len(tries) <= 30
    assert max(pauses) <= RETRY_PAUSE_MAX_S + 1
    back = topology_of("a", "a-x")
    healer.next_actions(back, frozenset(), 600.0)
    assert healer.next_actions(alone, frozenset(), 601.0).dial == (
        "x",
    )  # it was reachable: the pause starts again


def test_local_topology_has_links_that_both_ends_announce():
    links = {1: [(2, 3000)], 2: [(1, 3000), (3, 1)], 3: [], 9: [(1, 5)]}
    known = make_local_topology(1, links, [1, 2, 3], [2, 3, 9])
    a, b, c, z = (f"{number:016x}" for number in (1, 2, 3, 9))
    assert known == LocalTopology(a, (a, b, c), (z,), frozenset({(a, b)}), {(a, b): 3.0})
    assert node_name(9) == z
