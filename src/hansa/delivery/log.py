"""The log that the delivery core appends to. `JournalWriter` is the one on disk."""

from collections.abc import Callable, Iterable
from typing import Protocol

from hansa.journal.records import JournalRecord


class RecordLog(Protocol):
    """An append-only log of records. An append only changes memory; a commit makes it durable."""

    durable: int
    """Everything before this offset is durable."""
    carried_state: Callable[[], Iterable[JournalRecord]]
    """Returns the records with which the next segment starts, so that the last segment alone
    restores the state."""

    @property
    def epoch(self) -> int: ...

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next captured publication."""

    @property
    def first_sequence(self) -> int:
        """Lowest sequence number that retention has not deleted."""

    @property
    def end(self) -> int:
        """Offset of the next record."""

    def append(self, record: JournalRecord) -> int:
        """Append a record and return its offset; it is durable when `durable` is greater. Raises
        JournalUnusable after an error of the disk that a retry cannot repair."""
