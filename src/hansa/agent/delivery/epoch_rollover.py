"""Builds the journal of a new epoch that replaces a restored copy.

    copy (any number of commits) → durable → rename → delete the old journal

The new journal holds the publications that receivers have not acknowledged, in the old order with
new positions, and the redelivery candidates. Before the rename the old journal counts, after it the
new one: a crash leaves one of them, whole.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.storage import clone_detection
from hansa.errors import JournalUnusable
from hansa.journal.crash import pass_crash_point
from hansa.journal.disk import sync_directory
from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    JournalRecord,
    LastAssignedRecord,
    RedeliverableRecord,
    SessionStartedRecord,
)
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.protocol.model import NodeId

COPY_COMMIT_BYTES = 1 << 18
"""Bytes between two commits: bounds the memory that a rollover needs."""

TEMPORARY_SUFFIX = ".new"
"""Suffix of the directory of an unfinished journal."""


@dataclass(slots=True)
class EpochRollover:
    """Plan of a rollover, and its result."""

    epoch: int
    previous_last_assigned: Mapping[NodeId, int]
    acknowledged: Mapping[NodeId, int]
    """By receiver, the last position in the old journal and the position up to which the receiver
    has everything."""
    redeliverable: Mapping[int, RedeliverableRecord]
    """Redelivery candidates by old position."""
    last_assigned: dict[NodeId, int] = field(default_factory=dict)
    """By receiver, the last position in the new journal."""
    new_sequences: dict[int, int] = field(default_factory=dict)
    """New positions of copied redelivery candidates by old ones."""
    is_cancelled: bool = False
    """Set when the agent stops: ends the copy."""

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

    def build_journal(
        self, path: Path, node: NodeId, settings: JournalSettings, source: Iterable[CapturedRecord]
    ) -> None:
        """Build the journal and rename it to `path`, in the calling thread. Can be called again
        after a failure."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            if not path.is_dir():
                self._build_temporary(temporary, node, settings, source)
                pass_crash_point(DeliveryCrashPoint.ROLLOVER_DURABLE)
                os.rename(temporary, path)
            sync_directory(path.parent)
        except OSError as error:
            raise JournalUnusable(f"cannot create {path}: {error.strerror}") from error
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_RENAMED)

    def _build_temporary(
        self, path: Path, node: NodeId, settings: JournalSettings, source: Iterable[CapturedRecord]
    ) -> None:
        """Copy everything; delete the copy if the disk is full."""
        shutil.rmtree(path, ignore_errors=True)
        self.last_assigned.clear()
        self.new_sequences.clear()
        try:
            with JournalWriter(path, node, self.epoch, settings) as writer:
                writer.carried_state = self._carried_state
                self._copy_records(source, writer)
        except JournalUnusable:
            shutil.rmtree(path, ignore_errors=True)
            raise
        clone_detection.record_inodes(path)

    def _copy_records(self, source: Iterable[CapturedRecord], writer: JournalWriter) -> None:
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_STARTED)
        for record in source:
            if self.is_cancelled:
                raise JournalUnusable("the agent stopped during the epoch rollover")
            self._copy_record(record, writer)
            if writer.end - writer.durable >= COPY_COMMIT_BYTES:
                writer.commit()
                pass_crash_point(DeliveryCrashPoint.ROLLOVER_COPIED)
        # Copied publications may be of former sessions: only the candidates can be redelivered.
        writer.append(SessionStartedRecord(time.time_ns()))
        for old, new in self.redeliverable_sequences().items():
            writer.append(replace(self.redeliverable[old], sequence=new))
        writer.commit()

    def _copy_record(self, record: CapturedRecord, writer: JournalWriter) -> None:
        pending_receivers = [
            NodeId(node)
            for node, _ in record.previous
            if NodeId(node) in self.previous_last_assigned  # otherwise it has expired
            if record.sequence > self.acknowledged.get(NodeId(node), 0)
        ]
        if not pending_receivers:
            return
        sequence = writer.next_sequence
        previous = tuple((node, self.last_assigned.get(node, 0)) for node in pending_receivers)
        writer.append(replace(record, sequence=sequence, previous=previous))
        self.last_assigned.update(dict.fromkeys(pending_receivers, sequence))
        if record.sequence in self.redeliverable:
            self.new_sequences[record.sequence] = sequence
        else:
            writer.append(CaptureCompletedRecord(sequence))

    def _carried_state(self) -> Iterator[JournalRecord]:
        yield LastAssignedRecord(tuple(self.last_assigned.items()))
        for old, new in self.new_sequences.items():
            yield replace(self.redeliverable[old], sequence=new)


def remove_unfinished(directory: Path) -> None:
    """Delete unfinished journals that a crash left."""
    for path in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)
