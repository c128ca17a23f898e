"""Subscriptions by filter, matched in the order in which Mosquitto matches them.

The order decides in which order a client gets the copies of one publication. For topic `a`:
`a/#`, `a`, `+/#`, `+`, `#`. Clients with the same filter get their copies in the order in which
they subscribed. Filters of shared subscriptions are in a tree of their own, matched afterwards.
"""

from collections import deque
from collections.abc import Iterator

from hansa.simulator.broker.session import Session


class Subscriber:
    """One client's subscription to one filter."""

    __slots__ = ("session", "qos", "identifier", "no_local", "retain_as_published")

    def __init__(
        self,
        session: Session,
        qos: int,
        identifier: int,
        no_local: bool,
        retain_as_published: bool,
    ) -> None:
        """`identifier` is 0 if the client gave none."""
        self.session = session
        self.qos = qos
        self.identifier = identifier
        self.no_local = no_local
        self.retain_as_published = retain_as_published


class FilterNode:
    """The subscribers of one filter."""

    __slots__ = ("children", "subscribers", "groups")

    def __init__(self) -> None:
        """Start without subscribers."""
        self.children: dict[str, FilterNode] = {}
        self.subscribers: dict[str, Subscriber] = {}
        """By client id; in the tree of plain filters only."""
        self.groups: dict[str, deque[Subscriber]] = {}
        """By share name, the next one to be served first; in the tree of shared filters only."""

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.subscribers or self.groups)


class FilterTree:
    __slots__ = ("_roots",)

    def __init__(self) -> None:
        """Start without subscriptions."""
        self._roots: dict[str, FilterNode] = {}

    def make_node(self, topic_filter: str) -> FilterNode:
        """Return the node of a filter; create it if necessary."""
        node = self._roots.setdefault(_root_name(topic_filter), FilterNode())
        for level in topic_filter.split("/"):
            node = node.children.setdefault(level, FilterNode())
        return node

    def find_node(self, topic_filter: str) -> FilterNode | None:
        node = self._roots.get(_root_name(topic_filter))
        for level in topic_filter.split("/"):
            if node is None:
                return None
            node = node.children.get(level)
        return node

    def prune(self, topic_filter: str) -> None:
        """Delete the nodes of a filter that are empty now."""
        path = [self._roots[_root_name(topic_filter)]]
        levels = topic_filter.split("/")
        for level in levels:
            path.append(path[-1].children[level])
        while levels and path.pop().is_empty:
            del path[-1].children[levels.pop()]

    def match(self, topic: str) -> list[FilterNode]:
        """Return the nodes whose filters match the topic, in order."""
        found: list[FilterNode] = []
        root = self._roots.get(_root_name(topic))
        if root is not None:
            _match(root, topic.split("/"), 0, found)
        return found

    def nodes(self) -> Iterator[tuple[str, FilterNode]]:
        """Iterate over all filters and their nodes."""
        for root in self._roots.values():
            for level, node in root.children.items():
                yield from _walk(level, node)


def _root_name(text: str) -> str:
    return text.split("/", 1)[0] if text.startswith("$") else ""


def _match(node: FilterNode, levels: list[str], depth: int, found: list[FilterNode]) -> None:
    if depth < len(levels):
        for key in (levels[depth], "+"):
            child = node.children.get(key)
            if child is not None:
                _match(child, levels, depth + 1, found)
                if depth + 1 == len(levels):
                    found.append(child)
    rest = node.children.get("#")
    if rest is not None:
        found.append(rest)


def _walk(topic_filter: str, node: FilterNode) -> Iterator[tuple[str, FilterNode]]:
    yield topic_filter, node
    for level, child in node.children.items():
        yield from _walk(f"{topic_filter}/{level}", child)
