"""The frames that two neighbours exchange. Their bytes are in `wire`; their meaning is in
`docs/protocol.md`, which numbers the rules.

All are immutable values. `Publication` (in `vocabulary`) is the one frame that is not control.
"""

import msgspec

from hansa.protocol.membership.records import ClaimsRecord, Record, RecordKind
from hansa.protocol.model import Group, GroupId, NodeId, Unsigned

PROTOCOL_VERSION = 2

NO_NODE = NodeId(0)
"""In `avoid` of a unicast frame: it takes the best path. Otherwise relays choose paths that do not
pass the named node (protocol.md 3.10)."""

UNREACHABLE = (1 << 32) - 1
"""The distance of a node that has lost its way to a core."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """What all control frames share: a value with a tag for its bytes."""


class Hello(Frame, frozen=True, array_like=True, tag=1):
    """First frame on every link, from both sides."""

    version: Unsigned
    federation: str
    node: NodeId
    key: bytes
    incarnation: Unsigned
    name: str
    agreement: str
    """Settings that both must share, as text."""
    digest: Unsigned
    """The database's digest: when both are equal, nothing needs to be exchanged."""
    capabilities: tuple[str, ...] = ()
    """Room for what later versions can do beyond this one; unknown ones are ignored."""


class Goodbye(Frame, frozen=True, array_like=True, tag=2):
    """Last frame on a link, with the reason why it is closed."""

    reason: str


class Heartbeat(Frame, frozen=True, array_like=True, tag=3):
    """Sign of life; measures the round trip and compares databases."""

    number: Unsigned
    echo: Unsigned
    """The number of the newest heartbeat that came from the other side, 0 for none."""
    held_us: Unsigned
    """How long that one was held here, in microseconds."""
    digest: Unsigned


class Summary(Frame, frozen=True, array_like=True, tag=4):
    """All rows that a node has, by their stamps: (kind, node, incarnation, version)."""

    rows: tuple[tuple[RecordKind, NodeId, Unsigned, Unsigned], ...]


class Update(Frame, frozen=True, array_like=True, tag=5):
    """Records that the other side may not have."""

    records: tuple[Record, ...]


class Fetch(Frame, frozen=True, array_like=True, tag=6):
    """Asks for rows whole, because a change did not fit what is here."""

    rows: tuple[tuple[RecordKind, NodeId], ...]


class CoreAnnouncement(Frame, frozen=True, array_like=True, tag=7):
    """A core announcement (Spohn 2020), one for all groups of that core."""

    core: NodeId
    incarnation: Unsigned
    seq: Unsigned
    distance: Unsigned
    """The sender's own distance: 0 at the core. The receiver counts the link it came over."""
    parents: tuple[NodeId, ...] = ()
    claims: ClaimsRecord | None = None
    """The change in the core's groups that made this announcement necessary."""
    members: tuple[GroupId, ...] = ()
    """The mesh membership flag: those of the core's groups of which the sender is a member."""


class MeshMembership(Frame, frozen=True, array_like=True, tag=8):
    """A mesh membership announcement (Spohn 2020), from a member to one of its parents."""

    core: NodeId
    seq: Unsigned
    joined: tuple[Group, ...] = ()
    left: tuple[Group, ...] = ()


class AnnouncementRequest(Frame, frozen=True, array_like=True, tag=9):
    """Asks a core, hop by hop, for an announcement newer than `seq`."""

    core: NodeId
    incarnation: Unsigned
    seq: Unsigned
    hops: Unsigned


class FrameAck(Frame, frozen=True, array_like=True, tag=10):
    """On datagram links: all numbered frames below `expected` have arrived."""

    expected: Unsigned
    missing: tuple[Unsigned, ...] = ()
    """The first ones that are missing below others that came early."""


class InterestAck(msgspec.Struct, frozen=True, array_like=True):
    """`node` has version `(incarnation, version)` of `to`'s interest in force, and the positions
    of its journal count for it from `(epoch, seq)` on."""

    destination: NodeId
    incarnation: Unsigned
    version: Unsigned
    source: NodeId
    epoch: Unsigned
    seq: Unsigned
    hops: Unsigned
    avoid: NodeId = NO_NODE


class InterestAcks(Frame, frozen=True, array_like=True, tag=12):
    """Confirmations that share the next hop."""

    entries: tuple[InterestAck, ...]


class InterestAckRequest(Frame, frozen=True, array_like=True, tag=13):
    """`node` asks `to` to confirm its interest; or, with a stamp, to write a newer record of itself
    than that one, which `node` has forgotten."""

    destination: NodeId
    source: NodeId
    hops: Unsigned
    incarnation: Unsigned = 0
    version: Unsigned = 0
    avoid: NodeId = NO_NODE


class PendingNotice(Frame, frozen=True, array_like=True, tag=14):
    """`node` reminds `to` that it owes it publications, the newest of them at `(epoch, seq)`."""

    destination: NodeId
    source: NodeId
    epoch: Unsigned
    seq: Unsigned
    hops: Unsigned = 0
    avoid: NodeId = NO_NODE


class Receipt(Frame, frozen=True, array_like=True, tag=15):
    """`node` holds, safe from a crash, all that `to` owed it up to `(epoch, seq)`."""

    destination: NodeId
    source: NodeId
    epoch: Unsigned
    seq: Unsigned
    received_upto: Unsigned
    """What was owed up to here has at least arrived."""
    bytes_requested: Unsigned = 0
    """Bytes of what comes after that, to be sent again; 0 if nothing is missing."""
    hops: Unsigned = 0
    avoid: NodeId = NO_NODE


class RepairResponse(Frame, frozen=True, array_like=True, tag=16):
    """`node` sends `to` all that it owes it after `after` up to `upto`, once more."""

    destination: NodeId
    source: NodeId
    epoch: Unsigned
    after: Unsigned
    upto: Unsigned
    lost_upto: Unsigned
    """Nothing up to here is kept any more; 0 if nothing is lost."""
    publications: tuple[bytes, ...]
    """As `wire` writes publications, in order; only the receiver reads them."""
    hops: Unsigned = 0
    more: bool = False
    """Whether further frames of this answer follow."""
    acknowledged: Unsigned = 0
    """Up to here `to` has said that it holds all, safe from a crash."""
    avoid: NodeId = NO_NODE


RETAINED_BUCKETS = 64
"""Parts in which sets of retained values are compared."""


class RetainedDigests(Frame, frozen=True, array_like=True, tag=17):
    """`node` tells `to` what values its clients have retained of what `to` wants: one digest for
    each part of the topics, by their hash."""

    destination: NodeId
    source: NodeId
    digests: tuple[Unsigned, ...]
    hops: Unsigned = 0
    avoid: NodeId = NO_NODE


class RetainedRequest(Frame, frozen=True, array_like=True, tag=18):
    """`node` asks `to` which versions it owns of the topics in some buckets, or for the values of
    some topics, of which it has these versions, 0 for none."""

    destination: NodeId
    source: NodeId
    buckets: tuple[Unsigned, ...]
    topics: tuple[tuple[str, Unsigned], ...] = ()
    hops: Unsigned = 0
    avoid: NodeId = NO_NODE


class RetainedVersions(Frame, frozen=True, array_like=True, tag=19):
    """`node` tells `to` versions of retained values that it owns, deleted ones included."""

    destination: NodeId
    source: NodeId
    entries: tuple[tuple[str, Unsigned], ...]
    hops: Unsigned = 0
    avoid: NodeId = NO_NODE


class RetainedValuesFrame(Frame, frozen=True, array_like=True, tag=20):
    """`node` sends `to` retained values that it owns; an empty payload deletes."""

    destination: NodeId
    source: NodeId
    publications: tuple[bytes, ...]
    """As `wire` writes publications."""
    hops: Unsigned = 0
    avoid: NodeId = NO_NODE


Unicast = (
    PendingNotice
    | Receipt
    | RepairResponse
    | RetainedDigests
    | RetainedRequest
    | RetainedVersions
    | RetainedValuesFrame
)
"""What two nodes that need not be neighbours tell each other, hop by hop. Letters may get lost."""
UNICASTS = (
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedDigests,
    RetainedRequest,
    RetainedVersions,
    RetainedValuesFrame,
)
"""The same for `isinstance`, which is slow with a union."""

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
)
"""Control frames whose order matters; on datagram links they are numbered."""

ControlFrame = OrderedFrame | Heartbeat


class SequencedFrame(Frame, frozen=True, array_like=True, tag=11):
    """On datagram links: a control frame with its place in the order."""

    sequence: Unsigned
    frame: OrderedFrame


AnyFrame = ControlFrame | FrameAck | SequencedFrame
