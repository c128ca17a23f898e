"""The events that a node handles: its whole input, as immutable values.

The agent creates them from sockets, brokers, disks and clocks; the simulator from a seed.
"""

import msgspec

from hansa.protocol.membership.records import Record, Stamp
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.frames import AnyFrame


class LinkOpened(msgspec.Struct, frozen=True):
    """A connection is open. The hello will say to which node."""

    link: LinkId
    dialled: bool
    """Whether this side opened it. Of two connections to one node, both sides keep the same one."""
    ordered: bool = True
    """Whether the connection keeps frames whole and in order, as TCP does. If not, the node numbers
    them."""


class LinkClosed(msgspec.Struct, frozen=True):
    """A connection is closed."""

    link: LinkId
    reason: str = "connection closed"


class FrameReceived(msgspec.Struct, frozen=True):
    """A frame arrived, already decoded."""

    link: LinkId
    frame: AnyFrame | Publication


class TimerFired(msgspec.Struct, frozen=True):
    """The deadline of the node has passed. Early events are harmless."""


class ClockRead(msgspec.Struct, frozen=True):
    """The wall clock shows this time, in milliseconds since 1970. Sent at the start, and when the
    wall clock departs from the monotonic clock of `now`: it was set, or the machine slept."""

    wall_ms: int


class CertificatesChanged(msgspec.Struct, frozen=True):
    """The shell has other certificates, or a newer revocation list, or some time has passed: all
    certificates are checked again."""


class InterestChanged(msgspec.Struct, frozen=True):
    """Clients of this node's broker subscribed or unsubscribed: filters that got their first
    subscriber, and filters that lost their last one."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class SubscriptionsGranted(msgspec.Struct, frozen=True):
    """The broker granted the node's own subscriptions to these filters."""

    filters: tuple[str, ...]


class SubscriptionsDenied(msgspec.Struct, frozen=True):
    """The broker refused the node's own subscriptions to these filters."""

    filters: tuple[str, ...]
    reason: str


class ClientPublished(msgspec.Struct, frozen=True):
    """A client of this node's broker published to a topic that the node is subscribed to."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""


class PeersRestored(msgspec.Struct, frozen=True):
    """Whole records of other nodes from disk: the first event of an incarnation."""

    records: tuple[Record, ...]
    absent_seconds: dict[NodeId, float] = msgspec.field(default_factory=dict)
    """Per unreachable node, for how many seconds it had been unreachable."""
    tombstones: dict[NodeId, Stamp] = msgspec.field(default_factory=dict)
    """Per forgotten node, the newest record that must not come back."""


class PeersPersisted(msgspec.Struct, frozen=True):
    """Every `PersistPeer` up to this save id is durable."""

    save_id: int


class JournalCommitted(msgspec.Struct, frozen=True):
    """The journal is durable up to this position; publications up to it may leave."""

    epoch: int
    sequence: int


class JournalRead(msgspec.Struct, frozen=True):
    """Publications in the journal for one receiver after `after`: all of them up to `upto`, which
    is the last one found, or the requested end if there are none."""

    receiver: NodeId
    epoch: int
    after: int
    upto: int
    publications: tuple[Publication, ...]


class EpochStarted(msgspec.Struct, frozen=True):
    """A journal of a new epoch replaced the old one. It holds the publications that receivers had
    not acknowledged, up to these positions, and continues at `next_sequence`."""

    epoch: int
    next_sequence: int
    last_assigned: tuple[tuple[NodeId, int], ...]


class ProgressReportPersisted(msgspec.Struct, frozen=True):
    """It is durable that a receiver has reported its position in this incarnation."""

    node: NodeId


class InboxCommitted(msgspec.Struct, frozen=True):
    """Publications of `origin` up to this position are durable in the inbox of this node."""

    origin: NodeId
    epoch: int
    sequence: int


class RetainedListed(msgspec.Struct, frozen=True):
    """The broker holds these retained values for some filters, and no others."""

    filters: tuple[str, ...]
    values: tuple[tuple[str, bytes], ...]
    """Per topic, the digest of the payload."""
    age: float = 0.0
    """Seconds before this event; publications delivered since then may be missing in the list."""


class RetainedRead(msgspec.Struct, frozen=True):
    """The values that the broker holds of the topics in a node's request."""

    requester: NodeId
    values: tuple[ClientPublished, ...]


class StoreUncertain(msgspec.Struct, frozen=True):
    """The broker may hold an older value of these topics than the newest delivered one: a handshake
    was interrupted or refused, or the agent connected to the broker."""

    topics: tuple[str, ...]
    reconnected: bool = False
    """Whether the agent connected to the broker, for the first time or again. Then QoS 0 writes may
    be lost, the broker may have restored an older state, and the values of all other nodes are
    compared."""


class QueryRequested(msgspec.Struct, frozen=True):
    """The agent asks the agent of another node, at most `QUERY_BYTES_MAX` bytes. The query may be
    lost; asked again with the same number, it takes another path."""

    destination: NodeId
    number: int
    data: bytes


class QueryAnswered(msgspec.Struct, frozen=True):
    """The response of the agent to `QueryReceived`, at most `QUERY_RESPONSE_BYTES_MAX` bytes."""

    destination: NodeId
    number: int
    data: bytes


StorageEvent = (
    PeersRestored
    | PeersPersisted
    | JournalCommitted
    | JournalRead
    | EpochStarted
    | ProgressReportPersisted
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
    | CertificatesChanged
    | InterestChanged
    | SubscriptionsGranted
    | SubscriptionsDenied
    | ClientPublished
    | QueryRequested
    | QueryAnswered
    | StorageEvent
)
