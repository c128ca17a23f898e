"""What was done to a federation, and what that may cost by the promise.

An agent that crashes, or loses the connection to its broker, may capture or publish again what was
under way at QoS 1: at most the window, each time, and soon. Where a broker forgets the agent's
session, or an agent its state directory, what was under way to that broker may be published again
at QoS 2 as well, and something may never come. What, and in which direction, depends on whose
memory it was: it is written down with the time when it was lost and the time when all was back, so
that nothing else passes for it.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hansa.agent.delivery.settings import DeliverySettings
from hansa.testbed.chaos.fault_log import FaultLog
from hansa.testbed.chaos.verdict import AllowedLoss, FaultContext, Interruption
from hansa.testbed.probes.advice import IN_FLIGHT_RECOMMENDED

IN_FLIGHT_MAX = min(DeliverySettings().in_flight_max, IN_FLIGHT_RECOMMENDED)
"""Publications in flight between an agent and a broker that `testbed.mosquitto` configured."""


class LostState(Enum):
    """What was lost."""

    AGENT_SESSION = "session"
    """The agent's session at its broker: with it goes what the agent had not captured."""
    BROKER_SESSIONS = "broker"
    """All sessions of a broker: with them goes also what waits there for its subscribers."""
    STATE_DIRECTORY = "state"
    """An agent's state directory: with it goes what it owes others, and what others owe it."""


@dataclass(frozen=True, slots=True)
class StateLoss:
    """Memory that was lost somewhere, and when."""

    lost_state: LostState
    place: int
    since: float
    until: float = 0.0


@dataclass(slots=True)
class FaultEffects:
    """The account of one play, by place."""

    fault_log: FaultLog | None = None
    """Writes down what is done, if somebody wants to read it."""
    fault_counts: Counter[str] = field(default_factory=Counter)
    """What was done, and how often; to mend something is no harm."""
    counts_by_fault: Counter[str] = field(default_factory=Counter)
    """How much of it each kind of trouble did."""
    problems: list[str] = field(default_factory=list)
    """What should not have happened whatever was done."""
    interruptions: defaultdict[int, list[Interruption]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """When something under way may have been published again."""
    open_losses: dict[int, StateLoss] = field(default_factory=dict)
    """Where memory is lost and not everything is back yet."""
    closed_losses: list[StateLoss] = field(default_factory=list)
    """Where everything is back."""

    def record_fault(self, what: str, *places: int) -> None:
        """Write down what is done to one node, or between two."""
        self.fault_counts[what] += 1
        self.record_repair(what, *places)

    def record_repair(self, what: str, *places: int) -> None:
        """Write down what ends a harm, and does none."""
        if self.fault_log:
            self.fault_log.record(what, *places)

    def record_interruption(self, place: int, now: float, qos: int = 1) -> None:
        """From now on what was under way may be published again there, up to a quality."""
        self.interruptions[place].append(Interruption(now, qos, IN_FLIGHT_MAX))

    def begin_loss(self, place: int, lost_state: LostState, now: float) -> None:
        """Memory is lost there, until `remember`."""
        self.record_interruption(place, now, qos=2)
        self.open_losses.setdefault(place, StateLoss(lost_state, place, now))

    def end_loss(self, place: int, now: float) -> None:
        """What is published from now on is promised again."""
        loss = self.open_losses.pop(place)
        self.closed_losses.append(StateLoss(loss.lost_state, place, loss.since, now))

    def fault_context(
        self, publishers: Mapping[int, str], subscribers: Mapping[int, str]
    ) -> FaultContext:
        """Return what it may have cost these clients; by place, as they are named."""
        allowed_losses: defaultdict[str, list[AllowedLoss]] = defaultdict(list)
        for loss in self.closed_losses:
            place, span = loss.place, (loss.since, loss.until)
            if place in publishers:
                elsewhere = [name for where, name in subscribers.items() if where != place]
                # What came anywhere else had been captured, and that is on disk.
                captured_by = (
                    () if loss.lost_state is LostState.STATE_DIRECTORY else tuple(elsewhere)
                )
                allowed_losses[publishers[place]].append(AllowedLoss(*span, captured_by))
            if place in subscribers and loss.lost_state is not LostState.AGENT_SESSION:
                allowed_losses[subscribers[place]].append(AllowedLoss(*span))
        clients = (*publishers.items(), *subscribers.items())
        hits = {name: tuple(self.interruptions[place]) for place, name in clients}
        return FaultContext({name: tuple(some) for name, some in allowed_losses.items()}, hits)
