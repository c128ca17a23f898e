"""Paths: every publication takes the shortest ways from its own origin to those that want it.

Nobody is in the middle: no core, no root, no detour. With a redundancy of 2 or more a second way to
each receiver is used as well, that shares no link with the first where the map has one: then the
loss of any one link loses nothing, not even for a moment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hansa.protocol.forwarding.table import Entry
from hansa.protocol.membership.shortest_paths import Tree, shortest_ways, two_ways
from hansa.protocol.model import Group, LinkId, NodeId
from hansa.protocol.routing.base import Fact, Surroundings
from hansa.protocol.routing.from_map import FromMap

PAIRS_MAX = 65_536
"""Pairs of origin and receiver whose ways are remembered; when full, all are drawn anew."""

TREE_NODES_MAX = 1_000_000
"""Nodes of all trees that are remembered, about 100 MB; when full, all are drawn anew."""


@dataclass(frozen=True, slots=True)
class WaysTo:
    """From an origin to the links over which its copies go on to these nodes. Equal ones lead the
    same ways."""

    look_up: Callable[[tuple[NodeId, ...], NodeId], tuple[LinkId, ...]]
    wanters: tuple[NodeId, ...]
    drawing: int

    def __call__(self, origin: NodeId) -> tuple[LinkId, ...]:
        """Look them up, or draw them."""
        return self.look_up(self.wanters, origin)


class Paths(FromMap):
    """One node's part in the ways of all origins."""

    facts: ClassVar[frozenset[Fact]] = FromMap.facts | {Fact.OWN_WAYS}

    def __init__(self, around: Surroundings) -> None:
        """Start alone."""
        super().__init__(around)
        self._twice = around.settings.redundancy > 1
        self._trees: dict[NodeId, tuple[Tree, dict[NodeId, NodeId]]] = {}
        """Per origin its tree, and what is below this node there."""
        self._hops: dict[tuple[NodeId, NodeId], tuple[NodeId, ...]] = {}
        """Per origin and receiver, where this node sends a copy; only for two ways."""
        self._drawing = 0

    def _draw(self) -> None:
        self._drawing += 1
        self._trees.clear()
        self._hops.clear()

    def _entry(self, group: Group, wanters: list[NodeId]) -> Entry:
        ways = WaysTo(self._links_to, tuple(wanters), self._drawing)
        return Entry(group, True, neighbours=ways(self._self), ways=ways)

    def _links_to(self, wanters: tuple[NodeId, ...], origin: NodeId) -> tuple[LinkId, ...]:
        """Return the links over which a copy goes on to these nodes."""
        reachable = self._around.graph.reachable
        if origin not in reachable:
            return ()  # it is gone, and so are its ways
        if origin not in self._trees:
            if (len(self._trees) + 1) * len(reachable) > TREE_NODES_MAX:
                self._trees.clear()
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
