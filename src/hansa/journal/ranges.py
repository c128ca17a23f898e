"""Ranges of a journal as bytes for another machine: the agent serves them, `remote` reads them.

A range is a sequence of records: the offset of each (8 bytes, big-endian), followed by its bytes as
in a segment: CRC-32, length, kind, body. A range ends after the record that fills it.
"""

import struct
from collections.abc import Iterator
from zlib import crc32

from hansa.errors import JournalDamaged
from hansa.journal.reader import JournalReader
from hansa.journal.records import BODY_BYTES_MAX
from hansa.journal.segment import RECORD_HEADER, RECORD_HEADER_BYTES, frame_record

RANGE_BYTES = 4 << 20
"""Bytes of one range; a single record may exceed it."""

NEXT_OFFSET_HEADER = "Hansa-Next"
"""HTTP header with the start offset of the next range."""

_OFFSET = struct.Struct(">Q")


def pack_range(reader: JournalReader, start: int, end: int, bytes_max: int) -> tuple[bytes, int]:
    """Return the range from `start` to at most `end`, and the start of the next range. A range ends
    before a corrupt record; the next range, which starts there, raises JournalDamaged."""
    chunks: list[bytes] = []
    size = 0
    try:
        for offset, kind, body in reader.raw_records(start, end):
            chunks += (_OFFSET.pack(offset), frame_record(kind, body))
            size += _OFFSET.size + RECORD_HEADER_BYTES + len(body)
            if size >= bytes_max:
                return b"".join(chunks), offset + RECORD_HEADER_BYTES + len(body)
    except JournalDamaged as damaged:
        if not chunks:
            raise
        return b"".join(chunks), damaged.offset
    return b"".join(chunks), end


def unpack_range(data: bytes, source: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, kind and body of each record; raise JournalDamaged if the data is corrupt."""
    at = 0
    while at < len(data):
        begin = at + _OFFSET.size
        if begin + RECORD_HEADER_BYTES > len(data):
            raise JournalDamaged(f"{source}: the response is truncated", 0)
        (offset,) = _OFFSET.unpack_from(data, at)
        crc, size, kind = RECORD_HEADER.unpack_from(data, begin)
        at = begin + RECORD_HEADER_BYTES + size
        if size > BODY_BYTES_MAX or at > len(data) or crc32(data[begin + 4 : at]) != crc:
            raise JournalDamaged(f"{source}: the record at offset {offset} is damaged", offset)
        yield offset, kind, data[begin + RECORD_HEADER_BYTES : at]
