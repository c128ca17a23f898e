"""Paths on the map: examples, and the loss of every link on random maps."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.shortest_paths import (
    Arc,
    ShortestPathTree,
    shortest_path_tree,
    two_disjoint_paths,
)
from hansa.protocol.model import NodeId
from hansa.protocol.settings import Metric

ROOT = NodeId(0)
NODES = 7

Lengths = dict[tuple[int, int], int]


def graph_of(links: Lengths) -> Graph:
    graph = Graph(ROOT, Metric.RTT)
    ends: dict[NodeId, dict[NodeId, int]] = {}
    for (a, b), length in links.items():
        ends.setdefault(NodeId(a), {})[NodeId(b)] = length
        ends.setdefault(NodeId(b), {})[NodeId(a)] = length
    for node, near in ends.items():
        graph.set_links(node, near)
    return graph


def arcs_of(links: Lengths) -> list[Arc]:
    pairs = [(NodeId(a), NodeId(b)) for a, b in links]
    return [*pairs, *((b, a) for a, b in pairs)]


def reach(arcs: list[Arc], without: set[int]) -> set[int]:
    """Nodes that are reachable from the root without one link, by plain search."""
    found, grown = {ROOT}, True
    while grown:
        new = {b for a, b in arcs if a in found and {a, b} != without} - found
        found |= new
        grown = bool(new)
    return set(found)


maps = st.dictionaries(
    st.sampled_from(list(combinations(range(NODES), 2))), st.integers(1, 9), min_size=1
)


def test_nodes_below_a_node_have_its_next_hop():
    tree = shortest_path_tree(graph_of(dict.fromkeys([(0, 1), (1, 2), (2, 3), (1, 4)], 1)), ROOT)
    assert tree.next_hops_below(NodeId(1)) == {2: 2, 3: 2, 4: 4}
    assert tree.next_hops_below(NodeId(3)) == {}
    assert tree.path_to(NodeId(3)) == {0: 1, 1: 2, 2: 3}
    assert tree.path_to(ROOT) == {}


def test_smaller_parent_breaks_ties_of_paths():
    tree = shortest_path_tree(graph_of(dict.fromkeys([(0, 2), (0, 1), (2, 3), (1, 3)], 1)), ROOT)
    assert tree.parents[NodeId(3)] == 1


def test_node_without_links_is_its_own_tree():
    assert shortest_path_tree(graph_of({}), NodeId(5)) == ShortestPathTree(
        NodeId(5), {}, {NodeId(5): 0}
    )


def test_first_path_that_blocks_all_others_is_changed():
    """The shortest path 0-1-2-3 uses a link of both disjoint paths."""
    links = {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 2): 4, (1, 3): 4}
    graph = graph_of(links)
    tree = shortest_path_tree(graph, ROOT)
    assert tree.path_to(NodeId(3)) == {0: 1, 1: 2, 2: 3}
    assert set(two_disjoint_paths(graph, tree, NodeId(3))) == {(0, 1), (1, 3), (0, 2), (2, 3)}


@given(maps)
def test_paths_of_a_tree_are_the_shortest(links):
    tree = shortest_path_tree(graph_of(links), ROOT)
    assert set(tree.distances) == reach(arcs_of(links), set())
    lengths = links | {(b, a): length for (a, b), length in links.items()}
    for node, parent in tree.parents.items():
        assert tree.distances[node] == tree.distances[parent] + lengths[parent, node]
    for a, b in arcs_of(links):  # no link is a shortcut
        if a in tree.distances:
            assert tree.distances[b] <= tree.distances[a] + lengths[a, b]


@given(maps, st.integers(1, NODES - 1))
def test_two_paths_survive_every_link_loss_that_the_map_survives(links, target):
    graph = graph_of(links)
    tree = shortest_path_tree(graph, ROOT)
    if target not in tree.parents:
        return
    arcs = list(two_disjoint_paths(graph, tree, NodeId(target)))
    assert set(arcs) <= set(arcs_of(links))
    assert not any((b, a) in arcs for a, b in arcs)
    for a, b in links:
        assert (target in reach(arcs, {a, b})) == (target in reach(arcs_of(links), {a, b}))
