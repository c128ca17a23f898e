"""Reading a journal, in any process and while it is written, without the writer's help.

A reader returns only what is durable: what it has once returned for an offset it returns for ever,
also after a power failure. It holds one chunk of a file, or one record if that is more.

Where a record cannot be read, JournalDamaged says from which offset on one can read again; what
retention has dropped is JournalTrimmed, with the first that is left. Nothing is skipped silently
but kinds of records that this version does not know.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hansa.errors import JournalDamaged, JournalTrimmed, JournalUnusable
from hansa.journal import durable_mark, index
from hansa.journal.records import CapturedRecord, JournalRecord, decode_record
from hansa.journal.segment import (
    HEADER_BYTES,
    RECORD_HEADER_BYTES,
    SegmentHeader,
    TornRecord,
    log_name,
    read_header,
    scan_records,
    segment_bases,
)


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """What can be read now: from `start` up to, but without, `end`."""

    start: int
    end: int


def segments_missing_error(path: Path, durable: int) -> JournalDamaged:
    """Return what to raise where there is a mark and nothing that it could be the mark of."""
    return JournalDamaged(f"{path}: its segments are gone, which reached up to offset {durable}", 0)


class JournalReader:
    """A journal as it is at the moment of each call."""

    def __init__(self, path: Path, durable: int | None = None) -> None:
        """Read the journal in this directory; its writer knows what is durable, others go by
        the mark."""
        self._path = path
        self._durable = durable
        self._known_headers: dict[int, SegmentHeader] = {}

    @property
    def bounds(self) -> OffsetBounds:
        """The offsets between which there are durable records; equal if there is no journal."""
        found, end = self._find_segments()
        return OffsetBounds(found[0] if found else end, end)

    def headers(self) -> list[SegmentHeader]:
        """Return what the segments say of themselves: node, epoch, first offset and number."""
        found: dict[int, SegmentHeader] = {}
        for base in self._find_segments()[0]:
            try:
                found[base] = self._known_headers.get(base) or read_header(self._path, base)
            except FileNotFoundError:  # dropped since; the older ones were dropped before it
                found.clear()
            except OSError as error:
                raise self._unreadable_error(error) from error
        self._known_headers = found
        return list(found.values())

    def raw_records(
        self, start: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, kind and body of every record, of unknown kinds too.

        `start` is the offset of a record or of a segment, the first there is if left out; `end` is
        excluded, and what is not yet durable is left out.
        """
        found, durable = self._find_segments()
        if not found:
            return
        start = found[0] if start is None else start
        if start < found[0]:
            raise self._trimmed_error(found[0])
        end = durable if end is None else min(end, durable)
        ends = [*found[1:], durable]
        for base, segment_end in zip(found, ends, strict=True):
            stop = min(segment_end, end)
            if start < stop:
                yield from self._scan_segment(base, start, stop, segment_end)
                start = stop

    def read(
        self, start: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, JournalRecord]]:
        """Yield every record of a known kind with its offset; arguments as of `entries`."""
        for offset, kind, body in self.raw_records(start, end):
            record = self._decode(offset, kind, body)
            if record is not None:
                yield offset, record

    def captured_records(self, first: int, last: int) -> Iterator[tuple[int, CapturedRecord]]:
        """Yield the captured publications from one number up to another, as far as durable."""
        headers = self.headers()
        if not headers:
            return
        if first < headers[0].next_sequence:
            raise JournalTrimmed(
                f"{self._path}: publication {first} was dropped by retention, the first is "
                f"{headers[0].next_sequence}",
                headers[0].next_sequence,
            )
        place = bisect_right(headers, first, key=lambda header: header.next_sequence) - 1
        # Of segments that begin with the same number, only the last can have it.
        try:
            for offset, record in self.read(self._seek(headers[place], first)):
                if isinstance(record, CapturedRecord) and record.sequence >= first:
                    if record.sequence > last:
                        return
                    yield offset, record
                    first = record.sequence + 1
        except JournalTrimmed:  # since then, and by offset: say it by number
            yield from self.captured_records(first, last)

    # ------------------------------------------------------------ inside

    def _find_segments(self) -> tuple[list[int], int]:
        """Return where the segments begin, and where what is durable ends."""
        try:
            # The mark first: the segment it points into is there before it points.
            durable = (
                durable_mark.read_durable_mark(self._path)
                if self._durable is None
                else self._durable
            )
            found_bases = segment_bases(self._path)
        except OSError as error:
            raise self._unreadable_error(error) from error
        if durable and not found_bases:
            raise segments_missing_error(self._path, durable)
        # All segments but the last are durable, whatever has become of the mark.
        return found_bases, max(durable, found_bases[-1]) if found_bases else 0

    def _scan_segment(
        self, base: int, start: int, stop: int, segment_end: int
    ) -> Iterator[tuple[int, int, bytes]]:
        try:
            descriptor = os.open(self._path / log_name(base), os.O_RDONLY)
        except FileNotFoundError:
            raise self._trimmed_error(self.bounds.start) from None
        except OSError as error:
            raise self._unreadable_error(error) from error
        try:
            position = max(start - base, HEADER_BYTES)
            for at, kind, body in scan_records(descriptor, position, stop - base):
                yield base + at, kind, body
        except TornRecord as torn:
            raise self._damaged_error(base, base + torn.position, segment_end) from None
        except OSError as error:
            raise self._unreadable_error(error) from error
        finally:
            os.close(descriptor)

    def _decode(self, offset: int, kind: int, body: bytes) -> JournalRecord | None:
        try:
            return decode_record(kind, body)
        except ValueError as error:
            raise JournalDamaged(
                f"{self._path}: the record at offset {offset} means nothing: {error}",
                offset,
                offset + RECORD_HEADER_BYTES + len(body),
            ) from None

    def _seek(self, header: SegmentHeader, sequence: int) -> int:
        """Return an offset at or before the record of a captured publication."""
        entries = index.read_index(self._path, header.base)
        place = bisect_right(entries, sequence, key=lambda entry: entry[0]) - 1
        if place >= 0:
            indexed_sequence, offset = entries[place]
            try:
                _, record = next(self.read(offset), (0, None))
            except JournalDamaged:
                record = None
            if isinstance(record, CapturedRecord) and record.sequence == indexed_sequence:
                return offset
        return header.base

    def _damaged_error(self, base: int, offset: int, segment_end: int) -> JournalDamaged:
        resume = segment_end
        for _, place in index.read_index(self._path, base):
            if offset < place < segment_end:
                resume = place
                break
        return JournalDamaged(
            f"{self._path / log_name(base)} is damaged at offset {offset}; the next record that can"
            f" be found is at {resume}",
            offset,
            resume,
        )

    def _trimmed_error(self, first: int) -> JournalTrimmed:
        return JournalTrimmed(
            f"{self._path}: this was dropped by retention, the first offset is {first}", first
        )

    def _unreadable_error(self, error: OSError) -> JournalUnusable:
        return JournalUnusable(f"cannot read the journal {self._path}: {error.strerror}")
