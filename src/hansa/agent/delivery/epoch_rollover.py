"""A journal of a new epoch in place of an old copy: built beside it, and put in place in one step.

It holds what receivers have not acknowledged, in the old order, at new positions; and which packets
the broker may send again. Until the rename the old journal is the journal, afterwards the new one:
a crash leaves one or the other, whole.

    copy (any number of commits) → durable → rename → the old one goes
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
"""Copied between two commits: what a renewal holds in memory, however much is owed."""

TEMPORARY_SUFFIX = ".new"
"""Ends the name of a journal that is not in place yet."""


@dataclass(slots=True)
class EpochRollover:
    """What is to be copied, and what has become of it."""

    epoch: int
    previous_last_assigned: Mapping[NodeId, int]
    acknowledged: Mapping[NodeId, int]
    """Per receiver, what it was owed last in the old journal, and up to where it has all of it."""
    redeliverable: Mapping[int, RedeliverableRecord]
    """By old position, what the broker may send again."""
    last_assigned: dict[NodeId, int] = field(default_factory=dict)
    """Per receiver, the last new position."""
    new_sequences: dict[int, int] = field(default_factory=dict)
    """New positions by old ones, of what the broker may send again."""
    is_cancelled: bool = False
    """Whether the agent stops meanwhile."""

    @property
    def first_pending(self) -> int:
        """The first old position that somebody may not have."""
        last = max(self.previous_last_assigned.values(), default=0)
        has = (
            self.acknowledged.get(node, 0)
            for node, owed in self.previous_last_assigned.items()
            if owed > self.acknowledged.get(node, 0)
        )
        return 1 + min(has, default=last)

    def build_journal(
        self, path: Path, node: NodeId, settings: JournalSettings, source: Iterable[CapturedRecord]
    ) -> None:
        """Make the journal and put it in place; for a thread of its own. May be tried again."""
        aside = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            if not path.is_dir():
                self._build_temporary(aside, node, settings, source)
                pass_crash_point(DeliveryCrashPoint.ROLLOVER_DURABLE)
                os.rename(aside, path)
            sync_directory(path.parent)
        except OSError as error:
            raise JournalUnusable(f"cannot put {path} in place: {error.strerror}") from error
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_RENAMED)

    def _build_temporary(
        self, aside: Path, node: NodeId, settings: JournalSettings, source: Iterable[CapturedRecord]
    ) -> None:
        """Copy everything; leave nothing behind if the disk does not take it."""
        shutil.rmtree(aside, ignore_errors=True)
        self.last_assigned.clear()
        self.new_sequences.clear()
        try:
            with JournalWriter(aside, node, self.epoch, settings) as writer:
                writer.carried_state = self._carried_state
                self._copy_records(source, writer)
        except JournalUnusable:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        clone_detection.record_inodes(aside)

    def _copy_records(self, source: Iterable[CapturedRecord], writer: JournalWriter) -> None:
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_STARTED)
        for record in source:
            if self.is_cancelled:
                raise JournalUnusable("the agent stops before its new epoch has begun")
            self._copy_record(record, writer)
            if writer.end - writer.durable >= COPY_COMMIT_BYTES:
                writer.commit()
                pass_crash_point(DeliveryCrashPoint.ROLLOVER_COPIED)
        # What was copied may be of former sessions: only this may come again.
        writer.append(SessionStartedRecord(time.time_ns()))
        for position, unsettled in self.redeliverable.items():
            number = self.new_sequences.get(position, -unsettled.packet_id)
            writer.append(replace(unsettled, sequence=number))
        writer.commit()

    def _copy_record(self, record: CapturedRecord, writer: JournalWriter) -> None:
        pending_receivers = [
            NodeId(node)
            for node, _ in record.previous
            if NodeId(node) in self.previous_last_assigned  # else its lease has ended
            if record.sequence > self.acknowledged.get(NodeId(node), 0)
        ]
        if not pending_receivers:
            return
        number = writer.next_sequence
        previous = tuple((node, self.last_assigned.get(node, 0)) for node in pending_receivers)
        writer.append(replace(record, sequence=number, previous=previous))
        self.last_assigned.update(dict.fromkeys(pending_receivers, number))
        if record.sequence in self.redeliverable:
            self.new_sequences[record.sequence] = number
        else:
            writer.append(CaptureCompletedRecord(number))

    def _carried_state(self) -> Iterator[JournalRecord]:
        yield LastAssignedRecord(tuple(self.last_assigned.items()))
        for position, number in self.new_sequences.items():
            yield replace(self.redeliverable[position], sequence=number)


def remove_unfinished(directory: Path) -> None:
    """Delete what a crash in the middle left: it is no journal yet."""
    for path in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)
