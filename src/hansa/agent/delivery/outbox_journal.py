"""The journal of publications that clients of this broker published at QoS 1 and 2.

Each epoch has a directory; the greatest is the current one. After a restart the journal restores
the next position, the receivers and their progress, and the redelivery candidates. A corrupt
journal is renamed to `damaged-EPOCH` and a new epoch starts, with an alarm. If the journal is a
restored copy (`is_cloned`), the caller has to start a new epoch: see `epoch_rollover`.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hansa.agent.delivery.dedup.history import CaptureDedup, CaptureHistory, DedupRecord
from hansa.agent.delivery.epoch_rollover import EpochRollover, remove_unfinished
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage import clone_detection
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed
from hansa.journal.reader import JournalReader
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    JournalRecord,
    LastAssignedRecord,
    ReceiverAckRecord,
    RecordedPublication,
    SessionStartedRecord,
    UnheardRecord,
    seconds_since,
)
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.mqtt.properties import with_reduced_expiry
from hansa.protocol.delivery.repair import select_for_repair
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead
from hansa.protocol.model import NodeId, Publication

NO_TOPICS = RecordedTopics()


ReceiverRecord = LastAssignedRecord | ReceiverAckRecord | UnheardRecord


@dataclass(slots=True)
class OutboxReceivers:
    """Progress of each receiver, as the journal records it."""

    last_assigned: dict[NodeId, int] = field(default_factory=dict)
    """Last position for each receiver. A node that is not listed has expired."""
    acknowledged: dict[NodeId, int] = field(default_factory=dict)
    """Position up to which the receiver has everything."""
    unheard_since: dict[NodeId, int] = field(default_factory=dict)
    """First position that the receiver cannot have: an incarnation started there and the receiver
    has not reported its progress since."""

    def apply(self, record: ReceiverRecord) -> None:
        """Apply a record of the last segment."""
        match record:
            case ReceiverAckRecord(node, _, sequence):
                self.acknowledged[NodeId(node)] = sequence
            case UnheardRecord(node, sequence):
                self.unheard_since[NodeId(node)] = sequence
            case LastAssignedRecord(last_assigned):
                self.last_assigned = {NodeId(node): last for node, last in last_assigned}
                for known in (self.acknowledged, self.unheard_since):
                    for node in known.keys() - self.last_assigned.keys():
                        del known[node]

    def carried_records(self) -> Iterator[ReceiverRecord]:
        """Yield the records from which `apply` restores this state."""
        yield self.last_assigned_record()
        for node, sequence in self.acknowledged.items():
            yield ReceiverAckRecord(node, 0, sequence)
        for node, sequence in self.unheard_since.items():
            yield UnheardRecord(node, sequence)

    def last_assigned_record(self) -> LastAssignedRecord:
        return LastAssignedRecord(tuple(self.last_assigned.items()))

    def remove(self, node: NodeId) -> bool:
        """Remove an expired node; return whether it was a receiver."""
        self.acknowledged.pop(node, None)
        self.unheard_since.pop(node, None)
        return self.last_assigned.pop(node, None) is not None


class OutboxJournal:
    """The journal of one node's own publications."""

    _continues_epoch = False
    """Whether previous incarnations captured publications in this epoch."""

    def __init__(
        self,
        directory: Path,
        node: NodeId,
        new_epoch: int,
        settings: JournalSettings,
        recorded_topics: RecordedTopics = NO_TOPICS,
    ) -> None:
        """Open the journal of the greatest epoch, or create one with `new_epoch`. Publications to
        `recorded_topics` are marked as recorded, and journals of ended epochs that may hold some
        are kept until retention expires."""
        self._recorded_topics = recorded_topics
        self._directory = directory
        self._node = node
        self._settings = settings
        self.receivers = OutboxReceivers()
        self.dedup = CaptureDedup(CaptureHistory())
        self.damage_text = ""
        """Corruption found in this journal or a previous one, for an alarm."""
        self.read_error = ""
        """Why the last `read_journal` failed."""
        self.is_stopping = False
        """Whether the agent stops, so that the result of `read_journal` is not needed any more."""
        remove_unfinished(directory)
        epoch = max(_epochs(directory), default=new_epoch)
        try:
            self.writer = self._open_writer(epoch)
            self.damage_text = self.writer.damage
            self._recover()
            self._start_incarnation(new_epoch)
        except JournalDamaged as error:
            self._move_damaged(epoch, error)
            self.writer = self._open_writer(max(new_epoch, epoch + 1))
        self.is_cloned = clone_detection.is_cloned(self._path_of(self.writer.epoch))
        """Whether the journal is a restored copy, so that the original may have continued."""
        self.remove_ended_epochs()

    def _move_damaged(self, epoch: int, error: JournalDamaged) -> None:
        """Rename a corrupt journal and forget what was read from it."""
        moved = self._directory / f"damaged-{epoch}"
        self.damage_text = f"{error}; moved to {moved.name}, pending publications may be lost"
        self.receivers, self.dedup = OutboxReceivers(), CaptureDedup(CaptureHistory())
        self._path_of(epoch).rename(moved)

    def _path_of(self, epoch: int) -> Path:
        return self._directory / f"{epoch:020d}"

    def _open_writer(self, epoch: int) -> JournalWriter:
        writer = JournalWriter(self._path_of(epoch), self._node, epoch, self._settings)
        writer.carried_state = self._carried_state
        return writer

    def remove_ended_epochs(self) -> None:
        """Delete the journals of ended epochs: no node can request repair from them any more."""
        for epoch in _epochs(self._directory):
            path = self._path_of(epoch)
            is_needed = self._recorded_topics and self._is_within_retention(path)
            if epoch < self.writer.epoch and not is_needed:
                shutil.rmtree(path, ignore_errors=True)

    def _is_within_retention(self, path: Path) -> bool:
        """Whether the journal of an ended epoch is kept for readers of recorded publications."""
        ends = [file.stat().st_mtime for file in path.glob("*.log")]
        age_s = time.time_ns() / 1e9 - max(ends, default=0.0)
        return age_s < self._settings.retention_seconds

    def _recover(self) -> None:
        history = CaptureHistory()
        for record in self.writer.replay_last_segment():
            if isinstance(record, ReceiverRecord):
                self.receivers.apply(record)
            elif isinstance(record, DedupRecord):
                if isinstance(record, CapturedRecord):
                    assigned = {NodeId(node): record.sequence for node, _ in record.previous}
                    self.receivers.last_assigned.update(assigned)
                history.apply(record)
        self.dedup = CaptureDedup(history)

    def _start_incarnation(self, new_epoch: int) -> None:
        """Mark all receivers as unheard: no receiver has anything that this incarnation captures,
        and a receiver must report its progress before anything is sent to it."""
        epoch = self.writer.epoch
        self._continues_epoch = self.writer.next_sequence > 1
        is_new = epoch == new_epoch
        if (
            not self._continues_epoch
            and not is_new
            and not clone_detection.is_cloned(self._path_of(epoch))
        ):
            self._replace_empty_epoch(max(new_epoch, epoch + 1))
        for node in self.receivers.last_assigned:
            if not self.receivers.unheard_since.get(node):
                self._mark_unheard(node, self.writer.next_sequence)

    def _replace_empty_epoch(self, epoch: int) -> None:
        """Replace a journal without captured publications by a new epoch. It may be a snapshot from
        before the first capture, and would assign the same positions again. Nothing has to be
        copied."""
        empty, rollover = self.writer, self.plan_rollover(epoch)
        self.adopt_epoch(rollover, self.build_rollover(rollover))
        empty.close()
        if not self._has_recorded(empty.epoch):
            shutil.rmtree(self._path_of(empty.epoch), ignore_errors=True)

    def _has_recorded(self, epoch: int) -> bool:
        """Whether the journal may hold recorded QoS 0 publications, which have no position."""
        try:
            records = JournalReader(self._path_of(epoch)).read()
            return any(isinstance(record, RecordedPublication) for _, record in records)
        except JournalError:
            return True

    def _mark_unheard(self, node: NodeId, sequence: int) -> None:
        self.receivers.unheard_since[node] = sequence
        self.writer.append(UnheardRecord(node, sequence))

    def mark_heard(self, node: NodeId) -> int:
        """Record that a receiver has reported its progress; return the offset."""
        self.receivers.unheard_since.pop(node, None)
        return self.writer.append(UnheardRecord(node, 0))

    def _carried_state(self) -> Iterator[JournalRecord]:
        yield from self.receivers.carried_records()
        yield from self.dedup.carried_records()

    def append_carried_redeliveries(self) -> None:
        """Write the de-duplication state into the journal of a new epoch."""
        for record in self.dedup.carried_records():
            self.writer.append(record)

    def append_publication(
        self, publication: Publication, packet_id: int, subscriptions: tuple[int, int] = (0, 0)
    ) -> int:
        """Append a publication and return its offset; it must not be sent before it is durable.
        `subscriptions` are the identifiers of the subscription that matched and of the newest."""
        assert all(before < publication.sequence for _, before in publication.previous)
        if self._continues_epoch:
            for receiver, _ in publication.previous:
                if receiver not in self.receivers.last_assigned:
                    self._mark_unheard(receiver, publication.sequence)
        record = CapturedRecord(
            publication.sequence,
            publication.qos,
            publication.topic,
            publication.payload,
            publication.retain,
            publication.properties,
            publication.previous,
            packet_id,
            time.time_ns(),
            publication.topic in self._recorded_topics,
            publication.version,
            *subscriptions,
        )
        offset = self.writer.append(record)
        for receiver, _ in publication.previous:
            self.receivers.last_assigned[receiver] = publication.sequence
        return offset

    def append_session_started(self) -> None:
        """Record a new broker session: earlier publications are not redelivered any more."""
        self.writer.append(SessionStartedRecord(time.time_ns()))

    def append_completed(self, sequence: int) -> int:
        """Record that the broker will not redeliver a publication; return the offset."""
        return self.writer.append(CaptureCompletedRecord(sequence))

    def append_acknowledged(self, acknowledged: Mapping[NodeId, int]) -> bool:
        """Record the progress of receivers; return whether any has advanced."""
        known = self.receivers.acknowledged
        advanced = {
            node: sequence
            for node, sequence in acknowledged.items()
            if sequence > known.get(node, 0)
        }
        for node, upto in advanced.items():
            self.writer.append(ReceiverAckRecord(node, 0, upto))
        known.update(advanced)
        return bool(advanced)

    def expire_node(self, node: NodeId) -> bool:
        """Record that a node is not a receiver any more; return whether it was one."""
        if not self.receivers.remove(node):
            return False
        self.writer.append(self.receivers.last_assigned_record())
        return True

    def plan_rollover(self, epoch: int) -> EpochRollover:
        """Return the plan of a new epoch, which replaces this journal."""
        assert epoch > self.writer.epoch
        candidates = self.dedup.redelivery.candidates()
        return EpochRollover(
            epoch,
            dict(self.receivers.last_assigned),
            dict(self.receivers.acknowledged),
            {each.sequence: each.to_record() for each in candidates},
        )

    def build_rollover(self, rollover: EpochRollover) -> JournalWriter:
        """Build the journal of a new epoch in the calling thread and return its writer. Nothing may
        be captured before `adopt_epoch`."""
        self.writer.commit()
        records = self._captured_records(rollover.first_pending, self.writer.next_sequence - 1)
        readable_records = (record for record in records if record is not None)
        rollover.build_journal(
            self._path_of(rollover.epoch), self._node, self._settings, readable_records
        )
        return self._open_writer(rollover.epoch)

    def adopt_epoch(self, rollover: EpochRollover, writer: JournalWriter) -> None:
        """Continue with the journal of a new epoch."""
        self.writer = writer
        self.receivers = OutboxReceivers(dict(rollover.last_assigned))
        self._continues_epoch = False
        self.is_cloned = False

    def read_journal(self, command: ReadJournal) -> JournalRead:
        """Read pending publications of a receiver, in the calling thread."""
        try:
            result = select_for_repair(command, self._pending_for(command))
            self.read_error = ""
        except (JournalError, OSError) as error:
            self.read_error = str(error)
            # Nothing is lost: the node requests them again.
            result = JournalRead(command.receiver, command.epoch, command.after, command.after, ())
        return result

    def _pending_for(self, command: ReadJournal) -> Iterator[Publication | None]:
        for record in self._captured_records(command.after + 1, command.upto):
            if self.is_stopping:
                return
            if record is None:
                yield None
            elif any(to == command.receiver for to, _ in record.previous):
                yield self._make_publication(record, command.epoch)

    def _captured_records(self, first: int, last: int) -> Iterator[CapturedRecord | None]:
        """Yield captured publications, and None where some are trimmed or corrupt."""
        writer = self.writer
        reader = JournalReader(self._path_of(writer.epoch), writer.durable)
        source = self._open_source(reader, first, last)
        while True:
            try:
                for _, record in source:
                    if isinstance(record, CapturedRecord) and record.sequence >= first:
                        if record.sequence > last:
                            return
                        yield record
            except JournalTrimmed:
                yield None
                headers = reader.headers()
                if not headers:
                    return
                source = reader.captured_records(headers[0].next_sequence, last)
            except JournalDamaged as damaged:
                self.damage_text = str(damaged)
                yield None
                if damaged.resume is None:
                    return
                source = reader.read(damaged.resume)
            else:
                return

    def _open_source(
        self, reader: JournalReader, first: int, last: int
    ) -> Iterator[tuple[int, JournalRecord]]:
        try:
            reader.headers()
        except JournalDamaged as damaged:  # a sequential read works without the header
            self.damage_text = str(damaged)
            return reader.read()
        return reader.captured_records(first, last)

    def _make_publication(self, record: CapturedRecord, epoch: int) -> Publication:
        return Publication(
            origin=self._node,
            epoch=epoch,
            sequence=record.sequence,
            qos=record.qos,
            topic=record.topic,
            payload=record.payload,
            retain=record.retain,
            previous=tuple((NodeId(node), number) for node, number in record.previous),
            properties=with_reduced_expiry(
                record.properties, seconds_since(record.time_ns, time.time_ns())
            ),
            version=record.version,
        )


def _epochs(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
