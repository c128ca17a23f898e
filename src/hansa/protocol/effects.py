"""The effects that a node returns: its whole output, in the order to perform.

The shell must perform *commands*. *Notifications* only report: they are the log of the protocol,
and telemetry, transcripts and checkers read them. Three commands also report something that
happened (`ReportedCommand`). Effects are structs because frozen dataclasses take five times as long
to create.
"""

import msgspec

from hansa.protocol.model import Group, LinkId, NodeId, Publication
from hansa.protocol.wire.frames import AnyFrame

# ---------------------------------------------------------------- commands


class Send(msgspec.Struct, frozen=True):
    """Send this frame over this link."""

    link: LinkId
    frame: AnyFrame | Publication


class CloseLink(msgspec.Struct, frozen=True):
    """Close this link after all earlier frames have left; the reason is for the log."""

    link: LinkId
    reason: str


class SubscribeAtBroker(msgspec.Struct, frozen=True):
    """Subscribe at this node's own broker; answer with `SubscriptionsGranted` or
    `SubscriptionsDenied`."""

    filters: tuple[str, ...]


class UnsubscribeAtBroker(msgspec.Struct, frozen=True):
    """Unsubscribe: no other node is interested in these filters any more."""

    filters: tuple[str, ...]


class Deliver(msgspec.Struct, frozen=True):
    """Publish this to the node's own broker. At QoS 1 and 2 it counts as delivered when it is
    durable here: answer with `InboxCommitted`."""

    publication: Publication


class AppendToJournal(msgspec.Struct, frozen=True):
    """Append this to the journal, at the position in `sequence`. It must not leave, and not be
    acknowledged to the broker, before it is durable: answer with `JournalCommitted`."""

    publication: Publication


class ReadJournal(msgspec.Struct, frozen=True):
    """Read the publications for one receiver after `after` up to `upto` from the journal: as many
    as fit into so many bytes, at least one if there is any. Always answer with `JournalRead`."""

    receiver: NodeId
    epoch: int
    after: int
    upto: int
    bytes_max: int


class PersistProgressReport(msgspec.Struct, frozen=True):
    """Persist that a receiver reported its position in this incarnation. Answer with
    `ProgressReportPersisted`; from then on publications leave for it."""

    node: NodeId


class PersistPeer(msgspec.Struct, frozen=True):
    """Persist the records of a node (`Node.membership.records_of`); if there are none, delete the
    node and its pending publications. After a restart, publications are pending for it before it is
    reachable. Answer with `PeersPersisted`."""

    save_id: int
    node: NodeId


class ListRetained(msgspec.Struct, frozen=True):
    """List the retained values that the broker holds for these filters, after earlier deliveries
    have reached it. Answer with `RetainedListed`; a lost answer is harmless."""

    filters: tuple[str, ...]


class ReadRetained(msgspec.Struct, frozen=True):
    """Read the retained values of these topics at the broker, for a node that requested them.
    Answer with `RetainedRead`; a lost answer is harmless."""

    requester: NodeId
    topics: tuple[str, ...]


class PublishRetained(msgspec.Struct, frozen=True):
    """Publish this retained value to the broker, at its QoS. It is not a publication of a client:
    it has no sequence number and no acknowledgement. An empty payload clears the value."""

    publication: Publication


class PersistRetained(msgspec.Struct, frozen=True):
    """Persist the versions of retained values (`Node.delivery.retained`). Without them, the next
    incarnation requests the values again."""


class QueryReceived(msgspec.Struct, frozen=True):
    """The agent of another node asks this agent. The shell may answer with `QueryAnswered`."""

    source: NodeId
    number: int
    data: bytes


class QueryResponseReceived(msgspec.Struct, frozen=True):
    """The response to a query of this agent; perhaps late, or one that it did not ask for."""

    source: NodeId
    number: int
    data: bytes


class IncarnationRaised(msgspec.Struct, frozen=True):
    """This node raised its incarnation to outrank another record with its id: of a copy, of a
    forger or of its own forgotten past. The shell must persist the incarnation."""

    incarnation: int


class EpochRolloverRequired(msgspec.Struct, frozen=True):
    """A receiver has acknowledged positions that this node's journal does not contain, so the
    journal is an old copy. The shell must start a journal of a new epoch with all unacknowledged
    publications, and answer with `EpochStarted`."""

    epoch: int


class Gap(msgspec.Struct, frozen=True):
    """Publications of an origin at these positions will never arrive. The shell must record in the
    inbox that the origin's stream continues after them."""

    origin: NodeId
    epoch: int
    first: int
    last: int
    reason: str


ReportedCommand = IncarnationRaised | EpochRolloverRequired | Gap
"""Commands that also report what happened: the shell treats them like notifications, too."""

Command = (
    Send
    | CloseLink
    | SubscribeAtBroker
    | UnsubscribeAtBroker
    | Deliver
    | AppendToJournal
    | ReadJournal
    | PersistProgressReport
    | PersistPeer
    | ListRetained
    | ReadRetained
    | PublishRetained
    | PersistRetained
    | QueryReceived
    | QueryResponseReceived
    | ReportedCommand
)

# ---------------------------------------------------------------- notifications


class LinkRefused(msgspec.Struct, frozen=True):
    """The peer on a link cannot be a neighbour, for this reason; the link will be closed."""

    link: LinkId
    reason: str


class PeerMisbehaved(msgspec.Struct, frozen=True):
    """The peer on this link sent something that an honest node never sends, not even during a race
    or a change of topology; it was ignored. A frame that an honest node could have forwarded
    unchecked is only `Ignored`."""

    link: LinkId
    reason: str


class NeighbourUp(msgspec.Struct, frozen=True):
    """A link is usable: the hellos were exchanged and agree."""

    node: NodeId
    link: LinkId


class NeighbourDown(msgspec.Struct, frozen=True):
    """A neighbour was lost, with the reason."""

    node: NodeId
    reason: str


class NodeReachable(msgspec.Struct, frozen=True):
    """A node became reachable."""

    node: NodeId


class NodeUnreachable(msgspec.Struct, frozen=True):
    """A node became unreachable."""

    node: NodeId


class CoreElected(msgspec.Struct, frozen=True):
    """This node now regards another as the core of a group."""

    group: Group
    core: NodeId


class CoreLost(msgspec.Struct, frozen=True):
    """The core of a group became unreachable or resigned, and no other is known."""

    group: Group
    core: NodeId


class ParentsChanged(msgspec.Struct, frozen=True):
    """The routes to a core changed. No parents and a distance above 0: there is no route."""

    core: NodeId
    incarnation: int
    sequence: int
    distance: int
    parents: tuple[NodeId, ...]


class MeshJoined(msgspec.Struct, frozen=True):
    """This node became a member of a group's mesh."""

    group: Group


class MeshLeft(msgspec.Struct, frozen=True):
    """This node is no longer a member of a group's mesh."""

    group: Group


class InterestInstalled(msgspec.Struct, frozen=True):
    """This version of this node's interest is in force at every reachable node."""

    version: int


class Duplicate(msgspec.Struct, frozen=True):
    """A copy of a known publication arrived; it is forwarded at most for further groups."""

    origin: NodeId
    sequence: int


class Dropped(msgspec.Struct, frozen=True):
    """A publication, or one branch of its path, was dropped."""

    origin: NodeId
    sequence: int
    reason: str


class DeliveryAbandoned(msgspec.Struct, frozen=True):
    """A receiver did not acknowledge these positions before its lease ended."""

    node: NodeId
    epoch: int
    first: int
    last: int


class Repaired(msgspec.Struct, frozen=True):
    """Missing publications arrived from the journal of their origin."""

    origin: NodeId
    count: int


class Ignored(msgspec.Struct, frozen=True):
    """Something was refused, dropped or only counted, for this reason."""

    reason: str


Notification = (
    LinkRefused
    | PeerMisbehaved
    | NeighbourUp
    | NeighbourDown
    | NodeReachable
    | NodeUnreachable
    | CoreElected
    | CoreLost
    | ParentsChanged
    | MeshJoined
    | MeshLeft
    | InterestInstalled
    | Duplicate
    | Dropped
    | DeliveryAbandoned
    | Repaired
    | Ignored
)

Effect = Command | Notification
