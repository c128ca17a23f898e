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

OBSERVER = (1 << 64) - 1
"""Stands for a node in what no node wrote: the faults that a simulator or `hansa chaos` makes, and
what clients observed."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What all kinds share."""

    time_ns: int


# ---------------------------------------------------------------- publications


class _Publication(Record, frozen=True, array_like=True, gc=False):
    origin: int
    life: int
    seq: int
    qos: int
    topic: str
    payload_bytes: int


class _Copy(_Publication, frozen=True, array_like=True, gc=False):
    frame_bytes: int
    hops: int
    peer: int | None


class Captured(_Publication, frozen=True, array_like=True, gc=False, tag=1):
    """A client of this node's broker published it, and it starts its way: it has a name now. At
    QoS 1 and 2 it is then made safe in the journal."""


class Sent(_Copy, frozen=True, array_like=True, gc=False, tag=2):
    """A copy left over the link to `peer`."""


class Received(_Copy, frozen=True, array_like=True, gc=False, tag=3):
    """A copy came over the link from `peer`."""


class Duplicate(Record, frozen=True, array_like=True, gc=False, tag=4):
    """The copy from `peer` was not new, and was dropped."""

    origin: int
    life: int
    seq: int
    qos: int
    peer: int | None


class Delivered(_Publication, frozen=True, array_like=True, gc=False, tag=5):
    """It was given to this node's broker: at QoS 0 written to it, at QoS 1 and 2 acknowledged by
    it. `hops` is missing where it came out of a journal."""

    hops: int | None


class Dropped(Record, frozen=True, array_like=True, gc=False, tag=6):
    """It, or part of its way, was given up."""

    origin: int
    life: int
    seq: int
    qos: int
    reason: str


class Repaired(Record, frozen=True, array_like=True, gc=False, tag=7):
    """So many publications that were missing here came from their origin's journal."""

    origin: int
    count: int


class Gap(Record, frozen=True, array_like=True, gc=False, tag=8):
    """What the origin owed this node from `first` to `last` will never come."""

    origin: int
    life: int
    first: int
    last: int
    reason: str


class GivenUp(Record, frozen=True, array_like=True, gc=False, tag=9):
    """What this node owed `peer` from `first` to `last` was not fetched within the lease."""

    peer: int
    life: int
    first: int
    last: int


# ---------------------------------------------------------------- control


class Control(Record, frozen=True, array_like=True, gc=False, tag=10):
    """A control frame left over the link to `peer`. `core` and its `life`, `seq` and `distance` are
    those of an announcement."""

    frame: str
    frame_bytes: int
    peer: int | None
    core: int | None = None
    seq: int | None = None
    distance: int | None = None
    life: int | None = None


class CoreElected(Record, frozen=True, array_like=True, gc=False, tag=11):
    """This node now takes `core` for the core of the group."""

    group: str
    core: int


class CoreLost(Record, frozen=True, array_like=True, gc=False, tag=12):
    """The core of the group is gone, and no other is known."""

    group: str
    core: int


class Parents(Record, frozen=True, array_like=True, gc=False, tag=13):
    """The ways towards a core changed."""

    core: int
    seq: int
    distance: int
    parents: tuple[int, ...]
    gained: tuple[int, ...]
    lost: tuple[int, ...]


class MeshJoined(Record, frozen=True, array_like=True, gc=False, tag=14):
    """This node became a member of the group's mesh."""

    group: str


class MeshLeft(Record, frozen=True, array_like=True, gc=False, tag=15):
    """It is one no longer."""

    group: str


class MemberJoined(Record, frozen=True, array_like=True, gc=False, tag=16):
    """`peer` came into reach."""

    peer: int


class MemberLost(Record, frozen=True, array_like=True, gc=False, tag=17):
    """`peer` went out of reach."""

    peer: int


class Wanted(Record, frozen=True, array_like=True, gc=False, tag=18):
    """Clients of this node's broker want the filter `group`."""

    group: str


class Unwanted(Record, frozen=True, array_like=True, gc=False, tag=19):
    """None of them does any longer."""

    group: str


class Subscribed(Record, frozen=True, array_like=True, gc=False, tag=20):
    """This node asks its broker for the filter `group`, because others want it."""

    group: str


class Unsubscribed(Record, frozen=True, array_like=True, gc=False, tag=21):
    """It takes that back."""

    group: str


class Installed(Record, frozen=True, array_like=True, gc=False, tag=22):
    """Every node in reach has this version of this node's interest in force."""

    version: str


class Ignored(Record, frozen=True, array_like=True, gc=False, tag=23):
    """A senseless input was ignored, or a bound was met."""

    reason: str


class LifeRaised(Record, frozen=True, array_like=True, gc=False, tag=24):
    """This node goes on with a higher incarnation, `life`: somebody knew a newer one."""

    life: int


class EpochRenewed(Record, frozen=True, array_like=True, gc=False, tag=25):
    """This node's journal is an old copy: it goes on with the epoch `life`."""

    life: int


# ---------------------------------------------------------------- links, nodes, runs


class LinkUp(Record, frozen=True, array_like=True, gc=False, tag=26):
    """The link to `peer` is usable."""

    peer: int


class LinkDown(Record, frozen=True, array_like=True, gc=False, tag=27):
    """It is gone."""

    peer: int
    reason: str


class LinkRefused(Record, frozen=True, array_like=True, gc=False, tag=28):
    """Whoever was behind a link cannot be a neighbour."""

    reason: str


class RoundTrip(Record, frozen=True, array_like=True, gc=False, tag=29):
    """What the link to `peer` takes, by the heartbeat that just came back."""

    peer: int
    rtt_ms: float


class Counter(Record, frozen=True, array_like=True, gc=False, tag=30):
    """What one of the node's counters says; now and then."""

    name: str
    value: float


class Started(Record, frozen=True, array_like=True, gc=False, tag=31):
    """The first record of a life."""

    name: str
    version: str


class Stopped(Record, frozen=True, array_like=True, gc=False, tag=32):
    """The last one, if the node could still write it."""

    reason: str = ""


class Fault(Record, frozen=True, array_like=True, gc=False, tag=33):
    """Something was done to the federation on purpose."""

    what: str
    target: int | None = None
    peer: int | None = None


class Converged(Record, frozen=True, array_like=True, gc=False, tag=34):
    """In a simulation: all nodes agree again, so long after `what`, whose time this is."""

    what: str
    seconds: float


class Run(Record, frozen=True, array_like=True, gc=False, tag=35):
    """The first record of a simulation."""

    seed: int
    topology: str
    strategy: str


class Observed(Record, frozen=True, array_like=True, gc=False, tag=36):
    """MQTT clients counted deliveries between two brokers, beginning with the event `what` at this
    time: of the `published` publications at the broker of `origin`, `arrived` reached a client of
    the broker of `target`, and `duplicates` more copies did. `seconds` is the interruption: from
    the event until the first publication after the last lost one arrived, 0 if none was lost,
    missing if the last one was lost or there was no event."""

    what: str
    origin: int
    target: int
    published: int
    arrived: int
    duplicates: int
    seconds: float | None = None


Any = (
    Captured
    | Sent
    | Received
    | Duplicate
    | Delivered
    | Dropped
    | Repaired
    | Gap
    | GivenUp
    | Control
    | CoreElected
    | CoreLost
    | Parents
    | MeshJoined
    | MeshLeft
    | MemberJoined
    | MemberLost
    | Wanted
    | Unwanted
    | Subscribed
    | Unsubscribed
    | Installed
    | Ignored
    | LifeRaised
    | EpochRenewed
    | LinkUp
    | LinkDown
    | LinkRefused
    | RoundTrip
    | Counter
    | Started
    | Stopped
    | Fault
    | Converged
    | Run
    | Observed
)


def kind_of(record: type[Any]) -> str:
    """Return what a kind of record is called in tables, as `link_up`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", record.__name__).lower()


KINDS: dict[int, type[Any]] = {kind.__struct_config__.tag: kind for kind in Any.__args__}
"""Every kind by its number, which comes first in its bytes."""

NAMES: dict[type[Any], str] = {kind: kind_of(kind) for kind in KINDS.values()}
"""What every kind is called in tables."""

PER_PUBLICATION = (Captured, Sent, Received, Duplicate, Delivered, Dropped)
"""Kinds that are written for every publication, or for some of them, as is set; the others always
are. Whether a publication is among those follows from its `seq`: it is so on all nodes, or on
none."""
