"""Paths on the map between any two nodes. All nodes with the same map compute the same paths."""

import heapq
from dataclasses import dataclass

from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import NodeId

Arc = tuple[NodeId, NodeId]
"""A link in one direction."""

_SHARED_LINK_COST = 1 << 60
"""Cost for a second path to use a link of the first one: more than any path around it."""


@dataclass(frozen=True, slots=True)
class ShortestPathTree:
    """The shortest paths from one node to all nodes that it reaches."""

    root: NodeId
    parents: dict[NodeId, NodeId]
    """Per node except the root, the node before it; nearer nodes come first."""
    distances: dict[NodeId, int]

    def next_hops_below(self, node: NodeId) -> dict[NodeId, NodeId]:
        """Return all nodes that are reached through this one, each with the next hop from it."""
        found: dict[NodeId, NodeId] = {}
        for other, parent in self.parents.items():
            if parent == node:
                found[other] = other
            elif parent in found:
                found[other] = found[parent]
        return found

    def path_to(self, to: NodeId) -> dict[NodeId, NodeId]:
        """Return the path from the root to a node as arcs."""
        steps: dict[NodeId, NodeId] = {}
        while to != self.root:
            parent = self.parents[to]
            steps[parent] = to
            to = parent
        return steps


def shortest_path_tree(graph: Graph, root: NodeId) -> ShortestPathTree:
    """Dijkstra from any node; of equally short paths, the one through the smaller parent."""
    parents: dict[NodeId, NodeId] = {}
    distances: dict[NodeId, int] = {}
    heap = [(0, root, root)]
    while heap:
        distance, node, parent = heapq.heappop(heap)
        if node in distances:
            continue
        distances[node] = distance
        parents[node] = parent
        for other, length in graph.lengths(node).items():
            if other not in distances:
                heapq.heappush(heap, (distance + length, other, node))
    del parents[root]
    return ShortestPathTree(root, parents, distances)


def two_disjoint_paths(graph: Graph, tree: ShortestPathTree, to: NodeId) -> dict[Arc, None]:
    """Return the arcs of two paths from the root to a node, together as short as possible, that
    share only links that every path must use (Suurballe 1974).

    The second path may use a link of the first in reverse: then neither uses that link.
    """
    first = tree.path_to(to)
    arcs = dict.fromkeys(first.items())
    for arc in _second_path(graph, tree, first, to):
        if arc[::-1] in arcs:
            del arcs[arc[::-1]]
        else:
            arcs[arc] = None
    return arcs


def _second_path(
    graph: Graph, tree: ShortestPathTree, first: dict[NodeId, NodeId], to: NodeId
) -> list[Arc]:
    """Dijkstra with reduced costs, in which every arc of the tree costs nothing."""
    before: dict[NodeId, NodeId] = {}
    heap = [(0, tree.root, tree.root)]
    while to not in before:
        cost, node, parent = heapq.heappop(heap)
        if node in before:
            continue
        before[node] = parent
        next_node, far = first.get(node), cost + tree.distances[node]
        for other, length in graph.lengths(node).items():
            if other in before:
                continue
            if other == next_node:
                heapq.heappush(heap, (cost + _SHARED_LINK_COST, other, node))
            elif first.get(other) == node:
                heapq.heappush(heap, (cost, other, node))
            else:
                heapq.heappush(heap, (far + length - tree.distances[other], other, node))
    path: list[Arc] = []
    while to != tree.root:
        path.append((before[to], to))
        to = before[to]
    return path
