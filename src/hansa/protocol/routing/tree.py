"""The tree that `tree_flood` and `tree_subscriptions` share (Antonielli 2020).

Its root is the node in reach with the highest capacity, ties to the smaller id; every node hangs on
it by its shortest way. The paper's brokers find both by asking each other; here the map tells.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from hansa.protocol.effects import CoreElected
from hansa.protocol.forwarding.table import Entry
from hansa.protocol.membership.shortest_paths import Tree, shortest_ways
from hansa.protocol.model import MANAGEMENT, Group, NodeId
from hansa.protocol.routing.base import Fact, Outcome, Surroundings
from hansa.protocol.routing.from_map import FromMap
from hansa.protocol.status import CoreView, GroupView


class OneTree(FromMap):
    """One node's part in the tree. Which of its branches a group takes is what differs."""

    facts: ClassVar[frozenset[Fact]] = FromMap.facts | {
        Fact.ONE_CORE,
        Fact.TRUE_DISTANCES,
        Fact.TABLES_AGREE,
    }

    def __init__(self, around: Surroundings) -> None:
        """Start alone, as the root."""
        super().__init__(around)
        self._root = self._self
        self._tree = Tree(self._self, {}, {self._self: 0})
        self._branches: dict[NodeId, NodeId] = {}
        """Per other node, the neighbour on the tree behind which it is."""

    @abstractmethod
    def _takes(self, group: Group, wanters: list[NodeId]) -> Iterable[NodeId]:
        """Return the neighbours on the tree that publications of a group go to."""

    @abstractmethod
    def _is_member(self, wanters: list[NodeId], children: tuple[NodeId, ...]) -> bool:
        """Whether publications of a group that these nodes want come here."""

    def nodes_changed(
        self, joined: Iterable[NodeId], lost: Iterable[NodeId], now: float
    ) -> Outcome:
        """Another node may be the root."""
        before, self._root = self._root, min(self._around.graph.reachable, key=self._rank)
        news: Outcome = [CoreElected(MANAGEMENT, self._root)] if self._root != before else []
        return news + self._redraw()

    def _rank(self, node: NodeId) -> tuple[float, NodeId]:
        return -self._around.capacity(node), node

    def _draw(self) -> None:
        self._tree = shortest_ways(self._around.graph, self._root)
        below = self._tree.below(self._self)
        up = self._tree.parents.get(self._self, self._self)
        self._branches = {
            node: below.get(node, up) for node in self._tree.distances if node != self._self
        }

    def _entry(self, group: Group, wanters: list[NodeId]) -> Entry:
        return Entry(group, True, neighbours=self._around.links(self._takes(group, wanters)))

    def _parents(self) -> tuple[NodeId, ...]:
        parent = self._tree.parents.get(self._self)
        return () if parent is None else (parent,)

    def core_views(self) -> dict[NodeId, CoreView]:
        """Return the way to the root, which is the core of all groups."""
        self._look()
        distance = self._tree.distances[self._self]
        return {self._root: CoreView(0, 0, distance, distance, self._parents())}

    def group_view(self, group: Group) -> GroupView:
        """Return one group, with its part of the tree."""
        self._look()
        wanters = self._wanters(group)
        parents = self._parents()
        taken = self._takes(group, wanters)
        children = tuple(sorted(node for node in taken if node not in parents))
        member = self._is_member(wanters, children)
        return GroupView(
            core=self._root,
            wanted_by=tuple(sorted(wanters)),
            member=member,
            parents=parents if member else (),
            children=children,
        )
