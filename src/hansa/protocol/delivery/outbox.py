"""What this node owes others: publications of QoS 1 and 2 that its own clients made.

Each has a position in the journal, dense over all topics, and names its *receivers*: the nodes that
wanted its topic when it was published, in reach or not. Beside each receiver stands `previous`, the
position of what it was owed before; so a receiver sees every hole, whatever filters and groups come
and go meanwhile. Nothing leaves before it is safe in the journal.

A receiver that stays silent is reminded. One that misses something gets it from the journal. What
all have is settled, and the journal may forget it.

A life that goes on with the journal of a former one first hears of each receiver what it has. If
that is more than was ever sent to it, the journal is an old copy, and the positions that it gives
out were used before. Until then nothing leaves for that receiver; it gets it from the journal.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from hansa.protocol.clock import EPOCH_AHEAD, WallClock
from hansa.protocol.delivery.receiver_progress import ReceiverProgress
from hansa.protocol.effects import (
    DeliveryAbandoned,
    Effect,
    EpochRolloverRequired,
    Ignored,
    PersistHeard,
    ReadJournal,
)
from hansa.protocol.events import EpochStarted, JournalRead
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.model import RECEIVERS_MAX, NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import PendingNotice, Receipt, RepairResponse, Unicast

RETRY_FACTOR_MAX = 8

TRANSFER_BYTES_PER_S_MIN = 1 << 20
"""How fast a way is at least: what is large is given that much longer until it counts as missed."""

ROLLOVER_PAUSE_S = 60.0
"""Seconds after a new epoch in which no other begins: each costs a copy of all that is owed."""


class Outbox:
    """Positions of what starts here, and who has it."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        clock: WallClock,
        epoch: int = 1,
        next_seq: int = 1,
    ) -> None:
        """Go on where the journal ends."""
        self._node = node
        self._settings = settings
        self._clock = clock
        self._epoch = epoch
        self._next_seq = next_seq
        self._committed = next_seq - 1
        self._continues_epoch = next_seq > 1
        """Whether former lives captured something in this epoch."""
        self._uncommitted: deque[Publication] = deque()
        self.receivers: dict[NodeId, ReceiverProgress] = {}
        self._reminders: dict[NodeId, None] = {}  # those with a time to be reminded
        self._awaits_rollover = False
        self._rollover_allowed_at = 0.0

    def restore(
        self,
        last_assigned: Mapping[NodeId, int],
        acknowledged: Mapping[NodeId, int],
        unheard_since: Mapping[NodeId, int],
    ) -> None:
        """Take up what the journal says of each receiver: the newest position that it is owed, up
        to where it has all, and since which position it was not heard of."""
        patience = self._settings.repair_retry_interval
        for node, newest in last_assigned.items():
            since = unheard_since.get(node, self._next_seq if self._continues_epoch else 0)
            self.receivers[node] = ReceiverProgress(
                newest, patience, acknowledged.get(node, 0), since
            )

    @property
    def next_position(self) -> tuple[int, int]:
        """The epoch and the number that the journal's next publication will have."""
        return self._epoch, self._next_seq

    @property
    def acknowledged_by_all(self) -> int:
        """All receivers have everything up to this position of the present epoch."""
        unpaid = (
            d.acknowledged for d in self.receivers.values() if d.acknowledged < d.last_assigned
        )
        return min(unpaid, default=self._committed)

    @property
    def acknowledged(self) -> dict[NodeId, int]:
        """Up to where each receiver has said that it has all it was owed."""
        return {
            node: debt.acknowledged for node, debt in self.receivers.items() if debt.acknowledged
        }

    @property
    def pending(self) -> dict[NodeId, int]:
        """Per receiver, how many committed positions lie behind its acknowledgement."""
        return {
            node: debt.last_committed - debt.acknowledged for node, debt in self.receivers.items()
        }

    def first_pending_before(self, position: int) -> dict[NodeId, int]:
        """Return who may not have all that it was owed before a position, and from which on."""
        return {
            node: debt.first_pending
            for node, debt in self.receivers.items()
            if debt.acknowledged < debt.last_assigned and debt.first_pending < position
        }

    # ------------------------------------------------------------ out

    def assign_position(
        self, event: LocalPublication, receivers: Iterable[NodeId], version: int = 0
    ) -> Publication:
        """Give a publication its position, and note whom it is owed to."""
        seq = self._next_seq
        self._next_seq += 1
        previous: list[tuple[NodeId, int]] = []
        for receiver in receivers:
            debt = self.receivers.get(receiver)
            if debt is None:
                debt = self.receivers[receiver] = self._new_receiver(seq)
            previous.append((receiver, debt.last_assigned))
            if debt.acknowledged == debt.last_assigned:
                debt.first_pending = seq
            debt.last_assigned = seq
        publication = Publication(
            origin=self._node,
            epoch=self._epoch,
            sequence=seq,
            qos=event.qos,
            topic=event.topic,
            payload=event.payload,
            retain=event.retain,
            previous=tuple(previous),
            properties=event.properties,
            version=version,
        )
        self._uncommitted.append(publication)
        return publication

    def mark_committed(self, epoch: int, seq: int, now: float) -> list[Publication]:
        """The journal is safe up to here; return what may leave now."""
        ready: list[Publication] = []
        while self._uncommitted and (self._uncommitted[0].epoch, self._uncommitted[0].sequence) <= (
            epoch,
            seq,
        ):
            publication = self._uncommitted.popleft()
            unheard: list[NodeId] = []
            for place, (receiver, _) in enumerate(publication.previous):
                if (debt := self.receivers.get(receiver)) is None:
                    continue
                debt.last_committed = publication.sequence
                if debt.unheard_since or place >= RECEIVERS_MAX:  # it gets it from the journal
                    unheard.append(receiver)
                    self._schedule_reminder(receiver, now)
                    continue
                due = now + len(publication.payload) / TRANSFER_BYTES_PER_S_MIN
                if due >= debt.transfer_until:
                    debt.transfer_until, debt.transfer_upto = due, publication.sequence
                self._schedule_reminder(receiver, now + self._settings.repair_retry_interval)
            ready.append(_without_receivers(publication, unheard) if unheard else publication)
        if epoch == self._epoch:
            self._committed = max(self._committed, seq)
        return ready

    # ------------------------------------------------------------ who has it

    def receive_receipt(
        self, receipt: Receipt, incarnation: int, now: float
    ) -> list[Effect | Unicast]:
        """A receiver says what it has, and maybe asks for more."""
        debt = self.receivers.get(receipt.source)
        if debt is None:
            return [Ignored("receipt from a node with nothing pending")]
        if self._awaits_rollover:
            return []  # it will be reminded
        if (receipt.epoch, receipt.seq) >= self.next_position:
            return [self._require_rollover(receipt, incarnation, now)]
        if receipt.epoch != self._epoch:
            return [self._make_pending_notice(receipt.source, debt)]
        if debt.unheard_since:
            if receipt.seq >= debt.unheard_since:
                return [self._require_rollover(receipt, incarnation, now)]
            is_first, debt.last_receipt = debt.last_receipt is None, receipt
            return [PersistHeard(receipt.source)] if is_first else []
        if receipt.seq > debt.last_committed:
            return [Ignored("receipt for what was not sent")]
        return self._apply_receipt(receipt, debt, now)

    def mark_heard(self, node: NodeId, now: float) -> list[Effect | Unicast]:
        """It is safe that a receiver has said what it has: go on with that."""
        debt = self.receivers.get(node)
        if debt is None or debt.last_receipt is None:
            return []
        receipt, debt.last_receipt, debt.unheard_since = debt.last_receipt, None, 0
        debt.retry_interval = self._settings.repair_retry_interval
        answer = self._apply_receipt(receipt, debt, now)
        if answer or debt.acknowledged >= debt.last_committed:
            return answer
        return [self._make_pending_notice(node, debt)]

    def _apply_receipt(
        self, receipt: Receipt, debt: ReceiverProgress, now: float
    ) -> list[Effect | Unicast]:
        if receipt.seq > debt.acknowledged:
            debt.acknowledged = receipt.seq
            debt.first_pending = receipt.seq + 1
            debt.retry_interval = self._settings.repair_retry_interval
            if receipt.seq >= debt.transfer_upto:
                debt.transfer_until = 0.0
        self._cancel_reminder(receipt.source)
        if debt.acknowledged < debt.last_committed:
            self._schedule_reminder(receipt.source, now + debt.retry_interval)
        return self._read_for_repair(receipt, debt, now)

    def _read_for_repair(
        self, receipt: Receipt, debt: ReceiverProgress, now: float
    ) -> list[Effect | Unicast]:
        """Read what a receiver asks for, unless that was done just now."""
        if (
            not receipt.bytes_requested
            or debt.is_reading_journal
            or debt.last_committed <= receipt.received_upto
        ):
            return []
        if receipt.received_upto < debt.repaired_upto and now < debt.repair_until:
            return []
        debt.is_reading_journal = True
        # A receiver that has lost its memory does not get again what it had acknowledged.
        after = max(receipt.received_upto, debt.acknowledged)
        most = self._settings.repair_bytes * self._settings.repair_frames
        bytes_max = min(receipt.bytes_requested, most)
        return [ReadJournal(receipt.source, self._epoch, after, debt.last_committed, bytes_max)]

    def make_repair_responses(self, recalled: JournalRead, now: float) -> list[RepairResponse]:
        """What was read from the journal goes to the one that asked."""
        debt = self.receivers.get(recalled.receiver)
        if debt is not None:
            debt.is_reading_journal = False
        if debt is None or recalled.epoch != self._epoch:
            return []
        after, upto, found = recalled.after, recalled.upto, recalled.publications
        blocks = self._pack_blocks(found)
        # The last position asked for is owed, so it is lost if it was not found; and what the
        # first one found has before it is lost if that is not what the receiver has.
        before = dict(found[0].previous).get(recalled.receiver, after) if found else upto
        lost = before if before > after else 0
        letters: list[RepairResponse] = []
        end = 0
        for block in blocks:
            end += len(block)
            last = upto if end == len(found) else found[end - 1].sequence
            letters.append(
                RepairResponse(
                    recalled.receiver,
                    self._node,
                    recalled.epoch,
                    after,
                    last,
                    lost,
                    tuple(block),
                    more=True,
                    acknowledged=debt.acknowledged,
                )
            )
            after, lost = last, 0
        letters[-1] = replace(letters[-1], more=False)
        size = sum(len(item.payload) for item in found[:end])
        usual = self._settings.repair_bytes * self._settings.repair_frames
        debt.repaired_upto, debt.repair_until = (
            after,
            now + max(0, size - usual) / TRANSFER_BYTES_PER_S_MIN,
        )
        return letters

    def _pack_blocks(self, found: Iterable[Publication]) -> list[list[bytes]]:
        """Return what goes into each frame, of as many as the settings allow: at least one, else as
        much as they say."""
        blocks: list[list[bytes]] = [[]]
        room = self._settings.repair_bytes
        for publication in found:
            item = encode(replace(publication, previous=()))
            if blocks[-1] and len(item) > room:
                if len(blocks) == self._settings.repair_frames:
                    break
                blocks.append([])
                room = self._settings.repair_bytes
            blocks[-1].append(item)
            room -= len(item)
        return blocks

    def on_node_reachable(self, node: NodeId, now: float) -> None:
        """A node came into reach: remind it at once, it may have missed much. And who has not
        answered in this life may know more than a journal that is an old copy."""
        debt = self.receivers.get(node)
        if debt is not None and (debt.acknowledged < debt.last_committed or debt.unheard_since):
            debt.retry_interval = self._settings.repair_retry_interval
            debt.transfer_until = debt.repair_until = 0.0  # what was on its way may be lost
            self._cancel_reminder(node)
            self._schedule_reminder(node, now)

    def expire_node(self, node: NodeId) -> list[Effect]:
        """A node's lease has ended: it is owed nothing any more."""
        self._cancel_reminder(node)
        debt = self.receivers.pop(node, None)
        if debt is None or debt.acknowledged >= debt.last_assigned:
            return []
        return [DeliveryAbandoned(node, self._epoch, debt.acknowledged + 1, debt.last_assigned)]

    def handle_timer(self, now: float) -> list[Unicast]:
        """Remind those that have been silent for long, less and less often."""
        letters: list[Unicast] = []
        for node in list(self._reminders):
            debt = self.receivers[node]
            assert debt.remind_at is not None
            if debt.remind_at <= now < debt.transfer_until:
                debt.remind_at = debt.transfer_until
            elif debt.remind_at <= now:
                letters.append(self._make_pending_notice(node, debt))
                longest = RETRY_FACTOR_MAX * self._settings.repair_retry_interval
                debt.retry_interval = min(2 * debt.retry_interval, longest)
                debt.remind_at = now + debt.retry_interval
        return letters

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        if not self._reminders:
            return None
        return min(self.receivers[node].remind_at or 0.0 for node in self._reminders)

    def _make_pending_notice(self, node: NodeId, debt: ReceiverProgress) -> PendingNotice:
        """Name what it is owed; to who was not heard yet, only what it may have."""
        safe = (
            min(debt.last_committed, debt.unheard_since - 1)
            if debt.unheard_since
            else debt.last_committed
        )
        return PendingNotice(node, self._node, self._epoch, safe)

    def _schedule_reminder(self, node: NodeId, due: float) -> None:
        debt = self.receivers.get(node)
        if debt is not None and debt.remind_at is None:
            debt.remind_at = due
            self._reminders[node] = None

    def _cancel_reminder(self, node: NodeId) -> None:
        debt = self.receivers.get(node)
        if debt is not None:
            debt.remind_at = None
            self._reminders.pop(node, None)

    def _require_rollover(self, receipt: Receipt, incarnation: int, now: float) -> Effect:
        """The journal is an old copy of itself: no position may be used twice. Nothing leaves, and
        nobody is answered, until a journal of a new epoch is in its place."""
        epoch = max(receipt.epoch + 1, incarnation)
        if epoch > self._clock.limit_ms:
            return Ignored(EPOCH_AHEAD)
        if now < self._rollover_allowed_at:
            return Ignored("receipt ahead of a journal that was renewed just before")
        self._awaits_rollover = True
        self._uncommitted.clear()
        for node in list(self._reminders):
            self._cancel_reminder(node)
        return EpochRolloverRequired(epoch)

    def start_epoch(self, reopened: EpochStarted, now: float) -> None:
        """The new journal is there: it begins with what was not acknowledged in the old one."""
        self._awaits_rollover = False
        self._rollover_allowed_at = now + ROLLOVER_PAUSE_S
        self._epoch, self._next_seq = reopened.epoch, reopened.next_seq
        self._committed = self._next_seq - 1
        self._continues_epoch = False  # nobody can have anything of this epoch
        self._uncommitted.clear()
        owed = dict(reopened.last_assigned)
        for node in self.receivers:
            self._cancel_reminder(node)
            self.receivers[node] = ReceiverProgress(
                owed.get(node, 0), self._settings.repair_retry_interval
            )
            self._schedule_reminder(node, now)

    def _new_receiver(self, first: int) -> ReceiverProgress:
        """Owe something to who was owed nothing before."""
        since = first if self._continues_epoch else 0
        return ReceiverProgress(0, self._settings.repair_retry_interval, unheard_since=since)


def _without_receivers(publication: Publication, some: list[NodeId]) -> Publication:
    """Return what goes to the other receivers."""
    previous = tuple(entry for entry in publication.previous if entry[0] not in some)
    return replace(publication, previous=previous)
