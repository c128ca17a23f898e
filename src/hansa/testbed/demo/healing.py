"""Measurement of an outage from the times of publications and arrivals. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutageMeasurement:
    """Deliveries to one subscriber between an event and a later moment."""

    resumed_s: float | None
    """Seconds from the event to the arrival of the first publication after the last lost one, or of
    the first one if none was lost; None if the last one was lost."""
    published: int
    lost: int
    duplicates: int

    @property
    def interruption_s(self) -> float | None:
        """Seconds without deliveries; 0 if nothing was lost."""
        return self.resumed_s if self.lost or not self.published else 0.0

    @property
    def arrived(self) -> int:
        """Publications that arrived at least once."""
        return self.published - self.lost


def measure_outage(
    sent: Sequence[float],
    arrivals: Iterable[tuple[int, float]],
    since: float = -math.inf,
    until: float = math.inf,
    in_flight_s: float = 0.0,
) -> OutageMeasurement:
    """Measure the deliveries of publications from `since` until `until`.

    `sent` holds the time of each publication by number; arrivals are pairs of number and time.
    Publications up to `in_flight_s` before `since` are included: they may have been in flight.
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
