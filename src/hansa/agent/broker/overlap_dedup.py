"""Decides which copy of a QoS 1 or 2 publication counts when several filters match it.

A broker queues the copies, so copies from before an UNSUBACK may arrive after it: late copies, from
a subscription that no longer exists. The copies of one publication arrive in a row, so a late copy
counts unless another copy of its publication did. A copy from a filter that was already seen, or
from one that is newer than the first copy, starts the next publication.

After a restart Mosquitto queues only one copy of what is published before the agent reconnects, and
that may be any copy. So a copy that does not decide waits for the one that does; if that does not
arrive, the waiting copy counts.

A copy does not count if another one was captured on the previous connection: it is then the first
that arrives on the new connection (`delivery.dedup.reconnect_overlap`). Copies that did not count
are recognised by their packet ids when the broker sends them again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hansa.agent.broker.subscription_table import TOPIC_TOO_DEEP, SubscriptionTable
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import without_expiry

DUPLICATES_REMEMBERED = 8_192
"""Copies that did not count and are remembered: more than can be in flight, far fewer than it takes
until a packet id is reused."""

CopyDecisions = list[tuple[PublishPacket, bool]]
"""Copies in order of arrival, each with whether it counts."""


def content_hash(publish: PublishPacket) -> int:
    """Return a hash that identifies a publication in this process, also after waiting at the
    broker. It is cheap and keeps no payload alive."""
    properties = without_expiry(publish.properties) if publish.properties else b""
    return hash((publish.topic, publish.payload, publish.qos, publish.retain, properties))


@dataclass(slots=True)
class _OverlapGroup:
    """One publication, as far as its copies show it."""

    content_hash: int
    newest_subscription: int
    """The newest identifier of a filter that can have caused a copy."""
    filters_seen: set[int] = field(default_factory=set)
    """Filters of which a copy has arrived."""
    is_captured: bool = False
    """Whether a copy has counted."""

    def can_include(self, copy: PublishPacket, filters: tuple[int, ...]) -> bool:
        """Whether a copy can belong to this publication, judged by its filters."""
        return max(
            copy.subscription_ids
        ) <= self.newest_subscription and self.filters_seen.isdisjoint(filters)


class OverlapDedup:
    """Decides publication by publication which copies count."""

    def __init__(
        self,
        subscriptions: SubscriptionTable,
        captured_subscription: Callable[[PublishPacket], int] = lambda _: 0,
    ) -> None:
        """`captured_subscription` returns, for the first copy on a connection, the subscription
        whose copy of the same publication was captured before; 0 if there is none."""
        self._subscriptions = subscriptions
        self._captured_subscription = captured_subscription
        self._undecided: list[PublishPacket] = []
        self._current_group: _OverlapGroup | None = None
        """The publication whose copies are arriving on this connection."""
        self._last_captured: _OverlapGroup | None = None
        """The last publication of which a copy has counted."""
        self._duplicates: OrderedDict[int, tuple[_OverlapGroup, int]] = OrderedDict()
        """Copies that did not count, by packet id, and how many had arrived before."""
        self._copy_count = 0

    @property
    def has_undecided(self) -> bool:
        """Whether some copies wait for the one that decides."""
        return bool(self._undecided)

    def on_connected(self, session_present: bool) -> None:
        """A connection begins; the broker will send waiting copies again."""
        self._undecided = []
        self._current_group = None
        if not session_present:
            self._last_captured = None
            self._duplicates.clear()

    def receive_copy(self, copy: PublishPacket) -> CopyDecisions:
        """Process the next copy; return the copies that are decided now."""
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
        """Decide about waiting copies: the deciding copy did not arrive in time."""
        waiting, self._undecided = self._undecided, []
        if not waiting or self._current_group is None:
            return []
        first, *others = waiting
        self._mark_captured(self._current_group, others)
        return [(first, True), *((other, False) for other in others)]

    def _mark_captured(self, publication: _OverlapGroup, others: Iterable[PublishPacket]) -> None:
        """Mark a publication as captured: its other copies do not count."""
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
        """Return the publication that a copy starts or continues."""
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
