"""The disk of one agent: what was synced survives a crash; of what was not, nobody knows.

It holds what a state directory holds: the journal of what clients here published, how far each
origin's publications were taken and which of them are under way into the broker, and what other
nodes want.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from hansa.protocol.delivery.repair import answer
from hansa.protocol.delivery.state import Remembered
from hansa.protocol.effects import Recall
from hansa.protocol.events import Recalled, Restored
from hansa.protocol.membership.leases import Leases
from hansa.protocol.membership.records import Record, Stamp
from hansa.protocol.model import NodeId, Publication

KEEP_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """A publication in the journal, with the packet by which the broker brought it; 0 if the broker
    knows already that it is safe."""

    publication: Publication
    packet: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A publication of another node, on its way to the broker; its place in the journal is its
    packet id there."""

    publication: Publication
    place: int


@dataclass(frozen=True, slots=True)
class Missed:
    """What an origin owed up to a position will never come; what came of it is before this."""

    origin: NodeId
    epoch: int
    upto: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has a publication of QoS 2 and will not take it twice."""

    place: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The broker has a publication for good."""

    place: int


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The broker has forgotten the agent: what it had accepted has to be published anew."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of another node, nothing if it is forgotten."""

    number: int
    node: NodeId
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    """A receiver has said in this life what it has."""

    node: NodeId


Write = Kept | Taken | Missed | Accepted | Completed | SessionLost | Known | Heard


class Disk:
    """One state directory."""

    __slots__ = (
        "_bound_upto",
        "_finished",
        "_goes_on",
        "_writing",
        "_written",
        "absent",
        "accepted",
        "acknowledged",
        "bound",
        "dropped",
        "epoch",
        "failed",
        "forgotten",
        "journal",
        "keep_max",
        "next_place",
        "next_seq",
        "owed",
        "packets",
        "records",
        "stalled_until",
        "taken",
        "unheard",
    )

    def __init__(self, keep_max: int = KEEP_MAX) -> None:
        """Start empty; the journal keeps so many publications."""
        self.keep_max = keep_max
        self.epoch = 0  # until the first life
        self.next_seq = 1
        self.journal: deque[Publication] = deque()
        self.dropped = (0, 0)
        """Epoch and position of the newest that retention took from the journal."""
        self.owed: dict[NodeId, int] = {}
        self.acknowledged: dict[NodeId, int] = {}
        self.unheard: dict[NodeId, int] = {}
        """Per receiver that has not said since what it has, the position with which a life
        began."""
        self.taken: dict[NodeId, tuple[int, int]] = {}
        self.records: dict[NodeId, tuple[Record, ...]] = {}
        self.absent: dict[NodeId, float] = {}
        self.forgotten: dict[NodeId, Stamp] = {}
        """How leases stood when the agent ended; a copy of a disk begins them anew."""
        self.packets: dict[int, None] = {}
        """Packets in the journal of which the broker may not know yet that they are."""
        self.bound: dict[int, Publication] = {}
        """What is under way into the broker, by place, in order."""
        self.accepted: dict[int, None] = {}
        """The places of those that the broker will not take twice."""
        self.next_place = 1
        self._bound_upto = 0
        self._goes_on = False  # whether former lives wrote to the journal
        self.stalled_until = 0.0
        """Until then no sync ends."""
        self.failed = False
        """Whether no sync ends any more in this life of the agent."""
        self._written: list[Write] = []
        self._writing: dict[int, None] = {}  # packets that are written, and not synced
        self._finished: list[int] = []  # completed, which need not be safe soon

    def take(self, publication: Publication) -> Taken:
        """Give a publication of another node its place."""
        self.next_place += 1
        return Taken(publication, self.next_place - 1)

    @property
    def under_way(self) -> int:
        """How many publications of other nodes are on their way to the broker, safe or not."""
        first_unsafe = self._bound_upto + 1
        return len(self.bound) - len(self._finished) + self.next_place - first_unsafe

    def has_passed(self, mark: int) -> bool:
        """Whether the broker has everything before a place."""
        under_way = (place for place in self.bound if place not in self._finished)
        is_safe = self._bound_upto + 1 >= min(mark, self.next_place)
        return is_safe and next(under_way, mark) >= mark

    def has(self, packet: int) -> bool:
        """Whether a packet is in the journal, or being written there."""
        return packet in self.packets or packet in self._writing

    def write(self, what: Write) -> bool:
        """Write, and say whether a sync has to be planned for it."""
        if type(what) is Kept:
            self._writing[what.packet] = None
        self._written.append(what)
        return len(self._written) == 1

    def finish(self, place: int) -> None:
        """Note with the next sync that the broker has a publication."""
        self._finished.append(place)

    def sync(self) -> list[Write]:
        """Make safe what was written; return it."""
        written, self._written = self._written, []
        finished, self._finished = self._finished, []
        self._writing.clear()
        for what in written:
            self._make_safe(what)
        for place in finished:
            self._make_safe(Completed(place))
        return written

    def _make_safe(self, what: Write) -> None:
        match what:
            case Kept(publication, packet):
                self._keep(publication)
                if packet:
                    self.packets[packet] = None
            case Taken(publication, place):
                if publication.number:  # else it is a retained value that was asked for
                    self.taken[publication.origin] = (publication.life, publication.number)
                self.bound[place] = publication
                self._bound_upto = place
            case Missed(origin, epoch, upto):
                self.taken[origin] = (epoch, upto)
            case Accepted(place) if place in self.bound:
                self.accepted[place] = None
            case Completed(place):
                self.bound.pop(place, None)
                self.accepted.pop(place, None)
            case SessionLost():
                self.accepted.clear()
            case Known() | Heard():
                self._note(what)

    def _note(self, what: Known | Heard) -> None:
        match what:
            case Heard(node):
                self.unheard.pop(node, None)
            case Known(_, node, ()):  # its lease has ended
                for known in (self.records, self.owed, self.unheard):
                    known.pop(node, None)
            case Known(_, node, records):
                self.records[node] = records

    def crash(self, survives: float = 0.0) -> None:
        """Lose what was not synced, but for a part of it from 0 to 1: it may have reached the disk
        even so."""
        for what in self._written[: int(survives * (len(self._written) + 1))]:
            self._make_safe(what)
        self._written, self._finished = [], []
        self._writing.clear()
        self.next_place = self._bound_upto + 1
        self.failed = False

    def forget_bound(self) -> None:
        """Keep nothing of what is under way into the broker: it was on no disk."""
        self.bound.clear()
        self.accepted.clear()

    def renew(self, epoch: int, acknowledged: Mapping[NodeId, int]) -> list[Kept]:
        """Begin a new epoch: the journal was an old copy. What was written to it, safe or not, and
        not acknowledged by all, goes into the new one. Return that, with the packets of which the
        broker does not know yet that they are safe."""
        found = [what for what in self._written if type(what) is Kept]
        owed = {*self.owed, *(to for what in found for to, _ in what.publication.previous)}
        found = [*(Kept(item, packet=0) for item in self.journal), *found]
        self._written = [what for what in self._written if type(what) is not Kept]
        self._writing.clear()
        self.epoch, self.next_seq = epoch, 1
        self.journal.clear()
        self.owed.clear()
        self.acknowledged.clear()
        self.unheard.clear()
        self._goes_on = False
        moved: list[Kept] = []
        for kept in found:
            item = kept.publication
            unpaid = [
                to
                for to, _ in item.previous
                if to in owed and item.number > acknowledged.get(to, 0)
            ]
            previous = tuple((to, self.owed.get(to, 0)) for to in unpaid)
            again = replace(item, life=epoch, number=self.next_seq, previous=previous)
            moved.append(Kept(again, kept.packet))
            self._make_safe(moved[-1])
        return moved

    def _keep(self, publication: Publication) -> None:
        self.next_seq = publication.number + 1
        if self._goes_on:
            new = (to for to, _ in publication.previous if to not in self.owed)
            self.unheard.update(dict.fromkeys(new, publication.number))
        self.owed.update({to: publication.number for to, _ in publication.previous})
        self.journal.append(publication)
        if len(self.journal) > self.keep_max:
            oldest = self.journal.popleft()
            self.dropped = (oldest.life, oldest.number)

    def past(self, incarnation: int) -> Remembered:
        """Return what a life starts with. An empty journal may be an old copy of one that is not,
        so it begins a new epoch."""
        self._goes_on = self.next_seq > 1
        if not self._goes_on:
            self.epoch = max(self.epoch + 1, incarnation)
        for node in self.owed:
            self.unheard.setdefault(node, self.next_seq)
        return Remembered(
            self.epoch,
            self.next_seq,
            dict(self.owed),
            dict(self.taken),
            dict(self.acknowledged),
            dict(self.unheard),
        )

    def restored(self) -> Restored:
        """Return what is remembered of other nodes."""
        records = tuple(record for records in self.records.values() for record in records)
        return Restored(records, self.absent, self.forgotten)

    def note_leases(self, leases: Leases, now: float) -> None:
        """Remember how leases stand."""
        self.absent, self.forgotten = leases.absences(now), dict(leases.forgotten)

    def recall(self, order: Recall) -> Recalled:
        """Read what is owed to a node."""
        return answer(
            order,
            (
                item
                for item in self.journal
                if item.life == order.epoch and order.after < item.number <= order.upto
                if any(to == order.to for to, _ in item.previous)
            ),
        )

    def copy(self) -> "Disk":
        """Return what a copied state directory holds."""
        twin = Disk(self.keep_max)
        twin.epoch, twin.next_seq = self.epoch, self.next_seq
        twin.journal = deque(self.journal)
        twin.owed, twin.taken, twin.records = dict(self.owed), dict(self.taken), dict(self.records)
        twin.acknowledged, twin.unheard = dict(self.acknowledged), dict(self.unheard)
        twin.bound, twin.accepted = dict(self.bound), dict(self.accepted)
        twin.next_place, twin._bound_upto = self._bound_upto + 1, self._bound_upto
        return twin
