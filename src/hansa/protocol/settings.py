"""The settings of the protocol, each with its unit and trade-off.

The defaults are event-driven: changes propagate at once and timers only repair. Presets are written
as differences from the defaults.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from hansa.errors import UsageError

NODES_MAX = 8_192
"""Interest acknowledgements in one frame: twice the default of `nodes_max`."""

NEIGHBOURS_MAX = 1_024
"""Links of one node."""

PACKET_BYTES_MIN, PACKET_BYTES_MAX = 8_192, 65 << 20
"""Range of `packet_bytes_max`: topic, properties and payload of one publication, the payload up to
64 MiB. Fields that change on the path (hops, target groups) do not count, so every received
publication can be forwarded."""

LABEL_BYTES_MAX = 255
"""Bytes of the name of a node or federation, of an address or of a capability."""


class Metric(StrEnum):
    """Length of a path."""

    HOPS = "hops"
    RTT = "rtt"


class NonMemberForwarding(StrEnum):
    """Which parents a node that is not a member of a mesh sends a publication to."""

    ONE = "one"
    """One parent (Spohn 2021)."""
    ALL = "all"
    """All parents (Ribas 2022): survives one lost copy, costs one more."""
    RANDOM = "random"
    """A random parent per publication (Machado 2023): spreads the load."""


class ManagementBy(StrEnum):
    """Which node is core of the management group."""

    ID = "id"
    CAPACITY = "capacity"
    """The highest capacity; the smaller id breaks ties (Antonielli 2020)."""


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """Behaviour of one federation. Fields marked *shared* must be equal on all its nodes."""

    federation: str = "hansa"
    """Shared. Nodes of another federation are refused."""
    strategy: str = "mesh"
    """Shared. How publications are routed; see docs/strategies.md."""
    redundancy: int = 2
    """Shared. Parents per mesh member. 1 makes a tree; more survive more failures and cost more
    copies."""
    non_member_forwarding: NonMemberForwarding = NonMemberForwarding.ONE
    """Which parents get a publication that starts outside its mesh."""
    metric: Metric = Metric.HOPS
    """Shared. Hops as in the papers, or round-trip time where links differ a lot."""
    management_by: ManagementBy = ManagementBy.ID
    """Shared. Which node is core of the management group."""
    group_depth: int = 0
    """Shared. 0: one group per filter. n: filters with equal first n levels share a group, which
    saves state and costs copies that no client of the receiving node is subscribed to."""
    packet_bytes_max: int = 1_048_576
    """Shared. Bytes of the largest publication that is forwarded, with topic and properties; at
    most 65 MiB. Every agent on the path holds a few copies of it."""

    heartbeat_interval: float = 1.0
    """Seconds between heartbeats on a link. A lower value detects silent failures sooner and costs
    more frames."""
    heartbeat_limit: float = 3.0
    """Seconds of silence after which a neighbour counts as lost; at least two intervals."""
    trust_close: bool = True
    """Whether a closed connection counts as a lost neighbour at once. False waits for the heartbeat
    limit, as systems without connections must."""
    change_delay: float = 0.0
    """Seconds that a node's own changes wait to share a frame."""
    relay_delay: float = 0.002
    """Seconds that changes of other nodes wait to share a frame. A few milliseconds per hop reduce
    a flood of n records from n frames to a handful."""
    interest_ack_retry_interval: float = 1.0
    """Seconds until a node that has not acknowledged an interest is asked; doubled each time."""
    announcement_interval_min: float = 0.02
    """Minimum seconds between two announcements of one core; changes in between share the next."""
    announcement_request_interval_max: float = 0.25
    """Maximum seconds between two requests for a new announcement, while a core is reachable but no
    route to it is known."""
    management_claim_delay: float = 0.1
    """Seconds without a change of the known nodes before a node claims the management group."""
    takeover_delay: float = 0.0
    """Seconds from the loss of a core until the nearest interested node takes over."""
    takeover_fallback_delay: float = 1.0
    """Seconds that other interested nodes wait for the nearest one to take over before they do it
    themselves; should be longer than a flood through the federation."""
    linger: float = 0.5
    """Seconds that an interest or a membership outlives its last subscriber, against flapping."""
    withdraw_delay_max: float = 10.0
    """Maximum seconds to wait until a new filter is installed at all nodes before the old filter
    that it replaces is withdrawn anyway."""
    interest_lease: float = 86_400.0
    """Seconds that the interest of an unreachable node stays in force; publications are kept for it
    that long."""

    repair_delay: float = 0.02
    """Seconds that a gap in the publications of an origin may be reordering before it is
    requested."""
    repair_retry_interval: float = 1.0
    """Seconds until missing publications are requested again, and until a silent receiver is
    reminded of pending ones; doubled each time, up to eight times as long."""
    receipt_delay: float = 0.02
    """Seconds that a receipt waits to acknowledge more publications at once."""
    repair_bytes: int = 65_536
    """Bytes of one frame of a repair response."""
    repair_frames: int = 8
    """Frames of one repair response. More are faster over long paths and need more buffer where the
    receiver's disk is slow."""
    out_of_order_max: int = 8_192
    """Publications of one origin that wait here for a missing earlier one; further ones are
    requested again."""
    out_of_order_bytes_max: int = 16_777_216
    """Memory for publications of all origins that wait for a missing earlier one."""
    uncommitted_max: int = 8_192
    """Publications of one origin that are not yet durable on this node's disk; further ones are
    requested again."""
    uncommitted_bytes_max: int = 16_777_216
    """Memory for publications of all origins that are not yet durable."""

    retained_check_delay: float = 1.0
    """Seconds until a delivered retained value counts as stored by the broker; only then stored
    values are compared with the expected ones. Versions are saved at this interval. At least
    0.1."""
    retained_max: int = 100_000
    """Topics whose retained value a node tracks; values of other topics are forwarded and not
    compared."""

    filters_per_node_max: int = 10_000
    """Filters that one node may announce; more are refused and counted."""
    filters_per_neighbour_max: int = 20_000
    """Filters of all nodes first learned from one neighbour; beyond that, each of these nodes may
    still have an equal part of this number. Neighbours that this agent dialled, and the one that
    has been linked the longest, may bring `filters_max`. More filters take more memory, here and at
    the broker (about 1 kB each), and a hostile neighbour can use twice this number."""
    filters_max: int = 100_000
    """Filters of all other nodes together; more are refused and counted."""
    nodes_max: int = 4_096
    """Nodes that a node knows; more are refused and counted."""
    nodes_per_neighbour_max: int = 2_048
    """Nodes first learned from one neighbour: a neighbour that invents nodes leaves room for
    others. The neighbour that has been linked the longest may bring up to `nodes_max`."""
    dedup_window: int = 4_096
    """Publications per origin that a node remembers to detect duplicates; a power of two. An older
    copy counts as a duplicate."""
    plans_max: int = 65_536
    """Topics whose forwarding plan is cached; when the cache is full, it is cleared."""
    unacknowledged_max: int = 4_096
    """Unacknowledged control frames on a datagram link before it is reset."""

    def __post_init__(self) -> None:
        """Refuse invalid values with the field and the rule."""
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
        """Return the settings that two neighbours must share, as text for comparison and
        refusals."""
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
