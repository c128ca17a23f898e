"""What was done to a federation, and what that may cost by the promise.

At each broker an agent that crashes, or loses the connection to its broker, may publish again what
was under way at QoS 1: at most the window, each time. Where a broker forgets its sessions, or an
agent its state directory, that holds for QoS 2 as well, and what was published just then may never
come: this is written down as a span of time, so that nothing else passes for it.
"""

from collections import Counter
from dataclasses import dataclass, field

from hansa.agent.brokers.advice import IN_FLIGHT_WANTED
from hansa.agent.custody.settings import DeliverySettings
from hansa.chaos.faults import Faults

WINDOW = min(DeliverySettings().window, IN_FLIGHT_WANTED)
"""Publications under way between an agent and a broker as `hansa.local.mosquitto` configures it."""

GRACE_S = 3.0
"""Seconds that a publication may be on its way."""


@dataclass(slots=True)
class Harm:
    """The account of one play, by place."""

    faults: Faults | None = None
    """Writes down what is done, if somebody wants to read it."""
    count: int = 0
    """How often something was done."""
    interruptions: Counter[int] = field(default_factory=Counter)
    """How often something under way at QoS 1 may have been published again."""
    amnesias: Counter[int] = field(default_factory=Counter)
    """How often that was so at QoS 2, too."""
    forgetful: dict[int, float] = field(default_factory=dict)
    """Where memory is lost and not everything is back yet, and since when."""
    spans: list[tuple[int, float, float]] = field(default_factory=list)
    """Where, and from when to when, what was published may be lost."""

    def note(self, what: str, *places: int) -> None:
        """Write down what is done to one node, or between two."""
        self.count += 1
        if self.faults:
            self.faults.note(what, *places)

    def forget(self, place: int, now: float) -> None:
        """Memory is lost there: what is published there, or for there, may be lost or come twice
        until `remember`. It may have been on its way for a while."""
        self.amnesias[place] += 1
        self.forgetful.setdefault(place, now - GRACE_S)

    def remember(self, place: int, now: float) -> None:
        """Everything is as it was."""
        self.spans.append((place, self.forgetful.pop(place), now + GRACE_S))

    def duplicates_allowed(self, place: int) -> dict[int, int]:
        """Return how many may come twice there, by QoS."""
        twice = WINDOW * self.amnesias[place]
        return {1: WINDOW * self.interruptions[place] + twice, 2: twice}
