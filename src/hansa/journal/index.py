"""Index of a segment: sequence number and offset of a captured publication every 64 KiB.

An index is a hint. It is written without a sync, so after a crash it may be incomplete or contain
zeros. A reader checks that the record at an indexed offset has the indexed number; otherwise it
reads the segment from its start.
"""

import struct
from pathlib import Path

from hansa.journal.segment import index_name

INDEX_SPACING_BYTES = 1 << 16
"""Bytes between two entries: bounds what a search reads in vain. The index takes 1/4096 of the size
of the journal."""

IndexEntry = tuple[int, int]
"""Sequence number of a captured publication, and the offset of its record."""

_ENTRY_STRUCT = struct.Struct(">QQ")
ENTRY_BYTES = _ENTRY_STRUCT.size


class IndexSpacing:
    """Selects the publications of a segment that get an index entry."""

    def __init__(self, last: int) -> None:
        """`last` is the offset of the segment or of its last index entry."""
        self._last_offset = last

    def add_if_due(self, entries: list[IndexEntry], sequence: int, offset: int) -> None:
        """Add an entry if the publication is far enough from the last indexed one."""
        if offset - self._last_offset >= INDEX_SPACING_BYTES:
            entries.append((sequence, offset))
            self._last_offset = offset


def pack_entries(entries: list[IndexEntry]) -> bytes:
    return b"".join(_ENTRY_STRUCT.pack(*entry) for entry in entries)


def read_index(path: Path, base: int) -> list[IndexEntry]:
    """Return the plausible entries of a segment: those in ascending order."""
    try:
        data = (path / index_name(base)).read_bytes()
    except OSError:
        return []
    entries: list[IndexEntry] = []
    last = (0, base)
    for entry in _ENTRY_STRUCT.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]):
        if entry[0] > last[0] and entry[1] > last[1]:
            entries.append(entry)
            last = entry
    return entries
