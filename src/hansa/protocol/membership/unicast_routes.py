"""The next hop of each unicast frame, and detours for frames that are sent again.

A frame travels hop by hop over the best path of the map. A relay that keeps its links up but drops
frames is not noticed by the map. So a frame that its source sends again, because no answer came,
names all nodes of another path in its field `via`, and every relay passes it to the next one. The
source remembers the paths that failed, and chooses the path whose relays have the least blame for
them: one that shares no relay with them, if there is one. So several relays that drop frames are
avoided together, and relays search nothing. Later frames to the same destination take the same
path, and answers take it in reverse: it is the last path that was tried before the source made
progress. See protocol.md 3.10, 3.12 and 3.13.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.wire.frames import (
    InterestAck,
    InterestAckRequest,
    Path,
    PendingNotice,
    Query,
    Receipt,
    RepairResponse,
    RetainedRequest,
    RetainedVersions,
    SealedUnicast,
    Unicast,
)

FAILED_PATHS_MAX = 8
"""Failed paths that are remembered for each destination."""

SEARCHES_PER_S_MAX = 32
"""Searches for another path, for all destinations together. A frame that is sent again when there
were as many in the last second keeps its path."""

_BLAME = 1 << 20
"""The blame of one failed path, in whole numbers so that all machines compute the same."""

_BLAME_ROUNDS = 3

_REPEATED_IF_EQUAL = (
    InterestAck,
    InterestAckRequest,
    PendingNotice,
    Query,
    Receipt,
    RetainedRequest,
)
_Kind = tuple[type, bool]
"""The type of a frame, and whether it is a receipt that requests publications: receipts of both
kinds may be sent by turns without any progress."""

_Routed = TypeVar("_Routed", bound=Unicast | SealedUnicast | InterestAck | InterestAckRequest)


class _Destination:
    """What this node sent to one destination last."""

    __slots__ = (
        "failed",
        "is_proven",
        "last_hashes",
        "last_proven",
        "last_repair",
        "map_version",
        "via",
    )

    def __init__(self, node: NodeId) -> None:
        self.via: Path = ()
        self.failed: deque[list[NodeId]] = deque(maxlen=FAILED_PATHS_MAX)
        """The relays of the last paths that failed."""
        self.is_proven = False
        """Whether the destination sent a frame over the path that `via` names."""
        self.last_proven: Path = (node,)
        """The path that was proven last; at first the direct link."""
        self.last_hashes: dict[_Kind, int] = {}
        self.last_repair = (-1, -1)
        self.map_version = -1
        """The version of the map that has all links of the path; -1 if it is not compared yet."""

    def start_path(self, via: Path) -> None:
        """Take another path: frames that were sent before do not show whether it fails."""
        self.via = via
        self.is_proven = False
        self.last_hashes.clear()
        self.last_repair = (-1, -1)
        self.map_version = -1

    def is_repeated(self, frame: object) -> bool:
        if isinstance(frame, RepairResponse):  # of several frames, the first one shows it
            position = (frame.epoch, frame.after)
            repeated = position <= self.last_repair
            self.last_repair = position
            return repeated
        if not isinstance(frame, _REPEATED_IF_EQUAL):
            return False
        digest = _request_digest(frame)
        kind = (type(frame), isinstance(frame, Receipt) and frame.bytes_requested > 0)
        repeated = self.last_hashes.get(kind) == digest
        self.last_hashes[kind] = digest
        return repeated


def _request_digest(frame: object) -> int:
    """Return a value that is equal for requests that expect the same progress. A pending notice
    names a later position if something was published meanwhile."""
    return frame.epoch if isinstance(frame, PendingNotice) else hash(frame)


def _blame(failed: Iterable[list[NodeId]]) -> dict[NodeId, int]:
    """Return the blame of each relay of the failed paths. Each path blames its relays, in
    proportion to the blame that they have from all paths: if a path with a single relay failed,
    that relay also explains the failure of longer paths."""
    blame = {relay: _BLAME for relays in failed for relay in relays}
    for _ in range(_BLAME_ROUNDS):
        shared = dict.fromkeys(blame, 0)
        for relays in failed:
            total = sum(blame[relay] for relay in relays)
            for relay in relays:
                shared[relay] += _BLAME * blame[relay] // total
        blame = shared
    return blame


class UnicastRoutes:
    """Chooses paths for the unicast frames of one node, and for those that it relays."""

    def __init__(self, node: NodeId, graph: Graph) -> None:
        self._self = node
        self._graph = graph
        self._destinations: dict[NodeId, _Destination] = {}
        self._search_times: deque[float] = deque(maxlen=SEARCHES_PER_S_MAX)

    def route(self, frame: _Routed, now: float) -> tuple[_Routed, NodeId | None]:
        """Return the frame as it leaves and the neighbour to which it goes; None without a path."""
        if not frame.hops:
            frame = self._choose_path(frame, now)
        if frame.via:
            if (hop := self._next_relay(frame)) is not None:
                return frame, hop
            frame = replace(frame, via=())
        return frame, self._graph.next_hop(frame.destination)

    def reset(self, node: NodeId) -> None:
        """Start again with the best path: the node came into reach, or its lease has ended."""
        self._destinations.pop(node, None)

    def on_answer(self, node: NodeId, request: type) -> None:
        """A node answered: the next request of this type to it is not a repetition."""
        if (destination := self._destinations.get(node)) is not None:
            destination.last_hashes.pop((request, False), None)

    def on_received(self, frame: Unicast) -> bool:
        """A node sent a frame to this one. If it named the path, that path does not fail, so
        frames to the node take it in reverse. Return whether earlier frames may be lost.
        `RetainedVersions` may name another source than the node that sent it (9.5)."""
        if not frame.via or isinstance(frame, RetainedVersions):
            return False
        is_path = frame.via[-1] == self._self and frame.source not in frame.via
        if not is_path or frame.source not in self._graph.reachable:
            return False
        destination = self._find_or_make(frame.source)
        if destination.via and destination.is_proven:
            return False  # otherwise both ends could exchange their paths again and again
        destination.start_path((*frame.via[-2::-1], frame.source))
        destination.is_proven = True
        # A direct link that is proven again dropped nothing: requests keep their growing intervals.
        before, destination.last_proven = destination.last_proven, destination.via
        return len(destination.via) > 1 or destination.via != before

    def _next_relay(self, frame: _Routed) -> NodeId | None:
        """Return the node that follows this one on the path that a frame names; None if this node
        is not on it or not linked to that one."""
        after = 0
        if frame.hops:
            after = frame.via.index(self._self) + 1 if self._self in frame.via else len(frame.via)
        hop = frame.via[after] if after < len(frame.via) else None
        return hop if hop in self._graph.lengths(self._self) else None

    def _find_or_make(self, to: NodeId) -> _Destination:
        destination = self._destinations.get(to)
        if destination is None:
            destination = self._destinations[to] = _Destination(to)
        return destination

    def _choose_path(self, frame: _Routed, now: float) -> _Routed:
        to = frame.destination
        if to not in self._graph.reachable:
            return frame
        destination = self._find_or_make(to)
        self._replace_broken_path(to, destination, now)
        if destination.is_repeated(frame) and self._may_search(now):
            named = list(destination.via[:-1])
            destination.failed.append(
                named if destination.via else self._graph.relays_of_round_trip(to)
            )
            destination.start_path(self._find_path(to, destination.failed))
            destination.is_repeated(frame)  # the next one is
        return replace(frame, via=destination.via) if destination.via else frame

    def _may_search(self, now: float) -> bool:
        times = self._search_times
        if len(times) == SEARCHES_PER_S_MAX and now < times[0] + 1.0:
            return False
        times.append(now)
        return True

    def _replace_broken_path(self, to: NodeId, destination: _Destination, now: float) -> None:
        """If the map has lost a link of the path, take another one: relays at the gap would send
        frames a long way back, beyond the limit of hops."""
        if not destination.via or destination.map_version == self._graph.version:
            return
        destination.map_version = self._graph.version
        nodes = (self._self, *destination.via)
        if all(b in self._graph.lengths(a) for a, b in pairwise(nodes)):
            return
        is_searched = destination.failed and self._may_search(now)
        destination.start_path(self._find_path(to, destination.failed) if is_searched else ())

    def _find_path(self, to: NodeId, failed: deque[list[NodeId]]) -> Path:
        """Return the path whose relays have the least blame; of several the shortest one. It is
        empty, which means the best path, if it would be too long. Dijkstra with two costs."""
        blame = _blame(failed)
        before: dict[NodeId, NodeId] = {}
        heap: list[tuple[int, int, NodeId, NodeId]] = [(0, 0, self._self, self._self)]
        while to not in before:
            blamed, length, node, previous = heapq.heappop(heap)
            if node in before:
                continue
            before[node] = previous
            for other, step in self._graph.lengths(node).items():
                if other not in before:
                    costs = (blamed + blame.get(other, 0), length + step)
                    heapq.heappush(heap, (*costs, other, node))
        path = [to]
        while (to := before[to]) != self._self:
            path.append(to)
        return tuple(reversed(path)) if len(path) <= HOPS_MAX else ()
