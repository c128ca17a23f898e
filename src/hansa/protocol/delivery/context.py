"""What guaranteed delivery reads from other parts of its node."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hansa.protocol.clock import WallClock
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.membership.rights import UNLIMITED, Rights
from hansa.protocol.model import NodeId


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Queries that other parts of the node answer."""

    has_plain_subscriber: Callable[[str], bool]
    """Whether a local client has a matching filter that is not a shared subscription."""
    receivers: Callable[[str], tuple[NodeId, ...]]
    """The other nodes interested in a topic."""
    nodes: Mapping[NodeId, NodeRecord]
    """The records of all known nodes."""
    clock: WallClock
    was_announced: Callable[[str], bool]
    """Whether a filter of this node may have matched a topic."""
    may_acknowledge: Callable[[], bool]
    """Whether receipts may be sent now: not while another node has this node's id (rule 2.7)."""
    rights_of: Callable[[NodeId], Rights] = lambda node: UNLIMITED
    """What a node may publish and receive."""
