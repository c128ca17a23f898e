"""The durable mark: a small file from which readers in other processes learn how far a
journal is durable.

The writer overwrites the file after each sync, so it never claims too much. The file itself is not
synced: after a power failure it may claim too little or be empty until the journal is opened for
writing. It holds an offset of 8 bytes and their CRC-32, so that a reader detects a half-written
mark and reads again.
"""

import os
import struct
from pathlib import Path
from zlib import crc32

from hansa.errors import JournalDamaged
from hansa.journal.segment import segment_bases

MARK_FILE = "durable"
READ_ATTEMPTS = 100
"""Attempts before a reader reports corruption. A write takes some microseconds."""

_MARK = struct.Struct(">QI")
_OFFSET = struct.Struct(">Q")


class DurableMark:
    """The writer's side."""

    def __init__(self, path: Path) -> None:
        self._path = path / MARK_FILE
        self._descriptor = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self, offset: int) -> None:
        """Record that everything before this offset is durable. If the file was deleted, it
        is created again: readers would be blind until the agent is restarted."""
        if not os.path.exists(self._path):
            os.close(self._descriptor)
            self._descriptor = self._open()
        os.pwrite(self._descriptor, _MARK.pack(offset, crc32(_OFFSET.pack(offset))), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def read_durable_mark(path: Path) -> int:
    """Return the offset before which everything is durable, 0 if the mark is empty. Raises
    JournalDamaged if the mark is corrupt or missing."""
    problem = ""
    for _ in range(READ_ATTEMPTS):
        try:
            data = (path / MARK_FILE).read_bytes()
        except FileNotFoundError:
            if not segment_bases(path):  # the mark is created before the first segment
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
