"""A range of a journal as bytes for another machine: what `agent` serves and `remote` reads.

Records one after another, each with its offset (8 bytes, big-endian) before its bytes as they are
in a segment: CRC-32, length, kind, body. A range is cut behind the record that fills it.
"""

import struct
from collections.abc import Iterator
from zlib import crc32

from hansa.errors import JournalDamaged
from hansa.journal.reader import Reader
from hansa.journal.records import BODY_BYTES_MAX
from hansa.journal.segment import FRAME, FRAME_BYTES, frame

RANGE_BYTES = 4 << 20
"""Bytes of one range; a single record may exceed it."""

NEXT = "Hansa-Next"
"""The header of an answer with the offset that the next range starts at."""

_OFFSET = struct.Struct(">Q")


def pack(reader: Reader, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
    """Return the range from `start` to at most `end`, and where the next one starts: at the end, or
    behind the record that filled it. Damage is raised by the range that starts there."""
    chunks: list[bytes] = []
    size = 0
    try:
        for offset, kind, body in reader.entries(start, end):
            chunks += (_OFFSET.pack(offset), frame(kind, body))
            size += _OFFSET.size + FRAME_BYTES + len(body)
            if size >= bytes_max:
                return b"".join(chunks), offset + FRAME_BYTES + len(body)
    except JournalDamaged as damaged:
        if not chunks:
            raise
        return b"".join(chunks), damaged.offset
    return b"".join(chunks), end


def unpack(data: bytes, place: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, kind and body of every record; raise JournalDamaged if it is no range."""
    at = 0
    while at < len(data):
        begin = at + _OFFSET.size
        if begin + FRAME_BYTES > len(data):
            raise JournalDamaged(f"{place}: the answer is cut short", 0)
        (offset,) = _OFFSET.unpack_from(data, at)
        crc, size, kind = FRAME.unpack_from(data, begin)
        at = begin + FRAME_BYTES + size
        if size > BODY_BYTES_MAX or at > len(data) or crc32(data[begin + 4 : at]) != crc:
            raise JournalDamaged(f"{place}: the record at offset {offset} is damaged", offset)
        yield offset, kind, data[begin + FRAME_BYTES : at]
