"""Flooding along a tree (Antonielli 2020): a publication reaches every node, wanted there or not.

The paper sends it to the root first and from there to all; here every node passes it on to all its
neighbours on the tree but the sender, which crosses each link of the tree once instead of up to
twice.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.tree import OneTree


class TreeFlood(OneTree):
    """One node's part."""

    def _takes(self, group: Group, wanters: list[NodeId]) -> Iterable[NodeId]:
        return dict.fromkeys(self._branches.values())

    def _is_member(self, wanters: list[NodeId], children: tuple[NodeId, ...]) -> bool:
        return True
