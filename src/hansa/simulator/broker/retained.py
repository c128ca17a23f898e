"""Retained messages, replayed in the order in which Mosquitto replays them.

Topics below one level are in the order of their first retained message. In 2.0 a cleared topic
keeps its place until the broker restarts.
"""

from collections.abc import Iterator

from hansa.simulator.broker.message import Message


class _Node:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None


class RetainedMessages:
    __slots__ = ("_is_v2_1", "_roots")

    def __init__(self, is_v2_1: bool) -> None:
        """Start without messages."""
        self._is_v2_1 = is_v2_1
        self._roots: dict[str, _Node] = {}

    def store(self, message: Message) -> None:
        """Store a message; one with an empty payload clears its topic."""
        node = self._roots.setdefault(_root_name(message.topic), _Node())
        levels = message.topic.split("/")
        path = [node]
        for level in levels:
            node = node.children.setdefault(level, _Node())
            path.append(node)
        had_message = node.message is not None
        node.message = message if message.payload else None
        if self._is_v2_1 and had_message:
            while levels and not path[-1].children and path[-1].message is None:
                path.pop()
                del path[-1].children[levels.pop()]

    def match(self, topic_filter: str) -> Iterator[Message]:
        """Iterate over the messages whose topics match a filter."""
        root = self._roots.get(_root_name(topic_filter))
        return iter(()) if root is None else _match(root, topic_filter.split("/"))

    def messages(self) -> Iterator[Message]:
        """Iterate over all messages."""
        for root in self._roots.values():
            yield from _descendants(root)


def _root_name(text: str) -> str:
    return text.split("/", 1)[0] if text.startswith("$") else ""


def _match(node: _Node, levels: list[str]) -> Iterator[Message]:
    level, rest = levels[0], levels[1:]
    if level == "#":
        yield from _descendants(node)
        return
    if level == "+":
        children = list(node.children.values())
    else:
        children = [node.children[level]] if level in node.children else []
    for child in children:
        if rest:
            yield from _match(child, rest)
        if child.message is not None and (not rest or rest == ["#"]):
            yield child.message


def _descendants(node: _Node) -> Iterator[Message]:
    for child in node.children.values():
        if child.message is not None:
            yield child.message
        yield from _descendants(child)
