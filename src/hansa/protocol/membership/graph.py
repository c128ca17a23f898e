"""The map of the federation: links, reachable nodes and the next hop to each node.

A link counts if both ends report it, so a failed node is unreachable as soon as its neighbours have
reported the loss. All nodes with the same records compute the same map.
"""

import heapq
from collections.abc import Iterable

from hansa.protocol.model import NodeId
from hansa.protocol.settings import Metric

Links = dict[NodeId, int]
"""A node's neighbours, each with the round-trip time in microseconds."""


DETOURS_MAX = 32
"""Avoided nodes whose next hops are computed until the map changes; frames that name a further one
take the best path. Each costs a search of the map, and peers choose them (protocol.md 3.10)."""


class Graph:
    """The links that all nodes report, seen from one node."""

    __slots__ = (
        "_detours",
        "_lengths",
        "_links",
        "_metric",
        "_next_hops",
        "_previous_hops",
        "_self",
        "_sides",
        "reachable",
        "version",
    )

    def __init__(self, node: NodeId, metric: Metric) -> None:
        self._self = node
        self._metric = metric
        self._links: dict[NodeId, Links] = {node: {}}
        self._next_hops: dict[NodeId, NodeId] | None = None
        self._previous_hops: dict[NodeId, NodeId] | None = None
        self._detours: dict[NodeId, dict[NodeId, NodeId]] = {}  # next hops, by the avoided node
        self._lengths: dict[NodeId, Links] = {}  # cache of `lengths`
        self._sides: dict[NodeId, NodeId] | None = None  # cache of `is_behind`
        self.reachable: dict[NodeId, None] = {node: None}
        """The reachable nodes, this one included (an ordered set)."""
        self.version = 0
        """Counts changes, to invalidate everything derived from the map."""

    @property
    def links(self) -> Links:
        """The links that this node itself reports."""
        return self._links[self._self]

    def set_links(self, node: NodeId, links: Links) -> tuple[list[NodeId], list[NodeId]]:
        """Store a node's links; return the nodes that became reachable and unreachable."""
        before = self._links.get(node, {})
        self._links[node] = links
        by_hops = self._metric is Metric.HOPS
        if links.keys() != before.keys() if by_hops else links != before:
            self.version += 1
            self._next_hops = self._previous_hops = self._sides = None
            self._detours.clear()
            self._lengths.clear()
        for gone in before:
            if gone not in links and self._links_to(gone, node):
                return self._recompute_reachable()
        return self._extend_reachable(node, links), []

    def remove_node(self, node: NodeId) -> tuple[list[NodeId], list[NodeId]]:
        """Delete a node."""
        if node not in self._links:
            return [], []
        changed = self.set_links(node, {})
        del self._links[node]
        return changed

    def next_hop(self, to: NodeId) -> NodeId | None:
        """Return the neighbour on the best path to a node, None if it is unreachable."""
        if self._next_hops is None:
            self._next_hops = self._find_next_hops(self._self)
        return self._next_hops.get(to)

    def next_hop_avoiding(self, to: NodeId, avoid: NodeId) -> NodeId | None:
        """Return the next hop of the best path that does not pass `avoid`; the best of all paths if
        every one passes it. All nodes with the same map agree, so such paths do not loop."""
        if avoid in self.reachable and avoid not in (to, self._self):
            detour = self._detours.get(avoid)
            if detour is None and len(self._detours) < DETOURS_MAX:
                detour = self._detours[avoid] = self._find_next_hops(self._self, avoid)
            if detour is not None and (hop := detour.get(to)) is not None:
                return hop
        return self.next_hop(to)

    def relays_to(self, to: NodeId) -> list[NodeId]:
        """Return the nodes that a frame to `to` passes on its best path, the next hop first."""
        if self._previous_hops is None:
            self._previous_hops = self._find_previous_hops()
        relays: list[NodeId] = []
        node = self._previous_hops.get(to, self._self)
        while node != self._self:
            relays.append(node)
            node = self._previous_hops[node]
        return relays[::-1]

    def is_behind(self, neighbour: NodeId, node: NodeId) -> bool:
        """Whether a neighbour is a node or has a path to it that does not pass here."""
        if self._sides is None:
            self._sides = self._find_sides()
        side = self._sides.get(neighbour)
        return side is not None and self._sides.get(node) == side

    def lengths(self, node: NodeId) -> Links:
        """Return a node's neighbours over links that both ends report, each with the length of the
        link: 1, or the longer round-trip time of both reports, so that all nodes agree on it."""
        found = self._lengths.get(node)
        if found is None:
            by_hops = self._metric is Metric.HOPS
            found = self._lengths[node] = {
                other: 1 if by_hops else max(1, self._links[node][other], self._links[other][node])
                for other in self._two_way_neighbours(node)
            }
        return found

    def nearest_to(self, lost: NodeId, candidates: Iterable[NodeId]) -> NodeId | None:
        """Return the reachable candidate that was nearest to a node now lost; the smaller id breaks
        ties.

        Distances start from the neighbours that the lost node last reported.
        """
        candidate_set = dict.fromkeys(candidates)
        front = sorted(n for n in self._links.get(lost, {}) if n in self.reachable)
        if not front:
            return min((node for node in candidate_set if node in self.reachable), default=None)
        seen = dict.fromkeys([lost, *front])
        while front:
            here = [node for node in front if node in candidate_set]
            if here:
                return min(here)
            front = self._expand_front(front, seen)
        return None

    def _links_to(self, node: NodeId, other: NodeId) -> bool:
        return other in self._links.get(node, {})

    def _two_way_neighbours(self, node: NodeId) -> list[NodeId]:
        """Neighbours of a node over links that both ends report."""
        return [other for other in self._links.get(node, {}) if self._links_to(other, node)]

    def _expand_front(self, front: list[NodeId], seen: dict[NodeId, None]) -> list[NodeId]:
        """Return the nodes one hop further out, and add them to `seen`."""
        further: list[NodeId] = []
        for node in front:
            for other in self._links.get(node, ()):
                if other not in seen and self._links_to(other, node):
                    seen[other] = None
                    further.append(other)
        return further

    def _extend_reachable(self, node: NodeId, links: Links) -> list[NodeId]:
        """Links were only added: extend the reachable nodes instead of searching again."""
        reachable = self.reachable
        front = [node]
        joined: list[NodeId] = []
        if node not in reachable:
            if not any(o in reachable and self._links_to(o, node) for o in links):
                return []
            reachable[node] = None
            joined.append(node)
        while front := self._expand_front(front, reachable):
            joined += front
        return joined

    def _recompute_reachable(self) -> tuple[list[NodeId], list[NodeId]]:
        before = self.reachable
        self.reachable = {self._self: None}
        front = [self._self]
        while front:
            front = self._expand_front(front, self.reachable)
        joined = [node for node in self.reachable if node not in before]
        return joined, [node for node in before if node not in self.reachable]

    def _find_sides(self) -> dict[NodeId, NodeId]:
        """Return per reachable node the first neighbour with a path to it that does not pass this
        node. Nodes connected without this node share the same one."""
        sides: dict[NodeId, NodeId] = {}
        for neighbour in self._two_way_neighbours(self._self):
            if neighbour in sides:
                continue
            seen = dict.fromkeys((self._self, neighbour))
            front = [neighbour]
            while front:
                sides.update(dict.fromkeys(front, neighbour))
                front = self._expand_front(front, seen)
        return sides

    def _find_next_hops(self, start: NodeId, avoid: NodeId | None = None) -> dict[NodeId, NodeId]:
        by_hops = self._metric is Metric.HOPS
        return self._fewest_hops(start, avoid) if by_hops else self._shortest_paths(start, avoid)

    def _find_previous_hops(self) -> dict[NodeId, NodeId]:
        """Return the last relay on the best path to each node; this node if there is none."""
        previous: dict[NodeId, NodeId] = {}
        done: dict[NodeId, None] = {}
        by_hops = self._metric is Metric.HOPS
        heap: list[tuple[int, int, NodeId, NodeId]] = [(0, 0, self._self, self._self)]
        order = 0
        while heap:
            cost, _, node, before = heapq.heappop(heap)
            if node in done:
                continue
            done[node] = None
            previous[node] = before
            for other in sorted(self._two_way_neighbours(node)):
                if other not in done:
                    order += 1
                    step = 1 if by_hops else max(1, self._links[node][other])
                    heapq.heappush(heap, (cost + step, order, other, node))
        del previous[self._self]
        return previous

    def _fewest_hops(self, start: NodeId, avoid: NodeId | None) -> dict[NodeId, NodeId]:
        """Breadth first; of equally short paths, the one through the smaller neighbour."""
        hops: dict[NodeId, NodeId] = {}
        excluded = (start, avoid)
        front = {node: node for node in self._two_way_neighbours(start) if node not in excluded}
        while front:
            hops.update(front)
            further: dict[NodeId, NodeId] = {}
            for node, via in front.items():
                for other in self._two_way_neighbours(node):
                    if other not in hops and other not in excluded:
                        further[other] = min(via, further.get(other, via))
            front = further
        return hops

    def _shortest_paths(self, start: NodeId, avoid: NodeId | None) -> dict[NodeId, NodeId]:
        """Dijkstra; the smaller node id breaks ties, so that all runs agree."""
        hops: dict[NodeId, NodeId] = {}
        done: dict[NodeId | None, None] = {avoid: None}
        heap: list[tuple[int, NodeId, NodeId]] = [(0, start, start)]
        while heap:
            cost, node, via = heapq.heappop(heap)
            if node in done:
                continue
            done[node] = None
            hops[node] = via
            for other in self._two_way_neighbours(node):
                if other not in done:
                    step = max(1, self._links[node][other])
                    first = other if node == start else via
                    heapq.heappush(heap, (cost + step, other, first))
        del hops[start]
        return hops
