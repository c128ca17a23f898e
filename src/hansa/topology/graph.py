"""An undirected graph of names: what hangs together, and by how much. Always in order of names."""

from collections.abc import Iterable, Mapping

Name = str
Pair = tuple[Name, Name]
"""A link: two names, the smaller first."""

Graph = dict[Name, list[Name]]
"""Every node with its neighbours, both in order."""


def pair(a: Name, b: Name) -> Pair:
    """Return a link between two nodes."""
    return (a, b) if a < b else (b, a)


def graph_of(names: Iterable[Name], links: Iterable[Pair]) -> Graph:
    """Return the graph of these nodes; links to others do not count."""
    near: Graph = {name: [] for name in sorted(names)}
    for a, b in sorted(links):
        if a in near and b in near:
            near[a].append(b)
            near[b].append(a)
    return near


def parts(graph: Graph) -> list[list[Name]]:
    """Return what hangs together, the part with the first name first, each in order."""
    seen: set[Name] = set()
    found: list[list[Name]] = []
    for start in graph:
        if start not in seen:
            reached = sorted(hops_from(graph, start))
            seen.update(reached)
            found.append(reached)
    return found


def is_connected(graph: Graph) -> bool:
    """Whether all nodes can reach each other; nobody is not two parts."""
    return not graph or len(hops_from(graph, next(iter(graph)))) == len(graph)


def hops_from(graph: Graph, start: Name) -> dict[Name, int]:
    """Return how many links every node in reach is away."""
    found = {start: 0}
    queue = [start]
    for name in queue:  # grows as it is read: breadth first
        for other in graph[name]:
            if other not in found:
                found[other] = found[name] + 1
                queue.append(other)
    return found


def bridges(graph: Graph) -> set[Pair]:
    """Return the links whose loss would split what hangs together (Tarjan, without recursion)."""
    order: dict[Name, int] = {}
    low: dict[Name, int] = {}
    found: set[Pair] = set()
    for root in graph:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack: list[tuple[Name, Name | None, int]] = [(root, None, 0)]
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
                    found.add(pair(parent, name))
    return found


def blocks(graph: Graph) -> list[list[Name]]:
    """Return what hangs together even if any one link is lost, in order of first names."""
    cut = bridges(graph)
    kept = {
        name: [other for other in near if pair(name, other) not in cut]
        for name, near in graph.items()
    }
    return parts(kept)


def lengths_from(
    graph: Graph, start: Name, length: Mapping[Pair, float], unknown: float
) -> dict[Name, float]:
    """Return the length of the shortest way to every node in reach (Dijkstra)."""
    found: dict[Name, float] = {}
    waiting: dict[Name, float] = {start: 0.0}
    while waiting:
        name = min(waiting, key=lambda each: (waiting[each], each))
        found[name] = waiting.pop(name)
        for other in graph[name]:
            if other not in found:
                way = found[name] + length.get(pair(name, other), unknown)
                waiting[other] = min(way, waiting.get(other, way))
    return found
