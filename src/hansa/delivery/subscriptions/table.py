"""Decides which of the agent's subscriptions counts for a publication that several of them match.

The broker sends one copy for each, with its identifier; the copy of the oldest subscription counts
and the others are dropped. This stays right while the set changes, because

- a new filter gets the highest identifier: it counts only where no other filter matches;
- a filter that is unsubscribed counts until UNSUBACK. The broker answers in order, so copies of
  QoS 0 from before arrive before UNSUBACK and none after it; those of QoS 1 and 2 wait in queues,
  see `dedup/overlap`;
- a filter that the broker refuses does not count: no copy would ever carry its identifier.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from hansa.errors import InvalidTopic
from hansa.protocol.topics import FilterTrie, check_name

TOPICS_MAX = 65_536
"""Topics whose oldest subscription is cached; when full, the cache is cleared."""


ENDS_MAX = 4_096
"""Unsubscribed filters of which copies may still arrive."""

TOPIC_TOO_DEEP = -1
"""Stands for the identifier of a topic with too many levels to be forwarded."""


def remember_bounded(table: OrderedDict[int, int], identifier: int, other: int) -> None:
    """Store a value for an identifier, such as the last identifier assigned when its filter ended;
    drop the oldest entry beyond the bound."""
    table[identifier] = other
    if len(table) > ENDS_MAX:
        table.popitem(last=False)


class SubscriptionTable:
    """Required filters, and those that are being unsubscribed."""

    def __init__(self, local_topics: Iterable[str] = ()) -> None:
        """Publications to `local_topics` are neither captured nor injected."""
        self._local_topics: FilterTrie[None] = FilterTrie()
        for topic_filter in local_topics:
            self._local_topics.put(topic_filter, None)
        self.has_local_topics = bool(self._local_topics)
        """Whether publications to some topics stay at this broker."""
        self._trie: FilterTrie[int] = FilterTrie()
        self._last_identifier = 0
        self._last_confirmed = 0
        self._oldest_by_topic: dict[str, int] = {}
        self._count_by_topic: dict[str, int] = {}
        self._required: dict[str, None] = {}
        self._unsubscribing: set[str] = set()
        self._identifier_by_filter: dict[str, int] = {}
        self._identifiers: set[int] = set()
        self._unconfirmed: dict[str, int] = {}
        """Filters with the identifiers under which the broker may have them."""
        self._previous_identifier: OrderedDict[int, int] = OrderedDict()
        """New identifiers of filters that were subscribed again in a resumed session, with the
        previous ones."""
        self._last_identifier_at_end: OrderedDict[int, int] = OrderedDict()
        """The last identifier assigned when another one's filter ended."""

    def __contains__(self, topic_filter: str) -> bool:
        """Whether a filter is required."""
        return topic_filter in self._required

    @property
    def required(self) -> tuple[str, ...]:
        """Required filters, oldest first."""
        return tuple(self._required)

    def require(self, topic_filter: str) -> None:
        self._required[topic_filter] = None

    @property
    def last_identifier(self) -> int:
        """The identifier assigned last."""
        return self._last_identifier

    @property
    def last_confirmed(self) -> int:
        """The last identifier of which a publication can have arrived: the broker sends SUBACK
        before the first copy."""
        return self._last_confirmed

    def newest_overlapping(self, identifiers: Iterable[int]) -> int:
        """Return the last identifier whose filter can have caused another copy of the same
        publication."""
        newest = self._last_confirmed
        for identifier in identifiers:
            newest = min(newest, self._last_identifier_at_end.get(identifier, newest))
        return newest

    def is_active_identifier(self, identifier: int) -> bool:
        """Whether an active filter has this identifier."""
        return identifier in self._identifiers

    def stop_requiring(self, topic_filter: str) -> None:
        """Require a filter no longer."""
        self._required.pop(topic_filter, None)

    def assign_identifier(self, topic_filter: str) -> int:
        """Assign the next identifier to a filter that is being subscribed; return it."""
        self._last_identifier += 1
        self.restore(topic_filter, self._last_identifier)
        former = self._unconfirmed.pop(topic_filter, 0)
        if former:
            remember_bounded(self._previous_identifier, self._last_identifier, former)
        return self._last_identifier

    def original_identifiers(self, identifiers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the filters that caused a copy, each by the first of its identifiers."""
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
        """The broker answered SUBSCRIBE."""
        self._last_confirmed = max(
            self._last_confirmed, self._identifier_by_filter.get(topic_filter, 0)
        )

    def restore(self, topic_filter: str, identifier: int) -> None:
        """The broker has a filter under this identifier from an earlier connection."""
        self._last_identifier = max(self._last_identifier, identifier)
        self._identifiers.discard(self._identifier_by_filter.get(topic_filter, 0))
        self._identifiers.add(identifier)
        self._identifier_by_filter[topic_filter] = identifier
        self._trie.put(topic_filter, identifier)
        self._forget_topics()

    def restore_identifiers(self, last: int, last_identifier_at_end: Mapping[int, int]) -> None:
        """Restore the identifiers that an earlier incarnation assigned and ended."""
        self._last_identifier = self._last_confirmed = max(self._last_identifier, last)
        self._last_identifier_at_end.update(last_identifier_at_end)

    def skip_identifiers(self, last: int) -> None:
        """Do not assign identifiers up to this one: the broker may use them."""
        self._last_identifier = max(self._last_identifier, last)

    def learn_identifiers(self, identifiers: Iterable[int]) -> bool:
        """The broker used these identifiers. Return whether it has one that was never assigned: a
        later state assigned it and was replaced by an older copy. Its filter is unknown, and the
        identifier must not be assigned again."""
        newest = max(identifiers)
        if newest <= self._last_identifier:
            return False
        self._last_identifier = self._last_confirmed = newest
        return True

    def identifier_of(self, topic_filter: str) -> int:
        """Return the identifier of an active filter."""
        return self._identifier_by_filter[topic_filter]

    @property
    def active_identifiers(self) -> dict[str, int]:
        """Active filters with their identifiers."""
        return dict(self._identifier_by_filter)

    def start_unsubscribe(self, topic_filter: str) -> None:
        """A filter is being unsubscribed; it stays active until UNSUBACK."""
        self._unsubscribing.add(topic_filter)

    def on_unsubscribed(self, topic_filter: str) -> bool:
        """The broker confirmed UNSUBSCRIBE; return whether the filter is required again."""
        self._unsubscribing.discard(topic_filter)
        self.deactivate(topic_filter)
        return topic_filter in self._required

    def deactivate(self, topic_filter: str) -> None:
        """Deactivate a filter. A refused one stays required for the next connection."""
        remember_bounded(
            self._last_identifier_at_end, self._remove(topic_filter), self._last_identifier
        )

    def _remove(self, topic_filter: str) -> int:
        self._trie.remove(topic_filter)
        doubted = self._unconfirmed.pop(topic_filter, 0)
        identifier = self._identifier_by_filter.pop(topic_filter, doubted)
        self._identifiers.discard(identifier)
        self._forget_topics()
        return identifier

    def is_subscribed(self, topic_filter: str) -> bool:
        """Whether the broker has, or will have, a subscription that is not being ended."""
        return topic_filter in self._trie and topic_filter not in self._unsubscribing

    def is_unsubscribing(self, topic_filter: str) -> bool:
        """Whether UNSUBSCRIBE was sent and is not confirmed."""
        return topic_filter in self._unsubscribing

    def count_matching(self, topic: str) -> int:
        """Return how many subscriptions the broker will find for a publication now."""
        leaving = {self._trie.get(name) for name in self._unsubscribing}
        return sum(identifier not in leaving for identifier in self._trie.match(topic))

    def count_active(self, topic: str) -> int:
        """Return how many active filters match a topic whose deciding identifier was asked for."""
        return self._count_by_topic[topic]

    def is_local_topic(self, topic: str) -> bool:
        """Whether publications to a topic stay at this broker."""
        return self.has_local_topics and bool(self._local_topics.match(topic))

    def on_session_lost(self) -> None:
        """A new connection without a session: the broker has no subscriptions."""
        self._trie = FilterTrie()
        self._identifier_by_filter.clear()
        self._last_identifier_at_end.clear()
        self._unconfirmed.clear()
        self._previous_identifier.clear()
        self._identifiers.clear()
        self._forget_topics()
        self._unsubscribing.clear()
        self._last_identifier = self._last_confirmed = 0

    def on_session_resumed(self) -> None:
        """A new connection with the previous session: unconfirmed filters are in doubt. They get
        new identifiers, otherwise later copies could be mistaken for earlier ones."""
        self._unsubscribing.clear()
        for name in [
            each
            for each, number in self._identifier_by_filter.items()
            if number > self._last_confirmed
        ]:
            self._unconfirmed[name] = self._remove(name)
        self._last_confirmed = self._last_identifier

    def deciding_identifier(self, topic: str) -> int:
        """Return the identifier whose copy of a publication counts; 0 or TOPIC_TOO_DEEP if none
        does."""
        found = self._oldest_by_topic.get(topic)
        if found is None:
            if len(self._oldest_by_topic) >= TOPICS_MAX:
                self._forget_topics()
            found = self._oldest_by_topic[topic] = self._find_deciding(topic)
        return found

    def _find_deciding(self, topic: str) -> int:
        self._count_by_topic[topic] = 0
        try:
            check_name(topic)
        except InvalidTopic:
            return TOPIC_TOO_DEEP
        if self.is_local_topic(topic):
            return 0
        found = self._trie.match(topic)
        self._count_by_topic[topic] = len(found)
        return min(found, default=0)

    def _forget_topics(self) -> None:
        self._oldest_by_topic.clear()
        self._count_by_topic.clear()
