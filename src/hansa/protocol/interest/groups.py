"""Which group a filter belongs to, and who wants which group.

A group is named by a filter that matches everything its members want, so one trie of groups finds
all groups of a publication. With depth 0 every filter is its own group; a depth joins filters that
agree in their first levels.
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
    """Who wants which group, in reach or not."""

    __slots__ = ("_depth", "wanters")

    def __init__(self, depth: int) -> None:
        """Start with no interest at all."""
        self._depth = depth
        self.wanters: dict[Group, dict[NodeId, int]] = {}
        """Per group, the nodes that want it, each with the number of its filters in the group."""

    def change(self, node: NodeId, added: Iterable[str], removed: Iterable[str]) -> list[Group]:
        """A node's filters changed; return the groups that it now wants or wants no more."""
        touched: dict[Group, None] = {}
        for topic_filter in added:
            group = group_of(topic_filter, self._depth)
            wanters = self.wanters.setdefault(group, {})
            if node not in wanters:
                touched[group] = None
            wanters[node] = wanters.get(node, 0) + 1
        for topic_filter in removed:
            group = group_of(topic_filter, self._depth)
            wanters = self.wanters[group]
            wanters[node] -= 1
            if wanters[node] == 0:
                touched[group] = None
                del wanters[node]
                if not wanters:
                    del self.wanters[group]
        return list(touched)

    def wanted_by(self, group: Group, node: NodeId) -> bool:
        """Whether a node wants a group."""
        return node in self.wanters.get(group, {})
