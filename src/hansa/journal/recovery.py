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
from hansa.journal import mark
from hansa.journal.index import Entry, Spacing
from hansa.journal.reader import Reader, all_gone
from hansa.journal.records import Captured
from hansa.journal.segment import (
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    Header,
    Torn,
    bases,
    log_name,
    read_header,
    readable,
    scan,
)


@dataclass(slots=True)
class Found:
    """What is there."""

    headers: list[Header] = field(default_factory=list)
    damage: str = ""
    """What is damaged, although no record is known to be lost; empty if all is whole."""
    end: int = 0
    """The offset behind the last whole record."""
    durable: int = 0
    """What the mark says; 0 if it says nothing."""
    next_number: int = 1
    entries: list[Entry] = field(default_factory=list)
    """The index of the last segment, made anew."""
    cut_bytes: int = 0
    """Bytes behind `end` that were written and never durable."""

    def tell(self, damage: str) -> None:
        """Add to what is damaged."""
        self.damage = f"{self.damage}; {damage}" if self.damage else damage


def find(path: Path) -> Found:
    """Read a journal's headers and its last segment; raise JournalDamaged for what is lost."""
    found = Found()
    for base in reversed(bases(path)):
        try:
            header = read_header(path, base)
        except JournalDamaged as error:
            if not found.headers:
                raise
            found.tell(f"{error}, its records are read without it")
            header = _estimate(path, base, found.headers[0])
        found.headers.insert(0, header)
    if found.headers:
        _read_last(path, found.headers[-1], found)
    elif durable := mark.read(path):
        raise all_gone(path, durable)
    return found


def _estimate(path: Path, base: int, following: Header) -> Header:
    """Return what a header that is lost has said, as far as the records and the next one know."""
    number = following.number
    with suppress(JournalDamaged):  # then those at the segment's beginning are lost, too
        records = (record for _, record in Reader(path, base).read(base, following.base))
        number = next((each.number for each in records if isinstance(each, Captured)), number)
    return replace(following, base=base, number=number)


def _read_last(path: Path, header: Header, found: Found) -> None:
    file = path / log_name(header.base)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        try:
            _collect(descriptor, size, header, found)
        except Torn as torn:
            found.cut_bytes = _written(descriptor, torn.position, size)
            found.end = header.base + torn.position
            if _goes_on(descriptor, torn.position, size):
                found.tell(
                    f"{file} is damaged at offset {found.end}, and cut there although a whole"
                    " record follows: what was durable may be lost"
                )
    finally:
        os.close(descriptor)
    try:
        found.durable = mark.read(path)
    except JournalDamaged as error:  # then what is whole is all that can be known
        found.tell(str(error))
        return
    if found.end < found.durable:
        raise JournalDamaged(
            f"{file} is damaged at offset {found.end}, and {found.durable - found.end} durable"
            f" bytes from there on are lost; move {path} away and start anew, its rest stays"
            " readable",
            found.end,
        )


def _collect(descriptor: int, size: int, header: Header, found: Found) -> None:
    found.next_number = header.number
    found.end = header.base + size
    spacing = Spacing(header.base)
    for position, kind, _ in scan(descriptor, HEADER_BYTES, size):
        if kind == Captured.KIND:  # numbered without holes, so counting them is enough
            spacing.note(found.entries, found.next_number, header.base + position)
            found.next_number += 1


def _goes_on(descriptor: int, position: int, size: int) -> bool:
    """Whether there is a whole record where one that is not whole says that it ends."""
    head = readable(descriptor, position, FRAME_BYTES, FRAME_BYTES)
    if len(head) < FRAME_BYTES:
        return False
    _, body_bytes, _ = FRAME.unpack(head)
    with suppress(Torn):
        return next(scan(descriptor, position + FRAME_BYTES + body_bytes, size), None) is not None
    return False


def _written(descriptor: int, position: int, size: int) -> int:
    """Bytes from a position on, without the zeros at the end that were only reserved."""
    last = position
    for at in range(position, size, 1 << 20):
        block = readable(descriptor, at, 1 << 20, 1).rstrip(b"\0")
        if block:
            last = at + len(block)
    return last - position
