"""Subscription tables along a tree (Antonielli 2020, after PADRES): a publication takes only the
branches behind which somebody wants it.

The paper's brokers build their tables from notices, n·(N-1) of them for a topic that n of N brokers
want. Here everybody's interest is in the database: it floods once, a filter that another covers
is not announced, and the table follows from it.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.base import Fact
from hansa.protocol.routing.tree import OneTree


class TreeSubscriptions(OneTree):
    """One node's part."""

    facts = OneTree.facts | {Fact.MINIMAL}

    def _takes(self, group: Group, wanters: list[NodeId]) -> Iterable[NodeId]:
        return dict.fromkeys(self._branches[node] for node in wanters if node != self._self)

    def _is_member(self, wanters: list[NodeId], children: tuple[NodeId, ...]) -> bool:
        return self._self in wanters or bool(children) or self._root == self._self
