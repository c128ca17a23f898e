"""Parser for the subscription tree that Mosquitto prints on its standard output at `kill -USR2`.

Two spaces per level, then one level of the filters, then the clients subscribed exactly there:

        plant                       <- four spaces and more: a root, and the root once more, which
          temp (alice, 1) (bob, 0)     is empty for ordinary filters and `$SYS` for those

Shared subscriptions are a second tree without names: neither group nor client is printed. A level
that begins with two spaces, or is a single space, looks like a deeper one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_INDENT = "    "
_QOS = re.compile(r", [0-2]\)")


@dataclass(frozen=True, slots=True)
class SubscriptionTree:
    """All subscriptions of a broker at one moment."""

    filters: dict[str, tuple[str, ...]]
    """Filters by client id, without shared subscriptions."""
    shared: tuple[str, ...]
    """Filters with shared subscriptions, of any group."""
    possibly_shared: tuple[str, ...]
    """Filters with or without shared subscriptions: inner levels of longer ones."""
    is_complete: bool
    """Whether the last part, that of shared subscriptions, has begun."""


def find_last_tree(text: str) -> SubscriptionTree | None:
    """Return the last tree in a text, None if there is none."""
    block: list[str] = []
    last: list[str] = []
    for line in text.split("\n"):
        if line.startswith(_INDENT):
            block.append(line)
        elif block:
            last, block = block, []
    lines = block or last
    return _parse_last_tree(lines) if lines else None


def _parse_last_tree(lines: list[str]) -> SubscriptionTree:
    """Parse the last tree in these lines; each part begins with an empty root."""
    starts = [at for at, line in enumerate(lines) if line == _INDENT]
    if not starts or len(starts) % 2:
        return SubscriptionTree({}, (), (), is_complete=False)
    plain, shared = starts[-2:]
    filters: dict[str, list[str]] = {}
    places = [(name, is_leaf) for name, _, is_leaf in _parse_nodes(lines[shared:]) if name]
    for name, holders, _ in _parse_nodes(lines[plain:shared]):
        for client in holders:
            filters.setdefault(client, []).append(name)
    return SubscriptionTree(
        {client: tuple(names) for client, names in filters.items()},
        tuple(name for name, is_leaf in places if is_leaf),
        tuple(name for name, is_leaf in places if not is_leaf),
        is_complete=True,
    )


def _parse_nodes(lines: list[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each place in a tree as a filter, its subscribers, and whether it is a leaf."""
    path: list[str] = []
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        depth, level, holders = _split_line(line, len(path))
        path = [*path[:depth], level]
        if depth > 0:
            name = "/".join(path[1:] if path[0] else path[2:])
            yield name, holders, len(path) > 2 and _depth(next_line, depth + 1) <= depth


def _depth(line: str, depth_max: int) -> int:
    spaces = len(line) - len(line.lstrip(" "))
    return min((spaces - len(_INDENT)) // 2, depth_max)


def _split_line(line: str, depth_max: int) -> tuple[int, str, list[str]]:
    """Split a line into its depth, its level and the ids of subscribers."""
    depth = _depth(line, depth_max)
    content = line[len(_INDENT) + 2 * depth :]
    ids: list[str] = []
    end = len(content)
    while _QOS.fullmatch(content, max(end - 4, 0), end):
        start = _find_opening(content, end)
        if start < 0:
            break
        ids.append(content[start + 2 : end - 4])
        end = start
    return depth, content[:end], ids[::-1]


def _find_opening(content: str, end: int) -> int:
    """Return the position of the ` (` that the `)` before `end` closes; levels and ids may contain
    parentheses.

    If they are unbalanced, the last one is taken.
    """
    open_pairs = 0
    for at in range(end - 1, 0, -1):
        if content[at] == ")":
            open_pairs += 1
        elif content[at] == "(":
            open_pairs -= 1
            if not open_pairs and content[at - 1] == " ":
                return at - 1
    return content.rfind(" (", 0, end)
