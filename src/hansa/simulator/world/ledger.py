"""Every publication of a run with its expected receivers, deliveries and delays."""

from dataclasses import dataclass, field

from hansa.protocol.model import NodeId, Publication
from hansa.simulator.result import DelayStatistics, delay_statistics

LEDGER_NUMBER_BYTES = 8
"""Every payload starts with its number in the ledger; the rest is padding."""


@dataclass(slots=True)
class LedgerEntry:
    """One publication of a client."""

    number: int
    place: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    at: float
    expected_places: tuple[int, ...]
    """The other places with a subscriber and a running agent at the time of publication."""
    is_captured: bool = False
    """Whether the agent received it from its broker."""
    journal_position: tuple[int, int] = (0, 0)
    """Epoch and position in the journal of the agent, if it was appended."""
    receivers: frozenset[NodeId] = frozenset()
    """The receivers in that journal entry."""
    was_passed_over: bool = False
    """Whether the agent once acknowledged it without appending it, because no node was interested.
    If that acknowledgement is lost, the broker redelivers it, and by then a node may be interested.
    """
    delivered_at: dict[int, float] = field(default_factory=dict)
    """When each place's broker first got it."""


class RepeatedPayload(bytes):
    """A payload that equals others. Only the ledger sees its number, in the object."""

    number: int


def ledger_number(payload: bytes) -> int:
    """Return the number of the publication with this payload."""
    if isinstance(payload, RepeatedPayload):
        return payload.number
    return int.from_bytes(payload[:LEDGER_NUMBER_BYTES], "big")


class Ledger:
    """All publications, found by payload."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.repeated_payloads: dict[tuple[NodeId, int, int], RepeatedPayload] = {}
        """By origin, epoch and position: repair encodes publications and loses the number."""
        self.duplicate_count = 0
        self._delays: dict[int, list[float]] = {}

    def next_payload(self, size: int, is_repeated: bool = False) -> bytes:
        """Return the payload of the next publication: a unique one, or one that equals all others
        of its size that repeat."""
        if is_repeated:
            payload = RepeatedPayload(b"=" * size)
            payload.number = len(self.entries)
            return payload
        return len(self.entries).to_bytes(LEDGER_NUMBER_BYTES, "big").ljust(size, b".")

    def add_publication(self, entry: LedgerEntry) -> None:
        """Add a publication; its number is its index in the ledger."""
        assert entry.number == len(self.entries)
        self.entries.append(entry)

    def find(self, publication: Publication) -> LedgerEntry | None:
        """Return the entry with this payload, or None."""
        number = ledger_number(publication.payload)
        return self.entries[number] if number < len(self.entries) else None

    def record_delivery(self, entry: LedgerEntry, place: int, at: float) -> None:
        if place in entry.delivered_at:
            self.duplicate_count += 1
            return
        entry.delivered_at[place] = at
        self._delays.setdefault(place, []).append(at - entry.at)

    @property
    def expected_count(self) -> int:
        """Pairs of publication and interested broker."""
        return sum(len(entry.expected_places) for entry in self.entries)

    @property
    def delivered_count(self) -> int:
        """Pairs that were delivered."""
        return sum(
            place in entry.delivered_at for entry in self.entries for place in entry.expected_places
        )

    def delay_statistics(self) -> DelayStatistics | None:
        return delay_statistics([sample for samples in self._delays.values() for sample in samples])

    def delay_statistics_by_place(self) -> dict[int, DelayStatistics]:
        by_place = {place: delay_statistics(self._delays[place]) for place in sorted(self._delays)}
        return {place: delay for place, delay in by_place.items() if delay is not None}
