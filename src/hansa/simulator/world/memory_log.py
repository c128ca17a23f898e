"""A record log in memory, with segments, commits and crashes like those of `JournalWriter`.

Offsets are the numbers of records. A segment starts with the carried state, so that the last
durable segment restores the state. A crash keeps the durable records and, if it is asked to, some
of the others in order; a segment counts only if all of its carried state is there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hansa.errors import JournalUnusable
from hansa.journal.records import CapturedRecord, JournalRecord

SEGMENT_RECORDS = 200
"""Records of a segment without the carried state."""


@dataclass(slots=True)
class _Segment:
    start: int
    next_sequence: int
    """Sequence number of the next captured publication at its start."""
    carried_count: int = 0
    records: list[JournalRecord] = field(default_factory=list)


def _carry_nothing() -> Iterable[JournalRecord]:
    return ()


class MemoryLog:
    """A `RecordLog`; the shell commits it."""

    def __init__(
        self, epoch: int, captured_max: int = 1_000_000, segment_records: int = SEGMENT_RECORDS
    ) -> None:
        """`captured_max` bounds the captured publications that are kept for repair."""
        self.carried_state: Callable[[], Iterable[JournalRecord]] = _carry_nothing
        self.durable = 0
        self._epoch = epoch
        self._captured_max = captured_max
        self._segment_records = segment_records
        self._segments = [_Segment(0, 1)]
        self._captured: dict[int, CapturedRecord] = {}
        self._next_sequence = 1
        self.trimmed_upto = 0
        """Sequence number of the newest publication that retention removed."""
        self.failure = ""
        """If set, no append succeeds any more."""

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    @property
    def first_sequence(self) -> int:
        return self.trimmed_upto + 1

    @property
    def end(self) -> int:
        last = self._segments[-1]
        return last.start + len(last.records)

    def append(self, record: JournalRecord) -> int:
        if self.failure:
            raise JournalUnusable(self.failure)
        last = self._segments[-1]
        if len(last.records) - last.carried_count >= self._segment_records:
            self._start_segment()
        offset = self.end
        self._segments[-1].records.append(record)
        if isinstance(record, CapturedRecord):
            assert record.sequence == self._next_sequence, (record.sequence, self._next_sequence)
            self._next_sequence += 1
            self._captured[record.sequence] = record
        return offset

    def _start_segment(self) -> None:
        carried = list(self.carried_state())
        self._segments.append(_Segment(self.end, self._next_sequence, len(carried), carried))

    def commit(self, upto: int) -> None:
        """Make the records before an offset durable; delete what is not needed any more."""
        self.durable = max(self.durable, upto)
        while len(self._segments) > 1 and self._is_complete(self._segments[1], self.durable):
            del self._segments[0]
        while len(self._captured) > self._captured_max:
            oldest = next(iter(self._captured))
            del self._captured[oldest]
            self.trimmed_upto = oldest

    @staticmethod
    def _is_complete(segment: _Segment, end: int) -> bool:
        return end >= segment.start + segment.carried_count

    def captured_records(self, first: int, last: int) -> Iterator[CapturedRecord]:
        """Yield the durable captured publications in a range of sequence numbers."""
        upto = min(last, self._durable_sequence())
        for number in range(max(first, self.first_sequence), upto + 1):
            yield self._captured[number]

    def _durable_sequence(self) -> int:
        """Return the sequence number of the last durable publication."""
        lost = sum(isinstance(each, CapturedRecord) for each in self._unsynced())
        return self._next_sequence - 1 - lost

    def _unsynced(self) -> Iterator[JournalRecord]:
        for segment in self._segments:
            yield from segment.records[max(0, self.durable - segment.start) :]

    def crash(self, surviving_fraction: float = 0.0) -> None:
        """Lose the records that are not durable, except for the first part of them."""
        unsynced = self.end - self.durable
        end = self.durable + int(surviving_fraction * (unsynced + 1))
        self.durable = min(end, self.end)
        while len(self._segments) > 1 and not self._is_complete(self._segments[-1], self.durable):
            del self._segments[-1]
        last = self._segments[-1]
        del last.records[self.durable - last.start :]
        self.durable = self.end
        captured = [each for each in last.records if isinstance(each, CapturedRecord)]
        self._next_sequence = captured[-1].sequence + 1 if captured else last.next_sequence
        for number in [each for each in self._captured if each >= self._next_sequence]:
            del self._captured[number]
        self.failure = ""
        self.carried_state = _carry_nothing

    def replay(self) -> list[JournalRecord]:
        """Return the records of the last segment, from which the state is restored."""
        return list(self._segments[-1].records)

    def copy(self) -> "MemoryLog":
        """Return a copy of what is durable."""
        twin = MemoryLog(self._epoch, self._captured_max, self._segment_records)
        twin.durable, twin.trimmed_upto = self.durable, self.trimmed_upto
        twin._segments = [
            _Segment(each.start, each.next_sequence, each.carried_count, list(each.records))
            for each in self._segments
        ]
        twin._captured, twin._next_sequence = dict(self._captured), self._next_sequence
        twin.crash()
        return twin
