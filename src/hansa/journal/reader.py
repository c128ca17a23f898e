"""Reads a journal, in any process and while it is written, without the writer's help.

A reader returns durable records only, so an offset always returns the same record, also after a
power failure. It holds one chunk of a file, or one record if that is larger. A corrupt record
raises JournalDamaged with the offset at which to continue; a trimmed one raises JournalTrimmed with
the first that is left. Only records of unknown kinds are skipped silently.
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
    """Offsets that can be read now; `end` is excluded."""

    start: int
    end: int


def segments_missing_error(path: Path, durable: int) -> JournalDamaged:
    """Return the error for a durable mark without segments."""
    return JournalDamaged(f"{path}: the segments up to offset {durable} are missing", 0)


class JournalReader:
    """A journal in its state at the time of each call."""

    def __init__(self, path: Path, durable: int | None = None) -> None:
        """`durable` is the end of the durable records if the caller is the writer; other callers
        leave it out, and the durable mark is read."""
        self._path = path
        self._durable = durable
        self._known_headers: dict[int, SegmentHeader] = {}

    @property
    def bounds(self) -> OffsetBounds:
        """Offsets of the durable records; start and end are equal if there is no journal."""
        bases, end = self._find_segments()
        return OffsetBounds(bases[0] if bases else end, end)

    def headers(self) -> list[SegmentHeader]:
        headers: dict[int, SegmentHeader] = {}
        for base in self._find_segments()[0]:
            try:
                headers[base] = self._known_headers.get(base) or read_header(self._path, base)
            except FileNotFoundError:  # trimmed meanwhile, and so are the older ones
                headers.clear()
            except OSError as error:
                raise self._unreadable_error(error) from error
        self._known_headers = headers
        return list(headers.values())

    def raw_records(
        self, start: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, kind and body of each durable record, including unknown kinds.

        `start` is the offset of a record or of a segment (default: the first); `end` is excluded.
        """
        bases, durable = self._find_segments()
        if not bases:
            return
        start = bases[0] if start is None else start
        if start < bases[0]:
            raise self._trimmed_error(bases[0])
        end = durable if end is None else min(end, durable)
        ends = [*bases[1:], durable]
        for base, segment_end in zip(bases, ends, strict=True):
            stop = min(segment_end, end)
            if start < stop:
                yield from self._scan_segment(base, start, stop, segment_end)
                start = stop

    def read(
        self, start: int | None = None, end: int | None = None
    ) -> Iterator[tuple[int, JournalRecord]]:
        """Yield each record of a known kind with its offset; arguments as for `raw_records`."""
        for offset, kind, body in self.raw_records(start, end):
            record = self._decode(offset, kind, body)
            if record is not None:
                yield offset, record

    def captured_records(self, first: int, last: int) -> Iterator[tuple[int, CapturedRecord]]:
        """Yield the durable captured publications from sequence number `first` to `last`."""
        headers = self.headers()
        if not headers:
            return
        if first < headers[0].next_sequence:
            raise JournalTrimmed(
                f"{self._path}: publication {first} was deleted by retention, the first is "
                f"{headers[0].next_sequence}",
                headers[0].next_sequence,
            )
        place = bisect_right(headers, first, key=lambda header: header.next_sequence) - 1
        # Of several segments with the same first number, only the last can hold it.
        try:
            for offset, record in self.read(self._seek(headers[place], first)):
                if isinstance(record, CapturedRecord) and record.sequence >= first:
                    if record.sequence > last:
                        return
                    yield offset, record
                    first = record.sequence + 1
        except JournalTrimmed:  # trimmed meanwhile: report the sequence number, not the offset
            yield from self.captured_records(first, last)

    # ------------------------------------------------------------ inside

    def _find_segments(self) -> tuple[list[int], int]:
        """Return the base offsets of the segments, and the end of the durable records."""
        try:
            # Read the mark first: the segment exists before the mark points into it.
            durable = (
                durable_mark.read_durable_mark(self._path)
                if self._durable is None
                else self._durable
            )
            bases = segment_bases(self._path)
        except OSError as error:
            raise self._unreadable_error(error) from error
        if durable and not bases:
            raise segments_missing_error(self._path, durable)
        # All segments but the last are durable, whatever the mark says.
        return bases, max(durable, bases[-1]) if bases else 0

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
                f"{self._path}: the record at offset {offset} is invalid: {error}",
                offset,
                offset + RECORD_HEADER_BYTES + len(body),
            ) from None

    def _seek(self, header: SegmentHeader, sequence: int) -> int:
        """Return an offset at or before the record of a captured publication, by the index."""
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
            f"{self._path / log_name(base)} is damaged at offset {offset}; the next readable record"
            f" is at {resume}",
            offset,
            resume,
        )

    def _trimmed_error(self, first: int) -> JournalTrimmed:
        return JournalTrimmed(
            f"{self._path}: this was deleted by retention, the first offset is {first}", first
        )

    def _unreadable_error(self, error: OSError) -> JournalUnusable:
        return JournalUnusable(f"cannot read the journal {self._path}: {error.strerror}")
