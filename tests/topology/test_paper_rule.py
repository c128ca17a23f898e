from hansa.topology.graph import is_connected, make_graph
from hansa.topology.paper_rule import join_node, remove_node
from hansa.topology.planner import (
    PlannerInput,
    PlannerLimits,
    PlannerNode,
    apply_changes,
    plan_changes,
)

NONE: frozenset[tuple[str, str]] = frozenset()


def members(text: str) -> list[PlannerNode]:
    return [PlannerNode(name, float(latency)) for name, latency in zip(text, "12345", strict=False)]


def test_first_node_is_alone_and_the_second_links_to_it():
    assert join_node("a", members("a"), NONE, 5) == NONE
    assert join_node("b", members("ab"), NONE, 5) == {("a", "b")}


def test_new_node_gets_the_lowest_latency_and_the_fewest_neighbours():
    links = frozenset({("a", "b"), ("a", "c"), ("b", "c")})
    assert join_node("d", members("abcd"), links, 3) - links == {("a", "d"), ("b", "d")}
    assert join_node("d", members("abcd"), links, 2) - links == {
        ("a", "d")
    }  # no other node has room


def test_only_isolated_nodes_are_linked_again():
    links = frozenset({("a", "b"), ("b", "c"), ("c", "d")})
    left = [member for member in members("abcd") if member.name != "b"]
    assert remove_node("b", left, links, 5) == {("c", "d"), ("a", "c"), ("a", "d")}


def test_rule_can_leave_two_components_where_the_planner_does_not():
    """Two pairs joined by one lost node: no node is isolated, so the rule does nothing."""
    links = frozenset({("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")})
    left = [member for member in members("abcde") if member.name != "c"]
    names = [member.name for member in left]
    assert not is_connected(make_graph(names, remove_node("c", left, links, 5)))
    situation = PlannerInput(tuple(left), links)
    planned = apply_changes(situation, plan_changes(situation, PlannerLimits()))
    assert is_connected(make_graph(names, planned.links))
