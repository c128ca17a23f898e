"""The plan of an epoch rollover: which publications go into the log of the new epoch, and where."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from hansa.delivery.log import RecordLog
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    JournalRecord,
    LastAssignedRecord,
    RedeliverableRecord,
    SessionStartedRecord,
)
from hansa.protocol.model import NodeId


@dataclass(slots=True)
class RolloverPlan:
    """What goes into the log of a new epoch, and the result of building it."""

    epoch: int
    previous_last_assigned: Mapping[NodeId, int]
    acknowledged: Mapping[NodeId, int]
    """By receiver, the last position in the old log and the position up to which the receiver has
    everything."""
    redeliverable: Mapping[int, RedeliverableRecord]
    """Redelivery candidates by old position."""
    last_assigned: dict[NodeId, int] = field(default_factory=dict)
    """By receiver, the last position in the new log."""
    new_sequences: dict[int, int] = field(default_factory=dict)
    """New positions of copied redelivery candidates by old ones."""

    @property
    def first_pending(self) -> int:
        """First old position that some receiver has not acknowledged."""
        last = max(self.previous_last_assigned.values(), default=0)
        acknowledged = (
            self.acknowledged.get(node, 0)
            for node, assigned in self.previous_last_assigned.items()
            if assigned > self.acknowledged.get(node, 0)
        )
        return 1 + min(acknowledged, default=last)

    def redeliverable_sequences(self) -> dict[int, int]:
        """Return new positions of redelivery candidates by old ones. A candidate that was not
        copied gets its negated packet id."""
        return {
            old: self.new_sequences.get(old, -record.packet_id)
            for old, record in self.redeliverable.items()
        }

    def copy_records(
        self, source: Iterable[CapturedRecord], log: RecordLog, wall_ns: int
    ) -> Iterator[None]:
        """Fill the log of the new epoch from the pending publications of the old one. Yields
        after each publication, so that the caller can commit or stop."""
        self.last_assigned.clear()
        self.new_sequences.clear()
        log.carried_state = self._carried_state
        for record in source:
            self._copy_record(record, log)
            yield
        # Copied publications may be of former sessions: only the candidates can be redelivered.
        log.append(SessionStartedRecord(wall_ns))
        for old, new in self.redeliverable_sequences().items():
            log.append(replace(self.redeliverable[old], sequence=new))

    def _copy_record(self, record: CapturedRecord, log: RecordLog) -> None:
        pending_receivers = [
            NodeId(node)
            for node, _ in record.receivers
            if NodeId(node) in self.previous_last_assigned  # otherwise it has expired
            if record.sequence > self.acknowledged.get(NodeId(node), 0)
        ]
        if not pending_receivers:
            return
        sequence = log.next_sequence
        receivers = tuple((node, self.last_assigned.get(node, 0)) for node in pending_receivers)
        log.append(replace(record, sequence=sequence, receivers=receivers))
        self.last_assigned.update(dict.fromkeys(pending_receivers, sequence))
        if record.sequence in self.redeliverable:
            self.new_sequences[record.sequence] = sequence
        else:
            log.append(CaptureCompletedRecord(sequence))

    def _carried_state(self) -> Iterator[JournalRecord]:
        yield LastAssignedRecord(tuple(self.last_assigned.items()))
        for old, new in self.redeliverable_sequences().items():
            yield replace(self.redeliverable[old], sequence=new)
