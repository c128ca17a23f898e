"""The files of the outbox log: one directory per epoch; the greatest is the current one.

A corrupt log is renamed to `damaged-EPOCH` and a new epoch starts, with an alarm. The log of a new
epoch is built in a temporary directory and renamed:

    copy (any number of commits) → durable → rename → delete the old log

Before the rename the old log counts, after it the new one: a crash leaves one of them, whole.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage import clone_detection
from hansa.delivery.outbox import OutboxLog, make_publication
from hansa.delivery.rollover_plan import RolloverPlan
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed, JournalUnusable
from hansa.journal.crash import pass_crash_point
from hansa.journal.disk import sync_directory
from hansa.journal.reader import JournalReader
from hansa.journal.records import (
    CapturedRecord,
    JournalRecord,
    RecordedPublication,
)
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.protocol.delivery.repair import select_for_repair
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead
from hansa.protocol.model import NodeId, Publication

NO_TOPICS = RecordedTopics()

COPY_COMMIT_BYTES = 1 << 18
"""Bytes between two commits of a copy: bounds the memory that a rollover needs."""

TEMPORARY_SUFFIX = ".new"
"""Suffix of the directory of an unfinished log."""


class OutboxFiles:
    """The logs of one node's own publications on disk."""

    def __init__(
        self,
        directory: Path,
        node: NodeId,
        new_epoch: int,
        settings: JournalSettings,
        recorded_topics: RecordedTopics = NO_TOPICS,
    ) -> None:
        """Open the log of the greatest epoch, or create one with `new_epoch`. Publications to
        `recorded_topics` are marked as recorded, and logs of ended epochs that may hold some are
        kept until retention expires."""
        self._directory = directory
        self._node = node
        self._settings = settings
        self._recorded_topics = recorded_topics
        self.damage_text = ""
        """Corruption found in this log or a previous one, for an alarm."""
        self.read_error = ""
        """Why the last `read_journal` failed."""
        self.is_stopping = False
        """Whether the agent stops, so that no result is needed any more."""
        self._ended_writers: list[JournalWriter] = []
        _remove_unfinished(directory)
        epoch = max(_epochs(directory), default=new_epoch)
        try:
            self.log_state = self._recover(epoch, new_epoch)
        except JournalDamaged as error:
            moved = self._directory / f"damaged-{epoch}"
            self.damage_text = f"{error}; moved to {moved.name}, pending publications may be lost"
            self._path_of(epoch).rename(moved)
            self.writer = self._open_writer(max(new_epoch, epoch + 1))
            self.log_state = OutboxLog(self.writer, (), time.time_ns, recorded_topics.__contains__)
            self.log_state.is_cloned = clone_detection.is_cloned(self._path_of(self.writer.epoch))
        self.remove_ended_epochs()

    def _recover(self, epoch: int, new_epoch: int) -> OutboxLog:
        """Open the log of an epoch and start an incarnation with it."""
        writer = self.writer = self._open_writer(epoch)
        self.damage_text = writer.damage
        outbox = OutboxLog(
            writer, writer.replay_last_segment(), time.time_ns, self._recorded_topics.__contains__
        )
        outbox.is_cloned = clone_detection.is_cloned(self._path_of(epoch))
        outbox.replace_if_empty(new_epoch, self._build_and_start)
        if self.writer is not writer:
            self._close_ended()
            if not self._has_recorded(epoch):
                shutil.rmtree(self._path_of(epoch), ignore_errors=True)
        outbox.start_incarnation()
        return outbox

    def _build_and_start(self, plan: RolloverPlan) -> JournalWriter:
        self.start_epoch(self.build_epoch(plan))
        return self.writer

    def _has_recorded(self, epoch: int) -> bool:
        """Whether the log may hold recorded QoS 0 publications, which have no position."""
        try:
            records = JournalReader(self._path_of(epoch)).read()
            return any(isinstance(record, RecordedPublication) for _, record in records)
        except JournalError:
            return True

    def _path_of(self, epoch: int) -> Path:
        return self._directory / f"{epoch:020d}"

    def _open_writer(self, epoch: int) -> JournalWriter:
        return JournalWriter(self._path_of(epoch), self._node, epoch, self._settings)

    # ------------------------------------------------------------ epochs

    def build_epoch(self, plan: RolloverPlan) -> JournalWriter:
        """Build the log of a new epoch in the calling thread and return its writer. Can be called
        again after a failure. Meanwhile no captured publication may be appended; records of a lost
        session and recorded QoS 0 publications may be, and are not copied."""
        self.writer.commit()
        path = self._path_of(plan.epoch)
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            if not path.is_dir():
                self._build_temporary(temporary, plan)
                pass_crash_point(DeliveryCrashPoint.ROLLOVER_DURABLE)
                os.rename(temporary, path)
            sync_directory(path.parent)
        except OSError as error:
            raise JournalUnusable(f"cannot create {path}: {error.strerror}") from error
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_RENAMED)
        return self._open_writer(plan.epoch)

    def _build_temporary(self, path: Path, plan: RolloverPlan) -> None:
        """Copy everything; delete the copy if the disk is full."""
        shutil.rmtree(path, ignore_errors=True)
        records = self._captured_records(plan.first_pending, self.writer.next_sequence - 1)
        source = (record for record in records if record is not None)
        try:
            with JournalWriter(path, self._node, plan.epoch, self._settings) as writer:
                pass_crash_point(DeliveryCrashPoint.ROLLOVER_STARTED)
                for _ in plan.copy_records(source, writer, time.time_ns()):
                    if self.is_stopping:
                        raise JournalUnusable("the agent stopped during the epoch rollover")
                    if writer.end - writer.durable >= COPY_COMMIT_BYTES:
                        writer.commit()
                        pass_crash_point(DeliveryCrashPoint.ROLLOVER_COPIED)
        except JournalUnusable:
            shutil.rmtree(path, ignore_errors=True)
            raise
        clone_detection.record_inodes(path)

    def start_epoch(self, writer: JournalWriter) -> None:
        """Continue with the log of a new epoch."""
        self._ended_writers.append(self.writer)
        self.writer = writer

    def close(self) -> None:
        """Write everything and close the files."""
        self._close_ended()
        self.writer.close()

    def _close_ended(self) -> None:
        while self._ended_writers:
            try:
                self._ended_writers.pop().close()
            except JournalUnusable:
                continue  # everything that counts is in the new log

    def remove_ended_epochs(self) -> None:
        """Delete the logs of ended epochs: no node can request repair from them any more."""
        self._close_ended()
        for epoch in _epochs(self._directory):
            path = self._path_of(epoch)
            is_needed = self._recorded_topics and self._is_within_retention(path)
            if epoch < self.writer.epoch and not is_needed:
                shutil.rmtree(path, ignore_errors=True)

    def _is_within_retention(self, path: Path) -> bool:
        """Whether the log of an ended epoch is kept for readers of recorded publications."""
        ends = [file.stat().st_mtime for file in path.glob("*.log")]
        age_s = time.time_ns() / 1e9 - max(ends, default=0.0)
        return age_s < self._settings.retention_seconds

    # ------------------------------------------------------------ reading

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
            elif any(to == command.receiver for to, _ in record.receivers):
                yield make_publication(record, self._node, command.epoch, time.time_ns())

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


def _epochs(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]


def _remove_unfinished(directory: Path) -> None:
    """Delete unfinished logs that a crash left."""
    for path in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)
