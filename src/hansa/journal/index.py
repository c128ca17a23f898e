"""Where in a segment a captured publication is: a number and an offset every so many bytes.

An index is a hint. It is written without waiting for the disk, so after a crash it may be short or
full of zeros; whoever uses an entry checks that the record it points to is the one it names, and
otherwise reads the segment from its beginning.
"""

import struct
from pathlib import Path

from hansa.journal.segment import index_name

INDEX_SPACING_BYTES = 1 << 16
"""Between two entries: what a search by number reads in vain, and 1/4096 of the journal's size."""

IndexEntry = tuple[int, int]
"""The number of a captured publication, and the offset of its record."""

_ENTRY_STRUCT = struct.Struct(">QQ")
ENTRY_BYTES = _ENTRY_STRUCT.size


class IndexSpacing:
    """Decides which publications of one segment get an entry."""

    def __init__(self, last: int) -> None:
        """Begin after the offset of the segment, or of its last entry."""
        self._last_offset = last

    def add_if_due(self, entries: list[IndexEntry], sequence: int, offset: int) -> None:
        """Add an entry for a publication if it is far enough from the last that has one."""
        if offset - self._last_offset >= INDEX_SPACING_BYTES:
            entries.append((sequence, offset))
            self._last_offset = offset


def pack_entries(entries: list[IndexEntry]) -> bytes:
    """Return the bytes of entries."""
    return b"".join(_ENTRY_STRUCT.pack(*entry) for entry in entries)


def read_index(path: Path, base: int) -> list[IndexEntry]:
    """Return the entries of a segment that can be true: those that grow."""
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
