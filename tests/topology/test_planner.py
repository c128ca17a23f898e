import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.topology.graph import bridges, is_connected, make_graph, make_link_pair
from hansa.topology.planner import (
    LinkChange,
    PlannerInput,
    PlannerLimits,
    PlannerNode,
    apply_changes,
    plan_changes,
    plan_until_stable,
)

LIMITS = PlannerLimits(degree_max=5)


def planner_input(count: int, links: list[tuple[int, int]], **given) -> PlannerInput:
    nodes = tuple(PlannerNode(name(number)) for number in range(count))
    return PlannerInput(
        nodes, frozenset(make_link_pair(name(a), name(b)) for a, b in links), **given
    )


def name(number: int) -> str:
    return f"n{number:02}"


def graph(of: PlannerInput):
    staying = [node.name for node in of.nodes if not node.draining]
    return make_graph(staying, of.links)


@st.composite
def planner_inputs(draw):
    """Any topology: dead and draining nodes, rings, stars, components."""
    count = draw(st.integers(1, 14))
    places = st.integers(0, count + 2)  # some links lead to dead nodes
    links = draw(st.sets(st.tuples(places, places).filter(lambda p: p[0] < p[1]), max_size=40))
    nodes = tuple(
        PlannerNode(
            name(number),
            latency_ms=draw(st.floats(0, 100)),
            tags=tuple(draw(st.sets(st.sampled_from(["eu", "us"]), max_size=1))),
            draining=draw(st.booleans()) and draw(st.booleans()),
        )
        for number in range(count)
    )
    rtts = draw(st.dictionaries(st.sampled_from(sorted(links) or [(0, 1)]), st.floats(0, 300)))
    return PlannerInput(
        nodes,
        frozenset(make_link_pair(name(a), name(b)) for a, b in links),
        {make_link_pair(name(a), name(b)): rtt for (a, b), rtt in rtts.items()},
    )


limits = st.builds(PlannerLimits, degree_max=st.integers(3, 6), changes_max=st.integers(1, 8))


@given(planner_inputs(), limits)
@settings(deadline=None, max_examples=50)
def test_one_plan_connects_all_staying_nodes(given, limits):
    planned = apply_changes(given, plan_changes(given, limits))
    assert is_connected(graph(planned))


@given(planner_inputs(), limits)
@settings(deadline=None, max_examples=50)
def test_repeated_planning_ends_without_bridges_and_within_degrees(given, limits):
    rest, _ = plan_until_stable(given, limits, rounds=200)
    assert plan_changes(rest, limits) == []
    end = graph(rest)
    if len(end) >= 3:
        assert bridges(end) == set()
    assert max((len(near) for near in end.values()), default=0) <= limits.degree_max


@given(planner_inputs(), limits)
@settings(deadline=None, max_examples=50)
def test_plan_that_adds_links_removes_only_dead_ones(given, limits):
    changes = plan_changes(given, limits)
    there = {node.name for node in given.nodes}
    removed = [c for c in changes if c.kind == "remove" and there.issuperset(c.link)]
    assert not removed or not [c for c in changes if c.kind == "add"]


@given(planner_inputs(), limits)
@settings(deadline=None, max_examples=50)
def test_removal_creates_no_bridge(given, limits):
    changes = plan_changes(given, limits)
    if not any(change.kind == "add" for change in changes):
        gone = {c.link for c in changes if c.reason.endswith("is gone")}
        before = graph(PlannerInput(given.nodes, given.links - gone))
        assert len(bridges(graph(apply_changes(given, changes)))) <= len(bridges(before))


@given(planner_inputs(), limits, st.data())
@settings(deadline=None, max_examples=50)
def test_plan_reconnects_after_any_loss_of_nodes(given, limits, data):
    rest, _ = plan_until_stable(given, limits, rounds=200)
    lost = data.draw(st.sets(st.sampled_from([m.name for m in rest.nodes])))
    left = PlannerInput(tuple(m for m in rest.nodes if m.name not in lost), rest.links)
    planned = apply_changes(left, plan_changes(left, limits))
    assert is_connected(graph(planned))
    assert not any(lost.intersection(link) for link in planned.links)


@given(planner_inputs(), limits)
@settings(deadline=None, max_examples=50)
def test_number_of_changes_per_plan_is_bounded(given, limits):
    changes = plan_changes(given, limits)
    reasons = [c.reason for c in changes]
    exempt = [r for r in reasons if "is gone" in r or "no neighbour" in r or "two components" in r]
    assert len(reasons) - len(exempt) <= limits.changes_max


def test_plan_for_a_sound_topology_is_empty():
    assert plan_changes(planner_input(0, []), LIMITS) == []
    assert plan_changes(planner_input(1, []), LIMITS) == []
    assert plan_changes(planner_input(2, [(0, 1)]), LIMITS) == []
    assert plan_changes(planner_input(4, [(0, 1), (1, 2), (2, 3), (0, 3)]), LIMITS) == []


def test_first_two_nodes_are_linked():
    reason = "n00 has no neighbour, 50.0 ms (estimated)"
    assert plan_changes(planner_input(2, []), LIMITS) == [LinkChange("add", ("n00", "n01"), reason)]


def test_new_node_gets_the_nearest_with_room_and_a_redundant_neighbour():
    ring = planner_input(5, [(0, 1), (1, 2), (2, 3), (0, 3)], rtt_ms={("n02", "n04"): 3.0})
    assert plan_changes(ring, LIMITS) == [
        LinkChange("add", ("n02", "n04"), "n04 has no neighbour, 3.0 ms (measured)"),
        LinkChange(
            "add", ("n00", "n04"), "second path: one lost link must not split the federation"
        ),
    ]


def test_full_node_is_not_chosen():
    links = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    given = planner_input(5, links, rtt_ms={("n00", "n04"): 1.0, ("n01", "n04"): 9.0})
    assert plan_changes(given, PlannerLimits(degree_max=3))[0].link == ("n01", "n04")


def test_nodes_with_a_common_tag_are_near():
    nodes = (PlannerNode("a", tags=("eu",)), PlannerNode("b"), PlannerNode("c", tags=("eu", "x")))
    assert plan_changes(PlannerInput(nodes, frozenset()), LIMITS)[0].link == ("a", "c")


def test_line_becomes_a_ring():
    changes = plan_changes(planner_input(4, [(0, 1), (1, 2), (2, 3)]), LIMITS)
    assert [change.link for change in changes] == [("n00", "n03")]


def test_draining_node_keeps_one_link():
    nodes = tuple(PlannerNode(name(n), draining=n == 0) for n in range(4))
    star = PlannerInput(nodes, frozenset({("n00", "n01"), ("n00", "n02"), ("n00", "n03")}))
    first = plan_changes(star, LIMITS)
    assert {change.kind for change in first} == {"add"}
    rest, _ = plan_until_stable(star, LIMITS)
    assert [link for link in rest.links if "n00" in link] == [("n00", "n01")]
    assert bridges(graph(rest)) == set()


def test_pinned_links_stay_and_barred_ones_are_the_last_resort():
    full = planner_input(5, [(a, b) for a in range(5) for b in range(a)], pinned=frozenset())
    pinned = PlannerInput(full.nodes, full.links, pinned=full.links)
    assert [
        c for c in plan_changes(pinned, PlannerLimits(degree_max=3)) if c.kind == "remove"
    ] == []
    barred = planner_input(2, [], barred=frozenset({("n00", "n01")}))
    assert plan_changes(barred, LIMITS)[0].link == ("n00", "n01")
    choice = planner_input(3, [(1, 2)], barred=frozenset({("n00", "n01")}))
    assert ("n00", "n01") not in [change.link for change in plan_changes(choice, LIMITS)]


@pytest.mark.parametrize("degree", [3, 5])
def test_components_without_room_are_connected(degree):
    size = degree + 1
    cliques = [(a, b) for base in (0, size) for a in range(base, base + size)
               for b in range(base, a)]  # fmt: skip
    rest, _ = plan_until_stable(planner_input(2 * size, cliques), PlannerLimits(degree_max=degree))
    assert is_connected(graph(rest))
    assert bridges(graph(rest)) == set()
    assert max(map(len, graph(rest).values())) == degree


@given(planner_inputs(), limits)
@settings(deadline=None, max_examples=50)
def test_draining_node_stays_reachable(given, limits):
    everybody = [node.name for node in given.nodes]
    whole = is_connected(make_graph(everybody, given.links))
    rest, _ = plan_until_stable(given, limits, rounds=200)
    if whole and any(not member.draining for member in given.nodes):
        assert is_connected(make_graph(everybody, rest.links))


def test_two_draining_neighbours_keep_one_link_each_to_staying_nodes():
    nodes = tuple(PlannerNode(name(n), draining=n < 2) for n in range(5))
    ring = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (2, 4)]
    links = frozenset(make_link_pair(name(a), name(b)) for a, b in ring)
    rest, _ = plan_until_stable(PlannerInput(nodes, links), LIMITS)
    assert {link for link in rest.links if {"n00", "n01"} & set(link)} == {
        ("n00", "n04"),
        ("n01", "n02"),
    }
