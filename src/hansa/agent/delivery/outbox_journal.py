"""The journal of what clients here published at QoS 1 and 2: what others are owed.

One directory per epoch, the greatest is the present one. After a restart it tells where the
positions go on, what each receiver is owed, and which packets the broker may send again. A copy
that was put back begins a new epoch.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from hansa.agent.delivery.dedup.reconnect_overlap import PreviousCaptures, ReconnectOverlapDedup
from hansa.agent.delivery.dedup.redelivery import (
    RECENT_MAX,
    PacketIdOrder,
    RedeliveryCandidate,
    candidate_from_record,
    content_digest,
)
from hansa.agent.delivery.epoch_rollover import EpochRollover, remove_unfinished
from hansa.agent.storage import clone_detection
from hansa.agent.telemetry.recorded_topics import RecordedTopics
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed
from hansa.journal.reader import JournalReader
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    JournalRecord,
    LastAssignedRecord,
    ReceiverAckRecord,
    RecordedPublication,
    RedeliverableRecord,
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


class OutboxJournal:
    """The journal of one node's own publications."""

    _continues_epoch = False
    """Whether former lives captured something in this epoch."""

    def __init__(
        self,
        directory: Path,
        node: NodeId,
        new_epoch: int,
        settings: JournalSettings,
        recorded_topics: RecordedTopics = NO_TOPICS,
    ) -> None:
        """Open the journal of the greatest epoch, or make one. What is published to some topics is
        recorded, for readers who take their time."""
        self._recorded_topics = recorded_topics
        self._directory = directory
        self._node = node
        self._settings = settings
        self.last_assigned: dict[NodeId, int] = {}
        self.acknowledged: dict[NodeId, int] = {}
        """Per receiver, up to where it has all that it was owed, as far as the journal says."""
        self.unheard_since: dict[NodeId, int] = {}
        """Per receiver that has not said since what it has, the position with which a life began:
        the first that it cannot have."""
        self.redelivery_candidates: Callable[[], Iterable[RedeliveryCandidate]] = lambda: (
            self.recovered_candidates
        )
        """Returns what the broker may send again."""
        self.carried_redeliveries: Callable[[], Iterable[JournalRecord]] = (
            self._default_carried_redeliveries
        )
        """Returns what new segments begin with for the next life to know that, and more."""
        self.recovered_candidates: list[RedeliveryCandidate] = []
        """What a former life left of that."""
        self.previous_captures = PreviousCaptures()
        self.packet_id_order = PacketIdOrder()
        self.damage_text = ""
        """What of this journal, or of a former one, is lost."""
        self.read_error = ""
        """Why the journal could not be read when it was last tried."""
        self.is_stopping = False
        """Whether the agent stops: the result of `recall` is not needed any more."""
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
        """Whether a copy of a journal was put back, and the original may have gone on."""
        self.remove_ended_epochs()

    def _move_damaged(self, epoch: int, error: JournalDamaged) -> None:
        """Keep a journal that cannot be used out of the way, and nothing of what it said."""
        aside = self._directory / f"damaged-{epoch}"
        self.damage_text = f"{error}; it is set aside as {aside.name}, what was owed may be lost"
        for known in (self.last_assigned, self.acknowledged, self.unheard_since):
            known.clear()
        self.previous_captures, self.packet_id_order = PreviousCaptures(), PacketIdOrder()
        self._path_of(epoch).rename(aside)

    def _path_of(self, epoch: int) -> Path:
        return self._directory / f"{epoch:020d}"

    def _open_writer(self, epoch: int) -> JournalWriter:
        writer = JournalWriter(self._path_of(epoch), self._node, epoch, self._settings)
        writer.carried_state = self._carried_state
        return writer

    def remove_ended_epochs(self) -> None:
        """Let the journals of epochs go that have ended: no node can ask for them any more."""
        for epoch in _epochs(self._directory):
            former = self._path_of(epoch)
            if epoch < self.writer.epoch and not (
                self._recorded_topics and self._is_within_retention(former)
            ):
                shutil.rmtree(former, ignore_errors=True)

    def _is_within_retention(self, former: Path) -> bool:
        """Whether the journal of an epoch that has ended is still kept for who reads what was
        recorded."""
        ends = [path.stat().st_mtime for path in former.glob("*.log")]
        age_s = time.time_ns() / 1e9 - max(ends, default=0.0)
        return age_s < self._settings.retention_seconds

    def _recover(self) -> None:
        candidates: dict[
            int, RedeliveryCandidate
        ] = {}  # a packet id that is used again is no longer the former one's
        packet_ids: dict[int, int] = {}
        for record in self.writer.replay_last_segment():
            match record:
                case LastAssignedRecord() | ReceiverAckRecord() | UnheardRecord():
                    self._recover_receivers(record)
                case CapturedRecord(sequence=number, packet_id=packet_id):
                    self.last_assigned.update({NodeId(node): number for node, _ in record.previous})
                    candidates.pop(packet_id, None)
                    candidates[packet_id] = candidate_from_record(record, content_digest(record))
                    self.previous_captures.add(candidates[packet_id])
                    self.packet_id_order.observe(packet_id)
                    packet_ids[number] = packet_id
                case RedeliverableRecord(number, packet_id):
                    candidates[packet_id] = candidate_from_record(record, record.digest)
                    self.previous_captures.add(candidates[packet_id])
                    packet_ids[number] = packet_id
                case SessionStartedRecord():
                    candidates, packet_ids = {}, {}
                    self.previous_captures, self.packet_id_order = (
                        PreviousCaptures(),
                        PacketIdOrder(),
                    )
                case CaptureCompletedRecord(number):
                    packet_id = packet_ids.pop(number, 0)
                    if packet_id in candidates and candidates[packet_id].sequence == number:
                        self.previous_captures.mark_completed(candidates.pop(packet_id))
                case _:
                    pass
        for packet_id in [each.packet_id for each in candidates.values() if each.qos == 1][
            :-RECENT_MAX
        ]:
            del candidates[packet_id]
        self.recovered_candidates = list(candidates.values())

    def _recover_receivers(
        self, record: LastAssignedRecord | ReceiverAckRecord | UnheardRecord
    ) -> None:
        match record:
            case ReceiverAckRecord(node, _, number):
                self.acknowledged[NodeId(node)] = number
            case UnheardRecord(node, number):
                self.unheard_since[NodeId(node)] = number
            case LastAssignedRecord(last):
                self.last_assigned = {NodeId(node): number for node, number in last}
                for known in (self.acknowledged, self.unheard_since):
                    for node in known.keys() - self.last_assigned.keys():
                        del known[node]

    def _start_incarnation(self, new_epoch: int) -> None:
        """What this life captures, nobody has; before it is sent, its receiver has to be heard."""
        epoch = self.writer.epoch
        self._continues_epoch = self.writer.next_sequence > 1
        is_new = epoch == new_epoch
        if (
            not self._continues_epoch
            and not is_new
            and not clone_detection.is_cloned(self._path_of(epoch))
        ):
            self._replace_empty_epoch(max(new_epoch, epoch + 1))
        for node in self.last_assigned:
            if not self.unheard_since.get(node):
                self._mark_unheard(node, self.writer.next_sequence)

    def _replace_empty_epoch(self, epoch: int) -> None:
        """A snapshot from before the first capture shows nothing of the positions that were given
        out since. A new epoch has its own, and costs nothing: from an empty one nothing is owed."""
        empty, renewal = self.writer, self.plan_rollover(epoch)
        self.adopt_epoch(renewal, self.build_rollover(renewal))
        empty.close()
        if not self._has_recorded(empty.epoch):
            shutil.rmtree(self._path_of(empty.epoch), ignore_errors=True)

    def _has_recorded(self, epoch: int) -> bool:
        """Return whether there may be recorded publications of QoS 0, which have no position."""
        try:
            records = JournalReader(self._path_of(epoch)).read()
            return any(isinstance(record, RecordedPublication) for _, record in records)
        except JournalError:
            return True

    def _mark_unheard(self, node: NodeId, number: int) -> None:
        self.unheard_since[node] = number
        self.writer.append(UnheardRecord(node, number))

    def mark_heard(self, node: NodeId) -> int:
        """Write that a receiver has said what it has; return the offset."""
        self.unheard_since.pop(node, None)
        return self.writer.append(UnheardRecord(node, 0))

    def _default_carried_redeliveries(self) -> Iterator[JournalRecord]:
        return ReconnectOverlapDedup(self.previous_captures).carried_records(
            self.recovered_candidates
        )

    def _carried_state(self) -> Iterator[JournalRecord]:
        yield LastAssignedRecord(tuple(self.last_assigned.items()))
        for node, number in self.acknowledged.items():
            yield ReceiverAckRecord(node, 0, number)
        for node, number in self.unheard_since.items():
            yield UnheardRecord(node, number)
        yield from self.carried_redeliveries()

    def append_carried_redeliveries(self) -> None:
        """Write, where a new epoch began, what else the next life has to know."""
        for record in self.carried_redeliveries():
            self.writer.append(record)

    def append_publication(
        self, publication: Publication, packet_id: int, subscriptions: tuple[int, int] = (0, 0)
    ) -> int:
        """Write a publication; return its offset. It must not leave before that is durable. `by`
        names the subscription that brought it, and the newest one."""
        assert all(before < publication.sequence for _, before in publication.previous)
        if self._continues_epoch:
            for receiver, _ in publication.previous:
                if receiver not in self.last_assigned:
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
            self.last_assigned[receiver] = publication.sequence
        return offset

    def append_session_started(self) -> None:
        """Write that nothing of before comes again."""
        self.writer.append(SessionStartedRecord(time.time_ns()))

    def append_completed(self, sequence: int) -> int:
        """Write that the broker will not send a publication again; return the offset."""
        return self.writer.append(CaptureCompletedRecord(sequence))

    def append_acknowledged(self, acknowledged: Mapping[NodeId, int]) -> bool:
        """Write up to where receivers have what they were owed; return whether that is news."""
        advanced = {
            node: number
            for node, number in acknowledged.items()
            if number > self.acknowledged.get(node, 0)
        }
        for node, number in advanced.items():
            self.writer.append(ReceiverAckRecord(node, 0, number))
        self.acknowledged.update(advanced)
        return bool(advanced)

    def expire_node(self, node: NodeId) -> bool:
        """Write that a node is owed nothing any more; return whether it was owed something."""
        self.acknowledged.pop(node, None)
        self.unheard_since.pop(node, None)
        if self.last_assigned.pop(node, None) is None:
            return False
        self.writer.append(LastAssignedRecord(tuple(self.last_assigned.items())))
        return True

    def plan_rollover(self, epoch: int) -> EpochRollover:
        """Return what a new epoch begins with: this journal was an old copy."""
        assert epoch > self.writer.epoch
        repeatable = {seen.sequence: seen.to_record() for seen in self.redelivery_candidates()}
        return EpochRollover(epoch, dict(self.last_assigned), dict(self.acknowledged), repeatable)

    def build_rollover(self, rollover: EpochRollover) -> JournalWriter:
        """Make the journal of a new epoch, and return its writer; for a thread of its own. Nothing
        may be captured until it is adopted."""
        self.writer.commit()
        records = self._captured_records(rollover.first_pending, self.writer.next_sequence - 1)
        readable_records = (record for record in records if record is not None)
        rollover.build_journal(
            self._path_of(rollover.epoch), self._node, self._settings, readable_records
        )
        return self._open_writer(rollover.epoch)

    def adopt_epoch(self, rollover: EpochRollover, writer: JournalWriter) -> None:
        """Go on with the journal of a new epoch."""
        self.writer = writer
        self.last_assigned = dict(rollover.last_assigned)
        self.acknowledged.clear()
        self.unheard_since.clear()
        self._continues_epoch = False
        self.is_cloned = False

    def read_journal(self, command: ReadJournal) -> JournalRead:
        """Read what a node is owed; for a thread of its own."""
        try:
            result = select_for_repair(command, self._pending_for(command))
            self.read_error = ""
        except (JournalError, OSError) as error:
            self.read_error = str(error)
            # Nothing is lost by it: the node will ask again.
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
        """Yield the captured publications that can still be read, None where some cannot."""
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
                left = reader.headers()
                if not left:
                    return
                source = reader.captured_records(left[0].next_sequence, last)
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
        except JournalDamaged as damaged:  # records can be found without, if more slowly
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
