"""Recognises overlap copies that arrive after a reconnect: another copy of the publication was
captured on an earlier connection. `overlap` recognises copies on one connection.

Only the first publication of a connection can be such a copy, because the broker resumes in order.
The captured publication must be the last captured one, or one whose acknowledgement the broker has.
If the broker completed a handshake of a later publication, all copies of earlier ones have arrived.
A worked trace is in `dedup`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hansa.delivery.dedup.overlap import content_hash
from hansa.delivery.dedup.redelivery import RECENT_MAX, RedeliveryCandidate, content_digest
from hansa.journal.records import CaptureCompletedRecord, RedeliverableRecord
from hansa.mqtt.packets import PublishPacket


class PreviousCaptures:
    """Publications that previous incarnations captured, as restored from the journal."""

    def __init__(self) -> None:
        self.captured: OrderedDict[bytes, RedeliveryCandidate] = OrderedDict()
        """By content, from the last completed one on: the broker has all earlier
        acknowledgements."""
        self.last: RedeliveryCandidate | None = None
        self.last_completed: RedeliveryCandidate | None = None

    def add(self, candidate: RedeliveryCandidate) -> None:
        self.last = candidate
        self.captured[candidate.digest] = candidate
        self.captured.move_to_end(candidate.digest)
        if len(self.captured) > RECENT_MAX:
            self.captured.popitem(last=False)

    def mark_completed(self, candidate: RedeliveryCandidate) -> None:
        candidate.is_acknowledged = True
        self.last_completed = candidate
        while self.captured and next(iter(self.captured.values())).sequence < candidate.sequence:
            self.captured.popitem(last=False)


class ReconnectOverlapDedup:
    """The last captured publications, and the handshakes that the broker resumed."""

    def __init__(self, previous: PreviousCaptures) -> None:
        self._previous = previous
        """Used until this incarnation captures a publication."""
        self._last_captured: RedeliveryCandidate | None = None
        self._last_before_connection: RedeliveryCandidate | None = None
        """`_last_captured` when this connection started."""
        self._last_completed = previous.last_completed
        self._overlap_copies: OrderedDict[int, int] = OrderedDict()
        """Content hash by packet id of copies that were not captured."""
        self._resumed_handshakes: set[int] = set()
        """Packet ids whose handshakes the broker resumed before its first publication; kept over
        connections on which it sent no publication."""
        self._has_received = False
        """Whether a publication has arrived on this connection, which ends the resumption."""

    # ------------------------------------------------------------ events

    def on_connected(self, session_present: bool) -> None:
        """Start a connection. Without a session there are no copies of earlier publications."""
        if self._has_received or not session_present:
            self._resumed_handshakes.clear()
        self._has_received = False
        if not session_present:
            self._previous = PreviousCaptures()
            self._last_captured = self._last_completed = None
            self._overlap_copies.clear()
        self._last_before_connection = self._last_captured

    def on_publication(self) -> None:
        """Note that a publication has arrived."""
        self._has_received = True

    def on_handshakes_resumed(self, packet_ids: Iterable[int]) -> None:
        """Note PUBREL for these packet ids, possibly from before this connection."""
        if not self._has_received:
            self._resumed_handshakes.update(packet_ids)

    def on_captured(self, candidate: RedeliveryCandidate) -> None:
        """Note a captured publication."""
        self._last_captured = candidate
        if self._previous.last is not None:
            self._previous = PreviousCaptures()

    def on_completed(self, candidate: RedeliveryCandidate) -> None:
        """Note that the broker completed the handshake of a captured publication."""
        self._last_completed = candidate

    def on_overlap_copy(self, publish: PublishPacket) -> None:
        """Note a copy that is not captured, because another copy was."""
        self._overlap_copies[publish.packet_id] = content_hash(publish)
        self._overlap_copies.move_to_end(publish.packet_id)
        if len(self._overlap_copies) > RECENT_MAX:
            self._overlap_copies.popitem(last=False)

    # ------------------------------------------------------------ decision

    def captured_subscription(self, publish: PublishPacket) -> int:
        """If the first publication of this connection is an overlap copy, return the identifier of
        the subscription whose copy was captured, otherwise 0. Publications that a previous
        incarnation captured at QoS 1 are captured again: a duplicate is allowed, a loss is not."""
        content, captured = content_digest(publish), self._last_before_connection
        if captured is None and publish.qos == 2:
            captured = self._previous.captured.get(content)
        if captured is None or captured.digest != content:
            return 0
        identifiers = publish.subscription_ids
        is_other_filter = captured.subscription not in identifiers
        existed_at_capture = max(identifiers, default=0) <= captured.newest_subscription
        is_overlap_copy = (
            is_other_filter and existed_at_capture and self._can_follow(publish, captured)
        )
        return captured.subscription if is_overlap_copy else 0

    def _can_follow(self, publish: PublishPacket, captured: RedeliveryCandidate) -> bool:
        """Whether the broker can send `publish` right after the captured publication."""
        is_last = captured is (self._last_before_connection or self._previous.last)
        if captured.packet_id in self._resumed_handshakes:
            return True  # the broker resumed exactly there
        if publish.dup:  # the broker sent it before and got no acknowledgement
            return is_last or captured.is_acknowledged
        # The broker had not sent it yet, because its in-flight window was full.
        return is_last and self._has_resumed_overlap_copy(publish)

    def _has_resumed_overlap_copy(self, publish: PublishPacket) -> bool:
        """Whether the broker resumed the handshake of a copy of it that was not captured."""
        if self._last_before_connection is None:  # the journal does not record such copies
            return not self._resumed_handshakes <= {
                each.packet_id for each in self._previous.captured.values()
            }
        others = (
            self._overlap_copies[each]
            for each in self._resumed_handshakes
            if each in self._overlap_copies
        )
        return content_hash(publish) in others

    # ------------------------------------------------------------ journal

    @property
    def last_captured(self) -> RedeliveryCandidate | None:
        """The last captured publication, of this incarnation or a previous one."""
        return self._last_captured or self._previous.last

    def carried_records(
        self, candidates: Sequence[RedeliveryCandidate]
    ) -> Iterator[RedeliverableRecord | CaptureCompletedRecord]:
        """Yield the records that a new segment carries: the last completed publication, the
        redelivery candidates and the last captured publication, in the order of capture, because
        recovery takes the last record for the last publication."""
        last, completed = self.last_captured, self._last_completed
        if last is None:
            return
        if (
            completed is not None
            and completed is not last
            and last.received_index - completed.received_index < RECENT_MAX
        ):
            yield from (completed.to_record(), CaptureCompletedRecord(completed.sequence))
        for candidate in candidates:
            yield candidate.to_record()
        if not candidates or candidates[-1] is not last:
            yield from (last.to_record(), CaptureCompletedRecord(last.sequence))

    def reassign_sequences(self, new_sequences: Mapping[int, int]) -> None:
        """Prepare for an epoch rollover: publications that are not copied into the new epoch get
        the negated packet id as their sequence number."""
        for candidate in (self.last_captured, self._last_completed):
            if candidate is not None and candidate.sequence not in new_sequences:
                candidate.sequence = -candidate.packet_id
