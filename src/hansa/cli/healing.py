"""How long an outage took, from what was published when and what arrived when. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hansa.cli.clients import Arrival


@dataclass(frozen=True, slots=True)
class Healing:
    """One outage as one subscriber saw it."""

    healed_ms: float | None
    """From the fault to the arrival of the first publication after the last lost one; None if the
    last publication of all was lost."""
    published: int
    """Publications since the fault."""
    lost: int
    twice: int


def measure(sent: Sequence[float], arrivals: Iterable[Arrival], fault_at: float) -> Healing:
    """Return how a subscriber fared with the publications, numbered from 0, since a fault."""
    first = next((number for number, at in enumerate(sent) if at >= fault_at), len(sent))
    came: dict[int, float] = {}
    twice = 0
    for arrival in arrivals:
        number = int(arrival.payload)
        twice += number in came
        came.setdefault(number, arrival.at)
    lost = [number for number in range(first, len(sent)) if number not in came]
    again = lost[-1] + 1 if lost else first
    healed_ms = (came[again] - fault_at) * 1000 if again < len(sent) else None
    return Healing(healed_ms, len(sent) - first, len(lost), twice)
