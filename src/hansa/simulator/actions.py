"""The actions of a simulation, as values.

Scenarios, random faults and workloads all become one schedule of actions, so any random run can be
written as a script. Nodes are named by their place in the topology.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class SimulatedAction:
    """Base of all actions."""


# ---------------------------------------------------------------- clients


@dataclass(frozen=True, slots=True)
class ClientSubscribe(SimulatedAction):
    """A client subscribes at a node's broker."""

    node: int
    filter: str


@dataclass(frozen=True, slots=True)
class ClientUnsubscribe(SimulatedAction):
    """A client removes one subscription, if there is one."""

    node: int
    filter: str


@dataclass(frozen=True, slots=True)
class ClientPublish(SimulatedAction):
    """A client publishes, once or at equal intervals. Every payload is unique in the run, unless
    `is_repeated`: then all such payloads of one size are equal."""

    node: int
    topic: str
    payload_bytes: int = 64
    count: int = 1
    interval_s: float = 0.1
    qos: int = 0
    retain: bool = False
    is_repeated: bool = False


# ---------------------------------------------------------------- links


@dataclass(frozen=True, slots=True)
class CutLink(SimulatedAction):
    """Close a link's connection; both ends learn of it at once."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class CutSilently(SimulatedAction):
    """Lose everything sent over a link, without notice."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class CutOneWay(SimulatedAction):
    """Lose everything that `a` sends to `b`; the other direction works."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class RestoreLink(SimulatedAction):
    """Undo any cut of a link."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Partition(SimulatedAction):
    """Lose everything sent between nodes of different sides; other nodes keep their links."""

    sides: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class HealAll(SimulatedAction):
    """Undo all cuts and partitions and resume suspended agents. Stopped agents stay stopped."""


@dataclass(frozen=True, slots=True)
class AddLink(SimulatedAction):
    """Add a link to the configuration; it is dialled like all others."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class RemoveLink(SimulatedAction):
    """Remove a link from the configuration and close it."""

    a: int
    b: int


@dataclass(frozen=True, slots=True)
class FlapLink(SimulatedAction):
    """Cut and restore a link repeatedly, `hz` times per second, for a while."""

    a: int
    b: int
    hz: float
    seconds: float


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class CrashAgent(SimulatedAction):
    """Kill an agent. Its kernel resets the connections, so its neighbours learn of it."""

    node: int


@dataclass(frozen=True, slots=True)
class PowerOff(SimulatedAction):
    """Switch an agent's machine off: its neighbours get no notice."""

    node: int


@dataclass(frozen=True, slots=True)
class FreezeAgent(SimulatedAction):
    """Suspend an agent for a while. Data that arrives meanwhile waits in its kernel."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StallDisk(SimulatedAction):
    """Let no sync of an agent's disk complete for a while; the agent runs on."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FillDisk(SimulatedAction):
    """Let every write to an agent's disk fail for a while, because the disk is full."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FailDisk(SimulatedAction):
    """Let no sync of an agent's disk complete until the agent is restarted."""

    node: int


@dataclass(frozen=True, slots=True)
class SetClock(SimulatedAction):
    """Move a machine's clock forward, or back if negative; agents read it when they start."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RefuseAgent(SimulatedAction):
    """Let a broker disconnect its agent and refuse it for a while. It keeps the session."""

    node: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RestartAgent(SimulatedAction):
    """Restart an agent, killing it first if it runs.

    With its state it keeps its key and takes the next incarnation; without, it gets a new key and
    id. Its broker runs on: the clients' subscriptions remain, and the observer reports them again.
    """

    node: int
    with_state: bool = True


@dataclass(frozen=True, slots=True)
class BackUpState(SimulatedAction):
    """Copy an agent's state, for a later roll-back."""

    node: int


@dataclass(frozen=True, slots=True)
class RollBackState(SimulatedAction):
    """Kill an agent, replace its state by the last copy, and start it. It cannot see that the state
    is a copy."""

    node: int


@dataclass(frozen=True, slots=True)
class RestartBroker(SimulatedAction):
    """Restart a broker without persistence: the clients' subscriptions are lost; the agent renews
    its own."""

    node: int
    return_s: float | None = None
    """Seconds until the clients reconnect and subscribe as before; None for never."""


@dataclass(frozen=True, slots=True)
class CloneNode(SimulatedAction):
    """Start a copy of a node, with its key, at a new place linked to `near`; it is stopped a few
    seconds later."""

    node: int
    near: int


@dataclass(frozen=True, slots=True)
class PlayAttack(SimulatedAction):
    """Let a compromised member play an attack (`byzantine.attacks`). It is compromised from the
    start."""

    node: int
    attack: str


@dataclass(frozen=True, slots=True)
class ScheduledAction:
    at_s: float
    """Virtual seconds after the start."""
    action: SimulatedAction


_PLACE_FIELDS = ("node", "near", "a", "b")
_SCRIPT_FORMATS: dict[type[SimulatedAction], str] = {
    ClientSubscribe: "subscribe {node} {filter}",
    ClientUnsubscribe: "unsubscribe {node} {filter}",
    ClientPublish: "publish {node} {topic}",
    CutLink: "cut {a}-{b}",
    CutSilently: "silence {a}-{b}",
    CutOneWay: "silence {a}>{b}",
    RestoreLink: "restore {a}-{b}",
    HealAll: "heal",
    AddLink: "link {a}-{b}",
    RemoveLink: "unlink {a}-{b}",
    FlapLink: "flap {a}-{b} {hz:g} Hz {seconds:g} s",
    CrashAgent: "crash {node}",
    PowerOff: "power-off {node}",
    FreezeAgent: "freeze {node} {seconds:g} s",
    StallDisk: "stall {node} {seconds:g} s",
    FillDisk: "fill-disk {node} {seconds:g} s",
    FailDisk: "fail-disk {node}",
    SetClock: "set-clock {node} {seconds:g} s",
    RefuseAgent: "refuse {node} {seconds:g} s",
    BackUpState: "back-up {node}",
    RollBackState: "roll-back {node}",
    CloneNode: "clone {node} near {near}",
    PlayAttack: "byzantine {node} {attack}",
}


def affected_places(action: SimulatedAction) -> tuple[int, ...]:
    """Return the places that an action names; none if it concerns more than two."""
    return tuple(getattr(action, name) for name in _PLACE_FIELDS if hasattr(action, name))


def describe_action(action: SimulatedAction, label: Callable[[int], str] = str) -> str:
    """Return an action in the format of `hansa simulate --at`."""
    match action:
        case Partition(sides):
            return "partition " + "|".join(",".join(map(label, side)) for side in sides)
        case RestartAgent(node, with_state):
            return f"restart {label(node)}" + ("" if with_state else " without state")
        case RestartBroker(node, return_s):
            return_text = "" if return_s is None else f" {return_s:g} s"
            return f"restart-broker {label(node)}{return_text}"
    values = {field.name: getattr(action, field.name) for field in fields(action)}
    values |= {name: label(values[name]) for name in _PLACE_FIELDS if name in values}
    return _SCRIPT_FORMATS[type(action)].format(**values)
