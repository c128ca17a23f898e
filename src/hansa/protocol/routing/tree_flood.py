"""Flooding along a tree (Antonielli 2020): a publication reaches every node, with or without
subscribers.

The paper sends it to the root first and from there to all nodes. Here every node forwards it to all
its neighbours on the tree except the sender, so it crosses each link once instead of up to twice.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId
from hansa.protocol.routing.tree import TreeStrategy


class TreeFlood(TreeStrategy):
    def _tree_neighbours(self, group: Group, interested: list[NodeId]) -> Iterable[NodeId]:
        return dict.fromkeys(self._neighbour_towards.values())

    def _is_member(self, interested: list[NodeId], children: tuple[NodeId, ...]) -> bool:
        return True
