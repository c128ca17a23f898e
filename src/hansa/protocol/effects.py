"""What a node wants done, and what it has to tell: the whole of its output, in order.

*Orders* must be performed by the shell. *News* may be recorded: it is the protocol's only log, and
telemetry, transcripts and checkers all read it.
"""

from dataclasses import dataclass

from hansa.protocol.frames import Any
from hansa.protocol.vocabulary import Group, LinkId, NodeId, Publication

# ---------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True)
class Send:
    """Send this frame over this link."""

    link: LinkId
    frame: Any | Publication


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Close this link once what was sent before has left; the reason is for the log."""

    link: LinkId
    reason: str


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe at this node's own broker; answer with Granted or Denied."""

    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Nobody else wants these filters any more."""

    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Publish this to the node's own broker. At QoS 1 and 2 it counts as delivered when it is safe
    from a crash here: answer with Stored."""

    publication: Publication


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this to the journal, at the position that its number names. It must not leave, nor be
    acknowledged to the broker, before it is safe: answer with Kept."""

    publication: Publication


@dataclass(frozen=True, slots=True)
class Recall:
    """Read from the journal what is owed to a node at positions after `after` up to `upto`: as much
    as fits so many bytes, at least one if there is any. Always answer with Recalled."""

    to: NodeId
    epoch: int
    after: int
    upto: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Remember:
    """Save what is known of a node (`Node.records_of`; if nothing is, forget it): publications are
    owed to it even if this node starts anew before it meets anybody. Answer with Noted."""

    number: int
    node: NodeId


@dataclass(frozen=True, slots=True)
class Rekey:
    """Another node has this id with another key and was here first: start again with a new key."""

    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Another node runs with this very key and was here first: stop."""

    reason: str


Order = (
    Send | CloseLink | Subscribe | Unsubscribe | Deliver | Keep | Recall | Remember | Rekey | Halt
)

# ---------------------------------------------------------------- news


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """Whoever is behind a link cannot be a neighbour, for this reason; it will be closed."""

    link: LinkId
    reason: str


@dataclass(frozen=True, slots=True)
class NeighbourUp:
    """A link is usable: hellos were exchanged and agreed."""

    node: NodeId
    link: LinkId


@dataclass(frozen=True, slots=True)
class NeighbourDown:
    """A neighbour is gone, with the reason."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A node came into reach."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A node went out of reach."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class IncarnationRaised:
    """This node outranks an impostor or its own forgotten past; the shell must remember this."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class CoreElected:
    """This node now takes that node for the core of a group."""

    group: Group
    core: NodeId


@dataclass(frozen=True, slots=True)
class CoreLost:
    """The core of a group went out of reach or gave up, and no other is known."""

    group: Group
    core: NodeId


@dataclass(frozen=True, slots=True)
class ParentsChanged:
    """The ways towards a core changed. No parents and a distance above 0: there is none."""

    core: NodeId
    incarnation: int
    seq: int
    distance: int
    parents: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class MeshJoined:
    """This node became a member of a group's mesh."""

    group: Group


@dataclass(frozen=True, slots=True)
class MeshLeft:
    """This node is no longer a member of a group's mesh."""

    group: Group


@dataclass(frozen=True, slots=True)
class InterestInstalled:
    """Every node in reach has this version of this node's interest in force."""

    version: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A copy of a publication seen before was dropped."""

    origin: NodeId
    number: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A publication or part of its way was given up."""

    origin: NodeId
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """What an origin owed this node at these positions will never come."""

    origin: NodeId
    epoch: int
    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """Publications that were missing came from their origin's journal."""

    origin: NodeId
    count: int


@dataclass(frozen=True, slots=True)
class EpochRenewed:
    """A receiver knows positions that this node's journal does not: it is an old copy. What follows
    has a new epoch; what was published since the copy was put in place may be lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """A well-formed but senseless input was ignored, or a bound was met."""

    reason: str


News = (
    LinkRefused
    | NeighbourUp
    | NeighbourDown
    | MemberJoined
    | MemberLost
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
    | Repaired
    | EpochRenewed
    | Ignored
)

Effect = Order | News
