from hypothesis import given
from hypothesis import strategies as st

from hansa.topology.graph import (
    bridges,
    connected_components,
    hops_from,
    is_connected,
    make_graph,
    make_link_pair,
    path_lengths_from,
    two_edge_connected_components,
)

LINE = make_graph("abcd", [("a", "b"), ("b", "c"), ("c", "d")])


def test_graph_has_no_links_to_other_nodes():
    assert make_graph("ab", [("a", "b"), ("b", "x")]) == {"a": ["b"], "b": ["a"]}


def test_components_are_ordered_by_name():
    graph = make_graph("abcdef", [("b", "c"), ("c", "d"), ("b", "d"), ("d", "e")])
    assert connected_components(graph) == [["a"], ["b", "c", "d", "e"], ["f"]]
    assert two_edge_connected_components(graph) == [["a"], ["b", "c", "d"], ["e"], ["f"]]


def test_hops_and_lengths():
    assert hops_from(LINE, "a") == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert path_lengths_from(LINE, "a", {("a", "b"): 2.0, ("b", "c"): 3.0}, 10.0) == {
        "a": 0.0, "b": 2.0, "c": 5.0, "d": 15.0,
    }  # fmt: skip


def test_empty_graph_is_connected():
    assert is_connected({})
    assert not is_connected(make_graph("ab", []))


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda e: e[0] < e[1])))
def test_loss_of_a_bridge_adds_a_component(edges):
    names = [str(number) for number in range(8)]
    links = {make_link_pair(str(a), str(b)) for a, b in edges}
    before = len(connected_components(make_graph(names, links)))
    expected = {
        link
        for link in links
        if len(connected_components(make_graph(names, links - {link}))) > before
    }
    assert bridges(make_graph(names, links)) == expected
