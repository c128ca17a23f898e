"""What other nodes owe this one: publications of QoS 1 and 2, each exactly once and in order.

An origin's publications have positions, and each names what this node was owed before it. So there
is one number to know per origin: everything owed up to there was taken. What follows it without a
hole is delivered, wanted still or not; what comes early is held; what was taken before is a
duplicate, for ever. A hole is asked for at the origin, whatever way the copies went.

What is delivered counts when the shell has it on disk; then the origin gets a receipt.
"""

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from hansa.errors import InvalidFrame
from hansa.protocol.clock import EPOCH_AHEAD
from hansa.protocol.delivery.context import DeliveryContext
from hansa.protocol.delivery.outbox import PATIENCE_FACTOR_MAX
from hansa.protocol.delivery.repair import read
from hansa.protocol.effects import Deliver, Effect, Gap, Ignored, Repaired
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Letter, Owed, Receipt, Resend

FOOTPRINT_BYTES = 512
"""About what a publication takes in memory beside what it carries."""

PASSED_OVER = "what a state that is gone had acknowledged does not come again"


def footprint(publication: Publication) -> int:
    """Return about how much memory a publication takes."""
    carried = len(publication.topic) + len(publication.properties) + len(publication.payload)
    return FOOTPRINT_BYTES + carried


class Stream:
    """What one origin owes this node."""

    __slots__ = (
        "ask_at",
        "epoch",
        "held",
        "newest",
        "order",
        "patience",
        "receipt_at",
        "taken",
        "undelivered",
    )

    def __init__(
        self, epoch: int, taken: int, patience: float, undelivered: deque[tuple[int, int, int]]
    ) -> None:
        """Start where the disk ends; what was delivered and is not there yet may be of an epoch
        before."""
        self.epoch = epoch
        self.taken = taken
        self.newest = taken
        """What is known to be owed; above `taken` while something is missing."""
        self.held: dict[int, tuple[int, Publication]] = {}
        self.order: list[int] = []  # a heap of the numbers that are held
        self.undelivered = undelivered  # epochs, numbers, and their bytes
        self.ask_at: float | None = None
        self.receipt_at: float | None = None
        self.patience = patience

    @property
    def safe(self) -> int:
        """All that was owed up to here is on disk."""
        if not self.undelivered:
            return self.taken
        epoch, number, _ = self.undelivered[0]
        return number - 1 if epoch == self.epoch else 0


class Inbox:
    """The streams of all origins."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        taken: Mapping[NodeId, tuple[int, int]],
        judge: Callable[[Publication], Publication],
        context: DeliveryContext,
    ) -> None:
        """Start with what the disk holds: per origin the epoch and the position taken. `judge`
        decides what is still to be retained."""
        self._node = node
        self._settings = settings
        self._judge = judge
        self._context = context
        self.streams = {
            origin: Stream(epoch, seq, settings.repair_patience, deque())
            for origin, (epoch, seq) in taken.items()
        }
        self._absent: dict[NodeId, None] = dict.fromkeys(self.streams)
        self._busy: dict[NodeId, None] = {}  # streams with something due
        self.held_bytes = 0
        self.undelivered_bytes = 0
        self._undelivered: dict[NodeId, deque[tuple[int, int, int]]] = {}
        self._waiting: dict[NodeId, None] = {}  # streams that would go on if there were room

    # ------------------------------------------------------------ publications

    def take(self, publication: Publication, now: float) -> list[Effect]:
        """A copy arrived; deliver what is next, hold what is early."""
        previous = self._previous(publication)
        if previous is None:
            return []  # not owed to this node: it passes through
        origin, number, effects = publication.origin, publication.number, []
        stream = self.streams.get(origin)
        if stream is None or stream.epoch != publication.life:
            effects = self._enter(origin, publication.life)
            stream = self.streams.get(origin)
            if stream is None or stream.epoch != publication.life:
                return effects
        if number <= stream.taken or number in stream.held:
            return effects
        stream.newest = max(stream.newest, number)
        if previous <= stream.taken and self._has_room(stream):
            effects.append(self._accept(stream, publication))
            if stream.order:
                effects += self._drain(stream)
        else:
            self._hold(stream, previous, publication)
        if stream.taken < stream.newest or stream.ask_at is not None:
            self._plan_to_ask(origin, stream, now)
        return effects

    def _previous(self, publication: Publication) -> int | None:
        for receiver, number in publication.previous:
            if receiver == self._node:
                return number
        return None

    def resend(self, frame: Resend, now: float) -> list[Effect]:
        """An origin answers with what it owes next, or with the news that it is gone."""
        try:
            stream, publications = self._read(frame)
        except InvalidFrame as error:
            return [Ignored(str(error))]
        effects: list[Effect] = []
        before = stream.taken
        # A former life had it on disk, so it is there, unless that disk is gone. What such a life
        # only took may be in the question that this answers, and was lost with it.
        if stream.taken < frame.acknowledged:
            stream.taken = frame.acknowledged
            effects.append(Ignored(PASSED_OVER))
        effects += self._skip(frame.node, stream, frame.lost, "retention")
        repaired = self._take_answer(stream, frame, publications)
        effects += [*repaired, *self._drain(stream)]
        if repaired:
            effects.append(Repaired(frame.node, len(repaired)))
        if stream.taken > before:
            stream.patience = self._settings.repair_patience
            stream.ask_at = None
            self._plan_to_ask(frame.node, stream, now, stream.patience if frame.more else 0.0)
            self._plan_receipt(frame.node, stream, now)
        return effects

    def _take_answer(
        self, stream: Stream, frame: Resend, publications: list[Publication]
    ) -> list[Effect]:
        """Deliver what an answer brings, as far as there is room."""
        repaired: list[Effect] = []
        if stream.taken < frame.lost:
            return repaired
        for publication in publications:
            if publication.number <= stream.taken:
                continue
            if not self._has_room(stream):
                return repaired
            repaired.append(self._accept(stream, publication))
        stream.taken = max(stream.taken, frame.upto)
        return repaired

    def _read(self, frame: Resend) -> tuple[Stream, list[Publication]]:
        """Return what a frame of an answer brings, and where it belongs; raise InvalidFrame if that
        is of no use here."""
        stream = self.streams.get(frame.node)
        if stream is None or frame.epoch != stream.epoch:
            raise InvalidFrame("repair that nobody asked for")
        newest = max(frame.upto, frame.lost, frame.acknowledged)
        if newest > self._context.clock.numbers_max(frame.epoch):
            raise InvalidFrame("repair with a number out of bounds")
        if frame.after > max(stream.taken, frame.acknowledged):
            raise InvalidFrame("repair without what comes before it")
        return stream, read(frame)

    def store(self, origin: NodeId, epoch: int, seq: int, now: float) -> list[Effect]:
        """What was delivered up to here is on disk, and so is all of the epochs before."""
        undelivered = self._undelivered.get(origin)
        while undelivered and undelivered[0][:2] <= (epoch, seq):
            self.undelivered_bytes -= undelivered.popleft()[2]
        if not undelivered:
            self._undelivered.pop(origin, None)
        stream = self.streams.get(origin)
        if stream is not None and stream.epoch == epoch:
            self._plan_receipt(origin, stream, now)
        return self._go_on(now)

    def _go_on(self, now: float) -> list[Effect]:
        """There is room again: let those have it that waited, the longest first."""
        effects: list[Effect] = []
        for origin in list(self._waiting):
            if self.undelivered_bytes >= self._settings.undelivered_bytes_max:
                break
            del self._waiting[origin]
            stream = self.streams[origin]
            effects += self._drain(stream)
            self._plan_to_ask(origin, stream, now)
        return effects

    def remind(self, owed: Owed, now: float) -> list[Effect]:
        """An origin says what it owes; tell it what is here, and ask for what is not."""
        if owed.epoch > self._context.clock.limit_ms:
            return [Ignored(EPOCH_AHEAD)]
        if owed.seq > self._context.clock.numbers_max(owed.epoch):
            return [Ignored("pending notice with a number out of bounds")]
        effects = self._enter(owed.node, owed.epoch)
        stream = self.streams.get(owed.node)
        if stream is None:
            return effects
        if stream.epoch == owed.epoch:
            stream.newest = max(stream.newest, owed.seq)
            self._plan_to_ask(owed.node, stream, now)
        # Even if that epoch has ended: then its journal is an old copy, and it has to learn it.
        self._plan_receipt(owed.node, stream, now)
        return effects

    def _enter(self, origin: NodeId, epoch: int) -> list[Effect]:
        """Make sure that there is a stream; a newer epoch ends the one before it."""
        stream = self.streams.get(origin)
        if stream is not None and epoch <= stream.epoch:
            return [Ignored("publication of an ended epoch")] if epoch < stream.epoch else []
        if origin not in self._context.nodes:  # if this overtook its record, it comes again
            return [Ignored("publication of an unknown node")]
        if epoch > self._context.clock.limit_ms:
            return [Ignored(EPOCH_AHEAD)]
        # What is held of an epoch that ends was not acknowledged: it comes again in the new one.
        effects = self._give_up(origin, "new epoch")
        if stream is None and len(self.streams) >= self._settings.nodes_max:
            if not self._absent:
                return [Ignored("nodes_max")]
            effects += self._evict(next(iter(self._absent)))
        undelivered = self._undelivered.get(origin, deque())
        self.streams[origin] = Stream(epoch, 0, self._settings.repair_patience, undelivered)
        return effects

    def _has_room(self, stream: Stream) -> bool:
        settings = self._settings
        return (
            len(stream.undelivered) < settings.undelivered_max
            and self.undelivered_bytes < settings.undelivered_bytes_max
        )

    def _accept(self, stream: Stream, publication: Publication) -> Effect:
        stream.taken = publication.number
        if not self._context.was_announced(publication.topic):
            return Ignored("publication to a topic that was never announced here")
        size = footprint(publication)
        stream.undelivered.append((publication.life, publication.number, size))
        self._undelivered[publication.origin] = stream.undelivered
        self.undelivered_bytes += size
        return Deliver(self._judge(publication))

    def _hold(self, stream: Stream, previous: int, publication: Publication) -> None:
        size = footprint(publication)
        settings = self._settings
        if len(stream.held) < settings.held_max and (
            self.held_bytes + size <= settings.held_bytes_max
        ):
            stream.held[publication.number] = (previous, publication)
            heappush(stream.order, publication.number)
            self.held_bytes += size

    def _drain(self, stream: Stream) -> list[Effect]:
        """Deliver what was held for what has come now."""
        effects: list[Effect] = []
        while stream.order and self._has_room(stream):
            number = stream.order[0]
            previous, publication = stream.held[number]
            if number > stream.taken and previous > stream.taken:
                break
            heappop(stream.order)
            del stream.held[number]
            self.held_bytes -= footprint(publication)
            if number > stream.taken:
                effects.append(self._accept(stream, publication))
        return effects

    def _skip(self, origin: NodeId, stream: Stream, upto: int, reason: str) -> list[Effect]:
        """What is missing up to a position will not come any more; what is held of it is delivered,
        as far as there is room."""
        effects = self._drain(stream)
        while stream.taken < upto:
            first = stream.order[0] if stream.order else upto + 1
            if first <= upto and not self._has_room(stream):
                break
            before = stream.held[first][0] if first <= upto else upto
            effects.append(Gap(origin, stream.epoch, stream.taken + 1, before, reason))
            stream.taken = before
            effects += self._drain(stream)
        return effects

    # ------------------------------------------------------------ asking and telling

    def forget(self, origin: NodeId) -> list[Effect]:
        """An origin's lease has ended. What was taken of it is a duplicate even so, should it come
        back; only if there are too many origins, the one that was forgotten first has to go."""
        stream = self.streams.get(origin)
        if stream is None:
            return []
        self._absent[origin] = None
        effects = self._skip(origin, stream, stream.newest, "end of lease")
        return effects + self._give_up(origin, "end of lease")

    def joined(self, origin: NodeId, now: float) -> None:
        """An origin came into reach: ask at once for what is missing."""
        self._absent.pop(origin, None)
        stream = self.streams.get(origin)
        if stream is not None and stream.taken < stream.newest:
            stream.patience = self._settings.repair_patience
            stream.ask_at = now
            self._busy[origin] = None

    def fire(self, now: float) -> list[Letter]:
        """Send the receipts that are due, with a question where something is missing."""
        letters: list[Letter] = []
        if not self._context.may_acknowledge():
            return letters
        for origin in list(self._busy):
            stream = self.streams[origin]
            ask = stream.ask_at is not None and stream.ask_at <= now
            if ask or (stream.receipt_at is not None and stream.receipt_at <= now):
                want = self._settings.repair_bytes * self._settings.repair_frames if ask else 0
                letters.append(
                    Receipt(origin, self._node, stream.epoch, stream.safe, stream.taken, want)
                )
                stream.receipt_at = None
            if ask:
                stream.ask_at = now + stream.patience
                longest = PATIENCE_FACTOR_MAX * self._settings.repair_patience
                stream.patience = min(2 * stream.patience, longest)
            self._settle(origin, stream)
        return letters

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        due: float | None = None
        for origin in self._busy if self._context.may_acknowledge() else ():
            stream = self.streams[origin]
            for at in (stream.ask_at, stream.receipt_at):
                if at is not None and (due is None or at < due):
                    due = at
        return due

    def _plan_to_ask(
        self, origin: NodeId, stream: Stream, now: float, delay: float | None = None
    ) -> None:
        """A hole may be mere disorder for a moment; then it is asked for, if there is room."""
        missing = stream.taken < stream.newest
        if not missing or not self._has_room(stream):
            stream.ask_at = None
            if missing:
                self._waiting[origin] = None
        elif stream.ask_at is None:
            stream.ask_at = now + (self._settings.repair_delay if delay is None else delay)
        self._settle(origin, stream)

    def _plan_receipt(self, origin: NodeId, stream: Stream, now: float) -> None:
        if stream.receipt_at is None:
            stream.receipt_at = now + self._settings.receipt_delay
        self._settle(origin, stream)

    def _settle(self, origin: NodeId, stream: Stream) -> None:
        if stream.ask_at is None and stream.receipt_at is None:
            self._busy.pop(origin, None)
        else:
            self._busy[origin] = None

    def _evict(self, origin: NodeId) -> list[Effect]:
        effects = self._give_up(origin, "nodes_max")
        del self.streams[origin], self._absent[origin]
        self._waiting.pop(origin, None)
        return effects

    def _give_up(self, origin: NodeId, reason: str) -> list[Effect]:
        """What is missing will not come any more."""
        stream = self.streams.get(origin)
        if stream is None:
            return []
        self.held_bytes -= sum(footprint(held) for _, held in stream.held.values())
        stream.held.clear()
        stream.order.clear()
        stream.ask_at = stream.receipt_at = None
        self._settle(origin, stream)
        if stream.taken >= stream.newest:
            return []
        gap = Gap(origin, stream.epoch, stream.taken + 1, stream.newest, reason)
        stream.taken = stream.newest
        return [gap]
