"""What can happen to a node: the whole of its input, as immutable values.

A shell makes these from sockets, brokers and clocks; the simulator makes them from a seed.
"""

import msgspec

from hansa.protocol.membership.records import Record, Stamp
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.frames import AnyFrame


class LinkOpened(msgspec.Struct, frozen=True):
    """A connection to some node stands; who it is, its hello will tell."""

    link: LinkId
    dialled: bool
    """Whether this side opened it: of two connections, both sides keep the same one."""
    ordered: bool = True
    """Whether it keeps frames whole and in order, as TCP does. If not, the node numbers them."""


class LinkClosed(msgspec.Struct, frozen=True):
    """A connection is gone."""

    link: LinkId
    reason: str = "connection closed"


class FrameReceived(msgspec.Struct, frozen=True):
    """A frame arrived, already decoded."""

    link: LinkId
    frame: AnyFrame | Publication


class TimerFired(msgspec.Struct, frozen=True):
    """The deadline that the node named has come, or may have."""


class ClockRead(msgspec.Struct, frozen=True):
    """The machine's wall clock shows this time, in milliseconds since 1970. Tell it at the start
    and when it no longer follows the steady clock of `now`: it was set, or the machine slept."""

    wall_ms: int


class InterestChanged(msgspec.Struct, frozen=True):
    """Clients of this node's broker subscribed or unsubscribed: filters that are now wanted here,
    and filters that nobody here wants any more."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class SubscriptionsGranted(msgspec.Struct, frozen=True):
    """The broker has granted the node's own subscriptions to these filters."""

    filters: tuple[str, ...]


class SubscriptionsDenied(msgspec.Struct, frozen=True):
    """The broker has refused the node's own subscriptions to these filters."""

    filters: tuple[str, ...]
    reason: str


class ClientPublished(msgspec.Struct, frozen=True):
    """A client of this node's broker published something that the node is subscribed to."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""


class PeersRestored(msgspec.Struct, frozen=True):
    """What the disk remembers of other nodes, whole records: the first event of a life."""

    records: tuple[Record, ...]
    absent_seconds: dict[NodeId, float] = msgspec.field(default_factory=dict)
    """For how many seconds nodes had been out of reach."""
    tombstones: dict[NodeId, Stamp] = msgspec.field(default_factory=dict)
    """Which records must not come back."""


class PeersPersisted(msgspec.Struct, frozen=True):
    """All that the node asked to remember, up to this number, is safe."""

    save_id: int


class JournalCommitted(msgspec.Struct, frozen=True):
    """The journal is safe up to this position: what the node had kept may leave."""

    epoch: int
    seq: int


class JournalRead(msgspec.Struct, frozen=True):
    """What the journal still holds for a node after `after`: all of it up to `upto`, which is the
    last of it, or what the node asked for if there is nothing."""

    receiver: NodeId
    epoch: int
    after: int
    upto: int
    publications: tuple[Publication, ...]


class EpochStarted(msgspec.Struct, frozen=True):
    """The journal of a new epoch is in place of the old one. It holds what receivers had not
    acknowledged, up to these positions, and goes on at `next_seq`."""

    epoch: int
    next_seq: int
    last_assigned: tuple[tuple[NodeId, int], ...]


class HeardPersisted(msgspec.Struct, frozen=True):
    """It is safe that a node has said in this life what it has."""

    node: NodeId


class InboxCommitted(msgspec.Struct, frozen=True):
    """What `origin` published up to this position is safe here, on its way to the broker."""

    origin: NodeId
    epoch: int
    seq: int


class RetainedListed(msgspec.Struct, frozen=True):
    """The broker holds these retained values for some filters, and no others."""

    filters: tuple[str, ...]
    values: tuple[tuple[str, bytes], ...]
    """Per topic the digest of its payload."""
    age: float = 0.0
    """Seconds since when what was delivered may not have been there yet."""


class RetainedRead(msgspec.Struct, frozen=True):
    """What the broker holds of the topics that a node asked for."""

    requester: NodeId
    values: tuple[ClientPublished, ...]


class StoreUncertain(msgspec.Struct, frozen=True):
    """The broker may hold another value of these topics than the newest that was delivered: a
    handshake was interrupted or refused, or the agent has connected to the broker."""

    topics: tuple[str, ...]
    reconnected: bool = False
    """Whether the agent has connected to the broker, for the first time or again: writes of QoS 0
    may be lost, and the broker may have gone back to an older state. Then the values of all other
    nodes are compared."""


StorageEvent = (
    PeersRestored
    | PeersPersisted
    | JournalCommitted
    | JournalRead
    | EpochStarted
    | HeardPersisted
    | InboxCommitted
    | RetainedListed
    | RetainedRead
    | StoreUncertain
)

Event = (
    LinkOpened
    | LinkClosed
    | FrameReceived
    | TimerFired
    | ClockRead
    | InterestChanged
    | SubscriptionsGranted
    | SubscriptionsDenied
    | ClientPublished
    | StorageEvent
)
