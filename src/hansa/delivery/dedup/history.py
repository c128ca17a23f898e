"""Redelivery and reconnect-overlap filters of one journal, restored from its last segment.

Bounded: at most RECENT_MAX acknowledged QoS 1 publications, and one QoS 2 publication per packet
id.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hansa.delivery.dedup.reconnect_overlap import PreviousCaptures, ReconnectOverlapDedup
from hansa.delivery.dedup.redelivery import (
    PACKET_ID_HALF_RANGE,
    RECENT_MAX,
    PacketIdOrder,
    RedeliveryCandidate,
    RedeliveryFilter,
    candidate_from_record,
    content_digest,
    remember_completed,
)
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    RedeliverableRecord,
    SessionStartedRecord,
)
from hansa.mqtt.types import PACKET_IDS_MAX

DedupRecord = CapturedRecord | RedeliverableRecord | SessionStartedRecord | CaptureCompletedRecord
"""Records that `CaptureHistory` is restored from."""


@dataclass(slots=True)
class CaptureHistory:
    """Captured publications that the broker may send again, as a journal describes them."""

    candidates: dict[int, RedeliveryCandidate] = field(default_factory=dict)
    """By packet id, in the order of capture."""
    previous: PreviousCaptures = field(default_factory=PreviousCaptures)
    packet_id_order: PacketIdOrder = field(default_factory=PacketIdOrder)
    completed: OrderedDict[int, RedeliveryCandidate] = field(default_factory=OrderedDict)
    """By packet id: a restarted Mosquitto may send them again."""
    received_count: int = 0
    """Publications that the broker sent in this segment, at least, judged by the packet ids of the
    captured ones: overlap copies and echoes have packet ids, too, and leave no record."""
    _last_packet_id: int = 0
    _packet_ids: dict[int, int] = field(default_factory=dict)
    """By sequence number."""

    def apply(self, record: DedupRecord) -> None:
        """Apply the next record of the last segment."""
        match record:
            case CapturedRecord(packet_id=packet_id):
                self.candidates.pop(packet_id, None)  # the broker reused the packet id
                self.completed.pop(packet_id, None)
                self._count_received(packet_id)
                self._add(candidate_from_record(record, content_digest(record)))
                self.packet_id_order.observe(packet_id)
            case RedeliverableRecord():
                self._add(candidate_from_record(record, record.digest))
            case SessionStartedRecord():
                self.candidates, self._packet_ids = {}, {}
                self.completed = OrderedDict()
                self.previous, self.packet_id_order = PreviousCaptures(), PacketIdOrder()
            case _:
                self._complete(record.sequence)

    def _complete(self, sequence: int) -> None:
        packet_id = self._packet_ids.pop(sequence, 0)
        candidate = self.candidates.get(packet_id)
        if candidate is not None and candidate.sequence == sequence:
            self.previous.mark_completed(self.candidates.pop(packet_id))
            if candidate.qos == 2:
                remember_completed(self.completed, candidate)

    def _count_received(self, packet_id: int) -> None:
        step = (packet_id - self._last_packet_id) % PACKET_IDS_MAX
        if self._last_packet_id and step < PACKET_ID_HALF_RANGE:
            self.received_count += step
        self._last_packet_id = packet_id

    def _add(self, candidate: RedeliveryCandidate) -> None:
        candidate.received_index = self.received_count
        self.candidates[candidate.packet_id] = candidate
        self.previous.add(candidate)
        self._packet_ids[candidate.sequence] = candidate.packet_id

    def recent_candidates(self) -> list[RedeliveryCandidate]:
        """Return all candidates of QoS 2 and the last RECENT_MAX of QoS 1."""
        qos1 = [each.packet_id for each in self.candidates.values() if each.qos == 1]
        expired = set(qos1[:-RECENT_MAX])
        return [each for each in self.candidates.values() if each.packet_id not in expired]


class CaptureDedup:
    """Both filters that capture uses, with one shared set of candidates."""

    def __init__(self, history: CaptureHistory) -> None:
        self.redelivery = RedeliveryFilter(
            history.recent_candidates(),
            history.packet_id_order,
            history.completed,
            history.received_count,
        )
        self.overlap = ReconnectOverlapDedup(history.previous)

    def on_connected(self, session_present: bool) -> None:
        """Handle a new connection. Without a session the broker redelivers nothing."""
        self.redelivery.on_connected(session_present)
        self.overlap.on_connected(session_present)

    def carried_records(self) -> Iterator[RedeliverableRecord | CaptureCompletedRecord]:
        """Yield the records from which `CaptureHistory` restores this state."""
        return self.overlap.carried_records(self.redelivery.candidates())

    def reassign_sequences(self, new_sequences: Mapping[int, int]) -> list[int]:
        """Replace sequence numbers after an epoch rollover. Return the new numbers of publications
        that are no longer candidates because the session was lost meanwhile."""
        self.overlap.reassign_sequences(new_sequences)
        return self.redelivery.reassign_sequences(new_sequences)
