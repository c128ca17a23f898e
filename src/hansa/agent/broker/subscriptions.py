"""Which of the agent's own subscriptions decides about a publication that several of them match.

The broker sends one copy for each, with its identifier; the copy of the oldest one counts and the
others are dropped. That stays right while the set changes, because

- a new filter gets the highest identifier: it decides only where no other filter matches;
- a filter that is given up decides until the broker has confirmed its end. The broker answers in
  order, so copies of QoS 0 from before the end come before the confirmation, and none come after
  it; those of QoS 1 and 2 wait in queues, see `copies`;
- a filter that the broker refuses decides nothing: no copy would ever carry its identifier.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from hansa.errors import InvalidTopic
from hansa.protocol.topics import FilterTrie, check_name

TOPICS_MAX = 65_536
"""Topics whose oldest subscription is remembered; when full, all are learned anew."""


ENDS_MAX = 4_096
"""Ended filters of which copies may still come."""

UNFIT = -1
"""Stands for the identifier of a topic that cannot travel: one with too many levels."""


def note(notes: OrderedDict[int, int], identifier: int, other: int) -> None:
    """Note something of an identifier; as when its filter ended, the last one that had been given.
    The oldest notes are forgotten."""
    notes[identifier] = other
    if len(notes) > ENDS_MAX:
        notes.popitem(last=False)


class Subscriptions:
    """The filters that this client wants, and those that it is about to lose."""

    def __init__(self, staying: Iterable[str] = ()) -> None:
        """Start with none; publications to the topics of `staying` never leave nor enter."""
        self._staying: FilterTrie[None] = FilterTrie()
        for topic_filter in staying:
            self._staying.put(topic_filter, None)
        self._trie: FilterTrie[int] = FilterTrie()
        self._last = 0
        self._confirmed = 0
        self._oldest: dict[str, int] = {}
        self._wanted: dict[str, None] = {}
        self._leaving: set[str] = set()
        self._held: dict[str, int] = {}
        self._identifiers: set[int] = set()
        self._doubted: dict[str, int] = {}
        """Filters with the identifiers under which the broker may have them."""
        self._former: OrderedDict[int, int] = OrderedDict()
        """Identifiers of filters that were entered anew for that, with the ones before."""
        self._ends: OrderedDict[int, int] = OrderedDict()
        """The last identifier that had been given when another one's filter ended."""

    def __contains__(self, topic_filter: str) -> bool:
        """Whether a filter is wanted."""
        return topic_filter in self._wanted

    @property
    def wanted(self) -> tuple[str, ...]:
        """The filters to be subscribed to, oldest first."""
        return tuple(self._wanted)

    def want(self, topic_filter: str) -> None:
        """Want a filter."""
        self._wanted[topic_filter] = None

    @property
    def newest(self) -> int:
        """The identifier that was given last."""
        return self._last

    @property
    def confirmed(self) -> int:
        """The last identifier whose filter can have brought something that has come: the broker
        sends its answer to a subscription before the first copy."""
        return self._confirmed

    def newest_beside(self, identifiers: Iterable[int]) -> int:
        """Return the last identifier whose filter can have brought a copy of what these brought."""
        newest = self._confirmed
        for identifier in identifiers:
            newest = min(newest, self._ends.get(identifier, newest))
        return newest

    def is_held(self, identifier: int) -> bool:
        """Whether a filter that decides has this identifier."""
        return identifier in self._identifiers

    def drop(self, topic_filter: str) -> None:
        """Want a filter no more."""
        self._wanted.pop(topic_filter, None)

    def enter(self, topic_filter: str) -> int:
        """A filter is being subscribed to; return its identifier, above all others."""
        self._last += 1
        self.restore(topic_filter, self._last)
        former = self._doubted.pop(topic_filter, 0)
        if former:
            note(self._former, self._last, former)
        return self._last

    def brought_by(self, identifiers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the filters that brought a copy, each by the first of its identifiers."""
        return tuple(map(self._first_of, identifiers)) if self._former else identifiers

    def _first_of(self, identifier: int) -> int:
        while identifier in self._former:
            identifier = self._former[identifier]
        return identifier

    def confirm(self, topic_filter: str) -> None:
        """The broker has answered to a subscription."""
        self._confirmed = max(self._confirmed, self._held.get(topic_filter, 0))

    def restore(self, topic_filter: str, identifier: int) -> None:
        """The broker has a filter, under this identifier, from an earlier connection."""
        self._last = max(self._last, identifier)
        self._identifiers.discard(self._held.get(topic_filter, 0))
        self._identifiers.add(identifier)
        self._held[topic_filter] = identifier
        self._trie.put(topic_filter, identifier)
        self._oldest.clear()

    def recall(self, last: int, ends: Mapping[int, int]) -> None:
        """A former life gave identifiers up to this one, and saw filters end."""
        self._last = self._confirmed = max(self._last, last)
        self._ends.update(ends)

    def identifier(self, topic_filter: str) -> int:
        """Return the identifier of a filter that decides."""
        return self._held[topic_filter]

    @property
    def held(self) -> dict[str, int]:
        """The filters that decide, with their identifiers."""
        return dict(self._held)

    def part(self, topic_filter: str) -> None:
        """A filter is being unsubscribed from; it decides until it has left."""
        self._leaving.add(topic_filter)

    def leave(self, topic_filter: str) -> bool:
        """The broker has confirmed the end of a filter; whether it is wanted again meanwhile."""
        self._leaving.discard(topic_filter)
        self.exclude(topic_filter)
        return topic_filter in self._wanted

    def exclude(self, topic_filter: str) -> None:
        """A filter decides no more. If the broker has refused it, it stays wanted: another
        connection may bring it."""
        note(self._ends, self._remove(topic_filter), self._last)

    def _remove(self, topic_filter: str) -> int:
        self._trie.remove(topic_filter)
        doubted = self._doubted.pop(topic_filter, 0)
        identifier = self._held.pop(topic_filter, doubted)
        self._identifiers.discard(identifier)
        self._oldest.clear()
        return identifier

    def holds(self, topic_filter: str) -> bool:
        """Whether the broker has, or is about to have, a subscription that is not being ended."""
        return topic_filter in self._trie and topic_filter not in self._leaving

    def is_leaving(self, topic_filter: str) -> bool:
        """Whether the broker has been told, and has not confirmed yet, that a filter ends."""
        return topic_filter in self._leaving

    def count(self, topic: str) -> int:
        """Return how many subscriptions the broker will find for what is published now."""
        leaving = {self._trie.get(name) for name in self._leaving}
        return sum(identifier not in leaving for identifier in self._trie.match(topic))

    def stays(self, topic: str) -> bool:
        """Whether publications to a topic concern this broker alone."""
        return bool(self._staying) and bool(self._staying.match(topic))

    def start_over(self) -> None:
        """A new connection without a session: the broker has none of them."""
        self._trie = FilterTrie()
        self._held.clear()
        self._ends.clear()
        self._doubted.clear()
        self._former.clear()
        self._identifiers.clear()
        self._oldest.clear()
        self._leaving.clear()
        self._last = self._confirmed = 0

    def resume(self) -> None:
        """A new connection with the session of before: what was not confirmed is in doubt. Filters
        are entered anew, or those that come now could be taken for ones that were there before."""
        self._leaving.clear()
        for name in [each for each, number in self._held.items() if number > self._confirmed]:
            self._doubted[name] = self._remove(name)
        self._confirmed = self._last

    def oldest(self, topic: str) -> int:
        """Return the identifier whose copy of a publication counts, 0 or UNFIT if none does."""
        found = self._oldest.get(topic)
        if found is None:
            if len(self._oldest) >= TOPICS_MAX:
                self._oldest.clear()
            found = self._oldest[topic] = self._find_oldest(topic)
        return found

    def _find_oldest(self, topic: str) -> int:
        try:
            check_name(topic)
        except InvalidTopic:
            return UNFIT
        return 0 if self.stays(topic) else min(self._trie.match(topic), default=0)
