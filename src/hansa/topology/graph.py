"""Undirected graphs of names: connectivity, bridges and distances. Results are ordered by name."""

from collections.abc import Iterable, Mapping

NodeName = str
LinkPair = tuple[NodeName, NodeName]
"""Two names, the smaller one first."""

Graph = dict[NodeName, list[NodeName]]
"""Every node with its neighbours, both sorted."""


def make_link_pair(a: NodeName, b: NodeName) -> LinkPair:
    return (a, b) if a < b else (b, a)


def make_graph(names: Iterable[NodeName], links: Iterable[LinkPair]) -> Graph:
    """Return the graph of these nodes, without links to other nodes."""
    adjacency: Graph = {name: [] for name in sorted(names)}
    for a, b in sorted(links):
        if a in adjacency and b in adjacency:
            adjacency[a].append(b)
            adjacency[b].append(a)
    return adjacency


def connected_components(graph: Graph) -> list[list[NodeName]]:
    """Return the connected components, ordered by their first names, each sorted."""
    seen: set[NodeName] = set()
    found: list[list[NodeName]] = []
    for start in graph:
        if start not in seen:
            reached = sorted(hops_from(graph, start))
            seen.update(reached)
            found.append(reached)
    return found


def is_connected(graph: Graph) -> bool:
    """Return whether there is at most one connected component."""
    return not graph or len(hops_from(graph, next(iter(graph)))) == len(graph)


def hops_from(graph: Graph, start: NodeName) -> dict[NodeName, int]:
    """Return the distance in links to every reachable node (breadth first)."""
    found = {start: 0}
    queue = [start]
    for name in queue:  # grows during iteration
        for other in graph[name]:
            if other not in found:
                found[other] = found[name] + 1
                queue.append(other)
    return found


def bridges(graph: Graph) -> set[LinkPair]:
    """Return the links whose loss would split a component (Tarjan, without recursion)."""
    order: dict[NodeName, int] = {}
    low: dict[NodeName, int] = {}
    found: set[LinkPair] = set()
    for root in graph:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack: list[tuple[NodeName, NodeName | None, int]] = [(root, None, 0)]
        while stack:
            name, parent, at = stack.pop()
            if at < len(graph[name]):
                stack.append((name, parent, at + 1))
                other = graph[name][at]
                if other == parent:
                    continue
                if other in order:
                    low[name] = min(low[name], order[other])
                else:
                    order[other] = low[other] = len(order)
                    stack.append((other, name, 0))
            elif parent is not None:
                low[parent] = min(low[parent], low[name])
                if low[name] > order[parent]:
                    found.add(make_link_pair(parent, name))
    return found


def two_edge_connected_components(graph: Graph) -> list[list[NodeName]]:
    """Return the sets of nodes that stay connected if any one link is lost, by first name."""
    bridge_links = bridges(graph)
    kept = {
        name: [other for other in near if make_link_pair(name, other) not in bridge_links]
        for name, near in graph.items()
    }
    return connected_components(kept)


def path_lengths_from(
    graph: Graph, start: NodeName, length: Mapping[LinkPair, float], default_length: float
) -> dict[NodeName, float]:
    """Return the length of the shortest path to every reachable node (Dijkstra)."""
    found: dict[NodeName, float] = {}
    tentative: dict[NodeName, float] = {start: 0.0}
    while tentative:
        name = min(tentative, key=lambda each: (tentative[each], each))
        found[name] = tentative.pop(name)
        for other in graph[name]:
            if other not in found:
                path_length = found[name] + length.get(make_link_pair(name, other), default_length)
                tentative[other] = min(path_length, tentative.get(other, path_length))
    return found
