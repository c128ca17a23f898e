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
from hansa.protocol.delivery.receiver_progress import Debt
from hansa.protocol.effects import Effect, EpochRenewed, GivenUp, Hear, Ignored, Recall
from hansa.protocol.events import Recalled, Reopened
from hansa.protocol.forwarding.numbering import Captured
from hansa.protocol.model import RECEIVERS_MAX, NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Letter, Owed, Receipt, Resend

PATIENCE_FACTOR_MAX = 8

BYTES_PER_S = 1 << 20
"""How fast a way is at least: what is large is given that much longer until it counts as missed."""

RENEWAL_PAUSE_S = 60.0
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
        self._safe = next_seq - 1
        self._goes_on = next_seq > 1
        """Whether former lives captured something in this epoch."""
        self._pending: deque[Publication] = deque()
        self.debts: dict[NodeId, Debt] = {}
        self._reminders: dict[NodeId, None] = {}  # those with a time to be reminded
        self._renewing = False
        self._renewable_at = 0.0

    def resume(
        self,
        owed: Mapping[NodeId, int],
        acknowledged: Mapping[NodeId, int],
        unheard: Mapping[NodeId, int],
    ) -> None:
        """Take up what the journal says of each receiver: the newest position that it is owed, up
        to where it has all, and since which position it was not heard of."""
        patience = self._settings.repair_patience
        for node, newest in owed.items():
            since = unheard.get(node, self._next_seq if self._goes_on else 0)
            self.debts[node] = Debt(newest, patience, acknowledged.get(node, 0), since)

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the number that the journal's next publication will have."""
        return self._epoch, self._next_seq

    @property
    def settled(self) -> int:
        """All receivers have everything up to this position of the present epoch."""
        unpaid = (d.acknowledged for d in self.debts.values() if d.acknowledged < d.newest)
        return min(unpaid, default=self._safe)

    @property
    def acknowledged(self) -> dict[NodeId, int]:
        """Up to where each receiver has said that it has all it was owed."""
        return {node: debt.acknowledged for node, debt in self.debts.items() if debt.acknowledged}

    def unpaid(self, position: int) -> dict[NodeId, int]:
        """Return who may not have all that it was owed before a position, and from which on."""
        return {
            node: debt.oldest
            for node, debt in self.debts.items()
            if debt.acknowledged < debt.newest and debt.oldest < position
        }

    # ------------------------------------------------------------ out

    def capture(
        self, event: Captured, receivers: Iterable[NodeId], version: int = 0
    ) -> Publication:
        """Give a publication its position, and note whom it is owed to."""
        seq = self._next_seq
        self._next_seq += 1
        previous: list[tuple[NodeId, int]] = []
        for receiver in receivers:
            debt = self.debts.get(receiver)
            if debt is None:
                debt = self.debts[receiver] = self._new_debt(seq)
            previous.append((receiver, debt.newest))
            if debt.acknowledged == debt.newest:
                debt.oldest = seq
            debt.newest = seq
        publication = Publication(
            origin=self._node,
            life=self._epoch,
            number=seq,
            qos=event.qos,
            topic=event.topic,
            payload=event.payload,
            retain=event.retain,
            previous=tuple(previous),
            properties=event.properties,
            version=version,
        )
        self._pending.append(publication)
        return publication

    def keep(self, epoch: int, seq: int, now: float) -> list[Publication]:
        """The journal is safe up to here; return what may leave now."""
        ready: list[Publication] = []
        while self._pending and (self._pending[0].life, self._pending[0].number) <= (epoch, seq):
            publication = self._pending.popleft()
            unheard: list[NodeId] = []
            for place, (receiver, _) in enumerate(publication.previous):
                if (debt := self.debts.get(receiver)) is None:
                    continue
                debt.safe = publication.number
                if debt.unheard_since or place >= RECEIVERS_MAX:  # it gets it from the journal
                    unheard.append(receiver)
                    self._arm(receiver, now)
                    continue
                due = now + len(publication.payload) / BYTES_PER_S
                if due >= debt.quiet_until:
                    debt.quiet_until, debt.quiet_upto = due, publication.number
                self._arm(receiver, now + self._settings.repair_patience)
            ready.append(_without(publication, unheard) if unheard else publication)
        if epoch == self._epoch:
            self._safe = max(self._safe, seq)
        return ready

    # ------------------------------------------------------------ who has it

    def take(self, receipt: Receipt, incarnation: int, now: float) -> list[Effect | Letter]:
        """A receiver says what it has, and maybe asks for more."""
        debt = self.debts.get(receipt.node)
        if debt is None:
            return [Ignored("receipt from a node that is owed nothing")]
        if self._renewing:
            return []  # it will be reminded
        if (receipt.epoch, receipt.seq) >= self.position:
            return [self._renew(receipt, incarnation, now)]
        if receipt.epoch != self._epoch:
            return [self._reminder(receipt.node, debt)]
        if debt.unheard_since:
            if receipt.seq >= debt.unheard_since:
                return [self._renew(receipt, incarnation, now)]
            is_first, debt.last_receipt = debt.last_receipt is None, receipt
            return [Hear(receipt.node)] if is_first else []
        if receipt.seq > debt.safe:
            return [Ignored("receipt for what was not sent")]
        return self._note(receipt, debt, now)

    def hear(self, node: NodeId, now: float) -> list[Effect | Letter]:
        """It is safe that a receiver has said what it has: go on with that."""
        debt = self.debts.get(node)
        if debt is None or debt.last_receipt is None:
            return []
        receipt, debt.last_receipt, debt.unheard_since = debt.last_receipt, None, 0
        debt.patience = self._settings.repair_patience
        answer = self._note(receipt, debt, now)
        if answer or debt.acknowledged >= debt.safe:
            return answer
        return [self._reminder(node, debt)]

    def _note(self, receipt: Receipt, debt: Debt, now: float) -> list[Effect | Letter]:
        if receipt.seq > debt.acknowledged:
            debt.acknowledged = receipt.seq
            debt.oldest = receipt.seq + 1
            debt.patience = self._settings.repair_patience
            if receipt.seq >= debt.quiet_upto:
                debt.quiet_until = 0.0
        self._disarm(receipt.node)
        if debt.acknowledged < debt.safe:
            self._arm(receipt.node, now + debt.patience)
        return self._answer(receipt, debt, now)

    def _answer(self, receipt: Receipt, debt: Debt, now: float) -> list[Effect | Letter]:
        """Read what a receiver asks for, unless that was done just now."""
        if not receipt.want or debt.recalling or debt.safe <= receipt.after:
            return []
        if receipt.after < debt.answered and now < debt.answered_until:
            return []
        debt.recalling = True
        # A receiver that has lost its memory does not get again what it had acknowledged.
        after = max(receipt.after, debt.acknowledged)
        most = self._settings.repair_bytes * self._settings.repair_frames
        bytes_max = min(receipt.want, most)
        return [Recall(receipt.node, self._epoch, after, debt.safe, bytes_max)]

    def resend(self, recalled: Recalled, now: float) -> list[Resend]:
        """What was read from the journal goes to the one that asked."""
        debt = self.debts.get(recalled.to)
        if debt is not None:
            debt.recalling = False
        if debt is None or recalled.epoch != self._epoch:
            return []
        after, upto, found = recalled.after, recalled.upto, recalled.publications
        blocks = self._blocks(found)
        # The last position asked for is owed, so it is lost if it was not found; and what the
        # first one found has before it is lost if that is not what the receiver has.
        before = dict(found[0].previous).get(recalled.to, after) if found else upto
        lost = before if before > after else 0
        letters: list[Resend] = []
        end = 0
        for block in blocks:
            end += len(block)
            last = upto if end == len(found) else found[end - 1].number
            letters.append(
                Resend(
                    recalled.to,
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
        debt.answered, debt.answered_until = after, now + max(0, size - usual) / BYTES_PER_S
        return letters

    def _blocks(self, found: Iterable[Publication]) -> list[list[bytes]]:
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

    def joined(self, node: NodeId, now: float) -> None:
        """A node came into reach: remind it at once, it may have missed much. And who has not
        answered in this life may know more than a journal that is an old copy."""
        debt = self.debts.get(node)
        if debt is not None and (debt.acknowledged < debt.safe or debt.unheard_since):
            debt.patience = self._settings.repair_patience
            debt.quiet_until = debt.answered_until = 0.0  # what was on its way may be lost
            self._disarm(node)
            self._arm(node, now)

    def forget(self, node: NodeId) -> list[Effect]:
        """A node's lease has ended: it is owed nothing any more."""
        self._disarm(node)
        debt = self.debts.pop(node, None)
        if debt is None or debt.acknowledged >= debt.newest:
            return []
        return [GivenUp(node, self._epoch, debt.acknowledged + 1, debt.newest)]

    def fire(self, now: float) -> list[Letter]:
        """Remind those that have been silent for long, less and less often."""
        letters: list[Letter] = []
        for node in list(self._reminders):
            debt = self.debts[node]
            assert debt.remind_at is not None
            if debt.remind_at <= now < debt.quiet_until:
                debt.remind_at = debt.quiet_until
            elif debt.remind_at <= now:
                letters.append(self._reminder(node, debt))
                longest = PATIENCE_FACTOR_MAX * self._settings.repair_patience
                debt.patience = min(2 * debt.patience, longest)
                debt.remind_at = now + debt.patience
        return letters

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        if not self._reminders:
            return None
        return min(self.debts[node].remind_at or 0.0 for node in self._reminders)

    def _reminder(self, node: NodeId, debt: Debt) -> Owed:
        """Name what it is owed; to who was not heard yet, only what it may have."""
        safe = min(debt.safe, debt.unheard_since - 1) if debt.unheard_since else debt.safe
        return Owed(node, self._node, self._epoch, safe)

    def _arm(self, node: NodeId, due: float) -> None:
        debt = self.debts.get(node)
        if debt is not None and debt.remind_at is None:
            debt.remind_at = due
            self._reminders[node] = None

    def _disarm(self, node: NodeId) -> None:
        debt = self.debts.get(node)
        if debt is not None:
            debt.remind_at = None
            self._reminders.pop(node, None)

    def _renew(self, receipt: Receipt, incarnation: int, now: float) -> Effect:
        """The journal is an old copy of itself: no position may be used twice. Nothing leaves, and
        nobody is answered, until a journal of a new epoch is in its place."""
        epoch = max(receipt.epoch + 1, incarnation)
        if epoch > self._clock.limit_ms:
            return Ignored(EPOCH_AHEAD)
        if now < self._renewable_at:
            return Ignored("receipt ahead of a journal that was renewed just before")
        self._renewing = True
        self._pending.clear()
        for node in list(self._reminders):
            self._disarm(node)
        return EpochRenewed(epoch)

    def reopen(self, reopened: Reopened, now: float) -> None:
        """The new journal is there: it begins with what was not acknowledged in the old one."""
        self._renewing = False
        self._renewable_at = now + RENEWAL_PAUSE_S
        self._epoch, self._next_seq = reopened.epoch, reopened.next_seq
        self._safe = self._next_seq - 1
        self._goes_on = False  # nobody can have anything of this epoch
        self._pending.clear()
        owed = dict(reopened.owed)
        for node in self.debts:
            self._disarm(node)
            self.debts[node] = Debt(owed.get(node, 0), self._settings.repair_patience)
            self._arm(node, now)

    def _new_debt(self, first: int) -> Debt:
        """Owe something to who was owed nothing before."""
        since = first if self._goes_on else 0
        return Debt(0, self._settings.repair_patience, unheard_since=since)


def _without(publication: Publication, some: list[NodeId]) -> Publication:
    """Return what goes to the other receivers."""
    previous = tuple(entry for entry in publication.previous if entry[0] not in some)
    return replace(publication, previous=previous)
