"""The records of telemetry: every kind, every field, in one place.

A record is one thing that a node or its shell did. Its row in a table has the columns `node`,
`incarnation` and `number` (its key), `kind` (the name of its type, as `link_up`), `time_ns`, and
those fields below that its kind has; the others are empty. What they mean is in `columns`.
docs/reference/records.md is made from both, and so is the schema that Spark reads.

This is a promise to other programs: kinds and fields are only ever added, fields at the end of
their kind and with a default. A field has one meaning and one type in all kinds. Readers skip what
they do not know.
"""

import re

import msgspec

FAULT_INJECTOR = (1 << 64) - 1
"""Stands for a node in what no node wrote: the faults that a simulator or `hansa chaos` makes, and
what clients observed."""


class TelemetryRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What all kinds share."""

    time_ns: int


# ---------------------------------------------------------------- publications


class _PublicationRecord(TelemetryRecord, frozen=True, array_like=True, gc=False):
    origin: int
    epoch: int
    sequence: int
    qos: int
    topic: str
    payload_bytes: int


class _CopyRecord(_PublicationRecord, frozen=True, array_like=True, gc=False):
    frame_bytes: int
    hops: int
    peer: int | None


class Captured(_PublicationRecord, frozen=True, array_like=True, gc=False, tag=1):
    """A client of this node's broker published it, and it starts its way: it has a name now. At
    QoS 1 and 2 it is then made safe in the journal."""


class CopySent(_CopyRecord, frozen=True, array_like=True, gc=False, tag=2):
    """A copy left over the link to `peer`."""


class CopyReceived(_CopyRecord, frozen=True, array_like=True, gc=False, tag=3):
    """A copy came over the link from `peer`."""


class Duplicate(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=4):
    """The copy from `peer` was not new, and was dropped."""

    origin: int
    epoch: int
    sequence: int
    qos: int
    peer: int | None


class Delivered(_PublicationRecord, frozen=True, array_like=True, gc=False, tag=5):
    """It was given to this node's broker: at QoS 0 written to it, at QoS 1 and 2 acknowledged by
    it. `hops` is missing where it came out of a journal."""

    hops: int | None


class Dropped(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=6):
    """It, or part of its way, was given up."""

    origin: int
    epoch: int
    sequence: int
    qos: int
    reason: str


class Repaired(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=7):
    """So many publications that were missing here came from their origin's journal."""

    origin: int
    count: int


class Gap(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=8):
    """What the origin owed this node from `first` to `last` will never come."""

    origin: int
    epoch: int
    first_sequence: int
    last_sequence: int
    reason: str


class DeliveryAbandoned(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=9):
    """What this node owed `peer` from `first` to `last` was not fetched within the lease."""

    peer: int
    epoch: int
    first_sequence: int
    last_sequence: int


# ---------------------------------------------------------------- control


class ControlFrameSent(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=10):
    """A control frame left over the link to `peer`. `core` and its `life`, `seq` and `distance` are
    those of an announcement."""

    frame: str
    frame_bytes: int
    peer: int | None
    core: int | None = None
    announcement_sequence: int | None = None
    distance: int | None = None
    core_incarnation: int | None = None


class CoreElected(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=11):
    """This node now takes `core` for the core of the group."""

    group: str
    core: int


class CoreLost(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=12):
    """The core of the group is gone, and no other is known."""

    group: str
    core: int


class ParentsChanged(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=13):
    """The ways towards a core changed."""

    core: int
    announcement_sequence: int
    distance: int
    parents: tuple[int, ...]
    gained_parents: tuple[int, ...]
    lost_parents: tuple[int, ...]


class MeshJoined(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=14):
    """This node became a member of the group's mesh."""

    group: str


class MeshLeft(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=15):
    """It is one no longer."""

    group: str


class NodeReachable(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=16):
    """`peer` came into reach."""

    peer: int


class NodeUnreachable(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=17):
    """`peer` went out of reach."""

    peer: int


class InterestAdded(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=18):
    """Clients of this node's broker want the filter `group`."""

    group: str


class InterestRemoved(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=19):
    """None of them does any longer."""

    group: str


class SubscribedAtBroker(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=20):
    """This node asks its broker for the filter `group`, because others want it."""

    group: str


class UnsubscribedAtBroker(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=21):
    """It takes that back."""

    group: str


class InterestInstalled(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=22):
    """Every node in reach has this version of this node's interest in force."""

    interest_version: str


class Ignored(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=23):
    """A senseless input was ignored, or a bound was met."""

    reason: str


class IncarnationRaised(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=24):
    """This node goes on with a higher incarnation, `life`: somebody knew a newer one."""

    new_incarnation: int


class EpochRolloverRequired(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=25):
    """This node's journal is an old copy: it goes on with the epoch `life`."""

    epoch: int


# ---------------------------------------------------------------- links, nodes, runs


class LinkUp(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=26):
    """The link to `peer` is usable."""

    peer: int


class LinkDown(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=27):
    """It is gone."""

    peer: int
    reason: str


class LinkRefused(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=28):
    """Whoever was behind a link cannot be a neighbour."""

    reason: str


class RoundTrip(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=29):
    """What the link to `peer` takes, by the heartbeat that just came back."""

    peer: int
    rtt_ms: float


class Counter(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=30):
    """What one of the node's counters says; now and then."""

    counter_name: str
    value: float


class NodeStarted(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=31):
    """The first record of a life."""

    node_name: str
    hansa_version: str


class NodeStopped(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=32):
    """The last one, if the node could still write it."""

    reason: str = ""


class FaultInjected(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=33):
    """Something was done to the federation on purpose."""

    disturbance: str
    target: int | None = None
    peer: int | None = None


class Converged(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=34):
    """In a simulation: all nodes agree again, so long after `what`, whose time this is."""

    disturbance: str
    seconds: float


class SimulationStarted(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=35):
    """The first record of a simulation."""

    seed: int
    topology: str
    strategy: str


class ClientDeliveriesCounted(TelemetryRecord, frozen=True, array_like=True, gc=False, tag=36):
    """MQTT clients counted deliveries between two brokers, beginning with the event `what` at this
    time: of the `published` publications at the broker of `origin`, `arrived` reached a client of
    the broker of `target`, and `duplicates` more copies did. `seconds` is the interruption: from
    the event until the first publication after the last lost one arrived, 0 if none was lost,
    missing if the last one was lost or there was no event."""

    disturbance: str
    origin: int
    target: int
    published: int
    arrived: int
    duplicates: int
    interruption_s: float | None = None


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
)


def kind_name(record: type[AnyRecord]) -> str:
    """Return what a kind of record is called in tables, as `link_up`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", record.__name__).lower()


RECORD_TYPES: dict[int, type[AnyRecord]] = {
    kind.__struct_config__.tag: kind for kind in AnyRecord.__args__
}
"""Every kind by its number, which comes first in its bytes."""

KIND_NAMES: dict[type[AnyRecord], str] = {kind: kind_name(kind) for kind in RECORD_TYPES.values()}
"""What every kind is called in tables."""

SAMPLED_KINDS = (Captured, CopySent, CopyReceived, Duplicate, Delivered, Dropped)
"""Kinds that are written for every publication, or for some of them, as is set; the others always
are. Whether a publication is among those follows from its `seq`: it is so on all nodes, or on
none."""
