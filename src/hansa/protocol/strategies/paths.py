"""Paths: every publication takes the shortest ways from its own origin to those that want it.

Nobody is in the middle: no core, no root, no detour. With a redundancy of 2 or more a second way to
each receiver is used as well, that shares no link with the first where the map has one: then the
loss of any one link loses nothing, not even for a moment.
"""

from functools import partial

from hansa.protocol.forwarding import Entry
from hansa.protocol.strategies.base import Surroundings
from hansa.protocol.strategies.from_map import FromMap
from hansa.protocol.vocabulary import Group, LinkId, NodeId
from hansa.protocol.ways import Tree, shortest_ways, two_ways

PAIRS_MAX = 65_536
"""Pairs of origin and receiver whose ways are remembered; when full, all are drawn anew."""


class Paths(FromMap):
    """One node's part in the ways of all origins."""

    def __init__(self, around: Surroundings) -> None:
        """Start alone."""
        super().__init__(around)
        self._twice = around.settings.redundancy > 1
        self._trees: dict[NodeId, tuple[Tree, dict[NodeId, NodeId]]] = {}
        """Per origin its tree, and what is below this node there."""
        self._hops: dict[tuple[NodeId, NodeId], tuple[NodeId, ...]] = {}
        """Per origin and receiver, where this node sends a copy; only for two ways."""

    def _draw(self) -> None:
        self._trees.clear()
        self._hops.clear()

    def _entry(self, group: Group, wanters: list[NodeId]) -> Entry:
        ways = partial(self._links_to, wanters)
        return Entry(group, True, neighbours=ways(self._self), ways=ways)

    def _links_to(self, wanters: list[NodeId], origin: NodeId) -> tuple[LinkId, ...]:
        """Return the links over which a copy goes on to these nodes."""
        if origin not in self._around.graph.reachable:
            return ()  # it is gone, and so are its ways
        if origin not in self._trees:
            tree = shortest_ways(self._around.graph, origin)
            self._trees[origin] = tree, tree.below(self._self)
        hops: dict[NodeId, None] = {}
        for wanter in wanters:
            if wanter != origin:
                hops.update(dict.fromkeys(self._next_hops(origin, wanter)))
        return self._around.links(hops)

    def _next_hops(self, origin: NodeId, wanter: NodeId) -> tuple[NodeId, ...]:
        tree, below = self._trees[origin]
        if not self._twice:
            return (below[wanter],) if wanter in below else ()
        hops = self._hops.get((origin, wanter))
        if hops is None:
            if len(self._hops) >= PAIRS_MAX:
                self._hops.clear()
            arcs = two_ways(self._around.graph, tree, wanter)
            hops = tuple(sorted(to for node, to in arcs if node == self._self))
            self._hops[origin, wanter] = hops
        return hops
