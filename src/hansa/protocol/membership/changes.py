"""Changes of the database, and changes that the overlay reports besides effects, for `node` to pass
to other parts."""

import msgspec

from hansa.protocol.effects import Effect
from hansa.protocol.membership.records import NodeRecord, RecordKind, Row, Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import ControlFrame


class SetChange(msgspec.Struct, frozen=True):
    kind: RecordKind
    node: NodeId
    stamp: Stamp
    """The stamp of the row with this change; the database may already hold a newer one."""
    added: tuple[str, ...]
    removed: tuple[str, ...]


class RecordChange(msgspec.Struct, frozen=True):
    """A node's record changed."""

    record: NodeRecord


class FetchRequired(msgspec.Struct, frozen=True):
    """A change did not fit the row here: the whole row must be fetched."""

    row: Row


class RecordForged(msgspec.Struct, frozen=True):
    """The owner of a set has not signed this record of it."""


MergeResult = SetChange | RecordChange | FetchRequired | RecordForged | None


class LinkCostsChanged(msgspec.Struct, frozen=True):
    """The cost of a link changed considerably."""


class MapChanged(msgspec.Struct, frozen=True):
    """A node reports other links than before."""


class CapacityChanged(msgspec.Struct, frozen=True):
    """A node reports another capacity than before."""

    node: NodeId


class NodeRestarted(msgspec.Struct, frozen=True):
    """A node has restarted: claims of its earlier incarnation are void."""

    node: NodeId


class RightsChanged(msgspec.Struct, frozen=True):
    """The certificate of a node gives it other rights than before; a new node had none. `interest`
    is what that changes in its interest, if anything."""

    node: NodeId
    interest: SetChange | None = None


class MemberExcluded(msgspec.Struct, frozen=True):
    """The certificate of a known node is not valid any more: its state is dropped."""

    node: NodeId


class ControlFrameReceived(msgspec.Struct, frozen=True):
    """A control frame of a neighbour that the overlay does not handle itself."""

    sender: NodeId
    frame: ControlFrame


OverlayChange = (
    LinkCostsChanged
    | MapChanged
    | CapacityChanged
    | NodeRestarted
    | RightsChanged
    | MemberExcluded
    | SetChange
    | ControlFrameReceived
)
OVERLAY_CHANGES = (
    LinkCostsChanged,
    MapChanged,
    CapacityChanged,
    NodeRestarted,
    RightsChanged,
    MemberExcluded,
    SetChange,
    ControlFrameReceived,
)
"""For `isinstance`, which is slow with a union."""

OverlayOutput = list[Effect | OverlayChange]
