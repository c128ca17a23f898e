"""The end of a journal on disk: the segment that is being written, its index, and the mark.

Only one thread at a time may use it. What is written, and when, is the writer's decision. What
failed because the disk is full can be done again with the same arguments.
"""

import contextlib
import os
from pathlib import Path

from hansa.journal import index
from hansa.journal.crash import Point, reached
from hansa.journal.disk import reserve, sync, sync_directory, write_at
from hansa.journal.index import Entry
from hansa.journal.mark import Mark
from hansa.journal.segment import Header, index_name, log_name

PIECE_BYTES = 1 << 20
"""Read and written at once of what is written anew."""


class Tail:
    """The open files. A new journal has no segment until `begin`."""

    def __init__(self, path: Path) -> None:
        """Write into this directory."""
        self._path = path
        self._mark = Mark(path)
        self._log = -1
        self._index = -1
        self._index_bytes = 0
        self._base = 0
        self._end = 0
        self._reserved = 0

    def resume(self, base: int, durable: int, end: int, entries: list[Entry]) -> None:
        """Go on in a segment that is known to be good up to `end`, and to be on disk up to
        `durable`; cut what follows."""
        self._open(base, end)
        os.ftruncate(self._log, end - base)
        self._write_anew(max(durable - base, 0))
        sync(self._log)
        sync_directory(self._path)  # the life before may have ended just after a rename
        reached(Point.TAIL_CUT)
        self._mark.set(end)
        os.ftruncate(self._index, 0)
        self._hint(entries)
        reached(Point.RECOVERED)

    def write(self, offset: int, data: bytes, entries: list[Entry]) -> None:
        """Add records to the segment and make them durable."""
        position = offset - self._base
        if position + len(data) > self._reserved:
            self._reserved = reserve(self._log, position + len(data))
        write_at(self._log, data, position)
        reached(Point.WRITTEN)
        sync(self._log)
        reached(Point.SYNCED)
        self._end = offset + len(data)
        self._mark.set(self._end)
        self._hint(entries)
        reached(Point.MARKED)

    def begin(self, header: Header, data: bytes, entries: list[Entry]) -> None:
        """End the segment and begin the next, which has these records from its first moment on."""
        name = self._path / log_name(header.base)
        prepared = name.with_suffix(".new")
        content = header.pack() + data
        self._prepare(prepared, content)
        reached(Point.SEGMENT_PREPARED)
        self._seal()
        reached(Point.SEGMENT_SEALED)
        prepared.replace(name)
        reached(Point.SEGMENT_RENAMED)
        sync_directory(self._path)
        self._close_files()
        self._open(header.base, header.base + len(content))
        self._mark.set(self._end)
        self._hint(entries)
        reached(Point.SEGMENT_BEGUN)

    def close(self) -> None:
        """Leave the segment without what was reserved for it, if the system lets us."""
        with contextlib.suppress(OSError):
            if self._log >= 0:
                os.ftruncate(self._log, self._end - self._base)
        self._close_files()
        self._mark.close()

    def _write_anew(self, position: int) -> None:
        """Write what is there from a position on. Where a sync has failed, the system may give back
        what never got to the disk, and a sync only writes what was written since."""
        end = self._end - self._base
        for at in range(position, end, PIECE_BYTES):
            write_at(self._log, os.pread(self._log, min(PIECE_BYTES, end - at), at), at)

    def _prepare(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_at(descriptor, data, 0)
            sync(descriptor)
        finally:
            os.close(descriptor)

    def _seal(self) -> None:
        if self._log >= 0:
            os.ftruncate(self._log, self._end - self._base)
            self._reserved = 0
            sync(self._log)
            sync(self._index)

    def _open(self, base: int, end: int) -> None:
        flags = os.O_RDWR | os.O_CREAT
        self._index = os.open(self._path / index_name(base), flags, 0o600)
        self._log = os.open(self._path / log_name(base), flags, 0o600)
        self._base, self._end, self._index_bytes, self._reserved = base, end, 0, 0

    def _hint(self, entries: list[Entry]) -> None:
        data = index.pack(entries)
        with contextlib.suppress(OSError):  # an index may lack entries, so a full disk is no matter
            write_at(self._index, data, self._index_bytes)
            self._index_bytes += len(data)

    def _close_files(self) -> None:
        for descriptor in (self._log, self._index):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._index = -1
