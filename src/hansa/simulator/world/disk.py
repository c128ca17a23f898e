"""The disk of one agent: synced writes survive a crash, unsynced ones may or may not.

It models a state directory: the journal of local publications, the progress per origin, the inbox
towards the broker, and the records of other nodes.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from hansa.protocol.delivery.repair import select_for_repair
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead, PeersRestored
from hansa.protocol.membership.records import Record, Stamp
from hansa.protocol.membership.view import MembershipView
from hansa.protocol.model import NodeId, Publication

JOURNAL_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class OutboxWrite:
    """A publication in the journal with its packet id at the broker; 0 if it is acknowledged
    already."""

    publication: Publication
    packet_id: int


@dataclass(frozen=True, slots=True)
class InboxWrite:
    """A publication of another node for the broker; its inbox index is its packet id there."""

    publication: Publication
    index: int


@dataclass(frozen=True, slots=True)
class GapWrite:
    """Publications of an origin up to a position will never arrive; those that did are before
    this."""

    origin: NodeId
    epoch: int
    upto: int


@dataclass(frozen=True, slots=True)
class AcceptedWrite:
    """The broker has a QoS 2 publication and will not accept it twice."""

    index: int


@dataclass(frozen=True, slots=True)
class CompletedWrite:
    """The broker completed the handshake of a publication."""

    index: int


@dataclass(frozen=True, slots=True)
class SessionLostWrite:
    """The broker lost the session: accepted publications must be published again."""


@dataclass(frozen=True, slots=True)
class PeerWrite:
    """The records of another node; empty if its lease ended."""

    save_id: int
    node: NodeId
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class HeardWrite:
    """A receiver reported its progress in this incarnation."""

    node: NodeId


DiskWrite = (
    OutboxWrite
    | InboxWrite
    | GapWrite
    | AcceptedWrite
    | CompletedWrite
    | SessionLostWrite
    | PeerWrite
    | HeardWrite
)


class SimulatedDisk:
    """One state directory."""

    __slots__ = (
        "_inbox_upto",
        "_completed",
        "_continues_epoch",
        "_unsynced_packets",
        "_unsynced",
        "absent_seconds",
        "accepted_by_broker",
        "acknowledged",
        "inbox",
        "trimmed_upto",
        "epoch",
        "has_failed",
        "tombstones",
        "journal",
        "journal_max",
        "next_index",
        "next_seq",
        "last_assigned",
        "journaled_packets",
        "records",
        "stalled_until",
        "received_upto",
        "unheard_since",
    )

    def __init__(self, journal_max: int = JOURNAL_MAX) -> None:
        """`journal_max` bounds the publications in the journal."""
        self.journal_max = journal_max
        self.epoch = 0  # until the first incarnation
        self.next_seq = 1
        self.journal: deque[Publication] = deque()
        self.trimmed_upto = (0, 0)
        """Epoch and position of the newest publication that retention removed."""
        self.last_assigned: dict[NodeId, int] = {}
        self.acknowledged: dict[NodeId, int] = {}
        self.unheard_since: dict[NodeId, int] = {}
        """Receivers that have not reported progress since this incarnation began, with the position
        at its start."""
        self.received_upto: dict[NodeId, tuple[int, int]] = {}
        self.records: dict[NodeId, tuple[Record, ...]] = {}
        self.absent_seconds: dict[NodeId, float] = {}
        self.tombstones: dict[NodeId, Stamp] = {}
        """Leases as they were when the agent ended; a copied disk starts them anew."""
        self.journaled_packets: dict[int, None] = {}
        """Packets in the journal that the broker may not know to be acknowledged."""
        self.inbox: dict[int, Publication] = {}
        """Publications in flight to the broker, by index, in order."""
        self.accepted_by_broker: dict[int, None] = {}
        """Indexes of QoS 2 publications that the broker will not accept twice."""
        self.next_index = 1
        self._inbox_upto = 0
        self._continues_epoch = False  # whether earlier incarnations wrote to the journal
        self.stalled_until = 0.0
        """Until then no sync completes."""
        self.has_failed = False
        """Whether no sync completes any more in this incarnation."""
        self._unsynced: list[DiskWrite] = []
        self._unsynced_packets: dict[int, None] = {}  # packets written but not synced
        self._completed: list[int] = []  # completions, which may be synced later

    def assign_index(self, publication: Publication) -> InboxWrite:
        """Assign the next inbox index to a publication of another node."""
        self.next_index += 1
        return InboxWrite(publication, self.next_index - 1)

    @property
    def inbox_count(self) -> int:
        """Publications of other nodes in flight to the broker, synced or not."""
        first_unsynced = self._inbox_upto + 1
        return len(self.inbox) - len(self._completed) + self.next_index - first_unsynced

    def has_passed(self, index: int) -> bool:
        """Whether the broker has everything before an index."""
        pending = (each for each in self.inbox if each not in self._completed)
        is_synced = self._inbox_upto + 1 >= min(index, self.next_index)
        return is_synced and next(pending, index) >= index

    def has_packet(self, packet: int) -> bool:
        """Whether a packet is in the journal, synced or not."""
        return packet in self.journaled_packets or packet in self._unsynced_packets

    def write(self, write: DiskWrite) -> bool:
        """Write; return whether a sync must be scheduled."""
        if type(write) is OutboxWrite:
            self._unsynced_packets[write.packet_id] = None
        self._unsynced.append(write)
        return len(self._unsynced) == 1

    def mark_completed(self, place: int) -> None:
        """Record with the next sync that the broker has a publication."""
        self._completed.append(place)

    def sync(self) -> list[DiskWrite]:
        """Make all writes durable and return them."""
        written, self._unsynced = self._unsynced, []
        finished, self._completed = self._completed, []
        self._unsynced_packets.clear()
        for write in written:
            self._apply_write(write)
        for place in finished:
            self._apply_write(CompletedWrite(place))
        return written

    def _apply_write(self, write: DiskWrite) -> None:
        match write:
            case OutboxWrite(publication, packet):
                self._append_to_journal(publication)
                if packet:
                    self.journaled_packets[packet] = None
            case InboxWrite(publication, place):
                if publication.sequence:  # otherwise a retained message that was requested
                    self.received_upto[publication.origin] = (
                        publication.epoch,
                        publication.sequence,
                    )
                self.inbox[place] = publication
                self._inbox_upto = place
            case GapWrite(origin, epoch, upto):
                self.received_upto[origin] = (epoch, upto)
            case AcceptedWrite(place) if place in self.inbox:
                self.accepted_by_broker[place] = None
            case CompletedWrite(place):
                self.inbox.pop(place, None)
                self.accepted_by_broker.pop(place, None)
            case SessionLostWrite():
                self.accepted_by_broker.clear()
            case PeerWrite() | HeardWrite():
                self._apply_peer_write(write)

    def _apply_peer_write(self, write: PeerWrite | HeardWrite) -> None:
        match write:
            case HeardWrite(node):
                self.unheard_since.pop(node, None)
            case PeerWrite(_, node, ()):  # its lease has ended
                for known in (self.records, self.last_assigned, self.unheard_since):
                    known.pop(node, None)
            case PeerWrite(_, node, records):
                self.records[node] = records

    def crash(self, surviving_fraction: float = 0.0) -> None:
        """Lose unsynced writes except for a fraction from 0 to 1, which may have reached the
        disk."""
        for write in self._unsynced[: int(surviving_fraction * (len(self._unsynced) + 1))]:
            self._apply_write(write)
        self._unsynced, self._completed = [], []
        self._unsynced_packets.clear()
        self.next_index = self._inbox_upto + 1
        self.has_failed = False

    def clear_inbox(self) -> None:
        """Clear the inbox of an agent without a durable disk."""
        self.inbox.clear()
        self.accepted_by_broker.clear()

    def start_epoch(self, epoch: int, acknowledged: Mapping[NodeId, int]) -> list[OutboxWrite]:
        """Start a new epoch because the journal was an old copy. Publications that some receiver
        has not acknowledged move to the new epoch. Return them with the packets that are not
        acknowledged at the broker."""
        writes = [write for write in self._unsynced if type(write) is OutboxWrite]
        receivers = {
            *self.last_assigned,
            *(to for write in writes for to, _ in write.publication.previous),
        }
        writes = [*(OutboxWrite(item, packet_id=0) for item in self.journal), *writes]
        self._unsynced = [write for write in self._unsynced if type(write) is not OutboxWrite]
        self._unsynced_packets.clear()
        self.epoch, self.next_seq = epoch, 1
        self.journal.clear()
        self.last_assigned.clear()
        self.acknowledged.clear()
        self.unheard_since.clear()
        self._continues_epoch = False
        moved: list[OutboxWrite] = []
        for outbox_write in writes:
            item = outbox_write.publication
            pending_receivers = [
                to
                for to, _ in item.previous
                if to in receivers and item.sequence > acknowledged.get(to, 0)
            ]
            previous = tuple((to, self.last_assigned.get(to, 0)) for to in pending_receivers)
            moved_publication = replace(
                item, epoch=epoch, sequence=self.next_seq, previous=previous
            )
            moved.append(OutboxWrite(moved_publication, outbox_write.packet_id))
            self._apply_write(moved[-1])
        return moved

    def _append_to_journal(self, publication: Publication) -> None:
        self.next_seq = publication.sequence + 1
        if self._continues_epoch:
            new = (to for to, _ in publication.previous if to not in self.last_assigned)
            self.unheard_since.update(dict.fromkeys(new, publication.sequence))
        self.last_assigned.update({to: publication.sequence for to, _ in publication.previous})
        self.journal.append(publication)
        if len(self.journal) > self.journal_max:
            oldest = self.journal.popleft()
            self.trimmed_upto = (oldest.epoch, oldest.sequence)

    def restored_state(self, incarnation: int) -> RestoredState:
        """Return the state for a new incarnation. An empty journal may be an old copy of a
        non-empty one, so it starts a new epoch."""
        self._continues_epoch = self.next_seq > 1
        if not self._continues_epoch:
            self.epoch = max(self.epoch + 1, incarnation)
        for node in self.last_assigned:
            self.unheard_since.setdefault(node, self.next_seq)
        return RestoredState(
            self.epoch,
            self.next_seq,
            dict(self.last_assigned),
            dict(self.received_upto),
            dict(self.acknowledged),
            dict(self.unheard_since),
        )

    def peers_restored(self) -> PeersRestored:
        records = tuple(record for records in self.records.values() for record in records)
        return PeersRestored(records, self.absent_seconds, self.tombstones)

    def save_leases(self, membership: MembershipView, now: float) -> None:
        self.absent_seconds = membership.absent_seconds(now)
        self.tombstones = dict(membership.tombstones)

    def read_journal(self, command: ReadJournal) -> JournalRead:
        """Return the publications that a node requests for repair."""
        return select_for_repair(
            command,
            (
                item
                for item in self.journal
                if item.epoch == command.epoch and command.after < item.sequence <= command.upto
                if any(to == command.receiver for to, _ in item.previous)
            ),
        )

    def copy(self) -> "SimulatedDisk":
        """Return the content of a copied state directory."""
        duplicate = SimulatedDisk(self.journal_max)
        duplicate.epoch, duplicate.next_seq = self.epoch, self.next_seq
        duplicate.journal = deque(self.journal)
        duplicate.last_assigned, duplicate.received_upto, duplicate.records = (
            dict(self.last_assigned),
            dict(self.received_upto),
            dict(self.records),
        )
        duplicate.acknowledged, duplicate.unheard_since = (
            dict(self.acknowledged),
            dict(self.unheard_since),
        )
        duplicate.inbox, duplicate.accepted_by_broker = (
            dict(self.inbox),
            dict(self.accepted_by_broker),
        )
        duplicate.next_index, duplicate._inbox_upto = self._inbox_upto + 1, self._inbox_upto
        return duplicate
