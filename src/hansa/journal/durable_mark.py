"""How far a journal is durable, for readers in other processes: one small file beside it.

The writer overwrites it after every sync, so it never promises too much; it is not synced itself,
so after a power failure it may promise too little, or be empty, until the journal is opened for
writing again. Eight bytes of offset and their CRC-32: a reader that meets a half-written one reads
again.
"""

import os
import struct
from pathlib import Path
from zlib import crc32

from hansa.errors import JournalDamaged
from hansa.journal.segment import segment_bases

MARK_FILE = "durable"
READ_ATTEMPTS = 100
"""A reader's, before it takes the file for damaged. A write lasts some microseconds."""

_MARK = struct.Struct(">QI")
_OFFSET = struct.Struct(">Q")


class DurableMark:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        """Open it, make it if need be."""
        self._descriptor = os.open(path / MARK_FILE, os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self, offset: int) -> None:
        """Say that everything before this offset is durable."""
        os.pwrite(self._descriptor, _MARK.pack(offset, crc32(_OFFSET.pack(offset))), 0)

    def close(self) -> None:
        """Leave it as it is."""
        os.close(self._descriptor)


def read_durable_mark(path: Path) -> int:
    """Return the offset before which everything is durable, 0 if nothing says so. Raises
    JournalDamaged if there is no telling: it is neither whole nor empty, or is gone."""
    problem = ""
    for _ in range(READ_ATTEMPTS):
        try:
            data = (path / MARK_FILE).read_bytes()
        except FileNotFoundError:
            if not segment_bases(path):  # it is made before the first segment
                return 0
            problem = "is missing"
            continue
        if len(data) == _MARK.size:
            offset, crc = _MARK.unpack(data)
            if crc == crc32(_OFFSET.pack(offset)):
                return int(offset)
        problem = "is damaged" if data.strip(b"\0") else ""
    if problem:
        raise JournalDamaged(
            f"{path / MARK_FILE} {problem}: the durable part of the last segment is unknown until"
            " the journal is opened for writing again",
            0,
        )
    return 0
