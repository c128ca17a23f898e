"""Which copy that comes first on a connection is a rest: its publication is captured already.

Where filters overlap, the broker sends one *copy* of a publication for each, under packet ids of
their own, and one of them is captured. A *rest* is another copy of it that comes on a later
connection; captured, too, it would be there twice. On one connection copies follow each other, and
`brokers.copies` tells them; here is what that cannot know.

On a new connection the broker first *resumes* what was under way: handshakes of QoS 2 (PUBREL), and
copies that it had sent before (DUP), in order. So only the first copy that comes can be a rest, of
a publication whose captured copy the broker knows to be answered, or that is the last captured one.
If the broker has gone on with something that was captured later, it has no rest of what was before.

    PUBLISH 7 "x" of filter 1         is captured; PUBREC 7
    PUBLISH 8 "x" of filter 2         is on its way when the connection ends
    (another connection, or life)
    PUBREL 7                          resumed
    PUBLISH 8 "x" of filter 2, DUP    a rest of 7: PUBREC 8, and nothing else
    PUBLISH 9 "x" of filter 1         news that says the same
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hansa.agent.broker.overlap_dedup import content_hash
from hansa.agent.delivery.dedup.redelivery import RECENT_MAX, RedeliveryCandidate, content_digest
from hansa.journal.records import CaptureCompletedRecord, RedeliverableRecord
from hansa.mqtt.packets import PublishPacket


class PreviousCaptures:
    """What the journal tells of the life before."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.captured: OrderedDict[bytes, RedeliveryCandidate] = OrderedDict()
        """The last that it captured, by content, back to the last that is settled: the broker had
        got all answers before that one's."""

        self.last: RedeliveryCandidate | None = None
        """The very last of them."""
        self.last_completed: RedeliveryCandidate | None = None
        """The last that is settled."""

    def add(self, candidate: RedeliveryCandidate) -> None:
        """Take the next that it captured."""
        self.last = candidate
        self.captured[candidate.digest] = candidate
        self.captured.move_to_end(candidate.digest)
        if len(self.captured) > RECENT_MAX:
            self.captured.popitem(last=False)

    def mark_completed(self, candidate: RedeliveryCandidate) -> None:
        """The broker has gone on with one of them."""
        candidate.is_acknowledged = True
        self.last_completed = candidate
        while self.captured and next(iter(self.captured.values())).sequence < candidate.sequence:
            self.captured.popitem(last=False)


class ReconnectOverlapDedup:
    """What was captured last, in this life or else in the former one, and what was resumed."""

    def __init__(self, previous: PreviousCaptures) -> None:
        """Begin with what the journal tells."""
        self._previous = previous
        """Counts until this life captures something."""
        self._last_captured: RedeliveryCandidate | None = None
        """The last that this life has captured."""
        self._last_before_connection: RedeliveryCandidate | None = None
        """The one that was the last when this connection began."""
        self._last_completed = previous.last_completed
        self._duplicates: OrderedDict[int, int] = OrderedDict()
        """Copies that were not kept because others were: content by packet id."""
        self._resumed_handshakes: set[int] = set()
        """Handshakes with which the broker went on before it sent anything; maybe on more than one
        connection, if it sent nothing on those between."""
        self._has_received = False
        """Whether something has come on this connection, so that nothing more is resumed."""

    # ------------------------------------------------------------ what happens

    def on_connected(self, session_present: bool) -> None:
        """A connection begins; without the session of before there are no rests."""
        if self._has_received or not session_present:
            self._resumed_handshakes.clear()
        self._has_received = False
        if not session_present:
            self._previous, self._last_captured, self._last_completed = (
                PreviousCaptures(),
                None,
                None,
            )
            self._duplicates.clear()
        self._last_before_connection = self._last_captured

    def on_publication(self) -> None:
        """A publication has come."""
        self._has_received = True

    def on_handshakes_resumed(self, packet_ids: Iterable[int]) -> None:
        """The broker goes on with these handshakes, maybe from before this connection."""
        if not self._has_received:
            self._resumed_handshakes.update(packet_ids)

    def on_captured(self, candidate: RedeliveryCandidate) -> None:
        """It is captured."""
        self._last_captured = candidate
        if self._previous.last is not None:
            self._previous = PreviousCaptures()

    def on_completed(self, candidate: RedeliveryCandidate) -> None:
        """The broker has gone on with its handshake."""
        self._last_completed = candidate

    def on_duplicate(self, publish: PublishPacket) -> None:
        """It is not kept, because another copy of it was."""
        self._duplicates[publish.packet_id] = content_hash(publish)
        self._duplicates.move_to_end(publish.packet_id)
        if len(self._duplicates) > RECENT_MAX:
            self._duplicates.popitem(last=False)

    # ------------------------------------------------------------ what follows

    def captured_subscription(self, publish: PublishPacket) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did. What a former life captured is captured again at QoS 1:
        rather twice than never."""
        content, captured = content_digest(publish), self._last_before_connection
        if captured is None and publish.qos == 2:
            captured = self._previous.captured.get(content)
        if captured is None or captured.digest != content:
            return 0
        identifiers = publish.subscription_ids
        is_of_another_filter = captured.subscription not in identifiers
        was_there_then = max(identifiers, default=0) <= captured.newest_subscription
        is_overlap_copy = (
            is_of_another_filter and was_there_then and self._can_follow(publish, captured)
        )
        return captured.subscription if is_overlap_copy else 0

    def _can_follow(self, publish: PublishPacket, captured: RedeliveryCandidate) -> bool:
        """Whether what the broker sends first can come next after what was captured."""
        is_last = captured is (self._last_before_connection or self._previous.last)
        if captured.packet_id in self._resumed_handshakes:
            return True  # it goes on right there
        if publish.dup:  # it had been sent before, and the broker got no answer to it
            return is_last or captured.is_acknowledged
        # It had not been sent yet, for want of room beside handshakes.
        return is_last and self._has_resumed_duplicate(publish)

    def _has_resumed_duplicate(self, publish: PublishPacket) -> bool:
        """Whether the broker went on with another copy of it, which was not kept."""
        if self._last_before_connection is None:  # then it is one that the journal does not know
            return not self._resumed_handshakes <= {
                each.packet_id for each in self._previous.captured.values()
            }
        others = (
            self._duplicates[each] for each in self._resumed_handshakes if each in self._duplicates
        )
        return content_hash(publish) in others

    # ------------------------------------------------------------ for the next life

    def carried_records(
        self, candidates: Sequence[RedeliveryCandidate]
    ) -> Iterator[RedeliverableRecord | CaptureCompletedRecord]:
        """Yield what a segment begins with, for the next life: what may come again, the last that
        was captured and the last that is settled. In the order of capture: the last that it reads
        is the last for it."""
        last, settled = self._last_captured or self._previous.last, self._last_completed
        if last is None:
            return
        if (
            settled is not None
            and settled is not last
            and last.received_index - settled.received_index < RECENT_MAX
        ):
            yield from (settled.to_record(), CaptureCompletedRecord(settled.sequence))
        for seen in candidates:
            yield seen.to_record()
        if not candidates or candidates[-1] is not last:
            yield from (last.to_record(), CaptureCompletedRecord(last.sequence))

    def reassign_sequences(self, new_sequences: Mapping[int, int]) -> None:
        """Positions are about to change; what is not among them has lost its own."""
        for seen in (self._last_captured or self._previous.last, self._last_completed):
            if seen is not None and seen.sequence not in new_sequences:
                seen.sequence = -seen.packet_id
