"""How long an outage took, from what was published when and what arrived when. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutageMeasurement:
    """What one subscriber saw of the publications from an event until a later moment."""

    resumed_s: float | None
    """From the event to the arrival of the first publication after the last lost one, or of the
    first of all if none was lost; None if the last one was lost."""
    published: int
    lost: int
    duplicates: int

    @property
    def interruption_s(self) -> float | None:
        """How long deliveries were interrupted: not at all if none was lost."""
        return self.resumed_s if self.lost or not self.published else 0.0

    @property
    def arrived(self) -> int:
        """Publications that arrived, once or more often."""
        return self.published - self.lost


def measure_outage(
    sent: Sequence[float],
    arrivals: Iterable[tuple[int, float]],
    since: float = -math.inf,
    until: float = math.inf,
    in_flight_s: float = 0.0,
) -> OutageMeasurement:
    """Return how a subscriber fared with the publications from `since` until `until`.

    `sent` has the time of each publication, by number; arrivals are pairs of number and time.
    Publications up to `in_flight_s` before `since` count, too: the event may have met them on
    their way.
    """
    numbers = [number for number, at in enumerate(sent) if since - in_flight_s <= at < until]
    arrived_at: dict[int, float] = {}
    twice = 0
    window = range(numbers[0], numbers[-1] + 1) if numbers else range(0)
    for number, at in arrivals:
        if number in window:
            twice += number in arrived_at
            arrived_at.setdefault(number, at)
    lost = [number for number in window if number not in arrived_at]
    first_after_loss = lost[-1] + 1 if lost else window.start
    resumed = max(0.0, arrived_at[first_after_loss] - since) if first_after_loss in window else None
    return OutageMeasurement(resumed, len(window), len(lost), twice)
