"""The disk of one agent: synced writes survive a crash, unsynced ones may or may not.

It models a state directory: the two logs of the delivery core, its subscriptions at the broker, the
marker of an unfinished connection attempt, and the records of other nodes.
"""

from collections.abc import Mapping, Sequence

from hansa.delivery.outbox import make_publication
from hansa.delivery.rollover_plan import RolloverPlan
from hansa.delivery.subscriptions.saved import SubscriptionChange
from hansa.journal.records import CapturedRecord
from hansa.protocol.delivery.repair import select_for_repair
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead, PeersRestored
from hansa.protocol.membership.records import Record, Stamp
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.memory_log import MemoryLog

JOURNAL_MAX = 1_000_000


class SimulatedDisk:
    """One state directory."""

    __slots__ = (
        "absent_seconds",
        "ended_epochs",
        "full_until",
        "has_connect_marker",
        "has_failed",
        "has_session",
        "inbox",
        "journal_max",
        "outbox",
        "records",
        "stalled_until",
        "subscriptions",
        "tombstones",
        "trimmed_upto",
        "_unsynced_records",
    )

    def __init__(self, journal_max: int = JOURNAL_MAX) -> None:
        """`journal_max` bounds the publications in the journal."""
        self.journal_max = journal_max
        self.outbox: MemoryLog | None = None
        self.inbox = MemoryLog(0)
        self.subscriptions: Sequence[SubscriptionChange] = ()
        self.has_session = False
        self.has_connect_marker = False
        self.records: dict[NodeId, tuple[Record, ...]] = {}
        self._unsynced_records: list[tuple[NodeId, tuple[Record, ...]]] = []
        self.absent_seconds: dict[NodeId, float] = {}
        self.tombstones: dict[NodeId, Stamp] = {}
        """Leases as they were when the agent ended; a copied disk starts them anew."""
        self.trimmed_upto = (0, 0)
        """Epoch and position of the newest publication that retention removed."""
        self.ended_epochs: dict[int, tuple[int, Mapping[NodeId, int]]] = {}
        """By epoch that a new one replaced: the newest position that retention had removed, and the
        position up to which each receiver had acknowledged."""
        self.stalled_until = 0.0
        self.full_until = 0.0
        """Until then every write fails."""
        self.has_failed = False
        """Whether no sync completes until the agent is restarted."""

    # ------------------------------------------------------------ the outbox log

    def open_outbox(self, incarnation: int) -> MemoryLog:
        """Return the outbox log, a new one if there is none."""
        if self.outbox is None:
            self.outbox = MemoryLog(incarnation, self.journal_max)
        return self.outbox

    def commit_outbox(self, upto: int) -> None:
        assert self.outbox is not None
        self.outbox.commit(upto)
        if self.outbox.trimmed_upto:
            self.trimmed_upto = (self.outbox.epoch, self.outbox.trimmed_upto)

    def build_epoch(self, plan: RolloverPlan) -> MemoryLog:
        """Replace the outbox log by one of a new epoch."""
        former = self.outbox
        assert former is not None
        former.commit(former.end)
        self.ended_epochs[former.epoch] = (former.trimmed_upto, dict(plan.acknowledged))
        log = MemoryLog(plan.epoch, self.journal_max)
        records = former.captured_records(plan.first_pending, former.next_sequence - 1)
        for _ in plan.copy_records(records, log, wall_ns=0):
            pass
        log.commit(log.end)
        self.outbox = log
        return log

    def has_removed_unacknowledged(self, receiver: NodeId, epoch: int, sequence: int) -> bool:
        """Whether retention removed a publication that a receiver had not acknowledged, before a
        new epoch replaced that epoch."""
        trimmed_upto, acknowledged = self.ended_epochs.get(epoch, (0, {}))
        return acknowledged.get(receiver, 0) < sequence <= trimmed_upto

    @property
    def journal(self) -> list[CapturedRecord]:
        """The durable publications of the outbox log."""
        log = self.outbox
        return list(log.captured_records(1, log.next_sequence)) if log else []

    def read_journal(self, command: ReadJournal, origin: NodeId) -> JournalRead:
        """Return the publications that a node requests for repair."""
        log = self.outbox
        assert log is not None
        first = command.after + 1
        found: list[Publication | None] = [None] if first < log.first_sequence else []
        found += [
            make_publication(record, origin, command.epoch, wall_ns=0)
            for record in log.captured_records(first, command.upto)
            if any(to == command.receiver for to, _ in record.receivers)
        ]
        return select_for_repair(command, found)

    # ------------------------------------------------------------ other nodes

    def write_records(self, node: NodeId, records: tuple[Record, ...]) -> None:
        """Write the records of a node; without records, its lease has ended."""
        self._unsynced_records.append((node, records))

    def sync_records(self) -> None:
        written, self._unsynced_records = self._unsynced_records, []
        for node, records in written:
            if records:
                self.records[node] = records
            else:
                self.records.pop(node, None)

    def peers_restored(self) -> PeersRestored:
        records = tuple(record for records in self.records.values() for record in records)
        return PeersRestored(records, self.absent_seconds, self.tombstones)

    def save_leases(self, membership: MembershipView, now: float) -> None:
        self.absent_seconds = membership.absent_seconds(now)
        self.tombstones = dict(membership.tombstones)

    # ------------------------------------------------------------ faults

    def crash(self, surviving_fraction: float = 0.0) -> None:
        """Lose unsynced writes except for a fraction from 0 to 1, which may have reached the
        disk."""
        if self.outbox is not None:
            self.outbox.crash(surviving_fraction)
        self.inbox.crash(surviving_fraction)
        self._unsynced_records = []
        self.has_failed = False

    def erase_delivery(self) -> None:
        """Forget the delivery state of an agent without a durable disk."""
        self.outbox, self.inbox = None, MemoryLog(0)
        self.subscriptions, self.has_session, self.has_connect_marker = (), False, False

    def copy(self) -> "SimulatedDisk":
        """Return the content of a copied state directory."""
        duplicate = SimulatedDisk(self.journal_max)
        duplicate.outbox = self.outbox.copy() if self.outbox is not None else None
        duplicate.inbox = self.inbox.copy()
        duplicate.subscriptions, duplicate.has_session = self.subscriptions, self.has_session
        duplicate.has_connect_marker = self.has_connect_marker
        duplicate.records = dict(self.records)
        duplicate.trimmed_upto = self.trimmed_upto
        duplicate.ended_epochs = dict(self.ended_epochs)
        return duplicate
