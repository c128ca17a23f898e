"""The injected faults, and the duplicates and losses that docs/delivery.md allows for them.

After a crash of an agent or a lost connection to its broker, publications in flight at QoS 1 may be
captured or delivered twice: at most `in_flight_max` each time, and soon. If a broker loses the
agent's session, or an agent its state directory, duplicates are also allowed at QoS 2, and some
publications may be lost. Which ones depends on the lost state and on the time between the loss and
the recovery, so both are recorded.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hansa.console.federation_checks import IN_FLIGHT_RECOMMENDED
from hansa.delivery.settings import DeliverySettings
from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog
from hansa.testbed.chaos.verdict import AllowedLoss, FaultContext, Interruption

IN_FLIGHT_MAX = min(DeliverySettings().in_flight_max, IN_FLIGHT_RECOMMENDED)
"""Publications in flight between an agent and a broker that `testbed.mosquitto` configured."""


class LostState(Enum):
    AGENT_SESSION = "session"
    """The agent's session at its broker, with publications that were not captured yet."""
    BROKER_SESSIONS = "broker"
    """All sessions of a broker, also with publications queued for its subscribers."""
    STATE_DIRECTORY = "state"
    """An agent's state directory, with publications pending for other nodes and from them."""


@dataclass(frozen=True, slots=True)
class StateLoss:
    """State that was lost at a place, from the loss until everything worked again."""

    lost_state: LostState
    place: int
    since: float
    until: float = 0.0


DIRECTORY_NAME = "chaos"
"""Directory of the fault log, beside one directory per node."""


class FaultLog:
    """Writes the faults of a run as telemetry, beside that of the agents."""

    def __init__(self, directory: Path, nodes: list[int]) -> None:
        """`nodes` are the node ids by place."""
        self._log = TelemetryLog(directory / DIRECTORY_NAME)
        self._recorder = NodeRecorder(self._log, schema.FAULT_INJECTOR, time.time_ns() // 1_000_000)
        self._nodes = nodes

    def record(self, what: str, *places: int) -> None:
        """Record a fault at one node or between two, as `silence 0-1`."""
        text = f"{what} {'-'.join(map(str, places))}".strip()
        nodes = [self._nodes[place] for place in places]
        self._recorder.put(schema.FaultInjected(time.time_ns(), text, *nodes))

    def close(self) -> None:
        self._recorder.flush()
        self._log.close()


@dataclass(slots=True)
class FaultEffects:
    """All faults of one run."""

    fault_log: FaultLog | None = None
    fault_counts: Counter[str] = field(default_factory=Counter)
    """Faults by kind; repairs are not counted."""
    counts_by_fault: Counter[str] = field(default_factory=Counter)
    """Faults by fault function."""
    problems: list[str] = field(default_factory=list)
    """Behaviour that no fault allows."""
    interruptions: defaultdict[int, list[Interruption]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Interruptions by place, after which publications in flight may be delivered twice."""
    open_losses: dict[int, StateLoss] = field(default_factory=dict)
    """State losses that are not repaired yet, by place."""
    closed_losses: list[StateLoss] = field(default_factory=list)

    def record_fault(self, what: str, *places: int) -> None:
        """Count and log a fault at one node or between two."""
        self.fault_counts[what] += 1
        self.record_repair(what, *places)

    def record_repair(self, what: str, *places: int) -> None:
        """Log the end of a fault."""
        if self.fault_log:
            self.fault_log.record(what, *places)

    def record_interruption(self, place: int, now: float, qos: int = 1) -> None:
        """Allow duplicates of publications in flight there, up to a QoS."""
        self.interruptions[place].append(Interruption(now, qos, IN_FLIGHT_MAX))

    def begin_loss(self, place: int, lost_state: LostState, now: float) -> None:
        """Record that state is lost there until `end_loss`."""
        self.record_interruption(place, now, qos=2)
        self.open_losses.setdefault(place, StateLoss(lost_state, place, now))

    def end_loss(self, place: int, now: float) -> None:
        """End a loss: publications from now on must arrive again."""
        loss = self.open_losses.pop(place)
        self.closed_losses.append(StateLoss(loss.lost_state, place, loss.since, now))

    def fault_context(
        self, publishers: Mapping[int, str], subscribers: Mapping[int, str]
    ) -> FaultContext:
        """Return the allowed losses and duplicates by client; clients are given by place."""
        allowed_losses: defaultdict[str, list[AllowedLoss]] = defaultdict(list)
        for loss in self.closed_losses:
            place, span = loss.place, (loss.since, loss.until)
            if place in publishers:
                elsewhere = [name for where, name in subscribers.items() if where != place]
                # A publication that arrived elsewhere had been captured, so it is in the journal.
                captured_by = (
                    () if loss.lost_state is LostState.STATE_DIRECTORY else tuple(elsewhere)
                )
                allowed_losses[publishers[place]].append(AllowedLoss(*span, captured_by))
            if place in subscribers and loss.lost_state is not LostState.AGENT_SESSION:
                allowed_losses[subscribers[place]].append(AllowedLoss(*span))
        clients = (*publishers.items(), *subscribers.items())
        interruptions = {name: tuple(self.interruptions[place]) for place, name in clients}
        losses = {name: tuple(some) for name, some in allowed_losses.items()}
        return FaultContext(losses, interruptions)
