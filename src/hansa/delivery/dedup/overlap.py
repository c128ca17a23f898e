"""Decides which copy of a QoS 1 or 2 publication counts when several filters match it.

A broker queues the copies, so copies from before an UNSUBACK may arrive after it: late copies, from
a subscription that no longer exists. The copies of one publication arrive in a row, so a late copy
counts unless another copy of its publication did. A copy from a filter that was already seen, or
from one that is newer than the first copy, starts the next publication.

Mosquitto 2.0 does not always send the copies in a row: with a backlog, the first copy of a new
publication may overtake the queue, and its other copies follow later. A separated copy that does
not decide belongs to one of the last publications on this connection with equal content. One that
decides, or follows on a later connection, does so if its packet id follows that of the first copy:
copies get their ids in a row.

After a restart Mosquitto queues only one copy of what is published before the agent reconnects, and
that may be any copy. So a copy that does not decide waits for the one that does; if that does not
arrive, the waiting copy counts.

A copy does not count if another one was captured on the previous connection: it is then the first
that arrives on the new connection (`reconnect_overlap`). Copies that did not count
are recognised by their packet ids when the broker sends them again. A captured copy that it sends
again decides as before: it may have counted only because the deciding one did not arrive. The
filters that were seen before stay seen: the next copy from one of them is another publication.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hansa.delivery.subscriptions.table import TOPIC_TOO_DEEP, SubscriptionTable
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import without_expiry
from hansa.mqtt.types import PACKET_IDS_MAX

OVERLAP_COPIES_MAX = 8_192
"""Copies that did not count and are remembered: more than can be in flight, far fewer than it takes
until a packet id is reused."""

IDENTICAL_MAX = 64
"""Identical publications whose separated copies are recognised."""

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
    packet_id: int
    """Of the first copy that arrived."""
    copy_count: int
    """Filters that matched when it arrived, those that were being unsubscribed included."""
    connection: int
    """Number of the connection on which it arrived."""
    filters_seen: set[int] = field(default_factory=set)
    """Filters of which a copy has arrived."""
    is_captured: bool = False
    """Whether a copy has counted."""
    captured_id: int = 0
    """Packet id of that copy; 0 if it arrived in an earlier incarnation."""

    def can_include(self, newest_identifier: int, filters: tuple[int, ...]) -> bool:
        """Whether a copy can belong to this publication, judged by its filters."""
        return newest_identifier <= self.newest_subscription and self.filters_seen.isdisjoint(
            filters
        )


def _is_never_captured(copy: PublishPacket) -> bool:
    return False


class OverlapDedup:
    """Decides publication by publication which copies count."""

    def __init__(
        self,
        subscriptions: SubscriptionTable,
        captured_subscription: Callable[[PublishPacket], int] = lambda _: 0,
        is_redelivery: Callable[[PublishPacket], bool] = _is_never_captured,
    ) -> None:
        """`captured_subscription` returns, for the first copy on a connection, the subscription
        whose copy of the same publication was captured before; 0 if there is none. `is_redelivery`
        returns whether this copy was captured before."""
        self._subscriptions = subscriptions
        self._captured_subscription = captured_subscription
        self._is_redelivery = is_redelivery
        self._undecided: list[PublishPacket] = []
        self._current_group: _OverlapGroup | None = None
        """The publication whose copies are arriving on this connection."""
        self._last_captured: _OverlapGroup | None = None
        """The last publication of which a copy has counted."""
        self._overlap_copies: OrderedDict[int, tuple[_OverlapGroup, int]] = OrderedDict()
        """Copies that did not count, by packet id, and how many had arrived before."""
        self._copy_count = 0
        self._captured_groups: OrderedDict[int, deque[_OverlapGroup]] = OrderedDict()
        """The last publications of this session by content."""
        self._connection_count = 0

    @property
    def has_undecided(self) -> bool:
        """Whether some copies wait for the one that decides."""
        return bool(self._undecided)

    def on_connected(self, session_present: bool) -> None:
        """A connection begins; the broker will send waiting copies again."""
        self._undecided = []
        self._current_group = None
        self._connection_count += 1
        if not session_present:
            self._captured_groups.clear()
            self._last_captured = None
            self._overlap_copies.clear()

    def receive_copy(self, copy: PublishPacket) -> CopyDecisions:
        """Process the next copy; return the copies that are decided now."""
        subscriptions, identifiers = self._subscriptions, copy.subscription_ids
        oldest = subscriptions.deciding_identifier(copy.topic)
        if not identifiers:
            return [*self.decide_waiting(), (copy, oldest > 0)]
        self._copy_count += 1
        # An unknown identifier is of a state that was lost: its filter existed all the time.
        newest_identifier = 0 if subscriptions.learn_identifiers(identifiers) else max(identifiers)
        filters, content = subscriptions.original_identifiers(identifiers), content_hash(copy)
        group, decided = self._current_group, CopyDecisions()
        was_captured = self._is_redelivery(copy)
        if (
            group is None
            or group.content_hash != content
            or not group.can_include(newest_identifier, filters)
            or (was_captured and group.is_captured)
        ):
            decided = self.decide_waiting()
            is_first = group is None
            newest = subscriptions.newest_overlapping(identifiers)
            copy_count = subscriptions.count_active(copy.topic)
            new, group = (
                _OverlapGroup(content, newest, copy.packet_id, copy_count, self._connection_count),
                None,
            )
            if was_captured:
                group = self._find_captured(copy, content) or new
            elif not is_first:
                group = self._find_separated(copy, content, newest_identifier, filters)
            self._current_group = group = group or self._start_group(copy, filters, new, is_first)
        group.filters_seen.update(filters)
        is_late = not any(map(subscriptions.is_active_identifier, identifiers))
        if (
            (group.is_captured and not was_captured)
            or oldest == TOPIC_TOO_DEEP
            or subscriptions.is_local_topic(copy.topic)
        ):
            decided.append((copy, False))
            self._remember_overlap_copy(copy, group)
        elif was_captured or is_late or oldest in identifiers:
            decided += [(other, False) for other in self._undecided]
            decided.append((copy, True))
            self._mark_captured(group, copy, self._undecided)
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
        self._mark_captured(self._current_group, first, others)
        return [(first, True), *((other, False) for other in others)]

    def _mark_captured(
        self, publication: _OverlapGroup, copy: PublishPacket, others: Iterable[PublishPacket]
    ) -> None:
        """Mark a publication as captured by a copy: its other copies do not count."""
        self._last_captured = publication
        content = publication.content_hash
        groups = self._captured_groups.setdefault(content, deque(maxlen=IDENTICAL_MAX))
        self._captured_groups.move_to_end(content)
        if not publication.is_captured:  # otherwise the copy is sent again
            publication.is_captured, publication.captured_id = True, copy.packet_id
            groups.append(publication)
        if len(self._captured_groups) > OVERLAP_COPIES_MAX:
            self._captured_groups.popitem(last=False)
        for other in others:
            self._remember_overlap_copy(other, publication)

    def _remember_overlap_copy(self, copy: PublishPacket, publication: _OverlapGroup) -> None:
        self._overlap_copies[copy.packet_id] = publication, self._copy_count
        self._overlap_copies.move_to_end(copy.packet_id)
        if len(self._overlap_copies) > OVERLAP_COPIES_MAX:
            self._overlap_copies.popitem(last=False)

    def _find_captured(self, copy: PublishPacket, content: int) -> _OverlapGroup | None:
        """Return the publication that a copy, which the broker sends again, was captured for."""
        groups = self._captured_groups.get(content, ())
        return next((g for g in reversed(groups) if g.captured_id == copy.packet_id), None)

    def _find_separated(
        self, copy: PublishPacket, content: int, newest_identifier: int, filters: tuple[int, ...]
    ) -> _OverlapGroup | None:
        """Return the publication to which a separated copy belongs."""
        groups = self._captured_groups.get(content)
        if groups is None:
            return None
        is_deciding = self._subscriptions.deciding_identifier(copy.topic) in copy.subscription_ids
        for group in groups:
            must_follow = is_deciding or group.connection < self._connection_count
            distance = (copy.packet_id - group.packet_id) % PACKET_IDS_MAX
            if group.can_include(newest_identifier, filters) and (
                not must_follow or 0 < distance < group.copy_count
            ):
                return group
        return None

    def _start_group(
        self, copy: PublishPacket, filters: tuple[int, ...], new: _OverlapGroup, is_first: bool
    ) -> _OverlapGroup:
        """Return the publication that a copy starts or continues."""
        if copy.dup and copy.packet_id in self._overlap_copies:
            known, count = self._overlap_copies[copy.packet_id]
            if (
                known.content_hash == new.content_hash
                and count > self._copy_count - OVERLAP_COPIES_MAX
            ):
                return known
        if not is_first:
            return new
        last = self._last_captured
        former = new if last is None or last.content_hash != new.content_hash else last
        can_follow = former.can_include(max(copy.subscription_ids), filters)
        other = self._captured_subscription(copy) if can_follow else 0
        if not other:
            return new
        former.is_captured = True
        former.filters_seen.update(self._subscriptions.original_identifiers((other,)))
        return former
