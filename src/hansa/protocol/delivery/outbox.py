"""Publications of QoS 1 and 2 by local clients: their positions, receivers and acknowledgements.

Each publication has a position in the journal, dense over all topics, and names its *receivers*:
the nodes interested in its topic at that time, reachable or not. With each receiver stands
`previous`, the position of the previous publication for it; so a receiver detects every gap,
whatever filters and groups come and go. Nothing leaves before it is durable in the journal.

A silent receiver is reminded. A receiver that misses something gets it from the journal.
Retention deletes by age and size, acknowledged or not.

After a restart, a node waits until each receiver has reported its position. If that is beyond what
was ever sent to it, the journal is an old copy and its positions were used before: a new epoch is
required. Until then nothing leaves for that receiver; it gets it from the journal.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from hansa.protocol.clock import EPOCH_AHEAD, WallClock
from hansa.protocol.delivery.receiver_progress import ReceiverProgress
from hansa.protocol.effects import (
    DeliveryAbandoned,
    Effect,
    EpochRolloverRequired,
    Ignored,
    PersistProgressReport,
    ReadJournal,
)
from hansa.protocol.events import EpochStarted, JournalRead
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.model import RECEIVERS_MAX, NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import PendingNotice, Receipt, RepairResponse, Unicast

REMINDERS_SPARE = 64
"""Reminders that were cancelled, beyond one per receiver, before they are removed from the heap."""

RETRY_FACTOR_MAX = 8

TRANSFER_BYTES_PER_S_MIN = 1 << 20
"""Assumed minimum speed of a path: a large publication does not count as missed before
it could have arrived at this speed."""

ROLLOVER_PAUSE_S = 60.0
"""Seconds after a new epoch in which no other begins: each copies all pending publications."""

AHEAD_OF_NEW_EPOCH = "receipt ahead of a journal whose epoch just began"

ROLLOVER_PAUSE_MAX_S = 86_400.0
"""The pause doubles with every epoch of one incarnation, up to this. An old copy of the journal is
found once after a start; a dishonest receiver can claim to have found one at any time."""


class Outbox:
    """Positions of local publications, and the progress of their receivers."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        clock: WallClock,
        epoch: int = 1,
        next_sequence: int = 1,
    ) -> None:
        self._node = node
        self._settings = settings
        self._clock = clock
        self._epoch = epoch
        self._next_sequence = next_sequence
        self._committed = next_sequence - 1
        self._continues_epoch = next_sequence > 1
        """Whether earlier incarnations captured something in this epoch."""
        self._uncommitted: deque[Publication] = deque()
        self.receivers: dict[NodeId, ReceiverProgress] = {}
        self._reminders: list[tuple[float, NodeId]] = []
        """A heap of reminders; one counts if its time is still that of its receiver."""
        self._awaits_rollover = False
        self._rollover_allowed_at = 0.0
        self._rollover_pause_s = ROLLOVER_PAUSE_S

    def restore(
        self,
        last_assigned: Mapping[NodeId, int],
        acknowledged: Mapping[NodeId, int],
        unreported_since: Mapping[NodeId, int],
    ) -> None:
        """Restore the receivers from the journal: the newest position of each, the position it has
        acknowledged, and since which position it has not reported."""
        retry_interval = self._settings.repair_retry_interval
        for node, newest in last_assigned.items():
            since = unreported_since.get(node, self._next_sequence if self._continues_epoch else 0)
            self.receivers[node] = ReceiverProgress(
                newest, retry_interval, acknowledged.get(node, 0), since
            )

    @property
    def next_position(self) -> tuple[int, int]:
        """Epoch and sequence number of the next publication in the journal."""
        return self._epoch, self._next_sequence

    @property
    def acknowledged_by_all(self) -> int:
        """All receivers have acknowledged everything up to this position of the present epoch."""
        pending = (
            each.acknowledged
            for each in self.receivers.values()
            if each.acknowledged < each.last_assigned
        )
        return min(pending, default=self._committed)

    @property
    def acknowledged(self) -> dict[NodeId, int]:
        """Per receiver, the position up to which it has acknowledged everything."""
        return {
            node: progress.acknowledged
            for node, progress in self.receivers.items()
            if progress.acknowledged
        }

    @property
    def pending(self) -> dict[NodeId, int]:
        """Per receiver, the number of positions after its acknowledged one, up to the newest
        committed one for it."""
        return {
            node: progress.last_committed - progress.acknowledged
            for node, progress in self.receivers.items()
        }

    def first_pending_before(self, position: int) -> dict[NodeId, int]:
        """Return the receivers that may miss something before a position, with the first such
        position."""
        return {
            node: progress.first_pending
            for node, progress in self.receivers.items()
            if progress.acknowledged < progress.last_assigned and progress.first_pending < position
        }

    # ------------------------------------------------------------ sending

    def assign_position(
        self, event: LocalPublication, receivers: Iterable[NodeId], version: int = 0
    ) -> Publication:
        """Give a publication its position, and add it to its receivers."""
        sequence = self._next_sequence
        self._next_sequence += 1
        previous: list[tuple[NodeId, int]] = []
        for receiver in receivers:
            progress = self.receivers.get(receiver)
            if progress is None:
                progress = self.receivers[receiver] = self._new_receiver(sequence)
            previous.append((receiver, progress.assign(sequence)))
        publication = Publication(
            origin=self._node,
            epoch=self._epoch,
            sequence=sequence,
            qos=event.qos,
            topic=event.topic,
            payload=event.payload,
            retain=event.retain,
            receivers=tuple(previous),
            properties=event.properties,
            version=version,
        )
        self._uncommitted.append(publication)
        return publication

    def mark_committed(self, epoch: int, sequence: int, now: float) -> list[Publication]:
        """The journal is durable up to this position; return the publications that may leave
        now."""
        ready: list[Publication] = []
        while self._uncommitted and (self._uncommitted[0].epoch, self._uncommitted[0].sequence) <= (
            epoch,
            sequence,
        ):
            publication = self._uncommitted.popleft()
            unreported: dict[NodeId, None] = {}
            for place, (receiver, _) in enumerate(publication.receivers):
                if (progress := self.receivers.get(receiver)) is None:
                    continue
                progress.last_committed = publication.sequence
                if progress.unreported_since or place >= RECEIVERS_MAX:  # sent from the journal
                    unreported[receiver] = None
                    self._schedule_reminder(receiver, now)
                    continue
                progress.start_transfer(
                    publication.sequence,
                    now + len(publication.payload) / TRANSFER_BYTES_PER_S_MIN,
                )
                self._schedule_reminder(receiver, now + self._settings.repair_retry_interval)
            ready.append(_without_receivers(publication, unreported) if unreported else publication)
        if epoch == self._epoch:
            self._committed = max(self._committed, sequence)
        return ready

    # ------------------------------------------------------------ receipts and repair

    def receive_receipt(
        self, receipt: Receipt, incarnation: int, now: float
    ) -> list[Effect | Unicast]:
        """A receiver reports its position, and may request more."""
        progress = self.receivers.get(receipt.source)
        if progress is None:
            return [Ignored("receipt from a node with nothing pending")]
        if self._awaits_rollover:
            return []  # it will be reminded
        if (receipt.epoch, receipt.sequence) >= self.next_position:
            return [self._require_rollover(receipt, incarnation, now)]
        if receipt.epoch != self._epoch:
            return [self._make_pending_notice(receipt.source, progress)]
        if progress.unreported_since:
            if receipt.sequence >= progress.unreported_since:
                return [self._require_rollover(receipt, incarnation, now)]
            is_first, progress.last_receipt = progress.last_receipt is None, receipt
            return [PersistProgressReport(receipt.source)] if is_first else []
        if receipt.sequence > progress.last_committed:
            return [Ignored("receipt for a position that was not sent")]
        return self._apply_receipt(receipt, progress, now)

    def mark_reported(self, node: NodeId, now: float) -> list[Effect | Unicast]:
        """The report of a receiver is durable: continue with its receipt."""
        progress = self.receivers.get(node)
        if progress is None or progress.last_receipt is None:
            return []
        receipt, progress.last_receipt, progress.unreported_since = progress.last_receipt, None, 0
        progress.retry_interval = self._settings.repair_retry_interval
        answer = self._apply_receipt(receipt, progress, now)
        if answer or progress.acknowledged >= progress.last_committed:
            return answer
        return [self._make_pending_notice(node, progress)]

    def _apply_receipt(
        self, receipt: Receipt, progress: ReceiverProgress, now: float
    ) -> list[Effect | Unicast]:
        if progress.acknowledge(receipt.sequence):
            progress.retry_interval = self._settings.repair_retry_interval
        self._cancel_reminder(receipt.source)
        if progress.acknowledged < progress.last_committed:
            self._schedule_reminder(receipt.source, now + progress.retry_interval)
        return self._read_for_repair(receipt, progress, now)

    def _read_for_repair(
        self, receipt: Receipt, progress: ReceiverProgress, now: float
    ) -> list[Effect | Unicast]:
        """Read what a receiver requests, unless that was sent just now."""
        if (
            not receipt.bytes_requested
            or progress.is_reading_journal
            or progress.last_committed <= receipt.received_upto
        ):
            return []
        if receipt.received_upto < progress.repaired_upto and now < progress.repair_until:
            return []
        progress.is_reading_journal = True
        # A receiver that lost its state does not get again what it had acknowledged.
        after = max(receipt.received_upto, progress.acknowledged)
        most = self._settings.repair_bytes * self._settings.repair_frames
        bytes_max = min(receipt.bytes_requested, most)
        return [ReadJournal(receipt.source, self._epoch, after, progress.last_committed, bytes_max)]

    def make_repair_responses(self, read: JournalRead, now: float) -> list[RepairResponse]:
        """Return the publications read from the journal as frames for the receiver."""
        progress = self.receivers.get(read.receiver)
        if progress is not None:
            progress.is_reading_journal = False
        if progress is None or read.epoch != self._epoch:
            return []
        after, upto, found = read.after, read.upto, read.publications
        blocks = self._pack_blocks(found)
        # The last requested position was assigned to the receiver, so it is lost if it was not
        # found. The position before the first one found is lost unless the receiver has it.
        before = dict(found[0].receivers).get(read.receiver, after) if found else upto
        lost = before if before > after else 0
        responses: list[RepairResponse] = []
        end = 0
        for block in blocks:
            end += len(block)
            last = upto if end == len(found) else found[end - 1].sequence
            responses.append(
                RepairResponse(
                    read.receiver,
                    self._node,
                    read.epoch,
                    after,
                    last,
                    lost,
                    tuple(block),
                    more=True,
                    acknowledged=progress.acknowledged,
                )
            )
            after, lost = last, 0
        responses[-1] = replace(responses[-1], more=False)
        size = sum(len(item.payload) for item in found[:end])
        usual_size = self._settings.repair_bytes * self._settings.repair_frames
        progress.repaired_upto, progress.repair_until = (
            after,
            now + max(0, size - usual_size) / TRANSFER_BYTES_PER_S_MIN,
        )
        return responses

    def _pack_blocks(self, found: Iterable[Publication]) -> list[list[bytes]]:
        """Return the encoded publications of each frame: at most `repair_frames` frames of
        `repair_bytes`, each with at least one publication."""
        blocks: list[list[bytes]] = [[]]
        room = self._settings.repair_bytes
        for publication in found:
            item = encode(replace(publication, receivers=()))
            if blocks[-1] and len(item) > room:
                if len(blocks) == self._settings.repair_frames:
                    break
                blocks.append([])
                room = self._settings.repair_bytes
            blocks[-1].append(item)
            room -= len(item)
        return blocks

    def on_node_reachable(self, node: NodeId, now: float) -> None:
        """A node became reachable: remind it at once, it may have missed much. A receiver that has
        not reported in this incarnation may know that the journal is an old copy."""
        progress = self.receivers.get(node)
        if progress is not None and (
            progress.acknowledged < progress.last_committed or progress.unreported_since
        ):
            progress.retry_interval = self._settings.repair_retry_interval
            progress.forget_transfers()
            self._cancel_reminder(node)
            self._schedule_reminder(node, now)

    def expire_node(self, node: NodeId) -> list[Effect]:
        """A node's lease has ended: delete its pending publications."""
        self._cancel_reminder(node)
        progress = self.receivers.pop(node, None)
        if progress is None or progress.acknowledged >= progress.last_assigned:
            return []
        return [
            DeliveryAbandoned(node, self._epoch, progress.acknowledged + 1, progress.last_assigned)
        ]

    def handle_timer(self, now: float) -> list[Unicast]:
        """Remind silent receivers, at growing intervals."""
        responses: list[Unicast] = []
        while (due := self.next_deadline()) is not None and due <= now:
            node = heappop(self._reminders)[1]
            progress = self.receivers[node]
            if now < progress.transfer_until:
                self._set_reminder(node, progress, progress.transfer_until)
                continue
            responses.append(self._make_pending_notice(node, progress))
            longest = RETRY_FACTOR_MAX * self._settings.repair_retry_interval
            progress.retry_interval = min(2 * progress.retry_interval, longest)
            self._set_reminder(node, progress, now + progress.retry_interval)
        return responses

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        reminders = self._reminders
        while reminders and not self._is_scheduled(*reminders[0]):
            heappop(reminders)
        return reminders[0][0] if reminders else None

    def _make_pending_notice(self, node: NodeId, progress: ReceiverProgress) -> PendingNotice:
        """Report the newest position; to a receiver that has not reported, only positions it may
        have."""
        safe = (
            min(progress.last_committed, progress.unreported_since - 1)
            if progress.unreported_since
            else progress.last_committed
        )
        return PendingNotice(node, self._node, self._epoch, safe)

    def _schedule_reminder(self, node: NodeId, due: float) -> None:
        progress = self.receivers.get(node)
        if progress is not None and progress.remind_at is None:
            self._set_reminder(node, progress, due)

    def _set_reminder(self, node: NodeId, progress: ReceiverProgress, due: float) -> None:
        progress.remind_at = due
        heappush(self._reminders, (due, node))
        if len(self._reminders) > REMINDERS_SPARE + 2 * len(self.receivers):
            self._reminders = [each for each in self._reminders if self._is_scheduled(*each)]
            heapify(self._reminders)

    def _is_scheduled(self, due: float, node: NodeId) -> bool:
        progress = self.receivers.get(node)
        return progress is not None and progress.remind_at == due

    def _cancel_reminder(self, node: NodeId) -> None:
        progress = self.receivers.get(node)
        if progress is not None:
            progress.remind_at = None

    def _require_rollover(self, receipt: Receipt, incarnation: int, now: float) -> Effect:
        """The journal is an old copy: no position may be used twice. Nothing leaves and no receipt
        is answered until a journal of a new epoch has replaced it."""
        epoch = max(receipt.epoch + 1, incarnation)
        if epoch > self._clock.limit_ms:
            return Ignored(EPOCH_AHEAD)
        if now < self._rollover_allowed_at:
            return Ignored(f"{AHEAD_OF_NEW_EPOCH}: {receipt.source:016x}")
        self._awaits_rollover = True
        self._uncommitted.clear()
        for node in self.receivers:
            self._cancel_reminder(node)
        return EpochRolloverRequired(epoch)

    def start_epoch(self, event: EpochStarted, now: float) -> None:
        """The new journal begins with the publications that were not acknowledged in the old
        one."""
        self._awaits_rollover = False
        self._rollover_allowed_at = now + self._rollover_pause_s
        self._rollover_pause_s = min(2 * self._rollover_pause_s, ROLLOVER_PAUSE_MAX_S)
        self._epoch, self._next_sequence = event.epoch, event.next_sequence
        self._committed = self._next_sequence - 1
        self._continues_epoch = False  # no receiver can have anything of this epoch
        self._uncommitted.clear()
        last_assigned = dict(event.last_assigned)
        for node in self.receivers:
            self._cancel_reminder(node)
            self.receivers[node] = ReceiverProgress(
                last_assigned.get(node, 0), self._settings.repair_retry_interval
            )
            self._schedule_reminder(node, now)

    def _new_receiver(self, first: int) -> ReceiverProgress:
        since = first if self._continues_epoch else 0
        return ReceiverProgress(0, self._settings.repair_retry_interval, unreported_since=since)


def _without_receivers(publication: Publication, some: Container[NodeId]) -> Publication:
    remaining = tuple(entry for entry in publication.receivers if entry[0] not in some)
    return replace(publication, receivers=remaining)
