"""Changes that the overlay reports besides effects, for `node` to pass to other parts."""

import msgspec

from hansa.protocol.effects import Effect
from hansa.protocol.membership.database import SetChange
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import ControlFrame


class LinkCostsChanged(msgspec.Struct, frozen=True):
    """The cost of a link changed considerably."""


class CapacityChanged(msgspec.Struct, frozen=True):
    """A node reports another capacity than before."""

    node: NodeId


class NodeRestarted(msgspec.Struct, frozen=True):
    """A node has restarted: claims of its earlier incarnation are void."""

    node: NodeId


class ControlFrameReceived(msgspec.Struct, frozen=True):
    """A control frame of a neighbour that the overlay does not handle itself."""

    sender: NodeId
    frame: ControlFrame


OverlayChange = (
    LinkCostsChanged | CapacityChanged | NodeRestarted | SetChange | ControlFrameReceived
)
OVERLAY_CHANGES = (
    LinkCostsChanged,
    CapacityChanged,
    NodeRestarted,
    SetChange,
    ControlFrameReceived,
)
"""For `isinstance`, which is slow with a union."""

OverlayOutput = list[Effect | OverlayChange]
