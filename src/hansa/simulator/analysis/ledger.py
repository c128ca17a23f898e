"""Every publication of a run: who wanted it, who got it, how long that took."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hansa.protocol.model import NodeId, Publication
from hansa.simulator.result import Delay, delay_of

NUMBER_BYTES = 8
"Every payload starts with its number in the ledger; the rest is padding."


@dataclass(slots=True)
class Entry:
    """One publication by a client."""

    number: int
    place: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    at: float
    wanted: tuple[int, ...]
    """The other places where it was wanted and an agent ran, when it was published."""
    captured: bool = False
    """Whether the agent beside the broker saw it."""
    position: tuple[int, int] = (0, 0)
    """Epoch and position in the journal of the agent beside the broker, if it was kept there."""
    owed: frozenset[NodeId] = frozenset()
    """The nodes to which it is owed from there."""
    let_pass: bool = False
    """Whether the agent beside the broker once acknowledged it unkept, because nobody wanted it.
    The broker may show it again, if that is lost; by then somebody may."""
    arrivals: dict[int, float] = field(default_factory=dict)
    """Per place, when its broker first got it."""


def number_in(payload: bytes) -> int:
    """Return the number of the publication that has this payload."""
    return int.from_bytes(payload[:NUMBER_BYTES], "big")


class Ledger:
    """All publications, found by their payload."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: list[Entry] = []
        self.duplicates = 0
        self._delays: dict[int, list[float]] = {}

    def payload(self, size: int) -> bytes:
        """Return the payload of the next publication, unlike any other."""
        return len(self.entries).to_bytes(NUMBER_BYTES, "big").ljust(size, b".")

    def publish(self, entry: Entry) -> None:
        """Note a publication; its number is its place in the ledger."""
        assert entry.number == len(self.entries)
        self.entries.append(entry)

    def find(self, publication: Publication) -> Entry | None:
        """Return what was published with this payload, None if nothing was."""
        number = number_in(publication.payload)
        return self.entries[number] if number < len(self.entries) else None

    def deliver(self, entry: Entry, place: int, at: float) -> None:
        """Note that a broker got a publication."""
        if place in entry.arrivals:
            self.duplicates += 1
            return
        entry.arrivals[place] = at
        self._delays.setdefault(place, []).append(at - entry.at)

    @property
    def expected(self) -> int:
        """How many pairs of publication and wanting broker there were."""
        return sum(len(entry.wanted) for entry in self.entries)

    @property
    def delivered(self) -> int:
        """How many of them came together."""
        return sum(place in entry.arrivals for entry in self.entries for place in entry.wanted)

    def delay(self) -> Delay | None:
        """Sum up all delays."""
        return delay_of([sample for samples in self._delays.values() for sample in samples])

    def delay_by_place(self) -> dict[int, Delay]:
        """Sum up the delays at each receiving place."""
        summed = {place: _some(self._delays[place]) for place in sorted(self._delays)}
        return summed


def _some(samples_s: Sequence[float]) -> Delay:
    delay = delay_of(samples_s)
    assert delay is not None
    return delay
