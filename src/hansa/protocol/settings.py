"""Every number that tunes the protocol, with its unit and what it trades.

One frozen record. The defaults are event-driven: news travels at once and timers only repair.
Presets are written as differences from the defaults, so that one sees what makes them different.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from hansa.errors import UsageError

NODES_MAX = 8_192
"""Confirmations in a frame: twice the nodes that a node knows by default."""

NEIGHBOURS_MAX = 1_024
"""Links of one node."""

PACKET_BYTES_MIN, PACKET_BYTES_MAX = 8_192, 65 << 20
"""Between these is what the largest publication of a federation may have: topic, properties and
payload together, the latter up to 64 MiB. What changes on its way (hops and named groups) does not
count, so that whatever came in can also go out."""

LABEL_BYTES_MAX = 255
"""Bytes of the name of a node or of a federation, of an address or of a capability."""


class Metric(StrEnum):
    """What makes a path short."""

    HOPS = "hops"
    RTT = "rtt"


class NonMemberForwarding(StrEnum):
    """Where a node that is no member of a mesh sends a publication for it."""

    ONE = "one"
    """One parent (Spohn 2021)."""
    ALL = "all"
    """All parents (Ribas 2022): survives one lost copy, costs one more."""
    RANDOM = "random"
    """A parent picked anew for each publication (Machado 2023): spreads the load."""


class ManagementBy(StrEnum):
    """Who is core of the management group."""

    ID = "id"
    CAPACITY = "capacity"
    """The highest capacity, ties to the smaller id (Antonielli 2020)."""


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """How one federation behaves. Fields marked *shared* must be equal on all its nodes."""

    federation: str = "hansa"
    """Shared. Nodes of another federation are refused."""
    strategy: str = "mesh"
    """Shared. How publications find their way; see docs/strategies.md."""
    redundancy: int = 2
    """Shared. Parents per mesh member. 1 makes a tree; more survive more, and cost more copies."""
    non_member_forwarding: NonMemberForwarding = NonMemberForwarding.ONE
    """Which parents take a publication that starts outside its mesh."""
    metric: Metric = Metric.HOPS
    """Shared. Hops as in the papers, or round-trip time where links differ a lot."""
    management_by: ManagementBy = ManagementBy.ID
    """Shared. Who leads the management group."""
    group_depth: int = 0
    """Shared. 0: one group per filter. n: filters that agree in their first n levels share a group,
    which saves state and costs copies that nobody behind the receiving agent wants."""
    packet_bytes_max: int = 1_048_576
    """Shared. Bytes of the largest publication that crosses, with its topic and properties; at most
    65 MiB. Every agent on its way holds a few copies of one."""

    heartbeat_interval: float = 1.0
    """Seconds between heartbeats on a link. Lower finds silent deaths sooner, costs more frames."""
    heartbeat_limit: float = 3.0
    """Seconds of silence after which a neighbour is gone; at least two intervals."""
    trust_close: bool = True
    """Whether a closed connection is believed at once. False waits for the heartbeat limit, as
    systems without connections must."""
    change_delay: float = 0.0
    """Seconds that a node's own news waits to share a frame with more."""
    relay_delay: float = 0.002
    """Seconds that news of others waits to share a frame: a few milliseconds per hop turn a flood
    of n records in n frames into one in a handful."""
    interest_ack_retry_interval: float = 1.0
    """Seconds until a node is asked that has not confirmed an interest; doubled each time."""
    announcement_interval_min: float = 0.02
    """Least seconds between two announcements of one core; changes in between share the next."""
    announcement_request_interval_max: float = 0.25
    """Longest seconds between two requests for a fresh announcement, while a core is in reach but
    no way to it is known."""
    management_claim_delay: float = 0.1
    """Seconds without news of nodes before a node takes the lead of the management group."""
    takeover_delay: float = 0.0
    """Seconds from the loss of a core until the nearest member takes over."""
    takeover_fallback_delay: float = 1.0
    """Seconds that other members leave the nearest one to take over before they do it themselves;
    more than a flood takes to cross the federation."""
    linger: float = 0.5
    """Seconds that an interest or a membership outlives its reason, against flapping."""
    withdraw_delay_max: float = 10.0
    """Longest wait, in seconds, for a new filter to be installed everywhere before the old filter
    that it replaces is withdrawn anyway."""
    interest_lease: float = 86_400.0
    """Seconds that a node out of reach keeps its place: its interest counts that long."""

    repair_delay: float = 0.02
    """Seconds that a hole in what an origin sends may be mere disorder, before it is asked for."""
    repair_retry_interval: float = 1.0
    """Seconds until what is missing is asked for again, and until a receiver that stays silent is
    reminded of what it is owed; doubled each time, up to eight times as long."""
    receipt_delay: float = 0.02
    """Seconds that a receipt waits to speak for more."""
    repair_bytes: int = 65_536
    """Bytes of one frame of an answer."""
    repair_frames: int = 8
    """Frames that answer one question. More are faster over long ways, and further ahead of a disk
    that is slow."""
    out_of_order_max: int = 8_192
    """Publications of one origin that wait here for one before them; more will be asked for."""
    out_of_order_bytes_max: int = 16_777_216
    """Memory for all that waits for one before it, of whatever origin."""
    uncommitted_max: int = 8_192
    """Publications of one origin on their way to this node's own disk; more will be asked for."""
    uncommitted_bytes_max: int = 16_777_216
    """Memory for all of them, of whatever origin."""

    retained_check_delay: float = 1.0
    """Seconds after which a retained value has reached the broker: only then what the broker holds
    is compared with what it should. Versions are saved that often. At least 0.1."""
    retained_max: int = 100_000
    """Topics whose retained value a node keeps track of; others are passed on, and not compared."""

    filters_per_node_max: int = 10_000
    """Filters that one node may announce; more are refused and counted."""
    filters_per_neighbour_max: int = 20_000
    """Filters of all nodes that were first heard of over one neighbour; beyond that, each of them
    may still have an equal part of this number. Neighbours that this agent dialled, and the one
    that has been linked the longest, may bring `filters_max`. More filters take more memory, here
    and at the broker (about 1 kB each), and a hostile neighbour can use twice this number."""
    filters_max: int = 100_000
    """Filters of all other nodes together; more are refused and counted."""
    nodes_max: int = 4_096
    """Nodes that a node will know; more are refused and counted."""
    nodes_per_neighbour_max: int = 2_048
    """Nodes first heard of over one neighbour: one that makes nodes up leaves room for others. The
    neighbour that has been linked the longest may bring more, up to `nodes_max`."""
    dedup_window: int = 4_096
    """Publications per origin that a node remembers to cut duplicates; a power of two. An older
    copy counts as a duplicate."""
    plans_max: int = 65_536
    """Topics whose way is remembered; when full, all are forgotten and learned anew."""
    unacknowledged_max: int = 4_096
    """Control frames that may wait for an acknowledgement on a datagram link before it is reset."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work, naming the field and what to change."""
        for name in (
            "heartbeat_interval",
            "heartbeat_limit",
            "announcement_request_interval_max",
            "interest_ack_retry_interval",
            "repair_retry_interval",
            "interest_lease",
        ):
            _require(
                getattr(self, name) > 0, f"{name} must be above 0 seconds", getattr(self, name)
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float):
                _require(value >= 0, f"{field.name} must not be negative", value)
        _require(
            self.heartbeat_limit >= 2 * self.heartbeat_interval,
            f"heartbeat_limit must be at least twice the interval of {self.heartbeat_interval}",
            self.heartbeat_limit,
        )
        _require(
            self.retained_check_delay >= 0.1,
            "retained_check_delay must be at least 0.1 seconds: asking a broker takes some time",
            self.retained_check_delay,
        )
        _require(1 <= self.redundancy <= 16, "redundancy must be from 1 to 16", self.redundancy)
        _require(0 <= self.group_depth <= 32, "group_depth must be from 0 to 32", self.group_depth)
        _require(
            self.dedup_window >= 64 and self.dedup_window & (self.dedup_window - 1) == 0,
            "dedup_window must be a power of two, at least 64",
            self.dedup_window,
        )
        _require(
            PACKET_BYTES_MIN <= self.packet_bytes_max <= PACKET_BYTES_MAX,
            f"packet_bytes_max must be from {PACKET_BYTES_MIN} to {PACKET_BYTES_MAX}",
            self.packet_bytes_max,
        )
        for name in (
            "repair_bytes",
            "repair_frames",
            "uncommitted_max",
            "uncommitted_bytes_max",
            "filters_per_node_max",
            "filters_per_neighbour_max",
            "filters_max",
            "nodes_max",
            "nodes_per_neighbour_max",
            "plans_max",
            "unacknowledged_max",
        ):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        _require(
            self.nodes_max <= NODES_MAX, f"nodes_max must be at most {NODES_MAX}", self.nodes_max
        )
        _require(
            0 < len(self.federation.encode()) <= LABEL_BYTES_MAX,
            f"federation must have a name of at most {LABEL_BYTES_MAX} bytes",
            self.federation,
        )

    def shared_settings_text(self) -> str:
        """Return what two neighbours must have in common, as text that a refusal can show."""
        names = (
            *("strategy", "redundancy", "metric", "management_by"),
            *("group_depth", "packet_bytes_max"),
        )
        return " ".join(f"{name}={getattr(self, name)}" for name in names)


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise UsageError(f"{rule}, not {value!r}")


PRESETS: dict[str, ProtocolSettings] = {
    "default": ProtocolSettings(),
    # Machado 2023: everything waits for a timer. Hello every 10 s and lost after a minute, federate
    # and core announcements every 20 s, a topic's core given up after two minutes.
    "machado": replace(
        ProtocolSettings(),
        heartbeat_interval=10.0,
        heartbeat_limit=60.0,
        trust_close=False,
        change_delay=20.0,
        announcement_interval_min=30.0,
        announcement_request_interval_max=30.0,
        management_claim_delay=20.0,
        takeover_delay=60.0,
        takeover_fallback_delay=60.0,
        interest_ack_retry_interval=60.0,
        withdraw_delay_max=120.0,
    ),
}
