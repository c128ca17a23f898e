"""Every publication of a run: who wanted it, who got it, how long that took."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hansa.protocol.model import NodeId, Publication
from hansa.simulator.result import DelayStatistics, delay_statistics

LEDGER_NUMBER_BYTES = 8
"Every payload starts with its number in the ledger; the rest is padding."


@dataclass(slots=True)
class LedgerEntry:
    """One publication by a client."""

    number: int
    place: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    at: float
    expected_places: tuple[int, ...]
    """The other places where it was wanted and an agent ran, when it was published."""
    is_captured: bool = False
    """Whether the agent beside the broker saw it."""
    journal_position: tuple[int, int] = (0, 0)
    """Epoch and position in the journal of the agent beside the broker, if it was kept there."""
    receivers: frozenset[NodeId] = frozenset()
    """The nodes to which it is owed from there."""
    was_passed_over: bool = False
    """Whether the agent beside the broker once acknowledged it unkept, because nobody wanted it.
    The broker may show it again, if that is lost; by then somebody may."""
    delivered_at: dict[int, float] = field(default_factory=dict)
    """Per place, when its broker first got it."""


def ledger_number(payload: bytes) -> int:
    """Return the number of the publication that has this payload."""
    return int.from_bytes(payload[:LEDGER_NUMBER_BYTES], "big")


class Ledger:
    """All publications, found by their payload."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: list[LedgerEntry] = []
        self.duplicate_count = 0
        self._delays: dict[int, list[float]] = {}

    def next_payload(self, size: int) -> bytes:
        """Return the payload of the next publication, unlike any other."""
        return len(self.entries).to_bytes(LEDGER_NUMBER_BYTES, "big").ljust(size, b".")

    def add_publication(self, entry: LedgerEntry) -> None:
        """Note a publication; its number is its place in the ledger."""
        assert entry.number == len(self.entries)
        self.entries.append(entry)

    def find(self, publication: Publication) -> LedgerEntry | None:
        """Return what was published with this payload, None if nothing was."""
        number = ledger_number(publication.payload)
        return self.entries[number] if number < len(self.entries) else None

    def record_delivery(self, entry: LedgerEntry, place: int, at: float) -> None:
        """Note that a broker got a publication."""
        if place in entry.delivered_at:
            self.duplicate_count += 1
            return
        entry.delivered_at[place] = at
        self._delays.setdefault(place, []).append(at - entry.at)

    @property
    def expected_count(self) -> int:
        """How many pairs of publication and wanting broker there were."""
        return sum(len(entry.expected_places) for entry in self.entries)

    @property
    def delivered_count(self) -> int:
        """How many of them came together."""
        return sum(
            place in entry.delivered_at for entry in self.entries for place in entry.expected_places
        )

    def delay_statistics(self) -> DelayStatistics | None:
        """Sum up all delays."""
        return delay_statistics([sample for samples in self._delays.values() for sample in samples])

    def delay_statistics_by_place(self) -> dict[int, DelayStatistics]:
        """Sum up the delays at each receiving place."""
        summed = {place: _require_statistics(self._delays[place]) for place in sorted(self._delays)}
        return summed


def _require_statistics(samples_s: Sequence[float]) -> DelayStatistics:
    delay = delay_statistics(samples_s)
    assert delay is not None
    return delay
