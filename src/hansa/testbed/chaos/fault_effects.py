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
from hansa.testbed.chaos.fault_log import Faults
from hansa.testbed.chaos.verdict import Circumstances, Excuse, Hit
from hansa.testbed.probes.advice import IN_FLIGHT_WANTED

WINDOW = min(DeliverySettings().window, IN_FLIGHT_WANTED)
"""Publications in flight between an agent and a broker that `testbed.mosquitto` configured."""


class Memory(Enum):
    """What was lost."""

    SESSION = "session"
    """The agent's session at its broker: with it goes what the agent had not captured."""
    BROKER = "broker"
    """All sessions of a broker: with them goes also what waits there for its subscribers."""
    STATE = "state"
    """An agent's state directory: with it goes what it owes others, and what others owe it."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Memory that was lost somewhere, and when."""

    memory: Memory
    place: int
    since: float
    until: float = 0.0


@dataclass(slots=True)
class Harm:
    """The account of one play, by place."""

    faults: Faults | None = None
    """Writes down what is done, if somebody wants to read it."""
    done: Counter[str] = field(default_factory=Counter)
    """What was done, and how often; to mend something is no harm."""
    troubles: Counter[str] = field(default_factory=Counter)
    """How much of it each kind of trouble did."""
    problems: list[str] = field(default_factory=list)
    """What should not have happened whatever was done."""
    hits: defaultdict[int, list[Hit]] = field(default_factory=lambda: defaultdict(list))
    """When something under way may have been published again."""
    forgetful: dict[int, Loss] = field(default_factory=dict)
    """Where memory is lost and not everything is back yet."""
    losses: list[Loss] = field(default_factory=list)
    """Where everything is back."""

    def note(self, what: str, *places: int) -> None:
        """Write down what is done to one node, or between two."""
        self.done[what] += 1
        self.mended(what, *places)

    def mended(self, what: str, *places: int) -> None:
        """Write down what ends a harm, and does none."""
        if self.faults:
            self.faults.note(what, *places)

    def interrupt(self, place: int, now: float, qos: int = 1) -> None:
        """From now on what was under way may be published again there, up to a quality."""
        self.hits[place].append(Hit(now, qos, WINDOW))

    def forget(self, place: int, memory: Memory, now: float) -> None:
        """Memory is lost there, until `remember`."""
        self.interrupt(place, now, qos=2)
        self.forgetful.setdefault(place, Loss(memory, place, now))

    def remember(self, place: int, now: float) -> None:
        """What is published from now on is promised again."""
        loss = self.forgetful.pop(place)
        self.losses.append(Loss(loss.memory, place, loss.since, now))

    def circumstances(
        self, publishers: Mapping[int, str], subscribers: Mapping[int, str]
    ) -> Circumstances:
        """Return what it may have cost these clients; by place, as they are named."""
        excuses: defaultdict[str, list[Excuse]] = defaultdict(list)
        for loss in self.losses:
            place, span = loss.place, (loss.since, loss.until)
            if place in publishers:
                elsewhere = [name for where, name in subscribers.items() if where != place]
                # What came anywhere else had been captured, and that is on disk.
                witnesses = () if loss.memory is Memory.STATE else tuple(elsewhere)
                excuses[publishers[place]].append(Excuse(*span, witnesses))
            if place in subscribers and loss.memory is not Memory.SESSION:
                excuses[subscribers[place]].append(Excuse(*span))
        clients = (*publishers.items(), *subscribers.items())
        hits = {name: tuple(self.hits[place]) for place, name in clients}
        return Circumstances({name: tuple(some) for name, some in excuses.items()}, hits)
