"""Subscription tables along a tree (Antonielli 2020, after PADRES): a publication takes only
branches with interested nodes.

The paper's brokers build their tables from notices, n·(N-1) of them for a topic with n of N brokers
interested. Here the interest of all nodes is in the database: it floods once, without covered
filters, and the table follows from it.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.base import StrategyInvariant
from hansa.protocol.routing.tree import TreeStrategy


class TreeSubscriptions(TreeStrategy):
    invariants = TreeStrategy.invariants | {StrategyInvariant.MINIMAL}

    def _tree_neighbours(self, group: Group, interested: list[NodeId]) -> Iterable[NodeId]:
        return dict.fromkeys(
            self._neighbour_towards[node] for node in interested if node != self._self
        )

    def _is_member(self, interested: list[NodeId], children: tuple[NodeId, ...]) -> bool:
        return self._self in interested or bool(children) or self._root == self._self
