"""The frames that two neighbours exchange, as immutable values.

`codec` defines their bytes, `docs/protocol.md` their meaning in numbered rules. `Publication` (in
`model`) is the only frame that is not a control frame.
"""

import msgspec

from hansa.protocol.membership.records import ClaimsRecord, Record, RecordKind
from hansa.protocol.model import Group, GroupId, NodeId, Unsigned

PROTOCOL_VERSION = 4

Path = tuple[NodeId, ...]
"""In `via` of a unicast frame: the relays that it passes, in order, and its destination. Without
any, every node chooses the next hop of the best path (protocol.md 3.10)."""

UNREACHABLE = (1 << 32) - 1
"""The distance of a node without a route to a core."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Base of all control frames: a struct with a type tag."""


class Hello(Frame, frozen=True, array_like=True, tag=1):
    """First frame on every link, from both sides."""

    version: Unsigned
    federation: str
    node: NodeId
    key: bytes
    incarnation: Unsigned
    name: str
    shared_settings: str
    """The shared settings of the sender, as text."""
    digest: Unsigned
    """Digest of the sender's database. If both are equal, no records are exchanged."""
    capabilities: tuple[str, ...] = ()
    """Optional features of later versions; unknown ones are ignored."""


class Goodbye(Frame, frozen=True, array_like=True, tag=2):
    """Last frame on a link, with the reason for closing it."""

    reason: str


class Heartbeat(Frame, frozen=True, array_like=True, tag=3):
    """Keeps a link alive, measures the round trip and compares databases."""

    number: Unsigned
    echo: Unsigned
    """Number of the newest heartbeat from the other side, 0 for none."""
    held_us: Unsigned
    """Microseconds between the arrival of that heartbeat and this frame."""
    digest: Unsigned


class Summary(Frame, frozen=True, array_like=True, tag=4):
    """The stamps of all rows of the sender's database: (kind, node, incarnation, version)."""

    rows: tuple[tuple[RecordKind, NodeId, Unsigned, Unsigned], ...]


class Update(Frame, frozen=True, array_like=True, tag=5):
    """Records that the other side may not have."""

    records: tuple[Record, ...]


class Fetch(Frame, frozen=True, array_like=True, tag=6):
    """Requests whole rows, because a change did not fit the row of the sender."""

    rows: tuple[tuple[RecordKind, NodeId], ...]


class CoreAnnouncement(Frame, frozen=True, array_like=True, tag=7):
    """A core announcement (Spohn 2020), one for all groups of a core."""

    core: NodeId
    incarnation: Unsigned
    sequence: Unsigned
    distance: Unsigned
    """The sender's distance, 0 at the core. The receiver adds the cost of the link."""
    parents: tuple[NodeId, ...] = ()
    claims: ClaimsRecord | None = None
    """The change in the core's groups that caused this announcement."""
    members: tuple[GroupId, ...] = ()
    """Mesh membership flags: the groups of the core of which the sender is a member."""
    signature: bytes = b""
    """Of the core, over core, incarnation and sequence number."""


class MeshMembership(Frame, frozen=True, array_like=True, tag=8):
    """A mesh membership announcement (Spohn 2020), from a member to one of its parents."""

    core: NodeId
    sequence: Unsigned
    joined: tuple[Group, ...] = ()
    left: tuple[Group, ...] = ()


class AnnouncementRequest(Frame, frozen=True, array_like=True, tag=9):
    """Asks a core, hop by hop, for an announcement newer than `sequence`."""

    core: NodeId
    incarnation: Unsigned
    sequence: Unsigned
    hops: Unsigned


class FrameAck(Frame, frozen=True, array_like=True, tag=10):
    """On datagram links: all sequenced frames below `expected` have arrived."""

    expected: Unsigned
    missing: tuple[Unsigned, ...] = ()
    """The first missing frames below others that arrived out of order."""


class InterestAck(msgspec.Struct, frozen=True, array_like=True):
    """`source` has version `(incarnation, version)` of `destination`'s interest in force, and its
    journal includes `destination` as a receiver from position `(epoch, sequence)` on."""

    destination: NodeId
    incarnation: Unsigned
    version: Unsigned
    source: NodeId
    epoch: Unsigned
    sequence: Unsigned
    hops: Unsigned
    via: Path = ()
    mac: bytes = b""
    """Proves the source in a federation with certificates; see `authentication`."""


class InterestAcks(Frame, frozen=True, array_like=True, tag=12):
    """Acknowledgements with the same next hop."""

    entries: tuple[InterestAck, ...]


class InterestAckRequest(Frame, frozen=True, array_like=True, tag=13):
    """`source` asks `destination` to acknowledge its interest; or, with a stamp, to write a newer
    record of itself than that one, which `source` has forgotten."""

    destination: NodeId
    source: NodeId
    hops: Unsigned
    incarnation: Unsigned = 0
    version: Unsigned = 0
    via: Path = ()


class PendingNotice(Frame, frozen=True, array_like=True, tag=14):
    """`source` has publications pending for `destination`, the newest at position `(epoch,
    sequence)`."""

    destination: NodeId
    source: NodeId
    epoch: Unsigned
    sequence: Unsigned
    hops: Unsigned = 0
    via: Path = ()


class Receipt(Frame, frozen=True, array_like=True, tag=15):
    """`source` has all publications of `destination` up to position `(epoch, sequence)` on disk."""

    destination: NodeId
    source: NodeId
    epoch: Unsigned
    sequence: Unsigned
    received_upto: Unsigned
    """Publications up to this position have arrived."""
    bytes_requested: Unsigned = 0
    """How many bytes after that position to send again; 0 if nothing is missing."""
    hops: Unsigned = 0
    via: Path = ()


class RepairResponse(Frame, frozen=True, array_like=True, tag=16):
    """Publications of `source` for `destination` after `after` up to `upto`, from the journal."""

    destination: NodeId
    source: NodeId
    epoch: Unsigned
    after: Unsigned
    upto: Unsigned
    lost_upto: Unsigned
    """Publications up to this position are lost; 0 if none are."""
    publications: tuple[bytes, ...]
    """Encoded publications, in order; only the receiver decodes them."""
    hops: Unsigned = 0
    more: bool = False
    """Whether further frames of this response follow."""
    acknowledged: Unsigned = 0
    """`destination` has acknowledged everything up to this position."""
    via: Path = ()


RETAINED_BUCKETS = 64
"""Buckets in which sets of retained values are compared."""


class RetainedDigests(Frame, frozen=True, array_like=True, tag=17):
    """Digests of the retained values that `source` owns and `destination` is interested in: one per
    bucket of topics."""

    destination: NodeId
    source: NodeId
    digests: tuple[Unsigned, ...]
    hops: Unsigned = 0
    via: Path = ()


class RetainedRequest(Frame, frozen=True, array_like=True, tag=18):
    """`source` asks `destination` which versions it owns in some buckets, or for the values of some
    topics, each with the version that `source` has, 0 for none."""

    destination: NodeId
    source: NodeId
    buckets: tuple[Unsigned, ...]
    topics: tuple[tuple[str, Unsigned], ...] = ()
    hops: Unsigned = 0
    via: Path = ()


class RetainedVersions(Frame, frozen=True, array_like=True, tag=19):
    """Versions of retained values that `source` owns, deleted ones included."""

    destination: NodeId
    source: NodeId
    entries: tuple[tuple[str, Unsigned], ...]
    hops: Unsigned = 0
    via: Path = ()


class RetainedValuesFrame(Frame, frozen=True, array_like=True, tag=20):
    """Retained values that `source` owns; an empty payload deletes."""

    destination: NodeId
    source: NodeId
    publications: tuple[bytes, ...]
    """Encoded publications."""
    hops: Unsigned = 0
    via: Path = ()


class Query(Frame, frozen=True, array_like=True, tag=21):
    """`source` asks the agent of `destination` about its state."""

    destination: NodeId
    source: NodeId
    number: Unsigned
    """Chosen by `source`, so that it recognises the response."""
    data: bytes
    """The question; only agents read it."""
    hops: Unsigned = 0
    via: Path = ()


class QueryResponse(Frame, frozen=True, array_like=True, tag=22):
    """The response of `source` to the query of `destination` with this number."""

    destination: NodeId
    source: NodeId
    number: Unsigned
    data: bytes
    hops: Unsigned = 0
    via: Path = ()


DeliveryFrame = (
    PendingNotice
    | Receipt
    | RepairResponse
    | RetainedDigests
    | RetainedRequest
    | RetainedVersions
    | RetainedValuesFrame
)
"""Unicast frames about publications of QoS 1 and 2 and retained values."""

Unicast = DeliveryFrame | Query | QueryResponse
"""Frames between two nodes that need not be neighbours, routed hop by hop. They may be lost."""
UNICASTS = (
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedDigests,
    RetainedRequest,
    RetainedVersions,
    RetainedValuesFrame,
    Query,
    QueryResponse,
)
"""For `isinstance`, which is slow with a union."""


class SealedUnicast(Frame, frozen=True, array_like=True, tag=23):
    """A unicast frame that only its destination can read; see `authentication`."""

    destination: NodeId
    source: NodeId
    key_id: Unsigned
    """Names the exchange keys of both nodes."""
    number: Unsigned
    """Counts the sealed frames of the source, from 1."""
    box: bytes
    """The encrypted frame with its tag."""
    hops: Unsigned = 0
    via: Path = ()


class SealedBulk(SealedUnicast, frozen=True, array_like=True, tag=24):
    """A sealed bulk response: a repair response, retained values or a response to a query."""


OrderedFrame = (
    Hello
    | Goodbye
    | Summary
    | Update
    | Fetch
    | CoreAnnouncement
    | MeshMembership
    | AnnouncementRequest
    | InterestAcks
    | InterestAckRequest
    | Unicast
    | SealedUnicast
    | SealedBulk
)
"""Control frames whose order matters; datagram links number them."""

ControlFrame = OrderedFrame | Heartbeat


class SequencedFrame(Frame, frozen=True, array_like=True, tag=11):
    """On datagram links: a control frame with its sequence number."""

    sequence: Unsigned
    frame: OrderedFrame


AnyFrame = ControlFrame | FrameAck | SequencedFrame
