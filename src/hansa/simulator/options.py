"""The options of a run, immutable and with units. Equal options give equal runs.

Times are virtual seconds after the start unless a name says milliseconds.
"""

from dataclasses import dataclass, field, fields

from hansa.errors import UsageError
from hansa.protocol.membership.rights import UNLIMITED, Rights
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ScheduledAction
from hansa.simulator.topologies import Topology

PAYLOAD_BYTES_MIN = 8
"""Smallest payload: it must hold a unique number."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Delays and losses of links and brokers.

    Links are streams like TCP: reliable and in order, at worst late. Any of `loss`, `duplicate` and
    `reorder` above 0 makes them datagram links, which the nodes know.
    """

    delay_ms: float = 1.0
    """One way."""
    jitter_ms: float = 0.0
    """Added to each frame's delay, uniformly from 0 to this."""
    loss: float = 0.0
    """Fraction of frames that never arrive, 0 to 1."""
    duplicate: float = 0.0
    """Fraction of frames that arrive twice."""
    reorder: float = 0.0
    """Fraction of frames that are delayed by up to ten times the delay."""
    delays_ms: tuple[tuple[int, int, float], ...] = ()
    """(a, b, one-way delay) of links that differ from `delay_ms`."""
    close_delay_ms: float = 0.0
    """Time until the kernel of either end reports a closed connection."""
    frames_in_flight_max: int = 0
    """Frames in flight on a stream, per direction, above which publications are dropped; 0 for no
    limit."""
    redial_wait_s: tuple[float, float] = (0.1, 1.0)
    """Shortest and longest wait before a down link is dialled again."""
    broker_delay_ms: float = 0.1
    """One way between a broker and its agent or clients; a SUBACK takes two."""
    observe_delay_ms: float = 0.1
    """Delay until a started agent knows the subscriptions of its broker's clients."""

    @property
    def is_ordered(self) -> bool:
        """Whether links are reliable and ordered."""
        return not (self.loss or self.duplicate or self.reorder)

    def __post_init__(self) -> None:
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
    """The disks of the agents. With disks, brokers keep the agents' sessions."""

    sync_ms: float = 0.5
    """Duration of a sync, and of a read."""
    journal_max: int = 1_000_000
    """Publications that a journal keeps."""
    broker_queue_max: int = 100_000
    """Publications that a broker queues for its agent; more are dropped."""
    inbox_max: int = 100_000
    """Publications of other nodes, without their content, that fill the inbox of an agent; more
    wait, and are not durable."""
    in_flight_max: int = 20
    """Publications that an agent may have in flight to its broker."""
    partial_writes: bool = False
    """Whether a crash may leave part of the unsynced writes on disk."""

    def __post_init__(self) -> None:
        _require(self.sync_ms >= 0, "sync_ms must not be negative")
        _require(self.journal_max >= 1, "journal_max must be at least 1")
        _require(self.broker_queue_max >= 1, "broker_queue_max must be at least 1")
        _require(self.inbox_max >= 1, "inbox_max must be at least 1")
        _require(self.in_flight_max >= 1, "in_flight_max must be at least 1")


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """The number of random faults of each kind during the traffic phase."""

    cuts: int = 0
    silent_cuts: int = 0
    one_way_cuts: int = 0
    partitions: int = 0
    flaps: int = 0
    crashes: int = 0
    power_offs: int = 0
    freezes: int = 0
    stalls: int = 0
    """Disks whose syncs do not complete for a while."""
    disk_failures: int = 0
    """Disks whose syncs do not complete until their agent is restarted."""
    clock_jumps: int = 0
    """Clocks that are moved by up to an hour, forward or back."""
    refusals: int = 0
    """Brokers that disconnect their agent and refuse it for a while."""
    lossy_restarts: int = 0
    """Crashes after which the agent restarts without its state."""
    broker_restarts: int = 0
    link_changes: int = 0
    """Links added or removed permanently."""
    clones: int = 0
    """Copies of agents that run beside them for a few seconds."""
    roll_backs: int = 0
    """Agents whose state is replaced by an older copy."""
    byzantine: int = 0
    """Compromised members, each with several attacks."""
    outage_s: tuple[float, float] = (0.2, 4.0)
    """Shortest and longest time until a fault ends."""

    @property
    def total(self) -> int:
        """The number of faults of all kinds."""
        counts = (getattr(self, field_.name) for field_ in fields(self))
        return sum(count for count in counts if isinstance(count, int))

    def __post_init__(self) -> None:
        for field_ in fields(self):
            value = getattr(self, field_.name)
            _require(
                not isinstance(value, int) or value >= 0, f"{field_.name} must not be negative"
            )
        low, high = self.outage_s
        _require(0 < low <= high, "outage_s must be two times above 0, the shorter first")


@dataclass(frozen=True, slots=True)
class Workload:
    """Random clients, in addition to the schedule."""

    subscribers: int = 0
    """Subscriptions made at random places in the first second, each to one of `filters`."""
    filters: tuple[str, ...] = ("plant/#",)
    publishers: int = 0
    """Places at which clients publish during the traffic phase."""
    topics: tuple[str, ...] = ("plant/temp",)
    """Topics of the publications, chosen at random."""
    rate: float = 10.0
    """Publications per second of each publisher."""
    payload_bytes: int = 64
    qos: tuple[float, float, float] = (1.0, 0.0, 0.0)
    """Relative weights of QoS 0, 1 and 2."""
    churn: float = 0.0
    """Subscriptions made or removed per second, over all places, during the traffic phase."""
    publish_finally: bool = True
    """Whether every place publishes once to every topic in the final phase."""

    def __post_init__(self) -> None:
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
    """The durations of the phases of a run, in order."""

    warm_up_s: float = 5.0
    """Nodes start, links come up, clients subscribe."""
    traffic_s: float = 0.0
    """Clients publish while random faults occur. At its end all faults are healed."""
    settle_s: float = 0.0
    """Neither faults nor clients: the federation must converge."""
    final_s: float = 0.0
    """Every publication of this phase must arrive exactly once."""

    @property
    def end_s(self) -> float:
        return self.warm_up_s + self.traffic_s + self.settle_s + self.final_s

    def __post_init__(self) -> None:
        for field_ in fields(self):
            _require(getattr(self, field_.name) >= 0, f"{field_.name} must not be negative")


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    topology: Topology
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)
    seed: int = 0
    links: LinkOptions = field(default_factory=LinkOptions)
    workload: Workload = field(default_factory=Workload)
    faults: FaultCounts = field(default_factory=FaultCounts)
    schedule: tuple[ScheduledAction, ...] = ()
    """Actions in addition to `faults` and `workload`, in any order."""
    phases: Phases = field(default_factory=Phases)
    shuffle_ids: bool = False
    """Whether node ids are random. Otherwise the id is the place, as in the papers."""
    derive_ids: bool = False
    """Whether node ids are digests of keys, as in a live federation."""
    capacities: tuple[float, ...] = ()
    """Capacity per place, 1 by default."""
    start_spread_s: float = 0.0
    """Nodes start at random times from 0 to this."""
    late_places: tuple[int, ...] = ()
    """Places whose agents start only when the schedule says so."""
    encode_frames: bool = False
    """Whether frames are encoded and decoded in transit. Slower; finds codec errors."""
    certificates: bool = False
    """Whether nodes have certificates: records are signed, and frames that relays carry prove
    their source."""
    disk: DiskOptions | None = None
    """Without a disk only the identity of an agent survives a crash."""
    rights: tuple[tuple[int, Rights], ...] = ()
    """With certificates, the rights of some places; the others may do everything."""
    check_invariants: bool = True
    """Whether all invariants are checked all the time. Without checks a run is faster."""

    def node_name(self, place: int) -> str:
        """Return the name of a place; faults can add places."""
        labels = self.topology.labels
        return labels[place] if place < len(labels) else f"n{place}"

    def node_rights(self, place: int) -> Rights:
        return dict(self.rights).get(place, UNLIMITED)

    def node_capacity(self, place: int) -> float:
        return self.capacities[place] if place < len(self.capacities) else 1.0

    @property
    def has_partial_writes(self) -> bool:
        """Whether a crash may leave part of the unsynced writes."""
        return self.disk is not None and self.disk.partial_writes

    @property
    def end_s(self) -> float:
        """The end of the phases or the last action, whichever is later."""
        return max([self.phases.end_s, *(step.at_s for step in self.schedule)])


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise UsageError(rule)
