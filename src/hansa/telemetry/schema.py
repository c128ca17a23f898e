"""The telemetry records: every kind and every field.

A record describes one action of a node or of the program around it. Its row in a table has the key
columns `node_id`, `incarnation` and `record_sequence`, then `kind` (the name of the type, such as
`link_up`), `time_ns` and the fields of its kind; the other columns are empty. `columns` documents
each column. docs/reference/records.md and the schema of the Spark source are generated from both
modules.

Compatibility: kinds and fields are only added, fields at the end of their kind and with a default.
A field has one meaning and one type in all kinds. Readers skip unknown kinds and fields.
"""

import re

import msgspec

FAULT_INJECTOR = (1 << 64) - 1
"""Node id of records that no node wrote: injected faults, and deliveries counted by test
clients."""


CLEAN_STOP_REASON = "stopping"
"""`reason` of the `link_down` records that an agent writes when it stops cleanly."""


class TelemetryRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields that all kinds have."""

    time_ns: int


# ---------------------------------------------------------------- publications


class _PublicationRecord(TelemetryRecord, frozen=True, array_like=True, gc=False):
    origin_id: int
    epoch: int
    sequence: int
    qos: int
    topic: str
    payload_bytes: int


class _CopyRecord(_PublicationRecord, frozen=True, array_like=True, gc=False):
    frame_bytes: int
    hops: int
    peer_id: int | None


class Captured(_PublicationRecord, frozen=True, array_like=True, gc=False, tag=1):
    """A client of this node's broker published it, and the node assigned its sequence number. At
    QoS 1 and 2 the node then appends it to its journal."""


class CopySent(_CopyRecord, frozen=True, array_like=True, gc=False, tag=2):
    """A copy was sent over the link to `peer_id`."""


class CopyReceived(_CopyRecord, frozen=True, array_like=True, gc=False, tag=3):
    """A copy arrived over the link from `peer_id`."""


class Duplicate(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=4):
    """The copy from `peer_id` was a duplicate and was dropped."""

    origin_id: int
    epoch: int
    sequence: int
    qos: int
    peer_id: int | None


class Delivered(_PublicationRecord, frozen=True, array_like=True, gc=False, tag=5):
    """It was passed to this node's broker: at QoS 0 written to the connection, at QoS 1 and 2
    acknowledged by the broker. `hops` is empty if it came from a journal."""

    hops: int | None


class Dropped(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=6):
    """The publication, or one of its copies, was dropped."""

    origin_id: int
    epoch: int
    sequence: int
    qos: int
    reason: str


class Repaired(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=7):
    """This node received `count` missing publications from their origin's journal."""

    origin_id: int
    count: int


class Gap(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=8):
    """The publications of the origin from `first_sequence` to `last_sequence` will never arrive."""

    origin_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    reason: str


class DeliveryAbandoned(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=9):
    """`peer_id` did not fetch the publications from `first_sequence` to `last_sequence` within its
    lease."""

    peer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int


# ---------------------------------------------------------------- control


class ControlFrameSent(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=10):
    """A control frame was sent over the link to `peer_id`. Only a core announcement has `core_id`,
    `announcement_sequence`, `distance` and `core_incarnation`."""

    frame: str
    frame_bytes: int
    peer_id: int | None
    core_id: int | None = None
    announcement_sequence: int | None = None
    distance: int | None = None
    core_incarnation: int | None = None


class CoreElected(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=11):
    """This node accepts `core_id` as the core of the group."""

    group: str
    core_id: int


class CoreLost(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=12):
    """The core of the group is gone, and no other is known."""

    group: str
    core_id: int


class ParentsChanged(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=13):
    """The shortest paths towards a core changed."""

    core_id: int
    announcement_sequence: int
    distance: int
    parent_ids: tuple[int, ...]
    gained_parent_ids: tuple[int, ...]
    lost_parent_ids: tuple[int, ...]


class MeshJoined(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=14):
    """This node joined the group's mesh."""

    group: str


class MeshLeft(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=15):
    """This node left the group's mesh."""

    group: str


class NodeReachable(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=16):
    """`peer_id` became reachable."""

    peer_id: int


class NodeUnreachable(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=17):
    """`peer_id` became unreachable."""

    peer_id: int


class InterestAdded(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=18):
    """Clients of this node's broker subscribed to the filter `group`."""

    group: str


class InterestRemoved(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=19):
    """No client of this node's broker is subscribed to the filter `group` any more."""

    group: str


class SubscribedAtBroker(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=20):
    """This node subscribed at its broker to the filter `group`, because other nodes have interest
    in it."""

    group: str


class UnsubscribedAtBroker(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=21):
    """This node unsubscribed from the filter `group` at its broker."""

    group: str


class InterestInstalled(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=22):
    """Every reachable node has installed this version of this node's interest."""

    interest_version: str


class Ignored(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=23):
    """The node ignored an invalid input, or reached a bound."""

    reason: str


class IncarnationRaised(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=24):
    """This node continues with a higher incarnation, because another node knew a newer one."""

    new_incarnation: int


class EpochRolloverRequired(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=25):
    """This node's journal is an old copy: the node continues with the journal epoch `epoch`."""

    epoch: int


# ---------------------------------------------------------------- links, nodes, runs


class LinkUp(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=26):
    """The link to `peer_id` is established."""

    peer_id: int


class LinkDown(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=27):
    """The link to `peer_id` is down."""

    peer_id: int
    reason: str


class LinkRefused(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=28):
    """The other end of a link was refused as a neighbour."""

    reason: str


class RoundTrip(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=29):
    """Round-trip time of the link to `peer_id`, measured by a heartbeat."""

    peer_id: int
    rtt_ms: float


class Counter(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=30):
    """Periodic value of one of the node's counters."""

    counter_name: str
    value: float


class NodeStarted(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=31):
    """The first record of an incarnation."""

    node_name: str
    hansa_version: str


class NodeStopped(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=32):
    """The last record of an incarnation, if the node stopped cleanly."""

    reason: str = ""


class FaultInjected(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=33):
    """The simulator, `hansa chaos` or the demo injected a fault."""

    disturbance: str
    target_id: int | None = None
    peer_id: int | None = None


class Converged(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=34):
    """In a simulation: all nodes agreed again `seconds` after the `disturbance` at `time_ns`."""

    disturbance: str
    seconds: float


class SimulationStarted(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=35):
    """The first record of a simulation."""

    seed: int
    topology: str
    strategy: str


class ClientDeliveriesCounted(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=36):
    """MQTT clients counted deliveries between two brokers after a `disturbance` at `time_ns`: of
    the `published` publications at the broker of `origin_id`, `arrived` reached a client of the
    broker of `target_id`, and `duplicates` further copies did. `interruption_s` is the time from
    the disturbance until the first publication after the last lost one arrived: 0 if none was lost,
    empty if the last one was lost or there was no disturbance."""

    disturbance: str
    origin_id: int
    target_id: int
    published: int
    arrived: int
    duplicates: int
    interruption_s: float | None = None


class SecurityEvent(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=37):
    """An event of the audit log: `security_event` is `peer_refused`, `dialled_peer_refused`,
    `strike`, `quarantine`, `release`, `certificate_loaded`, `certificate_renewed`,
    `renewal_failed`, `revocation` or `admin_refused`. `peer_id` is empty if the peer has not proved
    who it is, `address` is the one that it came from or that was dialled, if any."""

    security_event: str
    peer_id: int | None
    address: str
    reason: str


class AlarmRaised(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=38):
    """The agent raised an alarm; `reason` is its text. A later change of the text is not
    recorded."""

    alarm: str
    reason: str


class AlarmCleared(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=39):
    """The agent cleared an alarm. Alarms also end when the agent ends."""

    alarm: str


AnyRecord = (
    Captured
    | CopySent
    | CopyReceived
    | Duplicate
    | Delivered
    | Dropped
    | Repaired
    | Gap
    | DeliveryAbandoned
    | ControlFrameSent
    | CoreElected
    | CoreLost
    | ParentsChanged
    | MeshJoined
    | MeshLeft
    | NodeReachable
    | NodeUnreachable
    | InterestAdded
    | InterestRemoved
    | SubscribedAtBroker
    | UnsubscribedAtBroker
    | InterestInstalled
    | Ignored
    | IncarnationRaised
    | EpochRolloverRequired
    | LinkUp
    | LinkDown
    | LinkRefused
    | RoundTrip
    | Counter
    | NodeStarted
    | NodeStopped
    | FaultInjected
    | Converged
    | SimulationStarted
    | ClientDeliveriesCounted
    | SecurityEvent
    | AlarmRaised
    | AlarmCleared
)


def kind_name(record: type[AnyRecord]) -> str:
    """Return the value of the column `kind`, such as `link_up`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", record.__name__).lower()


RECORD_TYPES: dict[int, type[AnyRecord]] = {
    kind.__struct_config__.tag: kind for kind in AnyRecord.__args__
}
"""Record types by the tag that precedes the fields on disk."""

KIND_NAMES: dict[type[AnyRecord], str] = {kind: kind_name(kind) for kind in RECORD_TYPES.values()}
"""Values of the column `kind`."""

SAMPLED_KINDS = (Captured, CopySent, CopyReceived, Duplicate, Delivered, Dropped)
"""Kinds that `[telemetry] sample` applies to; all others are always written. Sampling depends only
on the `sequence` of a publication, so a publication is sampled on all nodes or on none."""
