"""Ways over the map between any two nodes. Whoever holds the same map finds the same ways."""

import heapq
from dataclasses import dataclass

from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import NodeId

Arc = tuple[NodeId, NodeId]
"""A link in one direction."""

_SHARED_LINK_COST = 1 << 60
"""What it costs a second way to use a link of the first one: more than any way around."""


@dataclass(frozen=True, slots=True)
class ShortestPathTree:
    """The shortest ways from one node to all in its reach."""

    root: NodeId
    parents: dict[NodeId, NodeId]
    """Of every node but the root, the neighbour before it; nearer nodes come first."""
    distances: dict[NodeId, int]

    def next_hops_below(self, node: NodeId) -> dict[NodeId, NodeId]:
        """Return all nodes that are reached through this one, each with its next node there."""
        found: dict[NodeId, NodeId] = {}
        for other, parent in self.parents.items():
            if parent == node:
                found[other] = other
            elif parent in found:
                found[other] = found[parent]
        return found

    def path_to(self, to: NodeId) -> dict[NodeId, NodeId]:
        """Return the way from the root to a node: from each node on it to the next."""
        steps: dict[NodeId, NodeId] = {}
        while to != self.root:
            parent = self.parents[to]
            steps[parent] = to
            to = parent
        return steps


def shortest_path_tree(graph: Graph, root: NodeId) -> ShortestPathTree:
    """Dijkstra from any node; of ways as short, the one by the smaller parent."""
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
    """Return the arcs of two ways from the root to a node, together as short as can be, that share
    no link but those that every way must use (Suurballe 1974).

    The second way may go backwards over a link of the first: then neither needs that link.
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
    """Dijkstra once more, with lengths that make every arc of the tree cost nothing."""
    before: dict[NodeId, NodeId] = {}
    heap = [(0, tree.root, tree.root)]
    while to not in before:
        cost, node, parent = heapq.heappop(heap)
        if node in before:
            continue
        before[node] = parent
        onward, far = first.get(node), cost + tree.distances[node]
        for other, length in graph.lengths(node).items():
            if other in before:
                continue
            if other == onward:
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
