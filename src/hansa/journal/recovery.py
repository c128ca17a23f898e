"""What a journal is after whatever happened to it: read before anything is written.

A crash can leave one thing undone: the last write to the last segment. Its first record that is
not whole, and everything behind it, was never durable and is cut. Bytes before the mark were
durable: if they cannot be read, the disk has lost them, and that is said, not mended. The mark may
be older than what was durable, so it is also said if a whole record follows the torn one. Of a
segment before the last, a header is no more than a hint, and costs nothing but its time.
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
    """What is there."""

    headers: list[SegmentHeader] = field(default_factory=list)
    damage: str = ""
    """What is damaged, although no record is known to be lost; empty if all is whole."""
    end: int = 0
    """The offset behind the last whole record."""
    durable: int = 0
    """What the mark says; 0 if it says nothing."""
    next_sequence: int = 1
    index_entries: list[IndexEntry] = field(default_factory=list)
    """The index of the last segment, made anew."""
    truncated_bytes: int = 0
    """Bytes behind `end` that were written and never durable."""

    def add_damage(self, damage: str) -> None:
        """Add to what is damaged."""
        self.damage = f"{self.damage}; {damage}" if self.damage else damage


def recover(path: Path) -> RecoveredJournal:
    """Read a journal's headers and its last segment; raise JournalDamaged for what is lost."""
    found = RecoveredJournal()
    for base in reversed(segment_bases(path)):
        try:
            header = read_header(path, base)
        except JournalDamaged as error:
            if not found.headers:
                raise
            found.add_damage(f"{error}, its records are read without it")
            header = _estimate_header(path, base, found.headers[0])
        found.headers.insert(0, header)
    if found.headers:
        _read_last_segment(path, found.headers[-1], found)
    elif durable := durable_mark.read_durable_mark(path):
        raise segments_missing_error(path, durable)
    return found


def _estimate_header(path: Path, base: int, following: SegmentHeader) -> SegmentHeader:
    """Return what a header that is lost has said, as far as the records and the next one know."""
    number = following.next_sequence
    with suppress(JournalDamaged):  # then those at the segment's beginning are lost, too
        records = (record for _, record in JournalReader(path, base).read(base, following.base))
        number = next(
            (each.sequence for each in records if isinstance(each, CapturedRecord)), number
        )
    return replace(following, base=base, next_sequence=number)


def _read_last_segment(path: Path, header: SegmentHeader, found: RecoveredJournal) -> None:
    file = path / log_name(header.base)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        try:
            _index_records(descriptor, size, header, found)
        except TornRecord as torn:
            found.truncated_bytes = _written_bytes(descriptor, torn.position, size)
            found.end = header.base + torn.position
            if _record_follows(descriptor, torn.position, size):
                found.add_damage(
                    f"{file} is damaged at offset {found.end}, and cut there although a whole"
                    " record follows: what was durable may be lost"
                )
    finally:
        os.close(descriptor)
    try:
        found.durable = durable_mark.read_durable_mark(path)
    except JournalDamaged as error:  # then what is whole is all that can be known
        found.add_damage(str(error))
        return
    if found.end < found.durable:
        raise JournalDamaged(
            f"{file} is damaged at offset {found.end}, and {found.durable - found.end} durable"
            f" bytes from there on are lost; move {path} away and start anew, its rest stays"
            " readable",
            found.end,
        )


def _index_records(
    descriptor: int, size: int, header: SegmentHeader, found: RecoveredJournal
) -> None:
    found.next_sequence = header.next_sequence
    found.end = header.base + size
    spacing = IndexSpacing(header.base)
    for position, kind, _ in scan_records(descriptor, HEADER_BYTES, size):
        if kind == CapturedRecord.KIND:  # numbered without holes, so counting them is enough
            spacing.add_if_due(found.index_entries, found.next_sequence, header.base + position)
            found.next_sequence += 1


def _record_follows(descriptor: int, position: int, size: int) -> bool:
    """Whether there is a whole record where one that is not whole says that it ends."""
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
    """Bytes from a position on, without the zeros at the end that were only reserved."""
    last = position
    for at in range(position, size, 1 << 20):
        block = read_available(descriptor, at, 1 << 20, 1).rstrip(b"\0")
        if block:
            last = at + len(block)
    return last - position
