"""Everything that decides a run: one frozen record, with units. The same options are the same run.

Times are virtual seconds after the start unless a name says milliseconds.
"""

from dataclasses import dataclass, field, fields

from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ScheduledAction
from hansa.simulator.topologies import Topology

PAYLOAD_BYTES_MIN = 8
"Bytes of a payload: fewer could not tell one publication from another."


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What links and brokers do to what they carry.

    Links are streams, as TCP: whole and in order, late at worst. Any of `loss`, `duplicate` and
    `reorder` above 0 makes them datagram links, and the nodes are told so.
    """

    delay_ms: float = 1.0
    """One way."""
    jitter_ms: float = 0.0
    """Added to each frame's delay, evenly from 0 to this."""
    loss: float = 0.0
    """Part of the frames that never arrive, 0 to 1."""
    duplicate: float = 0.0
    """Part of the frames that arrive twice."""
    reorder: float = 0.0
    """Part of the frames that are held back for up to ten times the delay."""
    delays_ms: tuple[tuple[int, int, float], ...] = ()
    """(a, b, one-way delay) for links that differ from `delay_ms`."""
    close_delay_ms: float = 0.0
    """How long the kernel of either end takes to report a closed connection."""
    frames_in_flight_max: int = 0
    """Frames under way on a stream, one way, beyond which publications are dropped; 0 for any."""
    redial_wait_s: tuple[float, float] = (0.1, 1.0)
    """Least and longest wait before a link that is down is dialled again."""
    broker_delay_ms: float = 0.1
    """One way between a broker and its agent or its clients; a grant takes two."""
    observe_delay_ms: float = 0.1
    """Until an agent that has started knows what its broker's clients want."""

    @property
    def is_ordered(self) -> bool:
        """Whether links keep frames whole and in order."""
        return not (self.loss or self.duplicate or self.reorder)

    def __post_init__(self) -> None:
        """Refuse what no network does."""
        for name in ("loss", "duplicate", "reorder"):
            _require(0 <= getattr(self, name) < 1, f"{name} must be from 0 to below 1")
        for name in (
            "delay_ms",
            "jitter_ms",
            "close_delay_ms",
            "broker_delay_ms",
            "observe_delay_ms",
        ):
            _require(getattr(self, name) >= 0, f"{name} must not be negative")
        _require(self.frames_in_flight_max >= 0, "frames_in_flight_max must not be negative")
        low, high = self.redial_wait_s
        _require(0 < low <= high, "redial_wait_s must be two times above 0, the shorter first")


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The disks of the agents. With them, brokers keep the agents' sessions."""

    sync_ms: float = 0.5
    """Until what was written is safe, and until what was asked for is read."""
    journal_max: int = 1_000_000
    """Publications that a journal keeps."""
    broker_queue_max: int = 100_000
    """Publications that a broker keeps for its agent; more are dropped, as brokers do."""
    inbox_max: int = 100_000
    """Publications of others that an agent keeps for its broker; more wait, and are not safe."""
    in_flight_max: int = 20
    """Publications that a broker lets its agent have under way into it at once."""
    partial_writes: bool = False
    """Whether a crash leaves some of what was not safe yet, and not always nothing."""

    def __post_init__(self) -> None:
        """Refuse disks that nobody has."""
        _require(self.sync_ms >= 0, "sync_ms must not be negative")
        _require(self.journal_max >= 1, "journal_max must be at least 1")
        _require(self.broker_queue_max >= 1, "broker_queue_max must be at least 1")
        _require(self.inbox_max >= 1, "inbox_max must be at least 1")
        _require(self.in_flight_max >= 1, "in_flight_max must be at least 1")


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """How many faults of each kind strike at random during the traffic phase."""

    cuts: int = 0
    silent_cuts: int = 0
    one_way_cuts: int = 0
    partitions: int = 0
    flaps: int = 0
    crashes: int = 0
    power_offs: int = 0
    freezes: int = 0
    stalls: int = 0
    """Disks that finish no sync for a while."""
    disk_failures: int = 0
    """Disks that finish none until their agent is started again."""
    clock_jumps: int = 0
    """Clocks of machines that are set up to an hour forward or back."""
    refusals: int = 0
    """Brokers that hang up on their agent, and let it in again after a while."""
    lossy_restarts: int = 0
    """Crashes after which the agent comes back without its state."""
    broker_restarts: int = 0
    link_changes: int = 0
    """Links added or removed for good."""
    clones: int = 0
    """Copies of agents that run beside them for a few seconds."""
    roll_backs: int = 0
    """Agents in the place of whose state an older copy of it is put."""
    outage_s: tuple[float, float] = (0.2, 4.0)
    """Least and longest time until a cut is mended, a dead agent restarted, a frozen one thawed."""

    def __post_init__(self) -> None:
        """Refuse negative counts."""
        for field_ in fields(self):
            value = getattr(self, field_.name)
            _require(
                not isinstance(value, int) or value >= 0, f"{field_.name} must not be negative"
            )
        low, high = self.outage_s
        _require(0 < low <= high, "outage_s must be two times above 0, the shorter first")


@dataclass(frozen=True, slots=True)
class Workload:
    """What clients do by themselves, besides the schedule."""

    subscribers: int = 0
    """Subscriptions made at random places in the first second, each to a filter of `filters`."""
    filters: tuple[str, ...] = ("plant/#",)
    publishers: int = 0
    """Places at which clients publish during the traffic phase."""
    topics: tuple[str, ...] = ("plant/temp",)
    """Topics they publish to, one at random each time."""
    rate: float = 10.0
    """Publications per second of each publisher."""
    payload_bytes: int = 64
    qos: tuple[float, float, float] = (1.0, 0.0, 0.0)
    """How often QoS 0, 1 and 2 are used, relative to each other."""
    churn: float = 0.0
    """Subscriptions made or taken back per second, over all places, during the traffic phase."""
    publish_finally: bool = True
    """Whether, in the final phase, every place publishes once to every topic."""

    def __post_init__(self) -> None:
        """Refuse what no client can do."""
        _require(
            self.payload_bytes >= PAYLOAD_BYTES_MIN,
            f"payload_bytes must be at least {PAYLOAD_BYTES_MIN}",
        )
        _require(self.subscribers >= 0, "subscribers must not be negative")
        _require(self.publishers >= 0, "publishers must not be negative")
        _require(self.rate > 0, "rate must be above 0")
        _require(self.churn >= 0, "churn must not be negative")
        _require(not self.subscribers or bool(self.filters), "subscribers need filters")
        _require(not self.publishers or bool(self.topics), "publishers need topics")
        _require(sum(self.qos) > 0, "qos must have a weight above 0")


@dataclass(frozen=True, slots=True)
class Phases:
    """How long each part of a run takes; they follow each other in this order."""

    warm_up_s: float = 5.0
    """Nodes start, links come up, clients subscribe."""
    traffic_s: float = 0.0
    """Clients publish while random faults strike. At its end everything is healed."""
    settle_s: float = 0.0
    """No faults and no clients: the federation must get everything right."""
    final_s: float = 0.0
    """Publications of which each must arrive exactly once."""

    @property
    def end_s(self) -> float:
        """When the run ends."""
        return self.warm_up_s + self.traffic_s + self.settle_s + self.final_s

    def __post_init__(self) -> None:
        """Refuse time that runs backwards."""
        for field_ in fields(self):
            _require(getattr(self, field_.name) >= 0, f"{field_.name} must not be negative")


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """One run."""

    topology: Topology
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)
    seed: int = 0
    links: LinkOptions = field(default_factory=LinkOptions)
    workload: Workload = field(default_factory=Workload)
    faults: FaultCounts = field(default_factory=FaultCounts)
    schedule: tuple[ScheduledAction, ...] = ()
    """What happens when, besides what `faults` and `workload` draw; in any order."""
    phases: Phases = field(default_factory=Phases)
    shuffle_ids: bool = False
    """Whether node ids are drawn at random. Otherwise an id is the place, as in the papers."""
    capacities: tuple[float, ...] = ()
    """Capacity of each node, 1 for those that are not named."""
    start_spread_s: float = 0.0
    """Nodes start at random times from 0 to this."""
    late_places: tuple[int, ...] = ()
    """Nodes that do not start then, but when a step of the schedule says so, for the first time."""
    encode_frames: bool = False
    """Whether every frame is encoded and decoded on its way. Slower; finds what objects hide."""
    disk: DiskOptions | None = None
    """Without one, all that survives a crash of an agent is its identity."""
    check_invariants: bool = True
    """Whether every promise is checked all the time. Without, a run is faster and finds nothing."""

    def node_name(self, place: int) -> str:
        """Return what the node at a place is called; faults can add places."""
        labels = self.topology.labels
        return labels[place] if place < len(labels) else f"n{place}"

    def node_capacity(self, place: int) -> float:
        """Return the capacity of the node at a place."""
        return self.capacities[place] if place < len(self.capacities) else 1.0

    @property
    def has_partial_writes(self) -> bool:
        """Whether a crash may leave some of what was not safe yet."""
        return self.disk is not None and self.disk.partial_writes

    @property
    def end_s(self) -> float:
        """When the run ends: after the phases, and not before the last step of the schedule."""
        return max([self.phases.end_s, *(step.at_s for step in self.schedule)])


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise UsageError(rule)
