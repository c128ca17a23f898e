"""Acknowledgement of interest: which nodes have this node's interest in force.

A node that has all filters of another in force acknowledges that, with the position of its journal
from which on it counts the other as a receiver. When every reachable node has done so, the interest
is *installed*: no publication at a reachable node is missed for lack of a subscription. Nodes that
stay silent are asked.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.effects import Effect, Ignored, InterestInstalled
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import InterestAck, InterestAckRequest, InterestAcks

ACKS_PER_FRAME_MAX = 1_024

RETRY_FACTOR_MAX = 64
"""Longest interval between two requests, in multiples of the shortest."""

AckFrame = InterestAck | InterestAckRequest
Route = Callable[[AckFrame], tuple[AckFrame, NodeId | None]]
"""Returns a frame as it leaves, and the next hop: None without a path (`UnicastRoutes.route`)."""

RoutedFrames = list[tuple[NodeId, InterestAcks | InterestAckRequest]]
"""Frames, each with the neighbour that it goes to."""


class InterestInstallation:
    """Which nodes have acknowledged this node's newest interest, and whether all reachable ones
    have."""

    def __init__(self, node: NodeId, settings: ProtocolSettings) -> None:
        self._self = node
        self._retry_interval_min = settings.interest_ack_retry_interval
        self.stamp: Stamp = (0, 0)
        self.is_complete = True
        self.acknowledged_by: dict[NodeId, None] = {}
        self.request_due: float | None = None
        """When `pop_due_requests` is due."""
        self._retry_interval = self._retry_interval_min

    def restart(self, stamp: Stamp, now: float) -> None:
        """There is a newer interest: all nodes have to acknowledge again."""
        self.stamp = stamp
        self.is_complete = False
        self.acknowledged_by.clear()
        self.request_due, self._retry_interval = (
            now + self._retry_interval_min,
            self._retry_interval_min,
        )

    def add_ack(self, node: NodeId, stamp: Stamp) -> None:
        """A node has this version in force."""
        if stamp == self.stamp:
            self.acknowledged_by[node] = None

    def discard_ack(self, node: NodeId) -> None:
        """A node has restarted: its acknowledgement is void."""
        self.acknowledged_by.pop(node, None)

    def update_complete(self, reachable: dict[NodeId, None], now: float) -> bool:
        """Return whether the installation has just become complete."""
        was = self.is_complete
        self.is_complete = self.stamp == (0, 0) or (
            len(self.acknowledged_by) >= len(reachable) - 1
            and not self._unacknowledged_by(reachable)
        )
        if self.is_complete:
            self.request_due = None
        elif self.request_due is None:
            self.request_due, self._retry_interval = (
                now + self._retry_interval_min,
                self._retry_interval_min,
            )
        return self.is_complete and not was

    def pop_due_requests(self, reachable: dict[NodeId, None], now: float) -> list[NodeId]:
        """Return the nodes to ask now, at growing intervals."""
        if self.request_due is None or now < self.request_due:
            return []
        longest = RETRY_FACTOR_MAX * self._retry_interval_min
        self._retry_interval = min(2 * self._retry_interval, longest)
        self.request_due = now + self._retry_interval
        return self._unacknowledged_by(reachable)

    def _unacknowledged_by(self, reachable: Iterable[NodeId]) -> list[NodeId]:
        return [n for n in reachable if n != self._self and n not in self.acknowledged_by]


class InterestAckBatcher:
    """Interest acknowledgements and requests that leave or pass this node, batched for a moment."""

    def __init__(self, delay: float) -> None:
        """`delay`: seconds that frames wait to share one."""
        self._delay = delay
        self._acks: dict[tuple[NodeId, NodeId], InterestAck] = {}
        self._requests: dict[tuple[NodeId, NodeId], InterestAckRequest] = {}
        self._dropped: list[Effect] = []
        self.flush_due: float | None = None
        """When `flush` is due."""

    def add(self, item: InterestAck | InterestAckRequest, now: float) -> None:
        """Queue a frame; a newer acknowledgement replaces an older one between the same two
        nodes."""
        if item.hops >= HOPS_MAX:
            self._dropped.append(Ignored("unicast past the hop limit"))
        elif isinstance(item, InterestAckRequest):
            self._requests[item.destination, item.source] = item
        else:
            self._acks[item.destination, item.source] = item
        if self.flush_due is None:
            self.flush_due = now + self._delay

    def flush(self, route: Route, now: float) -> tuple[RoutedFrames, list[Effect]]:
        """Return the frames that leave now, and the frames without a route as `Ignored`: they will
        be requested again."""
        if self.flush_due is None or now < self.flush_due:
            return [], []
        self.flush_due = None
        frames: RoutedFrames = []
        bundles: dict[NodeId, list[InterestAck]] = {}
        waiting: list[InterestAck | InterestAckRequest] = [
            *self._acks.values(),
            *self._requests.values(),
        ]
        for item in waiting:
            routed, hop = route(item)
            if hop is None:
                if item.hops:  # this node sends its own ones again
                    self._dropped.append(Ignored("unicast without a route"))
            elif isinstance(routed, InterestAckRequest):
                frames.append((hop, routed))
            else:
                bundles.setdefault(hop, []).append(routed)
        for hop, bundle in bundles.items():
            for at in range(0, len(bundle), ACKS_PER_FRAME_MAX):
                frames.append((hop, InterestAcks(tuple(bundle[at : at + ACKS_PER_FRAME_MAX]))))
        self._acks, self._requests = {}, {}
        dropped, self._dropped = self._dropped, []
        return frames, dropped


class InterestAckTracker:
    """Both sides: acknowledgements that this node waits for, and those that it sends."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        in_force: Mapping[NodeId, Stamp],
        outbox: Outbox,
    ) -> None:
        """`in_force` holds the interest in force here; the outbox has the position of the
        journal."""
        self._node = node
        self._in_force = in_force
        self._outbox = outbox
        self._installation = InterestInstallation(node, settings)
        self._batcher = InterestAckBatcher(settings.relay_delay)

    def restart_installation(self, stamp: Stamp, now: float) -> None:
        """There is a newer interest: all nodes have to acknowledge again."""
        self._installation.restart(stamp, now)

    def discard_ack(self, node: NodeId) -> None:
        """A node has restarted: its acknowledgement is void."""
        self._installation.discard_ack(node)

    def flush(self, route: Route, now: float) -> tuple[RoutedFrames, list[Effect]]:
        """Return the frames that leave now, and those without a route as `Ignored`."""
        return self._batcher.flush(route, now)

    @property
    def is_installed(self) -> bool:
        return self._installation.is_complete

    @property
    def acknowledged_by(self) -> Mapping[NodeId, None]:
        """The nodes that have acknowledged this node's newest interest."""
        return self._installation.acknowledged_by

    def check_installed(self, reachable: dict[NodeId, None], now: float) -> list[Effect]:
        """Report the interest if it has just become installed."""
        done = self._installation.update_complete(reachable, now)
        return [InterestInstalled(self._installation.stamp[1])] if done else []

    def request_missing_acks(self, reachable: dict[NodeId, None], now: float) -> None:
        """Ask nodes that have not acknowledged for too long."""
        for node in self._installation.pop_due_requests(reachable, now):
            self._batcher.add(InterestAckRequest(node, self._node, 0), now)

    def send_ack(self, node: NodeId, now: float) -> None:
        """Acknowledge a node's interest, if it is in force here."""
        stamp = self._in_force.get(node)
        if stamp is not None:
            ack = InterestAck(node, *stamp, self._node, *self._outbox.next_position, 0)
            self._batcher.add(ack, now)

    def send_all_acks(self, now: float) -> None:
        """Acknowledge all interest in force again: this node has a new incarnation, for which
        other nodes void its acknowledgements."""
        for node in self._in_force:
            self.send_ack(node, now)

    def receive_acks(
        self,
        entries: Iterable[InterestAck],
        refusal: Callable[[InterestAck], str | None],
        now: float,
    ) -> tuple[list[NodeId], list[Effect]]:
        """Apply acknowledgements for this node and forward the others; return the nodes that
        acknowledged, and refused entries. `refusal` returns why one is refused."""
        sources: list[NodeId] = []
        refused: list[Effect] = []
        for entry in entries:
            if reason := refusal(entry):
                refused.append(Ignored(reason))
            elif entry.destination == self._node:
                sources.append(entry.source)
                self._installation.add_ack(entry.source, (entry.incarnation, entry.version))
            else:
                self._batcher.add(replace(entry, hops=entry.hops + 1), now)
        return sources, refused

    def receive_ack_request(self, request: InterestAckRequest, now: float) -> None:
        if request.destination == self._node:
            self.send_ack(request.source, now)
        else:
            self._batcher.add(replace(request, hops=request.hops + 1), now)

    def next_deadline(self) -> float | None:
        """When `request_missing_acks` or `flush` is due."""
        return earliest(self._installation.request_due, self._batcher.flush_due)
