"""The map by example, and compared with a slow reference."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.protocol.membership.graph import Graph, Links
from hansa.protocol.model import NodeId
from hansa.protocol.settings import Metric

Map = dict[NodeId, Links]


def graph_of(links: Map, node: int = 1, metric: Metric = Metric.HOPS) -> Graph:
    graph = Graph(NodeId(node), metric)
    for owner, ends in links.items():
        graph.set_links(owner, ends)
    return graph


def both_ways(*links: tuple[int, int], rtt: int = 0) -> Map:
    ends: Map = {}
    for one, other in links:
        ends.setdefault(NodeId(one), {})[NodeId(other)] = rtt
        ends.setdefault(NodeId(other), {})[NodeId(one)] = rtt
    return ends


def chain(*nodes: int) -> Map:
    return both_ways(*pairwise(nodes))


def ends(*nodes: int) -> Links:
    return {NodeId(node): 0 for node in nodes}


# ---------------------------------------------------------------- reachable nodes


def test_node_starts_alone():
    graph = Graph(NodeId(1), Metric.HOPS)
    assert list(graph.reachable) == [1]
    assert graph.next_hop(NodeId(1)) is None


def test_link_counts_when_both_ends_list_it():
    graph = Graph(NodeId(1), Metric.HOPS)
    assert graph.set_links(NodeId(1), ends(2)) == ([], [])
    assert graph.set_links(NodeId(2), ends(1)) == ([2], [])
    assert list(graph.reachable) == [1, 2]


def test_end_that_completes_a_link_may_be_this_node():
    graph = Graph(NodeId(1), Metric.HOPS)
    assert graph.set_links(NodeId(2), ends(1)) == ([], [])
    assert graph.set_links(NodeId(1), ends(2)) == ([2], [])


def test_new_link_brings_everything_behind_it():
    graph = graph_of({**chain(3, 4, 5), **chain(1, 2)})
    assert graph.set_links(NodeId(3), ends(2, 4)) == ([], [])
    assert graph.set_links(NodeId(2), ends(1, 3)) == ([3, 4, 5], [])


def test_link_between_two_other_nodes_reaches_no_new_node():
    graph = graph_of(chain(2, 1, 3))
    assert graph.set_links(NodeId(2), ends(1, 3)) == ([], [])
    assert graph.set_links(NodeId(3), ends(1, 2)) == ([], [])


def test_either_end_can_end_a_link():
    graph = graph_of(chain(1, 2, 3))
    assert graph.set_links(NodeId(3), {}) == ([], [3])
    assert graph.set_links(NodeId(1), {}) == ([], [2])


def test_lost_link_loses_no_node_while_another_path_exists():
    graph = graph_of(both_ways((1, 2), (2, 3), (3, 1)))
    assert graph.set_links(NodeId(1), ends(3)) == ([], [])
    assert list(graph.reachable) == [1, 3, 2]


def test_removal_of_a_one_sided_link_changes_nothing():
    graph = graph_of({NodeId(1): ends(2, 9), NodeId(2): ends(1)})
    assert graph.set_links(NodeId(1), ends(2)) == ([], [])


def test_one_record_can_reach_some_nodes_and_lose_others():
    graph = graph_of({**chain(1, 2), NodeId(3): ends(1)})
    assert graph.set_links(NodeId(1), ends(3)) == ([3], [2])


def test_removed_node_makes_nodes_behind_it_unreachable():
    graph = graph_of(chain(1, 2, 3))
    assert graph.remove_node(NodeId(2)) == ([], [2, 3])
    assert graph.set_links(NodeId(2), ends(1, 3)) == ([2, 3], [])


def test_unknown_node_can_be_removed():
    assert Graph(NodeId(1), Metric.HOPS).remove_node(NodeId(7)) == ([], [])


# ---------------------------------------------------------------- the way to a node


@pytest.mark.parametrize(("to", "hop"), [(1, None), (2, 2), (4, 2), (9, None)])
def test_next_hop_is_on_the_shortest_path(to, hop):
    links = both_ways((1, 2), (1, 3), (2, 4), (3, 5), (5, 4))
    assert graph_of(links).next_hop(NodeId(to)) == hop


def test_smaller_neighbour_breaks_ties_of_paths():
    assert graph_of(both_ways((1, 3), (1, 2), (3, 4), (2, 4))).next_hop(NodeId(4)) == 2


def test_hops_ignore_round_trip_times():
    links = both_ways((1, 2), (2, 3), (3, 1), rtt=10)
    links[NodeId(1)][NodeId(2)] = 9_000
    assert graph_of(links, metric=Metric.HOPS).next_hop(NodeId(2)) == 2
    assert graph_of(links, metric=Metric.RTT).next_hop(NodeId(2)) == 3


def test_link_measured_as_instant_still_has_a_length():
    links = both_ways((1, 2), (2, 3), (1, 3), rtt=0)
    links[NodeId(1)][NodeId(3)] = 1
    assert graph_of(links, metric=Metric.RTT).next_hop(NodeId(3)) == 3


def test_next_hop_follows_the_map():
    graph = graph_of(both_ways((1, 2), (1, 3), (2, 4), (3, 4)))
    assert graph.next_hop(NodeId(4)) == 2
    graph.set_links(NodeId(2), ends(1))
    assert graph.next_hop(NodeId(4)) == 3
    graph.remove_node(NodeId(3))
    assert graph.next_hop(NodeId(4)) is None


# ---------------------------------------------------------------- the nearest to a lost node


def nearest(graph: Graph, lost: int, *candidates: int) -> NodeId | None:
    return graph.nearest_to(NodeId(lost), [NodeId(node) for node in candidates])


def lost_core() -> Graph:
    """5 is lost; its neighbours were 2 and 4, with 3 behind 4 and 1 behind 2."""
    graph = graph_of(both_ways((5, 2), (5, 4), (2, 1), (4, 3), (1, 3)))
    graph.set_links(NodeId(2), ends(1))
    graph.set_links(NodeId(4), ends(3))
    return graph


def test_nearest_is_counted_from_the_neighbours_of_the_lost_node():
    assert nearest(lost_core(), 5, 1, 4) == 4
    assert nearest(lost_core(), 5, 3, 1) == 1


def test_of_two_equally_near_the_smaller_id_is_nearest():
    assert nearest(lost_core(), 5, 4, 2) == 2


def test_no_unreachable_candidate_is_nearest():
    assert nearest(lost_core(), 5, 5, 9) is None
    assert nearest(lost_core(), 8, 5, 9) is None


def test_smallest_id_is_nearest_without_a_reachable_neighbour_of_the_lost_node():
    assert nearest(lost_core(), 8, 9, 4, 3) == 3


# ---------------------------------------------------------------- against references


ids = st.integers(1, 6).map(NodeId)
link_lists = st.dictionaries(ids, st.integers(0, 4), max_size=4)
reports = st.tuples(st.booleans(), ids, link_lists)
maps = st.dictionaries(ids, link_lists, max_size=6)


def around(links: Map, node: NodeId) -> list[NodeId]:
    return [n for n in links.get(node, {}) if node in links.get(n, {})]


def reach(links: Map, start: NodeId) -> set[NodeId]:
    found, front = {start}, [start]
    while front:
        front = [n for n in {n for node in front for n in around(links, node)} if n not in found]
        found.update(front)
    return found


@settings(max_examples=60)
@given(st.lists(reports, max_size=20))
def test_reachable_nodes_equal_those_of_a_full_search(reports):
    graph, links = Graph(NodeId(1), Metric.HOPS), dict[NodeId, Links]()
    before = {NodeId(1)}
    for is_drop, node, ends in reports:
        if is_drop and node != 1:
            links.pop(node, None)
            joined, lost = graph.remove_node(node)
        else:
            links[node] = ends
            joined, lost = graph.set_links(node, ends)
        after = reach(links, NodeId(1))
        assert set(graph.reachable) == after
        assert (sorted(joined), sorted(lost)) == (sorted(after - before), sorted(before - after))
        before = after


def distances(links: Map, metric: Metric) -> dict[tuple[NodeId, NodeId], int]:
    """Floyd-Warshall."""
    length = {
        (node, other): 1 if metric is Metric.HOPS else max(1, links[node][other])
        for node in links
        for other in around(links, node)
    }
    for middle, start, end in product(links, repeat=3):
        if (start, middle) in length and (middle, end) in length:
            detour = length[start, middle] + length[middle, end]
            length[start, end] = min(length.get((start, end), detour), detour)
    return length


def test_node_that_moves_is_found_at_its_new_place():
    graph = graph_of(both_ways((1, 2), (1, 3)))
    assert graph.hops_between(NodeId(1), NodeId(3)) == 1
    graph.set_links(NodeId(1), ends(2))
    for node, links in both_ways((2, 1), (2, 3), (3, 4)).items():
        if node != 1:
            graph.set_links(node, links)
    assert graph.hops_between(NodeId(1), NodeId(4)) == 3


@settings(max_examples=200)
@given(st.lists(st.tuples(reports, ids), max_size=30))
def test_hops_between_nodes_are_right_after_every_change(changes):
    graph, links = Graph(NodeId(1), Metric.HOPS), {NodeId(1): Links()}
    for (is_drop, node, ends), start in changes:
        if is_drop and node != 1:
            graph.remove_node(node)
            links.pop(node, None)
        else:
            graph.set_links(node, ends)
            links[node] = ends
        lengths = distances(links, Metric.HOPS)
        for pair in ((start, node), *((NodeId(1), known) for known in links)):
            expected = lengths.get(pair, 0) if pair[0] != pair[1] else 0
            assert graph.hops_between(*pair) == expected


@settings(max_examples=60)
@given(maps, st.sampled_from(Metric))
def test_next_hops_lead_to_every_node_over_a_shortest_path(links, metric):
    shortest = distances(links, metric)
    graphs = {node: graph_of(links, node, metric) for node in links}
    for start, target in product(links, repeat=2):
        hop = graphs[start].next_hop(target)
        if start == target or (start, target) not in shortest:
            assert hop is None
            continue
        assert hop is not None
        step = 1 if metric is Metric.HOPS else max(1, links[start][hop])
        rest = 0 if hop == target else shortest[hop, target]
        assert step + rest == shortest[start, target]  # it decreases at every step: no loop


@settings(max_examples=60)
@given(maps)
def test_paths_by_hops_equal_paths_over_links_of_equal_length(links):
    alike = {node: dict.fromkeys(ends, 1) for node, ends in links.items()}
    by_hops, by_time = (graph_of(alike, metric=metric) for metric in Metric)
    assert [by_hops.next_hop(node) for node in links] == [by_time.next_hop(node) for node in links]


@settings(max_examples=60)
@given(maps, st.integers(2, 6).map(NodeId), st.lists(ids, max_size=5))
def test_nearest_is_the_one_that_a_scan_of_all_distances_finds(links, lost, candidates):
    links.get(lost, {}).pop(lost, None)
    in_reach = reach(links, NodeId(1))
    beside = [node for node in links.get(lost, {}) if node in in_reach]
    steps = distances({node: ends for node, ends in links.items() if node != lost}, Metric.HOPS)
    ranks = [
        (min((0 if n == c else steps.get((n, c), 99) for n in beside), default=0), c)
        for c in candidates
        if c in in_reach and not (beside and c == lost)
    ]
    assert graph_of(links).nearest_to(lost, candidates) == min(ranks, default=(0, None))[1]


# ---------------------------------------------------------------- lengths and versions


def test_link_is_one_long_by_hops_and_as_long_as_the_longer_report_by_round_trip_time():
    reports = {NodeId(1): {NodeId(2): 30, NodeId(3): 5}, NodeId(2): {NodeId(1): 50}}
    assert graph_of(reports).lengths(NodeId(1)) == {2: 1}
    by_time = graph_of(reports, metric=Metric.RTT)
    assert by_time.lengths(NodeId(1)) == by_time.lengths(NodeId(1)) == {2: 50}
    by_time.set_links(NodeId(2), {NodeId(1): 0})
    assert by_time.lengths(NodeId(2)) == {1: 30}
    assert by_time.lengths(NodeId(9)) == {}


@pytest.mark.parametrize(("metric", "lengths_count"), [(Metric.HOPS, 0), (Metric.RTT, 1)])
def test_version_grows_only_with_relevant_changes(metric, lengths_count):
    graph = graph_of(chain(1, 2), metric=metric)
    before = graph.version
    graph.set_links(NodeId(2), ends(1))
    assert graph.version == before
    graph.set_links(NodeId(2), {NodeId(1): 7})
    assert graph.version == before + lengths_count
    graph.remove_node(NodeId(2))
    assert graph.version == before + lengths_count + 1


# ---------------------------------------------------------------- relays


def test_relays_of_a_round_trip():
    graph = graph_of(chain(1, 2, 3, 4))
    assert graph.relays_of_round_trip(NodeId(4)) == [2, 3]
    assert graph.relays_of_round_trip(NodeId(2)) == []
    graph.set_links(NodeId(2), ends(1))
    graph.set_links(NodeId(1), ends(2, 3))
    graph.set_links(NodeId(3), ends(1, 4))
    assert graph.relays_of_round_trip(NodeId(4)) == [3]


def test_answer_may_pass_other_relays():
    """Of two paths to node 6 node 1 takes the one through 2, and node 6 the one through 3."""
    graph = graph_of(both_ways((1, 2), (2, 5), (5, 6), (1, 4), (4, 3), (3, 6)))
    assert graph.relays_of_round_trip(NodeId(6)) == [2, 5, 3, 4]


def test_relays_of_the_shortest_round_trip():
    lengths = {(1, 2): 9, (2, 4): 9, (1, 3): 5, (3, 5): 5, (5, 4): 5}
    links: Map = {NodeId(node): {} for node in range(1, 6)}
    for (a, b), length in lengths.items():
        links[NodeId(a)][NodeId(b)] = links[NodeId(b)][NodeId(a)] = length
    assert graph_of(links, metric=Metric.RTT).relays_of_round_trip(NodeId(4)) == [3, 5]


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), max_size=20))
@settings(max_examples=100)
def test_relays_are_the_nodes_that_hop_by_hop_forwarding_passes(pairs):
    links = both_ways(*((a, b) for a, b in pairs if a != b), (1, 2))
    graphs = {node: graph_of(links, node) for node in links}

    def passed(here: NodeId, to: NodeId) -> list[NodeId]:
        relays = []
        while (hop := graphs[here].next_hop(to)) != to:
            assert hop is not None
            relays.append(hop)
            here = hop
        return relays

    one = NodeId(1)
    for to in list(graphs[one].reachable)[1:]:
        expected = dict.fromkeys([*passed(one, to), *passed(to, one)])
        assert graphs[one].relays_of_round_trip(to) == list(expected)
