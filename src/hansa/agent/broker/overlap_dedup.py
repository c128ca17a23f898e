"""Which copy of a publication of QoS 1 or 2 counts, of those that overlapping filters bring.

A broker queues them, so copies from before a filter's end come after its confirmation: late ones,
from a subscription that is no more. The copies of one publication follow each other, so a late one
counts unless another one of its publication did. What a filter brings again, or one that is younger
than the first copy, belongs to the next publication.

Mosquitto that has been started again queues one copy only of what is published before we are back,
and that may be any. So a copy that does not decide waits for the one that does; if that does not
come, it counts itself.

A copy does not count if another one was captured on a former connection: then this one is a rest,
the first that comes on the new one. Copies that did not count are known by their packet ids when
they come again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hansa.agent.broker.subscription_table import TOPIC_TOO_DEEP, SubscriptionTable
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import without_expiry

DUPLICATES_REMEMBERED = 8_192
"""Copies that did not count which are remembered: more than can be under way, far less than it
takes to use a packet id again."""

CopyDecisions = list[tuple[PublishPacket, bool]]
"""Copies in the order in which they came, and of each whether it counts."""


def content_hash(publish: PublishPacket) -> int:
    """Return what tells publications apart in this life; one that waited at the broker is the
    same. It is cheap, and holds no payload."""
    properties = without_expiry(publish.properties) if publish.properties else b""
    return hash((publish.topic, publish.payload, publish.qos, publish.retain, properties))


@dataclass(slots=True)
class _OverlapGroup:
    """One publication, as its copies tell of it."""

    content_hash: int
    newest_subscription: int
    """The last identifier of a filter that can have brought a copy of it."""
    filters_seen: set[int] = field(default_factory=set)
    """The filters that have brought one."""
    is_captured: bool = False
    """Whether a copy has counted."""

    def can_include(self, copy: PublishPacket, filters: tuple[int, ...]) -> bool:
        """Whether a copy can be one of this publication, by the filters that brought it."""
        return max(
            copy.subscription_ids
        ) <= self.newest_subscription and self.filters_seen.isdisjoint(filters)


class OverlapDedup:
    """Tells which copies count, publication by publication."""

    def __init__(
        self,
        subscriptions: SubscriptionTable,
        captured_subscription: Callable[[PublishPacket], int] = lambda _: 0,
    ) -> None:
        """`rest_of` tells of what comes first on a connection which subscription brought another
        copy of it that was captured before; 0 if none did."""
        self._subscriptions = subscriptions
        self._captured_subscription = captured_subscription
        self._undecided: list[PublishPacket] = []
        self._current_group: _OverlapGroup | None = None
        """The publication whose copies are coming, on this connection."""
        self._last_captured: _OverlapGroup | None = None
        """The last one of which a copy has counted."""
        self._duplicates: OrderedDict[int, tuple[_OverlapGroup, int]] = OrderedDict()
        """Those of copies that did not count, by packet id, and how many had come before."""
        self._copy_count = 0

    @property
    def has_undecided(self) -> bool:
        """Whether the copy that decides about others has not come yet."""
        return bool(self._undecided)

    def on_connected(self, session_present: bool) -> None:
        """A connection begins; what waited will come again."""
        self._undecided = []
        self._current_group = None
        if not session_present:
            self._last_captured = None
            self._duplicates.clear()

    def receive_copy(self, copy: PublishPacket) -> CopyDecisions:
        """Take the copy that comes next; return those that are decided now."""
        subscriptions, identifiers = self._subscriptions, copy.subscription_ids
        oldest = subscriptions.deciding_identifier(copy.topic)
        if not identifiers:
            return [*self.decide_waiting(), (copy, oldest > 0)]
        self._copy_count += 1
        filters, content = subscriptions.original_identifiers(identifiers), content_hash(copy)
        group, decided = self._current_group, CopyDecisions()
        if group is None or group.content_hash != content or not group.can_include(copy, filters):
            decided = self.decide_waiting()
            is_first = group is None
            newest = subscriptions.newest_overlapping(identifiers)
            group = self._start_group(copy, filters, _OverlapGroup(content, newest), is_first)
            self._current_group = group
        group.filters_seen.update(filters)
        is_late = not any(map(subscriptions.is_active_identifier, identifiers))
        if (
            group.is_captured
            or oldest == TOPIC_TOO_DEEP
            or subscriptions.is_local_topic(copy.topic)
        ):
            decided.append((copy, False))
            self._remember_duplicate(copy, group)
        elif is_late or oldest in identifiers:
            decided += [(other, False) for other in self._undecided]
            decided.append((copy, True))
            self._mark_captured(group, self._undecided)
            self._undecided = []
        else:
            self._undecided.append(copy)
        return decided

    def decide_waiting(self) -> CopyDecisions:
        """The copy that decides does not come: decide about those that wait for it."""
        waiting, self._undecided = self._undecided, []
        if not waiting or self._current_group is None:
            return []
        first, *others = waiting
        self._mark_captured(self._current_group, others)
        return [(first, True), *((other, False) for other in others)]

    def _mark_captured(self, publication: _OverlapGroup, others: Iterable[PublishPacket]) -> None:
        """One copy counts, so the others do not."""
        publication.is_captured = True
        self._last_captured = publication
        for other in others:
            self._remember_duplicate(other, publication)

    def _remember_duplicate(self, copy: PublishPacket, publication: _OverlapGroup) -> None:
        self._duplicates[copy.packet_id] = publication, self._copy_count
        if len(self._duplicates) > DUPLICATES_REMEMBERED:
            self._duplicates.popitem(last=False)

    def _start_group(
        self, copy: PublishPacket, filters: tuple[int, ...], new: _OverlapGroup, is_first: bool
    ) -> _OverlapGroup:
        """Return the publication that a copy begins, or the former one that goes on with it."""
        if copy.dup and copy.packet_id in self._duplicates:
            known, count = self._duplicates[copy.packet_id]
            if (
                known.content_hash == new.content_hash
                and count > self._copy_count - DUPLICATES_REMEMBERED
            ):
                return known
        if not is_first:
            return new
        last = self._last_captured
        former = new if last is None or last.content_hash != new.content_hash else last
        other = self._captured_subscription(copy) if former.can_include(copy, filters) else 0
        if not other:
            return new
        former.is_captured = True
        former.filters_seen.update(self._subscriptions.original_identifiers((other,)))
        return former
