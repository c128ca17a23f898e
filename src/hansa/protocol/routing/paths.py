"""Paths strategy: every publication takes the shortest paths from its origin to its receivers.

There is no core, no root and no detour. With a redundancy of 2 or more, a second path to each
receiver is used as well, which shares no link with the first where the map has one. Then the loss
of one link loses no publication.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.membership.shortest_paths import (
    ShortestPathTree,
    shortest_path_tree,
    two_disjoint_paths,
)
from hansa.protocol.model import Group, LinkId, NodeId
from hansa.protocol.routing.base import StrategyContext, StrategyInvariant
from hansa.protocol.routing.from_map import LinkStateStrategy

PAIRS_MAX = 65_536
"""Pairs of origin and receiver whose next hops are cached; when full, the cache is cleared."""

TREE_NODES_MAX = 1_000_000
"""Nodes of all cached trees, about 100 MB; when full, the cache is cleared."""


@dataclass(frozen=True, slots=True)
class RoutesTo:
    """Maps an origin to the links over which its copies reach certain nodes. Equal ones have equal
    links."""

    look_up: Callable[[tuple[NodeId, ...], NodeId], tuple[LinkId, ...]]
    interested: tuple[NodeId, ...]
    generation: int

    def __call__(self, origin: NodeId) -> tuple[LinkId, ...]:
        return self.look_up(self.interested, origin)


class PathsStrategy(LinkStateStrategy):
    """One node's part in the paths of all origins."""

    invariants: ClassVar[frozenset[StrategyInvariant]] = LinkStateStrategy.invariants | {
        StrategyInvariant.SHORTEST_PATHS_FROM_ORIGIN
    }

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._use_two_paths = context.settings.redundancy > 1
        self._trees: dict[NodeId, tuple[ShortestPathTree, dict[NodeId, NodeId]]] = {}
        """Per origin, its tree and the nodes below this node in it."""
        self._hops: dict[tuple[NodeId, NodeId], tuple[NodeId, ...]] = {}
        """Per origin and receiver, the next hops from this node; only for two paths."""
        self._generation = 0

    def _recompute_paths(self) -> None:
        self._generation += 1
        self._trees.clear()
        self._hops.clear()

    def _make_entry(self, group: Group, interested: list[NodeId]) -> GroupEntry:
        origin_routes = RoutesTo(self._links_to, tuple(interested), self._generation)
        return GroupEntry(
            group, True, mesh_links=origin_routes(self._self), origin_routes=origin_routes
        )

    def _links_to(self, interested: tuple[NodeId, ...], origin: NodeId) -> tuple[LinkId, ...]:
        """Return the links over which a copy reaches these nodes."""
        reachable = self._context.graph.reachable
        if origin not in reachable:
            return ()  # the origin is unreachable and has no paths
        if origin not in self._trees:
            if (len(self._trees) + 1) * len(reachable) > TREE_NODES_MAX:
                self._trees.clear()
            tree = shortest_path_tree(self._context.graph, origin)
            self._trees[origin] = tree, tree.next_hops_below(self._self)
        hops: dict[NodeId, None] = {}
        for receiver in interested:
            if receiver != origin:
                hops.update(dict.fromkeys(self._next_hops(origin, receiver)))
        return self._context.links(hops)

    def _next_hops(self, origin: NodeId, receiver: NodeId) -> tuple[NodeId, ...]:
        tree, below = self._trees[origin]
        if not self._use_two_paths:
            return (below[receiver],) if receiver in below else ()
        hops = self._hops.get((origin, receiver))
        if hops is None:
            if len(self._hops) >= PAIRS_MAX:
                self._hops.clear()
            arcs = two_disjoint_paths(self._context.graph, tree, receiver)
            hops = tuple(sorted(to for node, to in arcs if node == self._self))
            self._hops[origin, receiver] = hops
        return hops
