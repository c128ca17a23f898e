"""The filters that this node announces: those that clients of its own broker subscribe to.

`LocalInterest` leaves out filters that another announced filter covers, and decides when a filter
is withdrawn. It holds at most `filters_per_node_max` filters and counts the ones it refuses.
"""

from collections.abc import Iterable

from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import FilterTrie, is_local_only, remove_covered, split_share


class LocalInterest:
    """Filters of local clients: subscribed, announced and about to be withdrawn.

    A filter is announced at once. It is withdrawn after `linger` seconds, and not before all nodes
    have installed every filter announced since: a filter that replaces it must be in force first.
    Two kinds are withdrawn at once: the oldest ones, while more than `filters_per_node_max` are
    announced; and shared subscriptions, because this node would be selected for publications that
    no client here takes and that consumers at other nodes would miss.
    """

    def __init__(self, settings: ProtocolSettings) -> None:
        self._settings = settings
        self.filters: dict[str, None] = {}
        """All filters of local clients, as subscribed."""
        self.plain_filters: FilterTrie[int] = FilterTrie()
        """The same without `$share/…/`, counted: the topics that are delivered here."""
        self._unshared_filters: FilterTrie[None] = FilterTrie()
        # The unshared filters that no other unshared filter covers.
        self._uncovered_filters: FilterTrie[None] = FilterTrie()
        self._announced: dict[str, None] = {}
        self._unannounced: dict[str, None] = {}
        self.withdrawing: dict[str, float] = {}
        """Announced filters without a subscriber, with the time since when."""
        self._is_known = False
        self._former: dict[str, None] = {}  # plain filters of former subscribers, newest last
        self._former_by_topic: FilterTrie[None] = FilterTrie()

    def apply_change(self, added: Iterable[str], removed: Iterable[str], now: float) -> int:
        """Apply a change of the clients' subscriptions; return how many filters were refused."""
        self._is_known = True
        refused = 0
        for topic_filter in added:
            if topic_filter in self.filters or is_local_only(topic_filter):
                continue
            if len(self.filters) >= self._settings.filters_per_node_max:
                refused += 1
            else:
                self._add(topic_filter, now)
        for topic_filter in removed:
            if topic_filter in self.filters:
                self._remove(topic_filter, now)
        return refused

    def has_plain_subscriber(self, topic: str) -> bool:
        """Whether a client has a matching filter that is not a shared subscription."""
        return bool(self._unshared_filters.match(topic))

    def was_announced(self, topic: str) -> bool:
        """Whether a filter of this node may have matched a topic, now or earlier. Until the
        subscriptions of its clients are known, an earlier incarnation may have announced any."""
        if not self._is_known or self.plain_filters.match(topic):
            return True
        return bool(self._former_by_topic.match(topic))

    def pop_due_changes(self, installed: bool, now: float) -> tuple[list[str], list[str]]:
        """Return the filters to announce and to withdraw now, and record them as announced."""
        added = list(self._unannounced)
        self._unannounced.clear()
        self._announced.update(dict.fromkeys(added))
        can_withdraw = installed and not added
        excess = len(self._announced) - self._settings.filters_per_node_max
        removed = [
            name
            for place, (name, since) in enumerate(self.withdrawing.items())
            if place < excess or now >= self._withdrawal_due(name, since, can_withdraw)
        ]
        for name in removed:
            del self.withdrawing[name]
            del self._announced[name]
        return added, removed

    def next_deadline(self, installed: bool) -> float | None:
        """When the next withdrawal is due."""
        if not self.withdrawing:
            return None
        return min(
            self._withdrawal_due(name, since, installed) for name, since in self.withdrawing.items()
        )

    def _withdrawal_due(self, name: str, since: float, can_withdraw: bool) -> float:
        if split_share(name)[0] is not None:
            return since
        linger = self._settings.linger
        return since + (linger if can_withdraw else max(linger, self._settings.withdraw_delay_max))

    def _add(self, topic_filter: str, now: float) -> None:
        self.filters[topic_filter] = None
        share, plain = split_share(topic_filter)
        self.plain_filters.put(plain, (self.plain_filters.get(plain) or 0) + 1)
        if share is not None:
            self._schedule_announcement(topic_filter)
            return
        self._unshared_filters.put(plain, None)
        if self._uncovered_filters.is_covered(plain):
            return
        for narrower in self._uncovered_filters.covered(plain):
            self._uncovered_filters.remove(narrower)
            self._schedule_withdrawal(narrower, now)
        self._uncovered_filters.put(plain, None)
        self._schedule_announcement(plain)

    def _remove(self, topic_filter: str, now: float) -> None:
        del self.filters[topic_filter]
        share, plain = split_share(topic_filter)
        holders = (self.plain_filters.get(plain) or 0) - 1
        if holders:
            self.plain_filters.put(plain, holders)
        else:
            self.plain_filters.remove(plain)
            self._note_former(plain)
        if share is not None:
            self._schedule_withdrawal(topic_filter, now)
            return
        self._unshared_filters.remove(plain)
        if not self._uncovered_filters.remove(plain):
            return
        self._schedule_withdrawal(plain, now)
        for uncovered in remove_covered(self._unshared_filters.covered(plain)):
            if not self._uncovered_filters.is_covered(uncovered):
                self._uncovered_filters.put(uncovered, None)
                self._schedule_announcement(uncovered)

    def _note_former(self, plain: str) -> None:
        """Remember a former filter: publications for it may still arrive."""
        self._former.pop(plain, None)
        self._former[plain] = None
        self._former_by_topic.put(plain, None)
        if len(self._former) > self._settings.filters_per_node_max:
            oldest = next(iter(self._former))
            del self._former[oldest]
            self._former_by_topic.remove(oldest)

    def _schedule_announcement(self, name: str) -> None:
        if self.withdrawing.pop(name, None) is None:
            self._unannounced[name] = None

    def _schedule_withdrawal(self, name: str, now: float) -> None:
        if name in self._unannounced:
            del self._unannounced[name]
        else:
            self.withdrawing[name] = now
