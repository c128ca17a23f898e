"""The state of the outbox log: publications that clients of this broker published at QoS 1 and 2.

A log belongs to one epoch. After a restart its last segment restores the receivers with their
progress and the publications that the broker may send again. If the log is a restored copy
(`is_cloned`), a new epoch has to start: see `rollover`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hansa.delivery.dedup.history import CaptureDedup, CaptureHistory, DedupRecord
from hansa.delivery.log import RecordLog
from hansa.delivery.rollover_plan import RolloverPlan
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    JournalRecord,
    LastAssignedRecord,
    ReceiverAckRecord,
    SessionStartedRecord,
    UnreportedRecord,
    seconds_since,
)
from hansa.mqtt.properties import with_reduced_expiry
from hansa.protocol.model import NodeId, Publication

ReceiverRecord = LastAssignedRecord | ReceiverAckRecord | UnreportedRecord


@dataclass(slots=True)
class OutboxReceivers:
    """Progress of each receiver, as the log records it."""

    last_assigned: dict[NodeId, int] = field(default_factory=dict)
    """Last position for each receiver. A node that is not listed has expired."""
    acknowledged: dict[NodeId, int] = field(default_factory=dict)
    """Position up to which the receiver has everything."""
    unreported_since: dict[NodeId, int] = field(default_factory=dict)
    """First position that the receiver cannot have: an incarnation started there and the receiver
    has not reported its progress since."""

    def apply(self, record: ReceiverRecord) -> None:
        """Apply a record of the last segment."""
        match record:
            case ReceiverAckRecord(node, _, sequence):
                self.acknowledged[NodeId(node)] = sequence
            case UnreportedRecord(node, sequence):
                self.unreported_since[NodeId(node)] = sequence
            case _:
                self.last_assigned = {NodeId(node): last for node, last in record.last_assigned}
                for known in (self.acknowledged, self.unreported_since):
                    for node in known.keys() - self.last_assigned.keys():
                        del known[node]

    def carried_records(self) -> Iterator[ReceiverRecord]:
        """Yield the records from which `apply` restores this state."""
        yield self.last_assigned_record()
        for node, sequence in self.acknowledged.items():
            yield ReceiverAckRecord(node, 0, sequence)
        for node, sequence in self.unreported_since.items():
            yield UnreportedRecord(node, sequence)

    def last_assigned_record(self) -> LastAssignedRecord:
        return LastAssignedRecord(tuple(self.last_assigned.items()))

    def remove(self, node: NodeId) -> bool:
        """Remove an expired node; return whether it was a receiver."""
        self.acknowledged.pop(node, None)
        self.unreported_since.pop(node, None)
        return self.last_assigned.pop(node, None) is not None


class OutboxLog:
    """What one node knows of its own publications, and their log."""

    def __init__(
        self,
        log: RecordLog,
        recovered: Iterable[JournalRecord],
        wall_ns: Callable[[], int],
        is_recorded: Callable[[str], bool] = lambda topic: False,
        is_cloned: bool = False,
    ) -> None:
        """`recovered` are the records of the last segment. Publications to topics for which
        `is_recorded` is true are marked as recorded. `is_cloned` says that the log is a restored
        copy, so that the original may have continued."""
        self._wall_ns = wall_ns
        self._is_recorded = is_recorded
        self.is_cloned = is_cloned
        self.receivers = OutboxReceivers()
        history = CaptureHistory()
        for record in recovered:
            if isinstance(record, ReceiverRecord):
                self.receivers.apply(record)
            elif isinstance(record, DedupRecord):
                if isinstance(record, CapturedRecord):
                    assigned = {NodeId(node): record.sequence for node, _ in record.receivers}
                    self.receivers.last_assigned.update(assigned)
                history.apply(record)
        self.dedup = CaptureDedup(history)
        self._use_log(log)
        self._continues_epoch = log.next_sequence > 1
        """Whether previous incarnations captured publications in this epoch."""

    def _use_log(self, log: RecordLog) -> None:
        self.log = log
        log.carried_state = self._carried_state

    @property
    def is_empty(self) -> bool:
        """Whether no incarnation has captured anything in this epoch."""
        return not self._continues_epoch

    def replace_if_empty(
        self, incarnation: int, build: Callable[[RolloverPlan], RecordLog]
    ) -> None:
        """Replace an empty log of an earlier incarnation by one of a new epoch, which `build`
        makes: it may be a snapshot from before the first capture, and would assign the same
        positions again. A cloned log is replaced later, with a delay."""
        if self.is_empty and not self.is_cloned and self.log.epoch != incarnation:
            plan = self.plan_rollover(max(incarnation, self.log.epoch + 1))
            self.adopt_epoch(plan, build(plan))

    def start_incarnation(self) -> None:
        """Mark all receivers as unreported: no receiver has anything that this incarnation
        captures, and a receiver must report its progress before anything is sent to it."""
        for node in self.receivers.last_assigned:
            if not self.receivers.unreported_since.get(node):
                self._mark_unreported(node, self.log.next_sequence)

    def _mark_unreported(self, node: NodeId, sequence: int) -> None:
        self.receivers.unreported_since[node] = sequence
        self.log.append(UnreportedRecord(node, sequence))

    def mark_reported(self, node: NodeId) -> int:
        """Record that a receiver has reported its progress; return the offset."""
        self.receivers.unreported_since.pop(node, None)
        return self.log.append(UnreportedRecord(node, 0))

    def _carried_state(self) -> Iterator[JournalRecord]:
        yield from self.receivers.carried_records()
        yield from self.dedup.carried_records()

    def append_carried_redeliveries(self) -> None:
        """Write the de-duplication state into the log of a new epoch."""
        for record in self.dedup.carried_records():
            self.log.append(record)

    def append_publication(
        self, publication: Publication, packet_id: int, subscriptions: tuple[int, int] = (0, 0)
    ) -> int:
        """Append a publication and return its offset; it must not be sent before it is durable.
        `subscriptions` are the identifiers of the subscription that matched and of the newest."""
        assert all(before < publication.sequence for _, before in publication.receivers)
        if self._continues_epoch:
            for receiver, _ in publication.receivers:
                if receiver not in self.receivers.last_assigned:
                    self._mark_unreported(receiver, publication.sequence)
        record = CapturedRecord(
            publication.sequence,
            publication.qos,
            publication.topic,
            publication.payload,
            publication.retain,
            publication.properties,
            publication.receivers,
            packet_id,
            self._wall_ns(),
            self._is_recorded(publication.topic),
            publication.version,
            *subscriptions,
        )
        offset = self.log.append(record)
        for receiver, _ in publication.receivers:
            self.receivers.last_assigned[receiver] = publication.sequence
        return offset

    def append_session_started(self) -> None:
        """Record a new broker session: earlier publications are not redelivered any more."""
        self.log.append(SessionStartedRecord(self._wall_ns()))

    def append_completed(self, sequence: int) -> int:
        """Record that the broker will not redeliver a publication; return the offset."""
        return self.log.append(CaptureCompletedRecord(sequence))

    def append_acknowledged(self, acknowledged: Mapping[NodeId, int]) -> bool:
        """Record the progress of receivers; return whether any has advanced."""
        known = self.receivers.acknowledged
        advanced = {
            node: sequence
            for node, sequence in acknowledged.items()
            if sequence > known.get(node, 0)
        }
        known.update(advanced)  # first: an append may start a segment, which carries all of them
        for node, upto in advanced.items():
            self.log.append(ReceiverAckRecord(node, 0, upto))
        return bool(advanced)

    @property
    def has_unacknowledged(self) -> bool:
        """Whether the recorded progress of some receiver is behind."""
        acknowledged = self.receivers.acknowledged
        return any(
            last > acknowledged.get(node, 0) for node, last in self.receivers.last_assigned.items()
        )

    def expire_node(self, node: NodeId) -> bool:
        """Record that a node is not a receiver any more; return whether it was one."""
        if not self.receivers.remove(node):
            return False
        self.log.append(self.receivers.last_assigned_record())
        return True

    def plan_rollover(self, epoch: int) -> RolloverPlan:
        """Return the plan of a new epoch, which replaces this log."""
        assert epoch > self.log.epoch
        candidates = self.dedup.redelivery.candidates()
        return RolloverPlan(
            epoch,
            dict(self.receivers.last_assigned),
            dict(self.receivers.acknowledged),
            {each.sequence: each.to_record() for each in candidates},
        )

    def adopt_epoch(self, plan: RolloverPlan, log: RecordLog) -> None:
        """Continue with the log of a new epoch."""
        self._use_log(log)
        self.receivers = OutboxReceivers(dict(plan.last_assigned))
        self._continues_epoch = False
        self.is_cloned = False


def make_publication(
    record: CapturedRecord, origin: NodeId, epoch: int, wall_ns: int
) -> Publication:
    """Return a captured publication as it is sent for repair, with the expiry reduced by the time
    in the log."""
    return Publication(
        origin=origin,
        epoch=epoch,
        sequence=record.sequence,
        qos=record.qos,
        topic=record.topic,
        payload=record.payload,
        retain=record.retain,
        receivers=tuple((NodeId(node), number) for node, number in record.receivers),
        properties=with_reduced_expiry(record.properties, seconds_since(record.time_ns, wall_ns)),
        version=record.version,
    )
