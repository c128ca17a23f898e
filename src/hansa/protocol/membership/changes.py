"""What an overlay reports beside effects: changes for `node` to carry to those that care."""

import msgspec

from hansa.protocol.effects import Effect
from hansa.protocol.membership.database import SetChange
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import ControlFrame


class LinkCostsChanged(msgspec.Struct, frozen=True):
    """A link became noticeably longer or shorter."""


class CapacityChanged(msgspec.Struct, frozen=True):
    """A node reports another capacity than before."""

    node: NodeId


class NodeRestarted(msgspec.Struct, frozen=True):
    """A node is known to have started anew: what its former life claimed is void."""

    node: NodeId


class ControlFrameReceived(msgspec.Struct, frozen=True):
    """A frame of a neighbour that is not the overlay's own."""

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
"""The same for `isinstance`, which is slow with a union."""

OverlayOutput = list[Effect | OverlayChange]
