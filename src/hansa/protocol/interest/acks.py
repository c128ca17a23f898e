"""Which nodes have this node's interest in force, and how they say so.

A node that has granted all filters of another tells that node, hop by hop, from which position of
its journal on that interest counts. When every node in reach has done so, the interest is
*installed*: nothing published anywhere in reach from then on is missed for want of a subscription.
Who stays silent is asked.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from hansa.protocol.deadlines import earliest
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.effects import Effect, Ignored
from hansa.protocol.membership.origins import WRONG_SIDE
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import InterestAck, InterestAckRequest, InterestAcks

ACKS_PER_FRAME_MAX = 1_024

AckFrame = InterestAck | InterestAckRequest
Route = Callable[[AckFrame], tuple[AckFrame, NodeId | None]]
"""Returns a frame as it leaves, and the next hop: None without a path (`UnicastRoutes.route`)."""

RoutedFrames = list[tuple[NodeId, InterestAcks | InterestAckRequest]]
"""Frames, each with the neighbour to whom it goes."""


class InterestInstallation:
    """Who has confirmed this node's newest interest, and whether that is everybody in reach."""

    def __init__(self, node: NodeId, settings: ProtocolSettings) -> None:
        """Start with no interest, which needs no confirmation."""
        self._self = node
        self._retry_interval_min = settings.interest_ack_retry_interval
        self.stamp: Stamp = (0, 0)
        self.is_complete = True
        self.acknowledged_by: dict[NodeId, None] = {}
        self.request_due: float | None = None
        """When `ask` is next due."""
        self._retry_interval = self._retry_interval_min

    def restart(self, stamp: Stamp, now: float) -> None:
        """There is a newer interest: everybody has to confirm again."""
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
        """A node has started anew: what it confirmed counts no more."""
        self.acknowledged_by.pop(node, None)

    def update_complete(self, reachable: dict[NodeId, None], now: float) -> bool:
        """Look again; return whether the installation has just become complete."""
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
        """Return whom to ask now, less and less often."""
        if self.request_due is None or now < self.request_due:
            return []
        self._retry_interval *= 2
        self.request_due = now + self._retry_interval
        return self._unacknowledged_by(reachable)

    def _unacknowledged_by(self, reachable: Iterable[NodeId]) -> list[NodeId]:
        return [n for n in reachable if n != self._self and n not in self.acknowledged_by]


class UnicastBatcher:
    """Confirmations and enquiries on their way through this node, gathered for a moment."""

    def __init__(self, delay: float) -> None:
        """Start empty; letters wait so long to share a frame."""
        self._delay = delay
        self._acks: dict[tuple[NodeId, NodeId], InterestAck] = {}
        self._requests: dict[tuple[NodeId, NodeId], InterestAckRequest] = {}
        self._dropped: list[Effect] = []
        self.flush_due: float | None = None
        """When `flush` is next due."""

    def add(self, item: InterestAck | InterestAckRequest, now: float) -> None:
        """Take a letter; of two confirmations from one node to one other, the newer replaces."""
        if item.hops >= HOPS_MAX:
            self._dropped.append(Ignored("unicast past the hop limit"))
        elif isinstance(item, InterestAckRequest):
            self._requests[item.destination, item.source] = item
        else:
            self._acks[item.destination, item.source] = item
        if self.flush_due is None:
            self.flush_due = now + self._delay

    def flush(self, route: Route, now: float) -> tuple[RoutedFrames, list[Effect]]:
        """Return what leaves now, and the news of what cannot: it will be asked for."""
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
                if item.hops:  # what this node wrote itself, it writes again
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
    """Both sides of it: what this node waits for, and what it tells others."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        in_force: Mapping[NodeId, Stamp],
        outbox: Outbox,
    ) -> None:
        """Read from `in_force` whose interest is, and from the journal where it stands."""
        self._node = node
        self._in_force = in_force
        self._outbox = outbox
        self._installation = InterestInstallation(node, settings)
        self._batcher = UnicastBatcher(settings.relay_delay)
        self.restart_installation = self._installation.restart
        self.discard_ack = self._installation.discard_ack
        self.flush = self._batcher.flush

    @property
    def is_installed(self) -> bool:
        """Whether this node's interest is installed."""
        return self._installation.is_complete

    @property
    def acknowledged_by(self) -> Mapping[NodeId, None]:
        """The nodes that have this node's newest interest in force, and said so."""
        return self._installation.acknowledged_by

    def check_installed(self, reachable: dict[NodeId, None], now: float) -> int | None:
        """Look again; return the version of the interest that has just been installed."""
        done = self._installation.update_complete(reachable, now)
        return self._installation.stamp[1] if done else None

    def request_missing_acks(self, reachable: dict[NodeId, None], now: float) -> None:
        """Ask those that have been silent for long."""
        for node in self._installation.pop_due_requests(reachable, now):
            self._batcher.add(InterestAckRequest(node, self._node, 0), now)

    def send_ack(self, node: NodeId, now: float) -> None:
        """Tell a node that its interest is in force here, if it is."""
        stamp = self._in_force.get(node)
        if stamp is not None:
            ack = InterestAck(node, *stamp, self._node, *self._outbox.next_position, 0)
            self._batcher.add(ack, now)

    def receive_acks(
        self, entries: Iterable[InterestAck], is_from: Callable[[NodeId], bool], now: float
    ) -> tuple[bool, list[Effect]]:
        """Note what others confirm to this node and pass on the rest; return whether any did, and
        what was refused. `is_from` says whether an entry can come from a node."""
        ours = False
        refused: list[Effect] = []
        for entry in entries:
            if not is_from(entry.source):
                refused.append(Ignored(WRONG_SIDE))
            elif entry.destination == self._node:
                ours = True
                self._installation.add_ack(entry.source, (entry.incarnation, entry.version))
            else:
                self._batcher.add(replace(entry, hops=entry.hops + 1), now)
        return ours, refused

    def receive_ack_request(self, request: InterestAckRequest, now: float) -> None:
        """Somebody asks, this node or another."""
        if request.destination == self._node:
            self.send_ack(request.source, now)
        else:
            self._batcher.add(replace(request, hops=request.hops + 1), now)

    def next_deadline(self) -> float | None:
        """When `ask` or `flush` is next due."""
        return earliest(self._installation.request_due, self._batcher.flush_due)
