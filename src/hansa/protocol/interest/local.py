"""The filters that this node announces: those that clients of its own broker subscribe to.

`LocalInterest` leaves out filters that another announced filter covers, and decides when a filter
is withdrawn. It holds at most `filters_per_node_max` filters and counts the ones it refuses; a
refused filter is accepted later, when there is room. A few filters beyond the bound are accepted if
they cover others: a node that does not know its clients' filters must be able to announce `#`.
"""

from collections.abc import Iterable

from hansa.protocol.interest.narrowing import InterestNarrowing
from hansa.protocol.interest.share_overlaps import ShareOverlaps
from hansa.protocol.membership.rights import UNLIMITED, Rights
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import FilterTrie, is_local_only, remove_covered, split_share

COVERING_FILTERS_MAX = 64
"""Filters beyond `filters_per_node_max` that are accepted if they cover others."""

NOT_ALLOWED = "filter outside the certificate of this node"


class LocalInterest:
    """Filters of local clients: subscribed, announced and about to be withdrawn.

    A filter is announced at once. It is withdrawn after `linger` seconds, and not before all nodes
    have installed every filter announced since: a filter that replaces it must be in force first.
    Three kinds do not linger: the oldest ones, while more than `filters_per_node_max` are
    announced; shared subscriptions, because this node would be selected for publications that no
    client here takes and that consumers at other nodes would miss; and filters that overlap a share
    of this node, because each publication for them would serve the share here a second time.
    """

    def __init__(self, settings: ProtocolSettings, rights: Rights = UNLIMITED) -> None:
        """`rights` of this node: filters of clients are narrowed to what it may receive."""
        self._settings = settings
        self._narrowing = InterestNarrowing(rights)
        self.filters: dict[str, None] = {}
        """All filters of local clients, as narrowed."""
        self.plain_filters: FilterTrie[int] = FilterTrie()
        """The same without `$share/…/`, counted: the topics that are delivered here."""
        self._unshared_filters: FilterTrie[None] = FilterTrie()
        self._share_overlaps = ShareOverlaps()
        # The unshared filters that no other unshared filter covers.
        self._uncovered_filters: FilterTrie[None] = FilterTrie()
        self._announced: dict[str, None] = {}
        self._unannounced: dict[str, None] = {}
        self.withdrawing: dict[str, float] = {}
        """Announced filters without a subscriber, with the time since when."""
        self._refused: dict[str, None] = {}  # for lack of room, oldest first; all are in _narrowing
        self._is_known = False
        self._former: dict[str, None] = {}  # plain filters of former subscribers, newest last
        self._former_by_topic: FilterTrie[None] = FilterTrie()

    def apply_change(self, added: Iterable[str], removed: Iterable[str], now: float) -> list[str]:
        """Apply a change of the clients' subscriptions; return why filters were refused."""
        self._is_known = True
        return self._apply_narrowed(*self._narrowing.apply_change(added, removed), now)

    def set_rights(self, rights: Rights, now: float) -> list[str]:
        """This node has another certificate; return why filters are refused now."""
        return self._apply_narrowed(*self._narrowing.set_rights(rights), now)

    def _apply_narrowed(
        self, added: list[str], removed: list[str], outside: list[str], now: float
    ) -> list[str]:
        refused = [f"{NOT_ALLOWED}: {name}" for name in outside]
        for topic_filter in added:
            if topic_filter in self.filters or is_local_only(topic_filter):
                continue
            if self._has_room(topic_filter):
                self._add(topic_filter, now)
            else:
                self._refused[topic_filter] = None
                refused.append("filters_per_node_max")
        for topic_filter in removed:
            self._refused.pop(topic_filter, None)
            if topic_filter in self.filters:
                self._remove(topic_filter, now)
        while self._refused and self._has_room(oldest := next(iter(self._refused))):
            del self._refused[oldest]
            self._add(oldest, now)
        return refused

    def _has_room(self, topic_filter: str) -> bool:
        most = self._settings.filters_per_node_max
        if len(self.filters) < most:
            return True
        share, plain = split_share(topic_filter)
        is_covering = share is None and bool(self._uncovered_filters.covered(plain))
        return is_covering and len(self.filters) < most + COVERING_FILTERS_MAX

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
            self._end_withdrawal(name)
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
        linger = 0.0 if self._share_overlaps.overlaps(name) else self._settings.linger
        return since + (linger if can_withdraw else max(linger, self._settings.withdraw_delay_max))

    def _end_withdrawal(self, name: str) -> bool:
        """Return whether the filter was about to be withdrawn."""
        self._share_overlaps.forget(name)
        return self.withdrawing.pop(name, None) is not None

    def _add(self, topic_filter: str, now: float) -> None:
        self.filters[topic_filter] = None
        share, plain = split_share(topic_filter)
        self.plain_filters.put(plain, (self.plain_filters.get(plain) or 0) + 1)
        if share is not None:
            self._share_overlaps.add(plain)
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
            self._share_overlaps.remove(plain)
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
        if not self._end_withdrawal(name):
            self._unannounced[name] = None

    def _schedule_withdrawal(self, name: str, now: float) -> None:
        if name in self._unannounced:
            del self._unannounced[name]
        else:
            self.withdrawing[name] = now
