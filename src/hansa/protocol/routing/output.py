"""What a routing strategy returns: frames for neighbours, and effects."""

import msgspec

from hansa.protocol.effects import Effect
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import OrderedFrame


class SendToNeighbour(msgspec.Struct, frozen=True):
    """Send this frame to a neighbour; strategies return these together with effects."""

    node: NodeId
    frame: OrderedFrame


StrategyOutput = list[Effect | SendToNeighbour]
