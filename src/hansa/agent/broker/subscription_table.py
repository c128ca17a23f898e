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

TOPIC_TOO_DEEP = -1
"""Stands for the identifier of a topic that cannot travel: one with too many levels."""


def remember_bounded(table: OrderedDict[int, int], identifier: int, other: int) -> None:
    """Note something of an identifier; as when its filter ended, the last one that had been given.
    The oldest notes are forgotten."""
    table[identifier] = other
    if len(table) > ENDS_MAX:
        table.popitem(last=False)


class SubscriptionTable:
    """The filters that this client wants, and those that it is about to lose."""

    def __init__(self, local_topics: Iterable[str] = ()) -> None:
        """Start with none; publications to the topics of `staying` never leave nor enter."""
        self._local_topics: FilterTrie[None] = FilterTrie()
        for topic_filter in local_topics:
            self._local_topics.put(topic_filter, None)
        self._trie: FilterTrie[int] = FilterTrie()
        self._last_identifier = 0
        self._last_confirmed = 0
        self._oldest_by_topic: dict[str, int] = {}
        self._required: dict[str, None] = {}
        self._unsubscribing: set[str] = set()
        self._identifier_by_filter: dict[str, int] = {}
        self._identifiers: set[int] = set()
        self._unconfirmed: dict[str, int] = {}
        """Filters with the identifiers under which the broker may have them."""
        self._previous_identifier: OrderedDict[int, int] = OrderedDict()
        """Identifiers of filters that were entered anew for that, with the ones before."""
        self._last_identifier_at_end: OrderedDict[int, int] = OrderedDict()
        """The last identifier that had been given when another one's filter ended."""

    def __contains__(self, topic_filter: str) -> bool:
        """Whether a filter is wanted."""
        return topic_filter in self._required

    @property
    def required(self) -> tuple[str, ...]:
        """The filters to be subscribed to, oldest first."""
        return tuple(self._required)

    def require(self, topic_filter: str) -> None:
        """Want a filter."""
        self._required[topic_filter] = None

    @property
    def last_identifier(self) -> int:
        """The identifier that was given last."""
        return self._last_identifier

    @property
    def last_confirmed(self) -> int:
        """The last identifier whose filter can have brought something that has come: the broker
        sends its answer to a subscription before the first copy."""
        return self._last_confirmed

    def newest_overlapping(self, identifiers: Iterable[int]) -> int:
        """Return the last identifier whose filter can have brought a copy of what these brought."""
        newest = self._last_confirmed
        for identifier in identifiers:
            newest = min(newest, self._last_identifier_at_end.get(identifier, newest))
        return newest

    def is_active_identifier(self, identifier: int) -> bool:
        """Whether a filter that decides has this identifier."""
        return identifier in self._identifiers

    def stop_requiring(self, topic_filter: str) -> None:
        """Want a filter no more."""
        self._required.pop(topic_filter, None)

    def assign_identifier(self, topic_filter: str) -> int:
        """A filter is being subscribed to; return its identifier, above all others."""
        self._last_identifier += 1
        self.restore(topic_filter, self._last_identifier)
        former = self._unconfirmed.pop(topic_filter, 0)
        if former:
            remember_bounded(self._previous_identifier, self._last_identifier, former)
        return self._last_identifier

    def original_identifiers(self, identifiers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the filters that brought a copy, each by the first of its identifiers."""
        return (
            tuple(map(self._original_identifier, identifiers))
            if self._previous_identifier
            else identifiers
        )

    def _original_identifier(self, identifier: int) -> int:
        while identifier in self._previous_identifier:
            identifier = self._previous_identifier[identifier]
        return identifier

    def on_confirmed(self, topic_filter: str) -> None:
        """The broker has answered to a subscription."""
        self._last_confirmed = max(
            self._last_confirmed, self._identifier_by_filter.get(topic_filter, 0)
        )

    def restore(self, topic_filter: str, identifier: int) -> None:
        """The broker has a filter, under this identifier, from an earlier connection."""
        self._last_identifier = max(self._last_identifier, identifier)
        self._identifiers.discard(self._identifier_by_filter.get(topic_filter, 0))
        self._identifiers.add(identifier)
        self._identifier_by_filter[topic_filter] = identifier
        self._trie.put(topic_filter, identifier)
        self._oldest_by_topic.clear()

    def restore_identifiers(self, last: int, last_identifier_at_end: Mapping[int, int]) -> None:
        """A former life gave identifiers up to this one, and saw filters end."""
        self._last_identifier = self._last_confirmed = max(self._last_identifier, last)
        self._last_identifier_at_end.update(last_identifier_at_end)

    def identifier_of(self, topic_filter: str) -> int:
        """Return the identifier of a filter that decides."""
        return self._identifier_by_filter[topic_filter]

    @property
    def active_identifiers(self) -> dict[str, int]:
        """The filters that decide, with their identifiers."""
        return dict(self._identifier_by_filter)

    def start_unsubscribe(self, topic_filter: str) -> None:
        """A filter is being unsubscribed from; it decides until it has left."""
        self._unsubscribing.add(topic_filter)

    def on_unsubscribed(self, topic_filter: str) -> bool:
        """The broker has confirmed the end of a filter; whether it is wanted again meanwhile."""
        self._unsubscribing.discard(topic_filter)
        self.deactivate(topic_filter)
        return topic_filter in self._required

    def deactivate(self, topic_filter: str) -> None:
        """A filter decides no more. If the broker has refused it, it stays wanted: another
        connection may bring it."""
        remember_bounded(
            self._last_identifier_at_end, self._remove(topic_filter), self._last_identifier
        )

    def _remove(self, topic_filter: str) -> int:
        self._trie.remove(topic_filter)
        doubted = self._unconfirmed.pop(topic_filter, 0)
        identifier = self._identifier_by_filter.pop(topic_filter, doubted)
        self._identifiers.discard(identifier)
        self._oldest_by_topic.clear()
        return identifier

    def is_subscribed(self, topic_filter: str) -> bool:
        """Whether the broker has, or is about to have, a subscription that is not being ended."""
        return topic_filter in self._trie and topic_filter not in self._unsubscribing

    def is_unsubscribing(self, topic_filter: str) -> bool:
        """Whether the broker has been told, and has not confirmed yet, that a filter ends."""
        return topic_filter in self._unsubscribing

    def count_matching(self, topic: str) -> int:
        """Return how many subscriptions the broker will find for what is published now."""
        leaving = {self._trie.get(name) for name in self._unsubscribing}
        return sum(identifier not in leaving for identifier in self._trie.match(topic))

    def is_local_topic(self, topic: str) -> bool:
        """Whether publications to a topic concern this broker alone."""
        return bool(self._local_topics) and bool(self._local_topics.match(topic))

    def on_session_lost(self) -> None:
        """A new connection without a session: the broker has none of them."""
        self._trie = FilterTrie()
        self._identifier_by_filter.clear()
        self._last_identifier_at_end.clear()
        self._unconfirmed.clear()
        self._previous_identifier.clear()
        self._identifiers.clear()
        self._oldest_by_topic.clear()
        self._unsubscribing.clear()
        self._last_identifier = self._last_confirmed = 0

    def on_session_resumed(self) -> None:
        """A new connection with the session of before: what was not confirmed is in doubt. Filters
        are entered anew, or those that come now could be taken for ones that were there before."""
        self._unsubscribing.clear()
        for name in [
            each
            for each, number in self._identifier_by_filter.items()
            if number > self._last_confirmed
        ]:
            self._unconfirmed[name] = self._remove(name)
        self._last_confirmed = self._last_identifier

    def deciding_identifier(self, topic: str) -> int:
        """Return the identifier whose copy of a publication counts, 0 or UNFIT if none does."""
        found = self._oldest_by_topic.get(topic)
        if found is None:
            if len(self._oldest_by_topic) >= TOPICS_MAX:
                self._oldest_by_topic.clear()
            found = self._oldest_by_topic[topic] = self._find_deciding(topic)
        return found

    def _find_deciding(self, topic: str) -> int:
        try:
            check_name(topic)
        except InvalidTopic:
            return TOPIC_TOO_DEEP
        return 0 if self.is_local_topic(topic) else min(self._trie.match(topic), default=0)
