"""The format of a segment file: its header, its records, and their checksums.

A journal is one sequence of bytes, divided into files. An *offset* is a place in that sequence; a
file is named by the offset of its first byte. Integers are unsigned and big-endian:

    header                              record
    bytes  field                        bytes  field
        8  "HANSAJ", 0, format version      4  CRC-32 of the rest of the record
        8  node                             4  s, the length of the body
        8  epoch                            1  kind
        8  offset of the first byte         s  body
        8  sequence number of the next
           captured publication
        8  time of creation, ns since 1970
        4  CRC-32 of the other fields
"""

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from hansa.errors import JournalDamaged
from hansa.journal.records import BODY_BYTES_MAX

FORMAT_VERSION = 1
MAGIC = b"HANSAJ\0" + bytes((FORMAT_VERSION,))

_HEADER = struct.Struct(">8sQQQQQI")
HEADER_BYTES = _HEADER.size
_CRC = struct.Struct(">I")
_SIZE_KIND_STRUCT = struct.Struct(">IB")
RECORD_HEADER = struct.Struct(">IIB")
RECORD_HEADER_BYTES = RECORD_HEADER.size
"""Bytes of a record before its body."""

CHUNK_BYTES = 1 << 18
"""Bytes per read. A reader holds this much, or one record if that is larger."""


class TornRecord(Exception):
    """The record at this position of a file is incomplete or unreadable."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    node: int
    epoch: int
    base: int
    """Offset of the first byte."""
    next_sequence: int
    """Sequence number of the first publication captured after the segment started."""
    created_ns: int

    def pack(self) -> bytes:
        fields = (self.node, self.epoch, self.base, self.next_sequence, self.created_ns)
        data = _HEADER.pack(MAGIC, *fields, 0)[: -_CRC.size]
        return data + _CRC.pack(crc32(data))


def read_header(path: Path, base: int) -> SegmentHeader:
    """Return the header of the segment with this base offset."""
    with (path / log_name(base)).open("rb") as file:
        data = read_available(file.fileno(), 0, HEADER_BYTES, HEADER_BYTES)
    if len(data) < HEADER_BYTES or crc32(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise JournalDamaged(f"{path / log_name(base)}: the header is damaged", base)
    magic, *fields, _ = _HEADER.unpack(data)
    header = SegmentHeader(*fields)
    if magic != MAGIC or header.base != base:
        raise JournalDamaged(
            f"{path / log_name(base)}: not a segment of format {FORMAT_VERSION}, or renamed", base
        )
    return header


def log_name(base: int) -> str:
    """Return the name of a segment file; names sort by offset."""
    return f"{base:020d}.log"


def index_name(base: int) -> str:
    return f"{base:020d}.idx"


def segment_bases(path: Path) -> list[int]:
    """Return the base offsets of the segments in a directory, in order."""
    return sorted(
        int(name[:-4])
        for name in os.listdir(path)
        if name.endswith(".log") and len(name) == 24 and name[:-4].isdecimal()
    )


def frame_record(kind: int, body: bytes) -> bytes:
    size = len(body)
    return (
        RECORD_HEADER.pack(crc32(body, crc32(_SIZE_KIND_STRUCT.pack(size, kind))), size, kind)
        + body
    )


def read_available(descriptor: int, position: int, bytes_max: int, bytes_needed: int) -> bytes:
    """Read `bytes_max` bytes at a position. If a sector is unreadable, return fewer, but at
    least `bytes_needed`; empty if one of these is unreadable."""
    size = bytes_max
    while True:
        try:
            return os.pread(descriptor, size, position)
        except OSError as error:
            if error.errno != errno.EIO:  # transient, not corruption
                raise
            if size <= bytes_needed:
                return b""
            # Halve the size: an attempt may take a disk seconds, so few steps are better.
            size = max(size // 2, bytes_needed)


def scan_records(descriptor: int, position: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield position, kind and body of the records between two positions of a file.

    Raises TornRecord where a record is incomplete or unreadable. Zeros are not a valid record, so a
    file may be longer than its records.
    """
    buffer, at = b"", 0
    while position < end:
        if len(buffer) - at < RECORD_HEADER_BYTES:
            read_bytes = min(CHUNK_BYTES, end - position)
            buffer, at = read_available(descriptor, position, read_bytes, RECORD_HEADER_BYTES), 0
            if len(buffer) < RECORD_HEADER_BYTES:
                raise TornRecord(position)
        crc, size, kind = RECORD_HEADER.unpack_from(buffer, at)
        length = RECORD_HEADER_BYTES + size
        if size > BODY_BYTES_MAX or position + length > end:
            raise TornRecord(position)
        if len(buffer) - at < length:
            read_bytes = min(max(CHUNK_BYTES, length), end - position)
            buffer, at = read_available(descriptor, position, read_bytes, length), 0
            if len(buffer) < length:
                raise TornRecord(position)
        stop = at + length
        if crc32(buffer[at + _CRC.size : stop]) != crc:
            raise TornRecord(position)
        yield position, kind, buffer[at + RECORD_HEADER_BYTES : stop]
        position += length
        at = stop
