"""Publications of QoS 1 and 2 from other nodes: each accepted exactly once and in order.

Publications of an origin have positions, and each names the previous one for this node. So one
number per origin suffices: everything up to it was accepted. A publication that follows it without
a gap is delivered, even if its subscriber has left; a later one is buffered; an earlier one is a
duplicate. Gaps are requested from the origin, independent of the path of the copies.

A delivered publication counts when the shell has it on disk; then the origin gets a receipt.
Buffers are bounded (`out_of_order_max`, `uncommitted_max`); what does not fit is requested again.
"""

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from hansa.errors import InvalidFrame
from hansa.protocol.clock import EPOCH_AHEAD
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.delivery.outbox import RETRY_FACTOR_MAX
from hansa.protocol.delivery.repair import decode_repair
from hansa.protocol.effects import Deliver, Effect, Gap, Ignored, Repaired
from hansa.protocol.membership.rights import OUTSIDE_CERTIFICATE
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import PendingNotice, Receipt, RepairResponse, Unicast

PUBLICATION_OVERHEAD_BYTES = 512
"""Approximate memory of a publication besides its contents."""

ALREADY_ACKNOWLEDGED = "already acknowledged by a lost state, not sent again"


def memory_bytes(publication: Publication) -> int:
    """Return approximately how much memory a publication takes."""
    contents = len(publication.topic) + len(publication.properties) + len(publication.payload)
    return PUBLICATION_OVERHEAD_BYTES + contents


class OriginStream:
    """Publications of one origin for this node."""

    __slots__ = (
        "request_at",
        "epoch",
        "out_of_order",
        "newest_known",
        "out_of_order_heap",
        "retry_interval",
        "receipt_at",
        "accepted",
        "uncommitted",
    )

    def __init__(
        self,
        epoch: int,
        accepted: int,
        retry_interval: float,
        uncommitted: deque[tuple[int, int, int]],
    ) -> None:
        """Start at the position on disk. `uncommitted` are deliveries that are not on disk yet,
        also of earlier epochs."""
        self.epoch = epoch
        self.accepted = accepted
        self.newest_known = accepted
        """The newest known position for this node; above `accepted` while something is missing."""
        self.out_of_order: dict[int, tuple[int, Publication]] = {}
        self.out_of_order_heap: list[int] = []  # a heap of the buffered sequence numbers
        self.uncommitted = uncommitted  # epochs, sequence numbers and bytes
        self.request_at: float | None = None
        self.receipt_at: float | None = None
        self.retry_interval = retry_interval

    @property
    def committed(self) -> int:
        """Everything up to this position is on disk."""
        if not self.uncommitted:
            return self.accepted
        epoch, number, _ = self.uncommitted[0]
        return number - 1 if epoch == self.epoch else 0


class Inbox:
    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        accepted: Mapping[NodeId, tuple[int, int]],
        resolve_retain_flag: Callable[[Publication], Publication],
        context: DeliveryContext,
    ) -> None:
        """`accepted`: per origin, the epoch and position on disk; if there are too many, the last
        ones count. `resolve_retain_flag` decides which publications are still to be retained."""
        self._node = node
        self._settings = settings
        self._resolve_retain_flag = resolve_retain_flag
        self._context = context
        self.streams = {
            origin: OriginStream(epoch, sequence, settings.repair_retry_interval, deque())
            for origin, (epoch, sequence) in list(accepted.items())[-settings.nodes_max :]
        }
        self._expired_origins: dict[NodeId, None] = dict.fromkeys(self.streams)
        self._scheduled: dict[NodeId, None] = {}  # streams with a deadline
        self.out_of_order_bytes = 0
        self.uncommitted_bytes = 0
        self._uncommitted: dict[NodeId, deque[tuple[int, int, int]]] = {}
        self._waiting_for_room: dict[NodeId, None] = {}  # streams that wait for room

    # ------------------------------------------------------------ publications

    def receive_copy(self, publication: Publication, now: float) -> list[Effect]:
        """A copy arrived; deliver it if it is next, buffer it if it is later."""
        previous = self._previous(publication)
        if previous is None:
            return []  # not for this node: it is only forwarded
        origin, number, effects = publication.origin, publication.sequence, []
        stream = self.streams.get(origin)
        if stream is None or stream.epoch != publication.epoch:
            effects = self._open_stream(origin, publication.epoch)
            stream = self.streams.get(origin)
            if stream is None or stream.epoch != publication.epoch:
                return effects
        if number <= stream.accepted or number in stream.out_of_order:
            return effects
        stream.newest_known = max(stream.newest_known, number)
        if previous <= stream.accepted and self._has_room(stream):
            effects.append(self._accept(stream, publication))
            if stream.out_of_order_heap:
                effects += self._deliver_buffered(stream)
        else:
            self._buffer_out_of_order(stream, previous, publication)
        if stream.accepted < stream.newest_known or stream.request_at is not None:
            self._schedule_request(origin, stream, now)
        return effects

    def request_after_forgery(self, origin: NodeId, now: float) -> None:
        """A copy was altered on its path: ask its origin once for what follows the accepted
        position. The numbers of the copy prove nothing."""
        stream = self.streams.get(origin)
        if stream is not None and stream.request_at is None and self._has_room(stream):
            stream.request_at = now + self._settings.repair_delay
            self._update_schedule(origin, stream)

    def _previous(self, publication: Publication) -> int | None:
        for receiver, number in publication.receivers:
            if receiver == self._node:
                return number
        return None

    def receive_repair(self, frame: RepairResponse, now: float) -> list[Effect]:
        """An origin answers with the next publications, or reports that they are lost."""
        try:
            stream, publications = self._decode_repair(frame)
        except InvalidFrame as error:
            return [Ignored(str(error))]
        effects: list[Effect] = []
        before = stream.accepted
        # An earlier incarnation had it on disk, so it is there, unless that disk is gone.
        # Publications that it had only accepted may be in the request that this answers, and were
        # lost with it.
        if stream.accepted < frame.acknowledged:
            stream.accepted = frame.acknowledged
            effects.append(Ignored(ALREADY_ACKNOWLEDGED))
        effects += self._skip_lost(frame.source, stream, frame.lost_upto, "retention")
        repaired = self._accept_repair(stream, frame, publications)
        effects += [*repaired, *self._deliver_buffered(stream)]
        if repaired:
            effects.append(Repaired(frame.source, len(repaired)))
        if stream.accepted > before:
            stream.retry_interval = self._settings.repair_retry_interval
            stream.request_at = None
            self._schedule_request(
                frame.source, stream, now, stream.retry_interval if frame.more else 0.0
            )
            self._schedule_receipt(frame.source, stream, now)
        return effects

    def _accept_repair(
        self, stream: OriginStream, frame: RepairResponse, publications: list[Publication]
    ) -> list[Effect]:
        """Deliver the publications of a response, as far as there is room."""
        repaired: list[Effect] = []
        if stream.accepted < frame.lost_upto:
            return repaired
        for publication in publications:
            if publication.sequence <= stream.accepted:
                continue
            if not self._has_room(stream):
                return repaired
            repaired.append(self._accept(stream, publication))
        stream.accepted = max(stream.accepted, frame.upto)
        return repaired

    def _decode_repair(self, frame: RepairResponse) -> tuple[OriginStream, list[Publication]]:
        """Return the publications of a response; raise InvalidFrame if it makes no sense here."""
        stream = self.streams.get(frame.source)
        if stream is None or frame.epoch != stream.epoch:
            raise InvalidFrame("repair response that was not requested")
        newest = max(frame.upto, frame.lost_upto, frame.acknowledged)
        if newest > self._context.clock.numbers_max(frame.epoch):
            raise InvalidFrame("repair response with a position out of bounds")
        if frame.after > max(stream.accepted, frame.acknowledged):
            raise InvalidFrame("repair response without the position before it")
        return stream, decode_repair(frame)

    def mark_committed(self, origin: NodeId, epoch: int, sequence: int, now: float) -> list[Effect]:
        """Deliveries up to this position are on disk, and so are all of earlier epochs."""
        uncommitted = self._uncommitted.get(origin)
        while uncommitted and uncommitted[0][:2] <= (epoch, sequence):
            self.uncommitted_bytes -= uncommitted.popleft()[2]
        if not uncommitted:
            self._uncommitted.pop(origin, None)
        stream = self.streams.get(origin)
        if stream is not None and stream.epoch == epoch:
            self._schedule_receipt(origin, stream, now)
        return self._resume_waiting(now)

    def _resume_waiting(self, now: float) -> list[Effect]:
        """There is room again: resume waiting streams, the longest-waiting first."""
        effects: list[Effect] = []
        for origin in list(self._waiting_for_room):
            if self.uncommitted_bytes >= self._settings.uncommitted_bytes_max:
                break
            del self._waiting_for_room[origin]
            stream = self.streams[origin]
            effects += self._deliver_buffered(stream)
            self._schedule_request(origin, stream, now)
        return effects

    def receive_pending_notice(self, notice: PendingNotice, now: float) -> list[Effect]:
        """An origin reports its newest position; send a receipt, and request what is missing."""
        if notice.epoch > self._context.clock.limit_ms:
            return [Ignored(EPOCH_AHEAD)]
        if notice.sequence > self._context.clock.numbers_max(notice.epoch):
            return [Ignored("pending notice with a position out of bounds")]
        effects = self._open_stream(notice.source, notice.epoch)
        stream = self.streams.get(notice.source)
        if stream is None:
            return effects
        if stream.epoch == notice.epoch:
            stream.newest_known = max(stream.newest_known, notice.sequence)
            self._schedule_request(notice.source, stream, now)
        # Also if that epoch has ended: then the origin's journal is an old copy, and the receipt
        # reports it.
        self._schedule_receipt(notice.source, stream, now)
        return effects

    def _open_stream(self, origin: NodeId, epoch: int) -> list[Effect]:
        """Make sure that there is a stream; a newer epoch ends the one before."""
        stream = self.streams.get(origin)
        if stream is not None and epoch <= stream.epoch:
            return [Ignored("publication of an ended epoch")] if epoch < stream.epoch else []
        if origin not in self._context.nodes:  # if this overtook its record, it will be sent again
            return [Ignored("publication of an unknown node")]
        if epoch > self._context.clock.limit_ms:
            return [Ignored(EPOCH_AHEAD)]
        # Buffered publications of an ended epoch were not acknowledged, so the origin
        # sends them again in the new one.
        effects = self._abandon_missing(origin, "new epoch")
        if stream is None and len(self.streams) >= self._settings.nodes_max:
            if not self._expired_origins:
                return [Ignored("nodes_max")]
            effects += self._evict(next(iter(self._expired_origins)))
        uncommitted = self._uncommitted.get(origin, deque())
        self.streams[origin] = OriginStream(
            epoch, 0, self._settings.repair_retry_interval, uncommitted
        )
        return effects

    def _has_room(self, stream: OriginStream) -> bool:
        settings = self._settings
        return (
            len(stream.uncommitted) < settings.uncommitted_max
            and self.uncommitted_bytes < settings.uncommitted_bytes_max
        )

    def _accept(self, stream: OriginStream, publication: Publication) -> Effect:
        stream.accepted = publication.sequence
        if not self._context.was_announced(publication.topic):
            return Ignored("publication to a topic that was never announced here")
        rights = self._context.rights_of(publication.origin)
        if not rights.allows_publishing(publication.topic):
            return Ignored(OUTSIDE_CERTIFICATE)
        size = memory_bytes(publication)
        stream.uncommitted.append((publication.epoch, publication.sequence, size))
        self._uncommitted[publication.origin] = stream.uncommitted
        self.uncommitted_bytes += size
        return Deliver(self._resolve_retain_flag(publication))

    def _buffer_out_of_order(
        self, stream: OriginStream, previous: int, publication: Publication
    ) -> None:
        size = memory_bytes(publication)
        settings = self._settings
        if len(stream.out_of_order) < settings.out_of_order_max and (
            self.out_of_order_bytes + size <= settings.out_of_order_bytes_max
        ):
            stream.out_of_order[publication.sequence] = (previous, publication)
            heappush(stream.out_of_order_heap, publication.sequence)
            self.out_of_order_bytes += size

    def _deliver_buffered(self, stream: OriginStream) -> list[Effect]:
        """Deliver buffered publications that are next now."""
        effects: list[Effect] = []
        while stream.out_of_order_heap and self._has_room(stream):
            number = stream.out_of_order_heap[0]
            previous, publication = stream.out_of_order[number]
            if number > stream.accepted and previous > stream.accepted:
                break
            heappop(stream.out_of_order_heap)
            del stream.out_of_order[number]
            self.out_of_order_bytes -= memory_bytes(publication)
            if number > stream.accepted:
                effects.append(self._accept(stream, publication))
        return effects

    def _skip_lost(
        self, origin: NodeId, stream: OriginStream, upto: int, reason: str
    ) -> list[Effect]:
        """Missing publications up to a position will never come: report the gap; deliver buffered
        ones as far as there is room."""
        effects = self._deliver_buffered(stream)
        while stream.accepted < upto:
            first = stream.out_of_order_heap[0] if stream.out_of_order_heap else upto + 1
            if first <= upto and not self._has_room(stream):
                break
            before = stream.out_of_order[first][0] if first <= upto else upto
            effects.append(Gap(origin, stream.epoch, stream.accepted + 1, before, reason))
            stream.accepted = before
            effects += self._deliver_buffered(stream)
        return effects

    # ------------------------------------------------------------ receipts and requests

    def expire_node(self, origin: NodeId) -> list[Effect]:
        """An origin's lease has ended. Its position is kept, so that its publications stay
        duplicates if it comes back. Only if there are too many origins, the first one that has
        expired, or was not reachable since the start, is dropped."""
        stream = self.streams.get(origin)
        if stream is None:
            return []
        self._expired_origins[origin] = None
        effects = self._skip_lost(origin, stream, stream.newest_known, "end of lease")
        return effects + self._abandon_missing(origin, "end of lease")

    def on_node_reachable(self, origin: NodeId, now: float) -> None:
        """An origin became reachable: request missing publications at once."""
        self._expired_origins.pop(origin, None)
        stream = self.streams.get(origin)
        if stream is not None and stream.accepted < stream.newest_known:
            stream.retry_interval = self._settings.repair_retry_interval
            stream.request_at = now
            self._scheduled[origin] = None

    def handle_timer(self, now: float) -> list[Unicast]:
        """Send the receipts that are due, with a request where something is missing."""
        receipts: list[Unicast] = []
        if not self._context.may_acknowledge():
            return receipts
        for origin in list(self._scheduled):
            stream = self.streams[origin]
            ask = stream.request_at is not None and stream.request_at <= now
            if ask or (stream.receipt_at is not None and stream.receipt_at <= now):
                bytes_requested = (
                    self._settings.repair_bytes * self._settings.repair_frames if ask else 0
                )
                receipts.append(
                    Receipt(
                        origin,
                        self._node,
                        stream.epoch,
                        stream.committed,
                        stream.accepted,
                        bytes_requested,
                    )
                )
                stream.receipt_at = None
            if ask and stream.accepted >= stream.newest_known:
                stream.request_at = None  # asked once, see `request_after_forgery`
            elif ask:
                stream.request_at = now + stream.retry_interval
                longest = RETRY_FACTOR_MAX * self._settings.repair_retry_interval
                stream.retry_interval = min(2 * stream.retry_interval, longest)
            self._update_schedule(origin, stream)
        return receipts

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        due: float | None = None
        if not self._scheduled:
            return due
        for origin in self._scheduled if self._context.may_acknowledge() else ():
            stream = self.streams[origin]
            for at in (stream.request_at, stream.receipt_at):
                if at is not None and (due is None or at < due):
                    due = at
        return due

    def _schedule_request(
        self, origin: NodeId, stream: OriginStream, now: float, delay: float | None = None
    ) -> None:
        """A gap may be reordering for a moment; after that it is requested, if there is room."""
        missing = stream.accepted < stream.newest_known
        if not missing or not self._has_room(stream):
            stream.request_at = None
            if missing:
                self._waiting_for_room[origin] = None
        elif stream.request_at is None:
            stream.request_at = now + (self._settings.repair_delay if delay is None else delay)
        self._update_schedule(origin, stream)

    def _schedule_receipt(self, origin: NodeId, stream: OriginStream, now: float) -> None:
        if stream.receipt_at is None:
            stream.receipt_at = now + self._settings.receipt_delay
        self._update_schedule(origin, stream)

    def _update_schedule(self, origin: NodeId, stream: OriginStream) -> None:
        if stream.request_at is None and stream.receipt_at is None:
            self._scheduled.pop(origin, None)
        else:
            self._scheduled[origin] = None

    def _evict(self, origin: NodeId) -> list[Effect]:
        effects = self._abandon_missing(origin, "nodes_max")
        del self.streams[origin], self._expired_origins[origin]
        self._waiting_for_room.pop(origin, None)
        return effects

    def _abandon_missing(self, origin: NodeId, reason: str) -> list[Effect]:
        """Report missing publications as a gap."""
        stream = self.streams.get(origin)
        if stream is None:
            return []
        self.out_of_order_bytes -= sum(
            memory_bytes(held) for _, held in stream.out_of_order.values()
        )
        stream.out_of_order.clear()
        stream.out_of_order_heap.clear()
        stream.request_at = stream.receipt_at = None
        self._update_schedule(origin, stream)
        if stream.accepted >= stream.newest_known:
            return []
        gap = Gap(origin, stream.epoch, stream.accepted + 1, stream.newest_known, reason)
        stream.accepted = stream.newest_known
        return [gap]
