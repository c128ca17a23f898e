"""The tree of `tree_flood` and `tree_subscriptions` (Antonielli 2020).

Its root is the reachable node with the highest capacity of those that may be core; the smaller id
breaks ties. Every node is attached by its shortest path. The paper's brokers find both by messages;
here they follow from the map.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from hansa.protocol.effects import CoreElected
from hansa.protocol.forwarding.table import GroupEntry
from hansa.protocol.membership.shortest_paths import ShortestPathTree, shortest_path_tree
from hansa.protocol.model import MANAGEMENT_GROUP, Group, NodeId
from hansa.protocol.routing.base import CoreStatus, GroupStatus, StrategyContext, StrategyInvariant
from hansa.protocol.routing.from_map import LinkStateStrategy
from hansa.protocol.routing.output import StrategyOutput


class TreeStrategy(LinkStateStrategy):
    """One node's part in the tree. Subclasses decide which branches a group takes."""

    invariants: ClassVar[frozenset[StrategyInvariant]] = LinkStateStrategy.invariants | {
        StrategyInvariant.ONE_CORE,
        StrategyInvariant.TRUE_DISTANCES,
        StrategyInvariant.TABLES_AGREE,
    }

    def __init__(self, context: StrategyContext) -> None:
        super().__init__(context)
        self._root = self._self
        self._tree = ShortestPathTree(self._self, {}, {self._self: 0})
        self._neighbour_towards: dict[NodeId, NodeId] = {}
        """Per other node, the neighbour on the tree that leads to it."""

    @abstractmethod
    def _tree_neighbours(self, group: Group, interested: list[NodeId]) -> Iterable[NodeId]:
        """Return the neighbours on the tree that publications of a group go to."""

    @abstractmethod
    def _is_member(self, interested: list[NodeId], children: tuple[NodeId, ...]) -> bool:
        """Whether publications of a group reach this node."""

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> StrategyOutput:
        """Another node may be the root."""
        before, self._root = self._root, min(self._context.graph.reachable, key=self._rank)
        output: StrategyOutput = (
            [CoreElected(MANAGEMENT_GROUP, self._root)] if self._root != before else []
        )
        return output + self._invalidate_paths()

    def _rank(self, node: NodeId) -> tuple[bool, float, NodeId]:
        return not self._context.may_be_core(node), -self._context.capacity(node), node

    def _recompute_paths(self) -> None:
        self._tree = shortest_path_tree(self._context.graph, self._root)
        below = self._tree.next_hops_below(self._self)
        up = self._tree.parents.get(self._self, self._self)
        self._neighbour_towards = {
            node: below.get(node, up) for node in self._tree.distances if node != self._self
        }

    def _make_entry(self, group: Group, interested: list[NodeId]) -> GroupEntry:
        return GroupEntry(
            group, True, mesh_links=self._context.links(self._tree_neighbours(group, interested))
        )

    def _parents(self) -> tuple[NodeId, ...]:
        parent = self._tree.parents.get(self._self)
        return () if parent is None else (parent,)

    def core_statuses(self) -> dict[NodeId, CoreStatus]:
        """Return the route to the root, which is the core of all groups."""
        self._recompute_if_stale()
        distance = self._tree.distances[self._self]
        return {self._root: CoreStatus(0, 0, distance, distance, self._parents())}

    def group_status(self, group: Group) -> GroupStatus:
        """Return one group, with its part of the tree."""
        self._recompute_if_stale()
        interested = self._interested_nodes(group)
        parents = self._parents()
        taken = self._tree_neighbours(group, interested)
        children = tuple(sorted(node for node in taken if node not in parents))
        member = self._is_member(interested, children)
        return GroupStatus(
            core=self._root,
            interested_nodes=tuple(sorted(interested)),
            is_member=member,
            parents=parents if member else (),
            children=children,
        )
