"""The active segment on disk: its file, its index and the durable mark.

The writer decides what is written and when; one thread at a time may call. Each step can be
repeated with the same arguments after it failed because the disk was full.
"""

import contextlib
import os
from pathlib import Path

from hansa.journal import index
from hansa.journal.crash import JournalCrashPoint, pass_crash_point
from hansa.journal.disk import reserve_space, sync_directory, sync_file, write_at
from hansa.journal.durable_mark import DurableMark
from hansa.journal.index import IndexEntry
from hansa.journal.segment import SegmentHeader, index_name, log_name

COPY_BYTES = 1 << 20
"""Bytes per copy step in `_rewrite_from`."""


class ActiveSegment:
    """The open files. A new journal has no segment before `start_segment`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = DurableMark(path)
        self._log_file = -1
        self._index_file = -1
        self._index_bytes = 0
        self._base = 0
        self._end = 0
        self._reserved = 0

    def continue_segment(
        self, base: int, durable: int, end: int, entries: list[IndexEntry]
    ) -> None:
        """Continue a segment that has whole records up to `end` and is durable up to `durable`;
        truncate the rest."""
        self._open(base, end)
        os.ftruncate(self._log_file, end - base)
        self._rewrite_from(max(durable - base, 0))
        sync_file(self._log_file)
        sync_directory(self._path)  # the process may have crashed right after a rename
        pass_crash_point(JournalCrashPoint.TAIL_CUT)
        self._mark.write(end)
        os.ftruncate(self._index_file, 0)
        self._write_index(entries)
        pass_crash_point(JournalCrashPoint.RECOVERED)

    def append(self, offset: int, data: bytes, entries: list[IndexEntry]) -> None:
        """Append records and sync them."""
        position = offset - self._base
        if position + len(data) > self._reserved:
            self._reserved = reserve_space(self._log_file, position + len(data))
        write_at(self._log_file, data, position)
        pass_crash_point(JournalCrashPoint.WRITTEN)
        sync_file(self._log_file)
        pass_crash_point(JournalCrashPoint.SYNCED)
        self._end = offset + len(data)
        self._mark.write(self._end)
        self._write_index(entries)
        pass_crash_point(JournalCrashPoint.MARKED)

    def start_segment(self, header: SegmentHeader, data: bytes, entries: list[IndexEntry]) -> None:
        """Start the next segment with these records: it gets its name when they are durable."""
        name = self._path / log_name(header.base)
        prepared = name.with_suffix(".new")
        content = header.pack() + data
        self._write_file(prepared, content)
        pass_crash_point(JournalCrashPoint.SEGMENT_PREPARED)
        self._finish_segment()
        pass_crash_point(JournalCrashPoint.SEGMENT_SEALED)
        prepared.replace(name)
        pass_crash_point(JournalCrashPoint.SEGMENT_RENAMED)
        sync_directory(self._path)
        self._close_files()
        self._open(header.base, header.base + len(content))
        self._mark.write(self._end)
        self._write_index(entries)
        pass_crash_point(JournalCrashPoint.SEGMENT_BEGUN)

    def close(self) -> None:
        """Release the reserved space, if possible, and close the files."""
        with contextlib.suppress(OSError):
            if self._log_file >= 0:
                os.ftruncate(self._log_file, self._end - self._base)
        self._close_files()
        self._mark.close()

    def _rewrite_from(self, position: int) -> None:
        """Rewrite everything after a position. After a failed sync the kernel may return data that
        never reached the disk, and would not write it again."""
        end = self._end - self._base
        for at in range(position, end, COPY_BYTES):
            write_at(self._log_file, os.pread(self._log_file, min(COPY_BYTES, end - at), at), at)

    def _write_file(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_at(descriptor, data, 0)
            sync_file(descriptor)
        finally:
            os.close(descriptor)

    def _finish_segment(self) -> None:
        if self._log_file >= 0:
            os.ftruncate(self._log_file, self._end - self._base)
            self._reserved = 0
            sync_file(self._log_file)
            sync_file(self._index_file)

    def _open(self, base: int, end: int) -> None:
        flags = os.O_RDWR | os.O_CREAT
        self._index_file = os.open(self._path / index_name(base), flags, 0o600)
        self._log_file = os.open(self._path / log_name(base), flags, 0o600)
        self._base, self._end, self._index_bytes, self._reserved = base, end, 0, 0

    def _write_index(self, entries: list[IndexEntry]) -> None:
        data = index.pack_entries(entries)
        with contextlib.suppress(OSError):  # an index may be incomplete
            write_at(self._index_file, data, self._index_bytes)
            self._index_bytes += len(data)

    def _close_files(self) -> None:
        for descriptor in (self._log_file, self._index_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._log_file = self._index_file = -1
