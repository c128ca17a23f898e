"""Reads the headers and the last segment of a journal before anything is written to it.

A crash can leave only the last write of the last segment incomplete. The first incomplete record
and everything after it were never durable, and are truncated. If data before the durable mark is
unreadable, the disk has lost it: recovery raises JournalDamaged and repairs nothing. The mark may
be older than the durable data, so a whole record after an incomplete one is reported, too. A
damaged header of an earlier segment is reported and reconstructed.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hansa.errors import JournalDamaged
from hansa.journal import durable_mark
from hansa.journal.index import IndexEntry, IndexSpacing
from hansa.journal.reader import JournalReader, segments_missing_error
from hansa.journal.records import CapturedRecord
from hansa.journal.segment import (
    HEADER_BYTES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    SegmentHeader,
    TornRecord,
    log_name,
    read_available,
    read_header,
    scan_records,
    segment_bases,
)


@dataclass(slots=True)
class RecoveredJournal:
    """State of a journal after recovery."""

    headers: list[SegmentHeader] = field(default_factory=list)
    damage: str = ""
    """Corruption by which no record is known to be lost; empty if there is none."""
    end: int = 0
    """Offset after the last whole record."""
    durable: int = 0
    """The durable mark; 0 if it is empty."""
    next_sequence: int = 1
    index_entries: list[IndexEntry] = field(default_factory=list)
    """Rebuilt index of the last segment."""
    truncated_bytes: int = 0
    """Bytes after `end` that were written and never durable."""

    def add_damage(self, damage: str) -> None:
        self.damage = f"{self.damage}; {damage}" if self.damage else damage


def recover(path: Path) -> RecoveredJournal:
    """Recover a journal; raise JournalDamaged if durable data is lost."""
    recovered = RecoveredJournal()
    for base in reversed(segment_bases(path)):
        try:
            header = read_header(path, base)
        except JournalDamaged as error:
            if not recovered.headers:
                raise
            recovered.add_damage(f"{error}; the records are read without it")
            header = _estimate_header(path, base, recovered.headers[0])
        recovered.headers.insert(0, header)
    if recovered.headers:
        _read_last_segment(path, recovered.headers[-1], recovered)
    elif durable := durable_mark.read_durable_mark(path):
        raise segments_missing_error(path, durable)
    return recovered


def _estimate_header(path: Path, base: int, following: SegmentHeader) -> SegmentHeader:
    """Reconstruct a damaged header from the records and the next header."""
    number = following.next_sequence
    with suppress(JournalDamaged):  # the first records of the segment are lost, too
        records = (record for _, record in JournalReader(path, base).read(base, following.base))
        number = next(
            (each.sequence for each in records if isinstance(each, CapturedRecord)), number
        )
    return replace(following, base=base, next_sequence=number)


def _read_last_segment(path: Path, header: SegmentHeader, recovered: RecoveredJournal) -> None:
    file = path / log_name(header.base)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        try:
            _index_records(descriptor, size, header, recovered)
        except TornRecord as torn:
            recovered.truncated_bytes = _written_bytes(descriptor, torn.position, size)
            recovered.end = header.base + torn.position
            if _record_follows(descriptor, torn.position, size):
                recovered.add_damage(
                    f"{file} is damaged at offset {recovered.end}, and truncated there although a"
                    " whole record follows: durable data may be lost"
                )
    finally:
        os.close(descriptor)
    try:
        recovered.durable = durable_mark.read_durable_mark(path)
    except JournalDamaged as error:  # without the mark, all whole records count
        recovered.add_damage(str(error))
        return
    if recovered.end < recovered.durable:
        raise JournalDamaged(
            f"{file} is damaged at offset {recovered.end}, and"
            f" {recovered.durable - recovered.end} durable bytes after it are lost;"
            f" move {path} away and start again, the rest stays readable",
            recovered.end,
        )


def _index_records(
    descriptor: int, size: int, header: SegmentHeader, recovered: RecoveredJournal
) -> None:
    recovered.next_sequence = header.next_sequence
    recovered.end = header.base + size
    spacing = IndexSpacing(header.base)
    for position, kind, _ in scan_records(descriptor, HEADER_BYTES, size):
        if kind == CapturedRecord.KIND:  # sequence numbers are consecutive: counting is enough
            spacing.add_if_due(
                recovered.index_entries, recovered.next_sequence, header.base + position
            )
            recovered.next_sequence += 1


def _record_follows(descriptor: int, position: int, size: int) -> bool:
    """Whether a whole record follows the incomplete one, by the length that that one states."""
    head = read_available(descriptor, position, RECORD_HEADER_BYTES, RECORD_HEADER_BYTES)
    if len(head) < RECORD_HEADER_BYTES:
        return False
    _, body_bytes, _ = RECORD_HEADER.unpack(head)
    with suppress(TornRecord):
        return (
            next(scan_records(descriptor, position + RECORD_HEADER_BYTES + body_bytes, size), None)
            is not None
        )
    return False


def _written_bytes(descriptor: int, position: int, size: int) -> int:
    """Count the bytes from a position on, without the reserved zeros at the end."""
    last = position
    for at in range(position, size, 1 << 20):
        block = read_available(descriptor, at, 1 << 20, 1).rstrip(b"\0")
        if block:
            last = at + len(block)
    return last - position
