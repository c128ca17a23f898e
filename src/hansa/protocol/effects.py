"""What a node wants done, and what it has to tell: the whole of its output, in order.

*Orders* must be performed by the shell. *News* may be recorded: it is the protocol's only log, and
telemetry, transcripts and checkers all read it. Every input makes some, so they are structs: frozen
dataclasses cost five times as much to make.
"""

import msgspec

from hansa.protocol.model import Group, LinkId, NodeId, Publication
from hansa.protocol.wire.frames import AnyFrame

# ---------------------------------------------------------------- orders


class Send(msgspec.Struct, frozen=True):
    """Send this frame over this link."""

    link: LinkId
    frame: AnyFrame | Publication


class CloseLink(msgspec.Struct, frozen=True):
    """Close this link once what was sent before has left; the reason is for the log."""

    link: LinkId
    reason: str


class SubscribeAtBroker(msgspec.Struct, frozen=True):
    """Subscribe at this node's own broker; answer with Granted or Denied."""

    filters: tuple[str, ...]


class UnsubscribeAtBroker(msgspec.Struct, frozen=True):
    """Nobody else wants these filters any more."""

    filters: tuple[str, ...]


class Deliver(msgspec.Struct, frozen=True):
    """Publish this to the node's own broker. At QoS 1 and 2 it counts as delivered when it is safe
    from a crash here: answer with Stored."""

    publication: Publication


class AppendToJournal(msgspec.Struct, frozen=True):
    """Write this to the journal, at the position that its number names. It must not leave, nor be
    acknowledged to the broker, before it is safe: answer with Kept."""

    publication: Publication


class ReadJournal(msgspec.Struct, frozen=True):
    """Read from the journal what is owed to a node at positions after `after` up to `upto`: as much
    as fits so many bytes, at least one if there is any. Always answer with Recalled."""

    receiver: NodeId
    epoch: int
    after: int
    upto: int
    bytes_max: int


class PersistHeard(msgspec.Struct, frozen=True):
    """Write down that a node has said in this life what it has. Answer with Heard when that is
    safe: from then on publications leave for it."""

    node: NodeId


class PersistPeer(msgspec.Struct, frozen=True):
    """Save what is known of a node (`Node.records_of`; if nothing is, forget it and what it was
    owed): publications are owed to it even if this node starts anew before it meets anybody. Answer
    with Noted."""

    save_id: int
    node: NodeId


class ListRetained(msgspec.Struct, frozen=True):
    """Read which retained values the broker holds for these filters, when all that was delivered
    until a moment before has reached it; answer with Surveyed, if ever."""

    filters: tuple[str, ...]


class ReadRetained(msgspec.Struct, frozen=True):
    """Read the retained values of these topics at the broker, for a node that asks for them; answer
    with StoredRead, if ever."""

    requester: NodeId
    topics: tuple[str, ...]


class PublishRetained(msgspec.Struct, frozen=True):
    """Publish this retained value to the broker, at its QoS. It is no publication of a client: it
    has no number, and nobody waits for it. An empty payload clears what the broker holds."""

    publication: Publication


class PersistRetained(msgspec.Struct, frozen=True):
    """Save the versions of retained values (`Retained.values`); a life that does not know them
    would ask for them once more."""


Command = (
    Send
    | CloseLink
    | SubscribeAtBroker
    | UnsubscribeAtBroker
    | Deliver
    | AppendToJournal
    | ReadJournal
    | PersistHeard
    | PersistPeer
    | ListRetained
    | ReadRetained
    | PublishRetained
    | PersistRetained
)

# ---------------------------------------------------------------- news


class LinkRefused(msgspec.Struct, frozen=True):
    """Whoever is behind a link cannot be a neighbour, for this reason; it will be closed."""

    link: LinkId
    reason: str


class NeighbourUp(msgspec.Struct, frozen=True):
    """A link is usable: hellos were exchanged and agreed."""

    node: NodeId
    link: LinkId


class NeighbourDown(msgspec.Struct, frozen=True):
    """A neighbour is gone, with the reason."""

    node: NodeId
    reason: str


class NodeReachable(msgspec.Struct, frozen=True):
    """A node came into reach."""

    node: NodeId


class NodeUnreachable(msgspec.Struct, frozen=True):
    """A node went out of reach."""

    node: NodeId


class IncarnationRaised(msgspec.Struct, frozen=True):
    """This node outranks another record with its id: a copy's, a forgery or its own forgotten past.
    The shell must remember this incarnation."""

    incarnation: int


class CoreElected(msgspec.Struct, frozen=True):
    """This node now takes that node for the core of a group."""

    group: Group
    core: NodeId


class CoreLost(msgspec.Struct, frozen=True):
    """The core of a group went out of reach or gave up, and no other is known."""

    group: Group
    core: NodeId


class ParentsChanged(msgspec.Struct, frozen=True):
    """The ways towards a core changed. No parents and a distance above 0: there is none."""

    core: NodeId
    incarnation: int
    seq: int
    distance: int
    parents: tuple[NodeId, ...]


class MeshJoined(msgspec.Struct, frozen=True):
    """This node became a member of a group's mesh."""

    group: Group


class MeshLeft(msgspec.Struct, frozen=True):
    """This node is no longer a member of a group's mesh."""

    group: Group


class InterestInstalled(msgspec.Struct, frozen=True):
    """Every node in reach has this version of this node's interest in force."""

    version: int


class Duplicate(msgspec.Struct, frozen=True):
    """A copy of a publication seen before was dropped."""

    origin: NodeId
    sequence: int


class Dropped(msgspec.Struct, frozen=True):
    """A publication or part of its way was given up."""

    origin: NodeId
    sequence: int
    reason: str


class Gap(msgspec.Struct, frozen=True):
    """What an origin owed this node at these positions will never come."""

    origin: NodeId
    epoch: int
    first: int
    last: int
    reason: str


class DeliveryAbandoned(msgspec.Struct, frozen=True):
    """What this node owed another at these positions was never acknowledged, and the other was away
    for longer than its lease."""

    node: NodeId
    epoch: int
    first: int
    last: int


class Repaired(msgspec.Struct, frozen=True):
    """Publications that were missing came from their origin's journal."""

    origin: NodeId
    count: int


class EpochRolloverRequired(msgspec.Struct, frozen=True):
    """A receiver knows positions that this node's journal does not: it is an old copy. The shell
    must make one of a new epoch, with all that receivers have not acknowledged, and answer with
    Reopened."""

    epoch: int


class Ignored(msgspec.Struct, frozen=True):
    """A well-formed but senseless input was ignored, or a bound was met."""

    reason: str


Notification = (
    LinkRefused
    | NeighbourUp
    | NeighbourDown
    | NodeReachable
    | NodeUnreachable
    | IncarnationRaised
    | CoreElected
    | CoreLost
    | ParentsChanged
    | MeshJoined
    | MeshLeft
    | InterestInstalled
    | Duplicate
    | Dropped
    | Gap
    | DeliveryAbandoned
    | Repaired
    | EpochRolloverRequired
    | Ignored
)

Effect = Command | Notification
