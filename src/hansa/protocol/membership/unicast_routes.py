"""The next hop of each unicast frame, and detours for frames that are sent again.

A frame travels hop by hop over the best path of the map. A relay that keeps its links up but drops
frames is not noticed by the map. So a frame that its source sends again unchanged, because no
answer came, names a relay of the best path to avoid: the first one at the first repetition, then
the next, then none. All relays exclude that node when they choose their next hop. Later frames to
the same destination take the same detour, because it is the last path that was tried before the
source made progress. See protocol.md 3.10.
"""

from typing import TypeVar

from msgspec.structs import replace

from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import (
    NO_NODE,
    InterestAck,
    InterestAckRequest,
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedRequest,
    Unicast,
)

_REPEATED_IF_EQUAL = (
    InterestAck,
    InterestAckRequest,
    PendingNotice,
    Receipt,
    RetainedRequest,
)
_Routed = TypeVar("_Routed", bound=Unicast | InterestAck | InterestAckRequest)


class _Destination:
    """What this node sent to one destination last."""

    __slots__ = ("avoid", "last_hashes", "last_repair")

    def __init__(self) -> None:
        self.avoid = NO_NODE
        self.last_hashes: dict[type, int] = {}
        self.last_repair = (-1, -1)

    def is_repeated(self, frame: object) -> bool:
        if isinstance(frame, RepairResponse):  # of several frames, the first one shows it
            position = (frame.epoch, frame.after)
            repeated = position <= self.last_repair
            self.last_repair = position
            return repeated
        if not isinstance(frame, _REPEATED_IF_EQUAL):
            return False
        digest = hash(frame)
        repeated = self.last_hashes.get(type(frame)) == digest
        self.last_hashes[type(frame)] = digest
        return repeated


class UnicastRoutes:
    """Chooses paths for the unicast frames of one node, and for those that it relays."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._destinations: dict[NodeId, _Destination] = {}

    def route(self, frame: _Routed) -> tuple[_Routed, NodeId | None]:
        """Return the frame as it leaves and the neighbour to which it goes; None without a path."""
        if not frame.hops:
            frame = self._choose_path(frame)
        if frame.avoid:
            return frame, self._graph.next_hop_avoiding(frame.destination, frame.avoid)
        return frame, self._graph.next_hop(frame.destination)

    def reset(self, node: NodeId) -> None:
        """Start again with the best path: the node came into reach, or its lease has ended."""
        self._destinations.pop(node, None)

    def on_interest_ack(self, node: NodeId) -> None:
        """A node answered: the next request to it is not a repetition."""
        if (destination := self._destinations.get(node)) is not None:
            destination.last_hashes.pop(InterestAckRequest, None)

    def _choose_path(self, frame: _Routed) -> _Routed:
        to = frame.destination
        if to not in self._graph.reachable:
            return frame
        destination = self._destinations.get(to)
        if destination is None:
            destination = self._destinations[to] = _Destination()
        if destination.is_repeated(frame):
            destination.avoid = self._next_avoided(to, destination.avoid)
        return replace(frame, avoid=destination.avoid) if destination.avoid else frame

    def _next_avoided(self, to: NodeId, avoided: NodeId) -> NodeId:
        relays = self._graph.relays_to(to)
        place = relays.index(avoided) + 1 if avoided in relays else 0
        return relays[place] if place < len(relays) else NO_NODE
