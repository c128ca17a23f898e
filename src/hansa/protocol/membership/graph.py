"""The map of the federation: links, reachable nodes and the next hop to each node.

A link counts if both ends report it, so a failed node is unreachable as soon as its neighbours have
reported the loss. All nodes with the same records compute the same map.

A node that may not relay is a *leaf*: of its links only one counts, that to the smallest node which
may relay. So no path passes it, and the algorithms need no exception.
"""

import heapq
from collections.abc import Callable, Collection, Iterable

from hansa.protocol.model import NodeId
from hansa.protocol.settings import Metric

Links = dict[NodeId, int]
"""A node's neighbours, each with the round-trip time in microseconds."""

Adjacent = Callable[[NodeId], list[NodeId]]
"""Returns a node's neighbours over links that both ends report."""


class _HopSearch:
    """Distances from one node in hops, found as far as someone asks. They stay right as long as
    every node that was found has a neighbour one hop nearer, and no link spans two hops."""

    __slots__ = ("found", "front", "hops")

    def __init__(self, start: NodeId) -> None:
        self.found: dict[NodeId, int] = {start: 0}
        self.front = [start]
        """The nodes at the greatest distance; empty if there are no others to find."""
        self.hops = 0
        """The greatest distance that was searched."""

    def allows_link(self, node: NodeId, other: NodeId) -> bool:
        """Whether a new link makes no node nearer."""
        further = self.hops + 1  # nodes that were not found
        return abs(self.found.get(node, further) - self.found.get(other, further)) <= 1

    def allows_loss(self, node: NodeId, other: NodeId, adjacent: Adjacent) -> bool:
        """Whether the loss of a link makes no other node further than before."""
        near, far = self.found.get(node), self.found.get(other)
        if near is None or far is None or near == far:
            return True
        neighbours = adjacent(other if near < far else node)
        return not neighbours or min(near, far) in map(self.found.get, neighbours)

    def forget(self, node: NodeId) -> None:
        """A node has no links any more."""
        if self.found.get(node):  # not the start
            del self.found[node]
            self.front = [each for each in self.front if each != node]


class Graph:
    """The links that all nodes report, seen from one node."""

    __slots__ = (
        "_adjacent",
        "_hops",
        "_leaves",
        "_lengths",
        "_links",
        "_metric",
        "_next_hops",
        "_previous_hops",
        "_reported",
        "_self",
        "_sides",
        "reachable",
        "version",
    )

    def __init__(
        self,
        node: NodeId,
        metric: Metric,
        leaves: Collection[NodeId] = (),
    ) -> None:
        """`leaves` are the nodes that may not relay, and may change before `set_links`."""
        self._self = node
        self._metric = metric
        self._leaves = leaves
        self._reported: dict[NodeId, Links] = {node: {}}
        self._links: dict[NodeId, Links] = {node: {}}  # those that count
        # cache of `_two_way_neighbours`; a change of links drops the entries of both ends
        self._adjacent: dict[NodeId, list[NodeId]] = {}
        self._next_hops: dict[NodeId, NodeId] | None = None
        self._previous_hops: dict[NodeId, NodeId] | None = None  # from this node
        self._hops: dict[NodeId, _HopSearch] = {}  # of `hops_between`, by their start
        self._lengths: dict[NodeId, Links] = {}  # cache of `lengths`
        self._sides: dict[NodeId, NodeId] | None = None  # cache of `is_behind`
        self.reachable: dict[NodeId, None] = {node: None}
        """The reachable nodes, this one included (an ordered set)."""
        self.version = 0
        """Counts changes, to invalidate everything derived from the map."""

    @property
    def links(self) -> Links:
        """The links that this node itself reports."""
        return self._reported[self._self]

    def set_links(self, node: NodeId, links: Links) -> tuple[list[NodeId], list[NodeId]]:
        """Store a node's links; return the nodes that became reachable and unreachable."""
        self._reported[node] = links
        is_leaf = node in self._leaves
        joined, lost = self._set_counted_links(node, self._link_of_leaf(node) if is_leaf else links)
        for leaf in self._leaves:
            if leaf != node and node in self._reported.get(leaf, {}):
                more = self._set_counted_links(leaf, self._link_of_leaf(leaf))
                joined, lost = _add_changes((joined, lost), more)
        return joined, lost

    def _link_of_leaf(self, node: NodeId) -> Links:
        """Return the link of a node that may not relay: both ends report it."""
        found = [
            other
            for other in self._reported[node]
            if node in self._reported.get(other, {}) and other not in self._leaves
        ]
        return {min(found): self._reported[node][min(found)]} if found else {}

    def _set_counted_links(self, node: NodeId, links: Links) -> tuple[list[NodeId], list[NodeId]]:
        before = self._links.get(node, {})
        self._links[node] = links
        by_hops = self._metric is Metric.HOPS
        if links.keys() != before.keys() if by_hops else links != before:
            self.version += 1
            for changed in (node, *before, *links):
                self._adjacent.pop(changed, None)
            self._next_hops = self._previous_hops = self._sides = None
            self._keep_hop_searches(node, before, links)
            self._lengths.clear()
        for gone in before:
            if gone not in links and self._links_to(gone, node):
                return self._recompute_reachable()
        return self._extend_reachable(node, links), []

    def remove_node(self, node: NodeId) -> tuple[list[NodeId], list[NodeId]]:
        if node not in self._links:
            return [], []
        changed = self.set_links(node, {})
        del self._links[node], self._reported[node]
        self._adjacent.pop(node, None)
        return changed

    def next_hop(self, to: NodeId) -> NodeId | None:
        """Return the neighbour on the best path to a node, None if it is unreachable."""
        if self._next_hops is None:
            self._next_hops = self._find_next_hops(self._self)
        return self._next_hops.get(to)

    def relays_of_round_trip(self, to: NodeId) -> list[NodeId]:
        """Return the nodes that a frame to `to`, or its answer, passes on their best paths; those
        of the frame first, the next hop first."""
        if self._previous_hops is None:
            self._previous_hops = self._find_previous_hops(self._self)
        there = _relays(self._self, to, self._previous_hops)
        back = _relays(to, self._self, self._find_previous_hops(to))
        return list(dict.fromkeys((*there, *back)))

    def is_behind(self, neighbour: NodeId, node: NodeId) -> bool:
        """Whether a neighbour is a node or has a path to it that does not pass here."""
        if self._sides is None:
            self._sides = self._find_sides()
        side = self._sides.get(neighbour)
        return side is not None and self._sides.get(node) == side

    def hops_between(self, start: NodeId, to: NodeId) -> int:
        """Return the smallest number of hops between two nodes, 0 if there is no path."""
        search = self._hops.get(start)
        if search is None:
            search = self._hops[start] = _HopSearch(start)
        found = search.found
        while to not in found and search.front:
            search.hops += 1
            further: list[NodeId] = []
            for node in search.front:
                for other in self._two_way_neighbours(node):
                    if other not in found:
                        found[other] = search.hops
                        further.append(other)
            search.front = further
        return found.get(to, 0)

    def _keep_hop_searches(self, node: NodeId, before: Links, links: Links) -> None:
        """The links of a node changed: drop the searches that found other distances."""
        if not self._hops:
            return
        new = [o for o in links if o not in before and self._links_to(o, node)]
        lost = [o for o in before if o not in links and self._links_to(o, node)]
        self._hops = {
            start: search
            for start, search in self._hops.items()
            if all(search.allows_link(node, other) for other in new)
            and all(search.allows_loss(node, other, self._two_way_neighbours) for other in lost)
        }
        for gone in (end for end in (node, *lost) if not self._two_way_neighbours(end)):
            for search in self._hops.values():
                search.forget(gone)

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
        links = self._links.get(node)
        return links is not None and other in links

    def _two_way_neighbours(self, node: NodeId) -> list[NodeId]:
        """Neighbours of a node over links that both ends report; callers must not change it."""
        found = self._adjacent.get(node)
        if found is None:
            found = [other for other in self._links.get(node, {}) if self._links_to(other, node)]
            if node in self._links:  # else peers could fill the cache with unknown nodes
                self._adjacent[node] = found
        return found

    def _expand_front(self, front: list[NodeId], seen: dict[NodeId, None]) -> list[NodeId]:
        """Return the nodes one hop further out, and add them to `seen`."""
        further: list[NodeId] = []
        for node in front:
            for other in self._two_way_neighbours(node):
                if other not in seen:
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

    def _find_next_hops(self, start: NodeId) -> dict[NodeId, NodeId]:
        by_hops = self._metric is Metric.HOPS
        return self._fewest_hops(start) if by_hops else self._shortest_paths(start)

    def _find_previous_hops(self, start: NodeId) -> dict[NodeId, NodeId]:
        """Return the last relay on the best path from a node to each other; the node itself if
        there is none."""
        previous: dict[NodeId, NodeId] = {}
        by_hops = self._metric is Metric.HOPS
        heap: list[tuple[int, int, NodeId, NodeId]] = [(0, 0, start, start)]
        order = 0
        while heap:
            cost, _, node, before = heapq.heappop(heap)
            if node in previous:
                continue
            previous[node] = before
            for other in sorted(self._two_way_neighbours(node)):
                if other not in previous:
                    order += 1
                    step = 1 if by_hops else max(1, self._links[node][other])
                    heapq.heappush(heap, (cost + step, order, other, node))
        del previous[start]
        return previous

    def _fewest_hops(self, start: NodeId) -> dict[NodeId, NodeId]:
        """Breadth first; of equally short paths, the one through the smaller neighbour."""
        hops: dict[NodeId, NodeId] = {}
        front = {node: node for node in self._two_way_neighbours(start) if node != start}
        while front:
            hops.update(front)
            further: dict[NodeId, NodeId] = {}
            for node, via in front.items():
                for other in self._two_way_neighbours(node):
                    if other not in hops and other != start:
                        further[other] = min(via, further.get(other, via))
            front = further
        return hops

    def _shortest_paths(self, start: NodeId) -> dict[NodeId, NodeId]:
        """Dijkstra; the smaller node id breaks ties, so that all runs agree."""
        hops: dict[NodeId, NodeId] = {}
        heap: list[tuple[int, NodeId, NodeId]] = [(0, start, start)]
        while heap:
            cost, node, via = heapq.heappop(heap)
            if node in hops:
                continue
            hops[node] = via
            for other in self._two_way_neighbours(node):
                if other not in hops:
                    step = max(1, self._links[node][other])
                    first = other if node == start else via
                    heapq.heappush(heap, (cost + step, other, first))
        del hops[start]
        return hops


def _relays(start: NodeId, to: NodeId, previous_hops: dict[NodeId, NodeId]) -> list[NodeId]:
    """Return the nodes between two reachable ones."""
    relays: list[NodeId] = []
    while (to := previous_hops[to]) != start:
        relays.append(to)
    return relays[::-1]


def _add_changes(
    first: tuple[list[NodeId], list[NodeId]], then: tuple[list[NodeId], list[NodeId]]
) -> tuple[list[NodeId], list[NodeId]]:
    """Return two changes of the reachable nodes as one."""
    joined = [node for node in first[0] if node not in then[1]]
    lost = [node for node in first[1] if node not in then[0]]
    joined += [node for node in then[0] if node not in first[1]]
    lost += [node for node in then[1] if node not in first[0]]
    return joined, lost
