"""Writes a journal: `append` assigns an offset, `commit` makes all appended records durable.

`append` never touches the disk. `commit` writes and syncs everything at once (group commit); it may
run in another thread while appends continue, and two commits exclude each other.

`append` starts a new segment by size or age. It begins with the records of `carried_state`, so the
last segment alone restores the state of a restarted agent, and retention can delete the others.

If the disk is full, a commit fails and the next one tries again. After any other error the writer
refuses everything: a new writer has to read what is durable.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hansa.errors import JournalUnusable
from hansa.journal import crash, recovery, retention
from hansa.journal.active_segment import ActiveSegment
from hansa.journal.disk import SyncFailed
from hansa.journal.index import IndexEntry, IndexSpacing
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord, JournalRecord, TrimmedRecord, encode_record
from hansa.journal.segment import HEADER_BYTES, SegmentHeader, frame_record, segment_bases
from hansa.journal.settings import JournalSettings

_TRANSIENT_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""Errors that end when space is freed; commits are retried."""


@dataclass(slots=True)
class _PendingRecords:
    """Appended records of one segment that wait for a commit."""

    offset: int
    new_segment: SegmentHeader | None = None
    """Header, if a new segment starts with them."""
    chunks: list[bytes] = field(default_factory=list)
    index_entries: list[IndexEntry] = field(default_factory=list)


def carry_nothing() -> Iterable[JournalRecord]:
    return ()


class JournalWriter:
    """The only writer of a journal. Raises JournalUnusable for errors of the operating system."""

    def __init__(
        self,
        path: Path,
        node: int,
        new_epoch: int,
        settings: JournalSettings | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open the journal of a node and truncate incomplete records; create it with `new_epoch` if
        there is none. Raises JournalDamaged if durable data is lost."""
        self.carried_state: Callable[[], Iterable[JournalRecord]] = carry_nothing
        """Returns the records with which the next segment starts. `append` calls it, so it must not
        append. A carried record may repeat what a later record says."""
        self.dropped = 0
        """Records that `append_if_room` refused."""
        self.truncated_bytes = 0
        """Bytes of incomplete records that opening truncated."""
        self.damage = ""
        """Corruption that opening found and by which no record is known to be lost."""
        self._path = path
        self._settings = settings or JournalSettings()
        self._clock = clock
        self._append_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._trimmed: list[TrimmedRecord] = []
        self._failure: str | None = None
        with contextlib.ExitStack() as on_failure:
            self._lock = _lock_directory(path)
            on_failure.callback(self._lock.close)
            try:
                recovered = self._recover(node)
                self._active_segment = ActiveSegment(path)
                on_failure.callback(self._active_segment.close)
                self._continue_or_create(recovered, SegmentHeader(node, new_epoch, 0, 1, clock()))
            except OSError as error:
                raise _write_error(path, error) from error
            on_failure.pop_all()

    def _recover(self, node: int) -> recovery.RecoveredJournal:
        retention.remove_leftovers(self._path, segment_bases(self._path))
        recovered = recovery.recover(self._path)
        owner = recovered.headers[-1].node if recovered.headers else node
        if owner != node:
            raise JournalUnusable(
                f"the journal {self._path} belongs to node {owner:016x}, not to {node:016x}; "
                "give this node its own"
            )
        return recovered

    def _continue_or_create(
        self, recovered: recovery.RecoveredJournal, new_header: SegmentHeader
    ) -> None:
        self._is_reopened = bool(recovered.headers)
        if recovered.headers:
            last = recovered.headers[-1]
            self._active_segment.continue_segment(
                last.base, recovered.durable, recovered.end, recovered.index_entries
            )
        else:
            last = new_header
            recovered.headers.append(last)
            recovered.end = HEADER_BYTES
            self._active_segment.start_segment(last, b"", [])
        self.truncated_bytes, self.damage = recovered.truncated_bytes, recovered.damage
        self._headers = recovered.headers
        self._next_sequence = recovered.next_sequence
        self._end = self.durable = recovered.end
        self._recovered_range = last.base, recovered.end
        self._content_start = last.base + HEADER_BYTES
        self._unwritten = [_PendingRecords(self._end)]
        self._index_spacing = IndexSpacing(
            recovered.index_entries[-1][1] if recovered.index_entries else last.base
        )
        self._schedule_roll()

    # ------------------------------------------------------------ state

    durable: int
    """Everything before this offset is durable."""

    @property
    def epoch(self) -> int:
        return self._headers[0].epoch

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next captured publication."""
        return self._next_sequence

    @property
    def first_sequence(self) -> int:
        """Lowest sequence number that retention has not deleted."""
        return self._headers[0].next_sequence

    @property
    def end(self) -> int:
        """Offset of the next record."""
        return self._end

    @property
    def size(self) -> int:
        """Bytes that retention has not deleted."""
        return self._end - self._headers[0].base

    def replay_last_segment(self) -> Iterator[JournalRecord]:
        """Yield the records of the last segment at opening: the state before the restart."""
        reader = JournalReader(self._path, self.durable)
        for _, record in reader.read(*self._recovered_range):
            yield record

    # ------------------------------------------------------------ writing

    def append(self, record: JournalRecord) -> int:
        """Append a record and return its offset. It is durable when `durable` is greater."""
        data = frame_record(record.KIND, encode_record(record))
        with self._append_lock:
            if self._failure:
                raise JournalUnusable(self._failure)
            sequence = record.sequence if isinstance(record, CapturedRecord) else None
            if sequence is not None and sequence != self._next_sequence:
                raise ValueError(f"sequence number {sequence}, expected {self._next_sequence}")
            if self._is_roll_due():
                self._start_segment()
            if self._trimmed:
                self._append_trimmed()
            offset = self._end
            batch = self._unwritten[-1]
            if sequence is not None:
                self._index_spacing.add_if_due(batch.index_entries, sequence, offset)
                self._next_sequence = sequence + 1
            batch.chunks.append(data)
            self._end = offset + len(data)
            return offset

    def append_if_room(self, record: JournalRecord) -> bool:
        """Append a record unless more than `unsynced_bytes_max` wait for a commit."""
        if self._end - self.durable > self._settings.unsynced_bytes_max:
            self.dropped += 1
            return False
        self.append(record)
        return True

    def commit(self) -> int:
        """Make all appended records durable and return `durable`."""
        with self._commit_lock:
            with self._append_lock:
                if self._failure:
                    raise JournalUnusable(self._failure)
                batches, self._unwritten = self._unwritten, [_PendingRecords(self._end)]
            try:
                while batches:
                    self._write_batch(batches[0])
                    del batches[0]
            except OSError as error:
                raise self._handle_write_error(error, batches) from error
            except BaseException as fault:
                with self._append_lock:  # without these records, later ones would follow a hole
                    self._failure = f"a commit of {self._path} failed: {fault!r}; start again"
                raise
            return self.durable

    def close(self) -> None:
        """Commit and release the lock."""
        try:
            if not self._failure:
                self.commit()
        finally:
            self._active_segment.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ append

    def _append_record(self, record: JournalRecord) -> None:
        self._append_bytes(frame_record(record.KIND, encode_record(record)))

    def _append_bytes(self, data: bytes) -> None:
        self._unwritten[-1].chunks.append(data)
        self._end += len(data)

    def _append_trimmed(self) -> None:
        for trimmed in self._trimmed:
            self._append_record(trimmed)
        self._trimmed = []

    def _schedule_roll(self) -> None:
        """Compute when the segment ends: by its size without the carried records, or its age."""
        last = self._headers[-1]
        self._roll_at_offset = self._content_start + self._settings.segment_bytes
        age_ns = round(self._settings.segment_seconds * retention.SECOND_NS)
        self._roll_at_ns = last.created_ns + age_ns

    def _is_roll_due(self) -> bool:
        return self._end >= self._roll_at_offset or self._clock() >= self._roll_at_ns

    def _start_segment(self) -> None:
        if self._end == self._content_start:  # it has no new records
            return
        carried = b"".join(
            frame_record(record.KIND, encode_record(record)) for record in self.carried_state()
        )
        if self._is_reopened:
            # The size of the carried records is unknown after a restart: estimate it.
            self._is_reopened = False
            self._content_start += len(carried)
            self._schedule_roll()
            if not self._is_roll_due():
                return
        last = self._headers[-1]
        header = SegmentHeader(last.node, last.epoch, self._end, self._next_sequence, self._clock())
        self._headers = [*self._headers, header]
        self._unwritten.append(_PendingRecords(self._end, header))
        self._index_spacing = IndexSpacing(self._end)
        self._end += HEADER_BYTES
        self._append_bytes(carried)
        self._content_start = self._end
        self._schedule_roll()

    # ------------------------------------------------------------ commit

    def _write_batch(self, batch: _PendingRecords) -> None:
        data = b"".join(batch.chunks)
        if batch.new_segment is not None:
            self._active_segment.start_segment(batch.new_segment, data, batch.index_entries)
            self.durable = batch.offset + HEADER_BYTES + len(data)
            self._apply_retention()
        elif data:
            crash.pass_crash_point(crash.JournalCrashPoint.COMMIT_BEGUN)
            self._active_segment.append(batch.offset, data, batch.index_entries)
            self.durable = batch.offset + len(data)

    def _apply_retention(self) -> None:
        now_ns = self._clock()
        on_disk = [header for header in self._headers if header.base < self.durable]
        count = retention.count_expired(on_disk, self.durable, self._settings, now_ns)
        trimmed = retention.drop_segments(self._path, on_disk, count, now_ns)
        with self._append_lock:
            self._headers = self._headers[count:]
            self._trimmed += trimmed

    def _handle_write_error(
        self, error: OSError, unwritten: list[_PendingRecords]
    ) -> JournalUnusable:
        failure = _write_error(self._path, error)
        with self._append_lock:
            # Merge records appended meanwhile, so that attempts do not add batches.
            first_batch, *later_batches = self._unwritten
            unwritten[-1].chunks += first_batch.chunks
            unwritten[-1].index_entries += first_batch.index_entries
            self._unwritten = unwritten + later_batches
            if isinstance(error, SyncFailed) or error.errno not in _TRANSIENT_ERRORS:
                self._failure = f"{failure}; start the agent again"
                return JournalUnusable(self._failure)
        return failure


def _lock_directory(path: Path) -> "_DirectoryLock":
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _DirectoryLock(path)
    except BlockingIOError as error:
        raise JournalUnusable(f"another process writes the journal {path}") from error
    except OSError as error:
        raise _write_error(path, error) from error


class _DirectoryLock:
    """Excludes a second writer until it is closed or the process ends."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        os.close(self._descriptor)


def _write_error(path: Path, error: OSError) -> JournalUnusable:
    return JournalUnusable(f"cannot write the journal {path}: {error.strerror}")
