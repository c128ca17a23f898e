"""Groups of filters, and the nodes interested in each group.

A group is named by a filter that covers the filters of its members, so one trie of groups finds all
groups of a publication. With depth 0 every filter is its own group; a depth joins filters with
equal first levels.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId
from hansa.protocol.topics import FILTER_BYTES_MAX, FILTER_LEVELS_MAX, split_share


def group_of(topic_filter: str, depth: int) -> Group:
    """Return the group of a filter: `a/b/c/+` is in `a/b/#` at depth 2, in itself at depth 0."""
    plain = split_share(topic_filter)[1]
    if depth == 0:
        return plain
    levels = plain.split("/")
    head = levels[:depth]
    for place, level in enumerate(head):
        if level in ("+", "#"):
            return "/".join([*head[:place], "#"])
    wide = "/".join([*head, "#"])
    fits = len(wide.encode()) <= FILTER_BYTES_MAX and depth < FILTER_LEVELS_MAX
    return wide if len(levels) >= depth and fits else plain


class GroupIndex:
    """The nodes interested in each group, reachable or not."""

    __slots__ = ("_depth", "nodes_by_group")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.nodes_by_group: dict[Group, dict[NodeId, int]] = {}
        """Per group, the interested nodes, each with the number of its filters in the group."""

    def apply_change(
        self, node: NodeId, added: Iterable[str], removed: Iterable[str]
    ) -> list[Group]:
        """Apply a change of a node's filters; return the groups whose interest by this node
        changed."""
        changed: dict[Group, None] = {}
        for topic_filter in added:
            group = group_of(topic_filter, self._depth)
            nodes = self.nodes_by_group.setdefault(group, {})
            if node not in nodes:
                changed[group] = None
            nodes[node] = nodes.get(node, 0) + 1
        for topic_filter in removed:
            group = group_of(topic_filter, self._depth)
            nodes = self.nodes_by_group[group]
            nodes[node] -= 1
            if nodes[node] == 0:
                changed[group] = None
                del nodes[node]
                if not nodes:
                    del self.nodes_by_group[group]
        return list(changed)

    def is_interested(self, group: Group, node: NodeId) -> bool:
        return node in self.nodes_by_group.get(group, {})
