"""The disk of one agent: what was synced survives a crash, what was not does not.

It holds what a state directory holds: the journal of what clients here published, how far each
origin's publications were taken, and what other nodes want.
"""

from collections import deque
from dataclasses import dataclass

from hansa.protocol.custody import Remembered
from hansa.protocol.effects import Recall
from hansa.protocol.events import Recalled
from hansa.protocol.records import Record
from hansa.protocol.vocabulary import NodeId, Publication

KEEP_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """A publication in the journal, with the packet by which the broker brought it."""

    publication: Publication
    packet: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A publication of another node, on its way to the broker."""

    publication: Publication


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of another node, nothing if it is forgotten."""

    number: int
    node: NodeId
    records: tuple[Record, ...]


Write = Kept | Taken | Known


class Disk:
    """One state directory."""

    __slots__ = (
        "_written",
        "dropped",
        "epoch",
        "journal",
        "keep_max",
        "next_seq",
        "owed",
        "packets",
        "records",
        "stalled_until",
        "taken",
    )

    def __init__(self, keep_max: int = KEEP_MAX) -> None:
        """Start empty; the journal keeps so many publications."""
        self.keep_max = keep_max
        self.epoch = 0  # until the first life
        self.next_seq = 1
        self.journal: deque[Publication] = deque()
        self.dropped = 0
        """Publications that retention took from the journal."""
        self.owed: dict[NodeId, int] = {}
        self.taken: dict[NodeId, tuple[int, int]] = {}
        self.records: dict[NodeId, tuple[Record, ...]] = {}
        self.packets: dict[int, None] = {}
        """Packets in the journal of which the broker may not know yet that they are."""
        self.stalled_until = 0.0
        """Until then no sync ends."""
        self._written: list[Write] = []

    def write(self, what: Write) -> bool:
        """Write, and say whether a sync has to be planned for it."""
        self._written.append(what)
        return len(self._written) == 1

    def sync(self) -> list[Write]:
        """Make safe what was written; return it."""
        written, self._written = self._written, []
        for what in written:
            match what:
                case Kept(publication, packet):
                    self._keep(publication)
                    self.packets[packet] = None
                case Taken(publication):
                    self.taken[publication.origin] = (publication.life, publication.number)
                case Known(_, node, ()):  # its lease has ended
                    self.records.pop(node, None)
                    self.owed.pop(node, None)
                case Known(_, node, records):
                    self.records[node] = records
        return written

    def crash(self) -> None:
        """Lose what was not synced."""
        self._written = []

    def renew(self, epoch: int) -> None:
        """Begin a new epoch; what the journal holds belongs to an older one."""
        self.epoch, self.next_seq = epoch, 1
        self.owed.clear()

    def _keep(self, publication: Publication) -> None:
        if publication.life != self.epoch:
            return  # its epoch ended while it was written
        self.next_seq = publication.number + 1
        self.owed.update({to: publication.number for to, _ in publication.previous})
        self.journal.append(publication)
        if len(self.journal) > self.keep_max:
            self.journal.popleft()
            self.dropped += 1

    def past(self) -> Remembered:
        """Return what a node starts with."""
        return Remembered(self.epoch, self.next_seq, dict(self.owed), dict(self.taken))

    def known(self) -> tuple[Record, ...]:
        """Return what is remembered of other nodes."""
        return tuple(record for records in self.records.values() for record in records)

    def recall(self, order: Recall) -> Recalled:
        """Read what is owed to a node."""
        found: list[Publication] = []
        room = order.bytes_max
        for item in self.journal:
            if item.life != order.epoch or not order.after < item.number <= order.upto:
                continue
            if all(to != order.to for to, _ in item.previous):
                continue
            room -= len(item.payload)
            if found and room < 0:
                upto = found[-1].number
                return Recalled(order.to, order.epoch, order.after, upto, tuple(found))
            found.append(item)
        return Recalled(order.to, order.epoch, order.after, order.upto, tuple(found))

    def copy(self) -> "Disk":
        """Return what a copied state directory holds."""
        twin = Disk(self.keep_max)
        twin.epoch, twin.next_seq = self.epoch, self.next_seq
        twin.journal = deque(self.journal)
        twin.owed, twin.taken, twin.records = dict(self.owed), dict(self.taken), dict(self.records)
        return twin
