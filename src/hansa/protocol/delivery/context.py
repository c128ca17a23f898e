"""What guaranteed delivery reads of the rest of its node."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hansa.protocol.clock import WallClock
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import NodeId


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Questions that other parts of the node answer."""

    wants: Callable[[str], bool]
    """Whether a client here wants a topic for itself, not as one of a share."""
    receivers: Callable[[str], tuple[NodeId, ...]]
    """Which other nodes want a topic."""
    nodes: Mapping[NodeId, NodeRecord]
    """The records that are here."""
    clock: WallClock
    was_announced: Callable[[str], bool]
    """Whether this node may have asked others for a topic."""
    may_acknowledge: Callable[[], bool]
    """Whether receipts may be sent now: not while another node has this node's id (rule 2.7)."""
