"""MQTT topic names and topic filters: validity, matching and covering.

The rules are those of MQTT 5, sections 4.7 and 4.8.2, each cited where it is applied.

Text is checked once, where it enters: `check_name` and `check_filter`. Everything else takes
checked text and cannot fail. `matches`, `covers` and `FilterTrie` take *plain* filters:
`split_share` removes `$share/<group>/`, which has no influence on matching.

A topic name is the narrowest filter: it matches only itself. So matching is covering ("every topic
of the narrow one is a topic of the wide one"), and one walk of the trie does both.

Because a topic name is not empty, two filters have a second spelling: `#` and `+/#` match the same
topics, and so do `/#` and `/+/#`. Covering must treat these pairs as equal.
"""

from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar

from hansa.errors import InvalidTopic

TOPIC_BYTES_MAX = 65_535
"""Bytes of a topic name in UTF-8: the maximum of MQTT's two length bytes."""

TOPIC_LEVELS_MAX = 200
"Levels of a topic name. Mosquitto refuses more than 200 separators, which is one level more."

FILTER_BYTES_MAX = 1_024
"""Bytes of an announced filter, `$share/<group>/` included: every node stores every filter."""

FILTER_LEVELS_MAX = 32
"""Levels of an announced filter, `$share/<group>/` not counted."""

_SHOWN_CHARS_MAX = 60
_SHARE = "$share/"

# Last key of a path, see `_path`. A level contains no `/`, so it is unambiguous.
_END = "/"
_ENDS = (_END, "#")

# Filters with a second spelling that names each level that a topic needs: see the module docstring.
_SPELLED_OUT = {"#": "+/#", "/#": "/+/#"}


def check_name(text: str) -> str:
    """Return `text` if it is a valid topic name; else raise InvalidTopic."""
    _check_text("topic name", text, TOPIC_BYTES_MAX)
    if "+" in text or "#" in text:  # [MQTT-4.7.0-1]
        raise _invalid("topic name", text, "'+' and '#' are for filters only")
    _check_level_count("topic name", text, text, TOPIC_LEVELS_MAX)
    return text


def check_filter(text: str) -> str:
    """Return `text` if it is a valid filter that may be announced; else raise InvalidTopic."""
    _check_text("topic filter", text, FILTER_BYTES_MAX)
    plain = _check_share(text)
    _check_level_count("topic filter", text, plain, FILTER_LEVELS_MAX)
    levels = plain.split("/")
    for level in levels:
        for wildcard in "#+":  # [MQTT-4.7.1-1], [MQTT-4.7.1-2]
            if wildcard in level and level != wildcard:
                raise _invalid("topic filter", text, f"'{wildcard}' must be alone in its level")
    if "#" in levels[:-1]:  # [MQTT-4.7.1-1]
        raise _invalid("topic filter", text, "'#' must be the last level")
    return text


def is_filter(text: str) -> bool:
    """Whether `check_filter` accepts a text."""
    try:
        check_filter(text)
    except InvalidTopic:
        return False
    return True


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """Return the group of a shared subscription, or None, and the plain filter."""
    if not topic_filter.startswith(_SHARE):
        return None, topic_filter
    group, _, plain = topic_filter[len(_SHARE) :].partition("/")
    return group, plain


def is_local_only(text: str) -> bool:
    """Whether a name or filter concerns one broker only: `$`-topics are never federated.

    A shared subscription is as local as its plain filter.
    """
    _, plain = split_share(text)
    return (plain or text).startswith("$")


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a subscription to this plain filter receives this topic name."""
    return _includes(topic_filter, topic)


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic that `narrow` matches is matched by `wide`; both are plain."""
    return _includes(wide, _SPELLED_OUT.get(narrow, narrow))


def intersect(one: str, other: str) -> str | None:
    """Return the plain filter that matches what both of two plain filters match, None if there is
    no such topic."""
    levels: list[str] = []
    ours, theirs = _path(one), _path(other)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a == "#" or b == "#":
            levels += theirs[place:] if a == "#" else ours[place:]
            break
        if a != b and (a != "+" or b == _END) and (b != "+" or a == _END):
            return None
        levels.append(b if a == "+" else a)
    if levels[-1] == _END:
        levels.pop()
    if levels[0].startswith("$") and (one[0] in "+#" or other[0] in "+#"):
        return None  # [MQTT-4.7.2-1]
    return "/".join(levels) or None  # only the empty topic, which is none, matches both /# and +


def remove_covered(filters: Iterable[str]) -> tuple[str, ...]:
    """Return, sorted, the filters that no other of them covers: the smallest equivalent set.

    A shared subscription stays unless it is a duplicate: it delivers to one member of its group, so
    no other filter can replace it. Of two spellings of one filter the shorter stays.
    """
    distinct = sorted(set(filters))
    kept = FilterTrie[None]()
    for text in sorted(distinct, key=_narrowness):
        if not text.startswith(_SHARE) and not kept.is_covered(text):
            kept.put(text, None)
    return tuple(text for text in distinct if text.startswith(_SHARE) or text in kept)


def _narrowness(topic_filter: str) -> tuple[int, int, bool]:
    """Sort key: a filter comes after all filters that cover it.

    The wide one has no literal that the narrow one lacks; with as many literals, no `+` that it
    lacks; with as many of both, only `#` can make it wider. So sorting needs no comparison of
    pairs, and of two spellings of one filter the shorter comes first.
    """
    levels = topic_filter.split("/")
    is_open = levels[-1] == "#"
    singles = levels.count("+")
    return len(levels) - singles - is_open, singles, not is_open


def _includes(wide: str, narrow: str) -> bool:
    """Whether `wide` covers `narrow`, which is a name or a filter in its long spelling."""
    if narrow.startswith("$") and wide.startswith(("+", "#")):
        return False  # [MQTT-4.7.2-1]
    return _path_covers(_path(wide), _path(narrow))


def _path(text: str) -> list[str]:
    """Return the levels and a last key that says how they end: with `#`, or with `_END`.

    No path is a prefix of another, so two paths can be compared without comparing lengths.
    """
    levels = text.split("/")
    if levels[-1] != "#":
        levels.append(_END)
    return levels


def _path_covers(wide: list[str], narrow: list[str]) -> bool:
    """Compare two paths key by key, without the `$` rule."""
    for ours, theirs in zip(wide, narrow):  # noqa: B905 - `strict` slows a match by a seventh
        if ours == "#":
            return True  # also at the end of the other: `a/#` matches `a`
        if ours != theirs and (ours != "+" or theirs in _ENDS):
            return False
    return True


def _check_text(kind: str, text: str, bytes_max: int) -> None:
    """Apply MQTT's rules for both names and filters."""
    if not text:  # [MQTT-4.7.3-1]
        raise _invalid(kind, text, "must not be empty")
    if "\0" in text:  # [MQTT-4.7.3-2]
        raise _invalid(kind, text, "must not contain U+0000")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # [MQTT-1.5.4-1]
        raise _invalid(kind, text, "must be UTF-8, which has no lone surrogates") from None
    if size > bytes_max:  # [MQTT-4.7.3-3]
        raise _invalid(kind, text, f"{size} bytes, the limit is {bytes_max}")


def _check_level_count(kind: str, text: str, plain: str, levels_max: int) -> None:
    count = plain.count("/") + 1
    if count > levels_max:
        raise _invalid(kind, text, f"{count} levels, the limit is {levels_max}")


def _check_share(text: str) -> str:
    """Return the plain filter of a shared subscription, or `text` if it is none."""
    if not f"{text}/".startswith(_SHARE):  # `$share` alone is a shared subscription without a name
        return text
    group, _, plain = text[len(_SHARE) :].partition("/")
    if not group:  # [MQTT-4.8.2-1]
        raise _invalid("topic filter", text, "the share name must not be empty")
    if "+" in group or "#" in group:  # [MQTT-4.8.2-2]
        raise _invalid("topic filter", text, "the share name must not contain '+' or '#'")
    if not plain:  # [MQTT-4.8.2-2]
        raise _invalid("topic filter", text, "a filter must follow the share name")
    return plain


def _invalid(kind: str, text: str, reason: str) -> InvalidTopic:
    shown = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
    return InvalidTopic(f"{kind} {shown!r}: {reason}")


V = TypeVar("V")


class _Leaf(Generic[V]):
    """One stored filter and its value."""

    __slots__ = ("text", "value", "wild")

    def __init__(self, text: str, value: V) -> None:
        self.text = text
        self.value = value
        self.wild = "+" in text or "#" in text


_Branch: TypeAlias = "dict[str, _Branch[V] | _Leaf[V]]"


class FilterTrie(Generic[V]):
    """Plain filters with values, found by a topic that they match or a filter that they cover.

    A branch is a dict from a key of `_path` to a branch or a leaf; `#` and `_END` lead to leaves.

    A branch exists only where two or more filters differ; the rest of a path is in its leaf. So
    most filters cost one leaf and one dict entry, whatever their length, and the shape does not
    depend on the order of insertion.

    Filters that start with `$` have a tree of their own: no wildcard of the other tree may match
    them [MQTT-4.7.2-1], so the rule costs nothing when matching.
    """

    __slots__ = ("_count", "_dollar_root", "_root")

    def __init__(self) -> None:
        self._count = 0
        self._root: _Branch[V] = {}
        self._dollar_root: _Branch[V] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic_filter: str) -> bool:
        return self._find(topic_filter) is not None

    def get(self, topic_filter: str) -> V | None:
        """Return the value stored for exactly this filter, or None."""
        leaf = self._find(topic_filter)
        return None if leaf is None else leaf.value

    def put(self, topic_filter: str, value: V) -> None:
        """Store a filter, or replace its value."""
        branch = self._tree(topic_filter)
        path = _path(topic_filter)
        depth = 0
        while (item := branch.get(path[depth])) is not None:
            if isinstance(item, _Leaf):
                if item.text == topic_filter:
                    item.value = value
                    return
                branch[path[depth]] = item = {_path(item.text)[depth + 1]: item}
            branch = item
            depth += 1
        branch[path[depth]] = _Leaf(topic_filter, value)
        self._count += 1

    def remove(self, topic_filter: str) -> bool:
        """Remove a filter and the branches that only it needed; say whether it was stored."""
        item: _Branch[V] | _Leaf[V] | None = self._tree(topic_filter)
        passed: list[tuple[_Branch[V], str]] = []
        for key in _path(topic_filter):
            if not isinstance(item, dict):
                break
            passed.append((item, key))
            item = item.get(key)
        if not isinstance(item, _Leaf) or item.text != topic_filter:
            return False
        branch, key = passed.pop()
        del branch[key]
        _fold(branch, passed)
        self._count -= 1
        return True

    def match(self, topic: str) -> list[V]:
        """Return the value of each stored filter that matches this topic name.

        Two filters with equal values give it twice. The order depends only on the stored filters.
        """
        path = _path(topic)
        return [leaf.value for leaf in self._walk(topic, path, path)]

    def is_covered(self, topic_filter: str) -> bool:
        return bool(self._covering(topic_filter))

    def covering(self, topic_filter: str) -> list[str]:
        """Return, sorted, the stored filters that cover this one, itself included."""
        return sorted(leaf.text for leaf in self._covering(topic_filter))

    def covered(self, topic_filter: str) -> list[str]:
        """Return, sorted, the stored filters that this one covers, itself included."""
        return sorted(
            leaf.text for leaf in self._candidates(topic_filter) if covers(topic_filter, leaf.text)
        )

    def overlaps(self, topic_filter: str) -> bool:
        """Whether some topic matches this filter and a stored one."""
        branches = [self._tree(topic_filter)]
        for key in _path(topic_filter):
            deeper: list[_Branch[V]] = []
            for branch in branches:
                if key == "#" and branch:
                    return True
                for item in _reached_by_either(branch, key):
                    if isinstance(item, dict):
                        deeper.append(item)
                    elif intersect(item.text, topic_filter) is not None:
                        return True
            branches = deeper
        return False

    def _tree(self, text: str) -> "_Branch[V]":
        return self._dollar_root if text.startswith("$") else self._root

    def _find(self, topic_filter: str) -> _Leaf[V] | None:
        item: _Branch[V] | _Leaf[V] | None = self._tree(topic_filter)
        for key in _path(topic_filter):
            if not isinstance(item, dict):
                break
            item = item.get(key)
        return item if isinstance(item, _Leaf) and item.text == topic_filter else None

    def _covering(self, topic_filter: str) -> list[_Leaf[V]]:
        """Walk with a filter. Every branch is asked for wildcards anyway.

        Asking twice would find a leaf twice; `_END` instead finds only leaves that cannot cover it.
        """
        narrow = _SPELLED_OUT.get(topic_filter, topic_filter)
        path = _path(narrow)
        return self._walk(narrow, path, [_END if key in ("+", "#") else key for key in path])

    def _walk(self, narrow: str, path: list[str], levels: list[str]) -> list[_Leaf[V]]:
        """Return the leaves that cover `narrow`. On the path of every publication: optimized for
        speed."""
        branches = [self._tree(narrow)]
        found: list[_Leaf[V]] = []
        for level in levels:
            deeper: list[_Branch[V]] = []
            for branch in branches:
                if level in branch:
                    item = branch[level]
                    if isinstance(item, dict):
                        deeper.append(item)
                    elif item.text == narrow or (
                        item.wild and _path_covers(_path(item.text), path)
                    ):
                        found.append(item)
                if "+" in branch:
                    item = branch["+"]
                    if isinstance(item, dict):
                        deeper.append(item)
                    elif _path_covers(_path(item.text), path):
                        found.append(item)
                if "#" in branch and isinstance(leaf := branch["#"], _Leaf):
                    found.append(leaf)
            branches = deeper
        return found

    def _candidates(self, wide: str) -> list[_Leaf[V]]:
        """Return the leaves that a filter of this shape may cover, and a few more."""
        leaves: list[_Leaf[V]] = []
        branches = [self._tree(wide)]
        keys = iter(_path(wide))
        while branches:
            key = next(keys, "#")  # below a `#` everything is reached
            items = [item for branch in branches for item in _reached(branch, key)]
            leaves += [item for item in items if isinstance(item, _Leaf)]
            branches = [item for item in items if isinstance(item, dict)]
        return leaves


def _reached(branch: "_Branch[V]", key: str) -> "Iterable[_Branch[V] | _Leaf[V]]":
    """Return the branches and leaves one level down for a level of a wide filter."""
    if key in ("+", "#"):
        return branch.values()
    return (branch[key],) if key in branch else ()


def _reached_by_either(branch: "_Branch[V]", key: str) -> "Iterable[_Branch[V] | _Leaf[V]]":
    """Return the branches and leaves one level down for a level of a filter that may be as wide."""
    if key == "+":
        return [item for level, item in branch.items() if level != _END]
    levels = (key, "#") if key == _END else (key, "+", "#")
    return [branch[level] for level in levels if level in branch]


def _fold(branch: "_Branch[V]", passed: "list[tuple[_Branch[V], str]]") -> None:
    """Move the last leaf of a branch up to where its path differs from another."""
    while passed and len(branch) == 1:
        (item,) = branch.values()
        if isinstance(item, dict):
            return
        branch, key = passed.pop()
        branch[key] = item
