"""A bounded set of filters that covers all filters of an area (docs/decisions/0040-areas.md).

A summary may match topics that no filter matches (false positives: a copy too many), and matches
every topic that a filter matches (no false negatives: no copy too few). It consists of topic
filters, because agents subscribe to it at their brokers; a Bloom filter cannot be subscribed to.

Filters with a common prefix are replaced by `prefix/#`: the longest prefixes first, because they
add the fewest topics, and of equally long ones those with the most filters.

Filters are plain: no `$share/g/f`, because a false positive would select an area without a consumer
and lose the publication; and no other `$`-filters, which are never federated.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from hansa.protocol.topics import FilterTrie, remove_covered


class Change(NamedTuple):
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


NO_CHANGE = Change()


def summarise(filters: Iterable[str], limit: int) -> tuple[str, ...]:
    """Return, sorted, at most `limit` filters that cover all of these; `#` if nothing else fits."""
    kept = set(remove_covered(filters))
    if any(text.startswith("$") for text in kept):
        raise ValueError("only plain filters can be summarised")
    if limit < 1:
        raise ValueError(f"a summary of {limit} filters covers nothing")
    longest = max((len(_fixed_levels(text)) for text in kept), default=0)
    for depth in reversed(range(longest)):
        if len(kept) <= limit:
            break
        _widen_at(depth, kept, limit)
    return remove_covered(kept)


def _widen_at(depth: int, kept: set[str], limit: int) -> None:
    """Replace filters that share their first `depth` levels, until there are at most `limit`."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for text in kept:
        levels = _fixed_levels(text)
        if len(levels) >= depth:
            groups.setdefault(levels[:depth], []).append(text)
    for prefix, members in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        if len(kept) <= limit or len(members) < 2:
            break
        kept.difference_update(members)
        kept.add("/".join((*prefix, "#")))


def _fixed_levels(topic_filter: str) -> tuple[str, ...]:
    levels = tuple(topic_filter.split("/"))
    return levels[:-1] if levels[-1] == "#" else levels


class InterestSummary:
    """The summary of a changing collection of filters.

    Most changes do not change it: a filter that is covered already, or whose entry still covers
    another one. Entries stay as wide as they became until nothing below them is left; a summary
    that is built anew from the same filters may be narrower.
    """

    def __init__(self, limit: int, filters: Iterable[str] = ()) -> None:
        self._limit = limit
        self._counts = Counter(filters)
        self._filters = FilterTrie[None]()
        for text in self._counts:
            self._filters.put(text, None)
        # Each entry with the number of filters that it covers.
        self._entries = FilterTrie[int]()
        self._change_entries(summarise(self._counts, limit), ())

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries.covered("#"))

    def matches(self, topic: str) -> bool:
        return bool(self._entries.match(topic))

    def add(self, topic_filter: str) -> Change:
        """Count a filter once more; return how the entries change."""
        self._counts[topic_filter] += 1
        if self._counts[topic_filter] > 1:
            return NO_CHANGE
        self._filters.put(topic_filter, None)
        if self._add_to_coverage(topic_filter, 1):
            return NO_CHANGE
        narrower = self._entries.covered(topic_filter)
        if len(self) - len(narrower) < self._limit:
            return self._change_entries([topic_filter], narrower)
        old = set(self.entries)
        new = set(summarise((*old, topic_filter), self._limit))
        return self._change_entries(new - old, old - new)

    def remove(self, topic_filter: str) -> Change:
        """Count a filter once less; return how the entries change."""
        self._counts[topic_filter] -= 1
        if self._counts[topic_filter] > 0:
            return NO_CHANGE
        del self._counts[topic_filter]
        self._filters.remove(topic_filter)
        entries = self._add_to_coverage(topic_filter, -1)
        return self._change_entries((), [text for text in entries if not self._entries.get(text)])

    def _add_to_coverage(self, topic_filter: str, count: int) -> list[str]:
        """Return the entries that cover a filter, after a change of their number of filters."""
        entries = self._entries.covering(topic_filter)
        for text in entries:
            self._entries.put(text, (self._entries.get(text) or 0) + count)
        return entries

    def _change_entries(self, added: Iterable[str], removed: Iterable[str]) -> Change:
        change = Change(tuple(sorted(added)), tuple(sorted(removed)))
        for text in change.added:
            self._entries.put(text, len(self._filters.covered(text)))
        for text in change.removed:
            self._entries.remove(text)
        return change
