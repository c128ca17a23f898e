"""The journal of what clients here published at QoS 1 and 2: what others are owed.

One directory per epoch, the greatest is the present one. After a restart it tells where the
positions go on, what each receiver is owed, and which packets the broker may send again. A copy
that was put back begins a new epoch.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from hansa.agent.delivery import clone_detection
from hansa.agent.delivery.epoch_rollover import Renewal, remove_remains
from hansa.agent.delivery.overlap_dedup import Former, Rests
from hansa.agent.delivery.redelivery import RECENT, PacketIds, Seen, digest, found
from hansa.agent.telemetry.recorded_topics import Topics
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed
from hansa.journal.reader import Reader
from hansa.journal.records import (
    Captured,
    Chained,
    Custody,
    Record,
    Recorded,
    SessionBegun,
    Settled,
    Unheard,
    Unsettled,
    waited_s,
)
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import Writer
from hansa.mqtt.properties import aged
from hansa.protocol.delivery.repair import answer
from hansa.protocol.effects import Recall
from hansa.protocol.events import Recalled
from hansa.protocol.model import NodeId, Publication

NOTHING = Topics()


class Keeping:
    """The journal of one node's own publications."""

    _goes_on = False
    """Whether former lives captured something in this epoch."""

    def __init__(
        self,
        directory: Path,
        node: NodeId,
        new_epoch: int,
        settings: JournalSettings,
        recorded: Topics = NOTHING,
    ) -> None:
        """Open the journal of the greatest epoch, or make one. What is published to some topics is
        recorded, for readers who take their time."""
        self._recorded = recorded
        self._directory = directory
        self._node = node
        self._settings = settings
        self.owed: dict[NodeId, int] = {}
        self.acknowledged: dict[NodeId, int] = {}
        """Per receiver, up to where it has all that it was owed, as far as the journal says."""
        self.unheard: dict[NodeId, int] = {}
        """Per receiver that has not said since what it has, the position with which a life began:
        the first that it cannot have."""
        self.remembered: Callable[[], Iterable[Seen]] = lambda: self.found
        """Returns what the broker may send again."""
        self.carried: Callable[[], Iterable[Record]] = self._carried
        """Returns what new segments begin with for the next life to know that, and more."""
        self.found: list[Seen] = []
        """What a former life left of that."""
        self.former = Former()
        self.packet_ids = PacketIds()
        self.damage = ""
        """What of this journal, or of a former one, is lost."""
        self.unreadable = ""
        """Why the journal could not be read when it was last tried."""
        self.is_stopping = False
        """Whether the agent stops: the result of `recall` is not needed any more."""
        remove_remains(directory)
        epoch = max(_epochs(directory), default=new_epoch)
        try:
            self.writer = self._open(epoch)
            self.damage = self.writer.damage
            self._recover()
            self._begin(new_epoch)
        except JournalDamaged as error:
            self._set_aside(epoch, error)
            self.writer = self._open(max(new_epoch, epoch + 1))
        self.is_copy = clone_detection.is_copy(self._path_of(self.writer.epoch))
        """Whether a copy of a journal was put back, and the original may have gone on."""
        self.drop_former()

    def _set_aside(self, epoch: int, error: JournalDamaged) -> None:
        """Keep a journal that cannot be used out of the way, and nothing of what it said."""
        aside = self._directory / f"damaged-{epoch}"
        self.damage = f"{error}; it is set aside as {aside.name}, what was owed may be lost"
        for known in (self.owed, self.acknowledged, self.unheard):
            known.clear()
        self.former, self.packet_ids = Former(), PacketIds()
        self._path_of(epoch).rename(aside)

    def _path_of(self, epoch: int) -> Path:
        return self._directory / f"{epoch:020d}"

    def _open(self, epoch: int) -> Writer:
        writer = Writer(self._path_of(epoch), self._node, epoch, self._settings)
        writer.carry = self._carry
        return writer

    def drop_former(self) -> None:
        """Let the journals of epochs go that have ended: no node can ask for them any more."""
        for epoch in _epochs(self._directory):
            former = self._path_of(epoch)
            if epoch < self.writer.epoch and not (self._recorded and self._is_young(former)):
                shutil.rmtree(former, ignore_errors=True)

    def _is_young(self, former: Path) -> bool:
        """Whether the journal of an epoch that has ended is still kept for who reads what was
        recorded."""
        ends = [path.stat().st_mtime for path in former.glob("*.log")]
        age_s = time.time_ns() / 1e9 - max(ends, default=0.0)
        return age_s < self._settings.retention_seconds

    def _recover(self) -> None:
        seen: dict[int, Seen] = {}  # a packet id that is used again is no longer the former one's
        packet_ids: dict[int, int] = {}
        for record in self.writer.replay():
            match record:
                case Chained() | Custody() | Unheard():
                    self._recover_debts(record)
                case Captured(number=number, packet_id=packet_id):
                    self.owed.update({NodeId(node): number for node, _ in record.previous})
                    seen.pop(packet_id, None)
                    seen[packet_id] = found(record, digest(record))
                    self.former.note(seen[packet_id])
                    self.packet_ids.note(packet_id)
                    packet_ids[number] = packet_id
                case Unsettled(number, packet_id):
                    seen[packet_id] = found(record, record.digest)
                    self.former.note(seen[packet_id])
                    packet_ids[number] = packet_id
                case SessionBegun():
                    seen, packet_ids = {}, {}
                    self.former, self.packet_ids = Former(), PacketIds()
                case Settled(number):
                    packet_id = packet_ids.pop(number, 0)
                    if packet_id in seen and seen[packet_id].number == number:
                        self.former.settle(seen.pop(packet_id))
                case _:
                    pass
        for packet_id in [each.packet_id for each in seen.values() if each.qos == 1][:-RECENT]:
            del seen[packet_id]
        self.found = list(seen.values())

    def _recover_debts(self, record: Chained | Custody | Unheard) -> None:
        match record:
            case Custody(node, _, number):
                self.acknowledged[NodeId(node)] = number
            case Unheard(node, number):
                self.unheard[NodeId(node)] = number
            case Chained(last):
                self.owed = {NodeId(node): number for node, number in last}
                for known in (self.acknowledged, self.unheard):
                    for node in known.keys() - self.owed.keys():
                        del known[node]

    def _begin(self, new_epoch: int) -> None:
        """What this life captures, nobody has; before it is sent, its receiver has to be heard."""
        epoch = self.writer.epoch
        self._goes_on = self.writer.next_number > 1
        is_new = epoch == new_epoch
        if not self._goes_on and not is_new and not clone_detection.is_copy(self._path_of(epoch)):
            self._replace_empty(max(new_epoch, epoch + 1))
        for node in self.owed:
            if not self.unheard.get(node):
                self._miss(node, self.writer.next_number)

    def _replace_empty(self, epoch: int) -> None:
        """A snapshot from before the first capture shows nothing of the positions that were given
        out since. A new epoch has its own, and costs nothing: from an empty one nothing is owed."""
        empty, renewal = self.writer, self.renewal(epoch)
        self.adopt(renewal, self.renew(renewal))
        empty.close()
        if not self._holds_recorded(empty.epoch):
            shutil.rmtree(self._path_of(empty.epoch), ignore_errors=True)

    def _holds_recorded(self, epoch: int) -> bool:
        """Return whether there may be recorded publications of QoS 0, which have no position."""
        try:
            records = Reader(self._path_of(epoch)).read()
            return any(isinstance(record, Recorded) for _, record in records)
        except JournalError:
            return True

    def _miss(self, node: NodeId, number: int) -> None:
        self.unheard[node] = number
        self.writer.append(Unheard(node, number))

    def hear(self, node: NodeId) -> int:
        """Write that a receiver has said what it has; return the offset."""
        self.unheard.pop(node, None)
        return self.writer.append(Unheard(node, 0))

    def _carried(self) -> Iterator[Record]:
        return Rests(self.former).carried(self.found)

    def _carry(self) -> Iterator[Record]:
        yield Chained(tuple(self.owed.items()))
        for node, number in self.acknowledged.items():
            yield Custody(node, 0, number)
        for node, number in self.unheard.items():
            yield Unheard(node, number)
        yield from self.carried()

    def carry_on(self) -> None:
        """Write, where a new epoch began, what else the next life has to know."""
        for record in self.carried():
            self.writer.append(record)

    def keep(self, publication: Publication, packet_id: int, by: tuple[int, int] = (0, 0)) -> int:
        """Write a publication; return its offset. It must not leave before that is durable. `by`
        names the subscription that brought it, and the newest one."""
        assert all(before < publication.number for _, before in publication.previous)
        if self._goes_on:
            for receiver, _ in publication.previous:
                if receiver not in self.owed:
                    self._miss(receiver, publication.number)
        record = Captured(
            publication.number,
            publication.qos,
            publication.topic,
            publication.payload,
            publication.retain,
            publication.properties,
            publication.previous,
            packet_id,
            time.time_ns(),
            publication.topic in self._recorded,
            publication.version,
            *by,
        )
        offset = self.writer.append(record)
        for receiver, _ in publication.previous:
            self.owed[receiver] = publication.number
        return offset

    def begin_session(self) -> None:
        """Write that nothing of before comes again."""
        self.writer.append(SessionBegun(time.time_ns()))

    def settle(self, number: int) -> int:
        """Write that the broker will not send a publication again; return the offset."""
        return self.writer.append(Settled(number))

    def acknowledge(self, acknowledged: Mapping[NodeId, int]) -> bool:
        """Write up to where receivers have what they were owed; return whether that is news."""
        news = {
            node: number
            for node, number in acknowledged.items()
            if number > self.acknowledged.get(node, 0)
        }
        for node, number in news.items():
            self.writer.append(Custody(node, 0, number))
        self.acknowledged.update(news)
        return bool(news)

    def forget(self, node: NodeId) -> bool:
        """Write that a node is owed nothing any more; return whether it was owed something."""
        self.acknowledged.pop(node, None)
        self.unheard.pop(node, None)
        if self.owed.pop(node, None) is None:
            return False
        self.writer.append(Chained(tuple(self.owed.items())))
        return True

    def renewal(self, epoch: int) -> Renewal:
        """Return what a new epoch begins with: this journal was an old copy."""
        assert epoch > self.writer.epoch
        repeatable = {seen.number: seen.unsettled() for seen in self.remembered()}
        return Renewal(epoch, dict(self.owed), dict(self.acknowledged), repeatable)

    def renew(self, renewal: Renewal) -> Writer:
        """Make the journal of a new epoch, and return its writer; for a thread of its own. Nothing
        may be captured until it is adopted."""
        self.writer.commit()
        records = self._records(renewal.first, self.writer.next_number - 1)
        unpaid = (record for record in records if record is not None)
        renewal.build(self._path_of(renewal.epoch), self._node, self._settings, unpaid)
        return self._open(renewal.epoch)

    def adopt(self, renewal: Renewal, writer: Writer) -> None:
        """Go on with the journal of a new epoch."""
        self.writer = writer
        self.owed = dict(renewal.owed)
        self.acknowledged.clear()
        self.unheard.clear()
        self._goes_on = False
        self.is_copy = False

    def recall(self, order: Recall) -> Recalled:
        """Read what a node is owed; for a thread of its own."""
        try:
            recalled = answer(order, self._owed_to(order))
            self.unreadable = ""
        except (JournalError, OSError) as error:
            self.unreadable = str(error)
            # Nothing is lost by it: the node will ask again.
            recalled = Recalled(order.to, order.epoch, order.after, order.after, ())
        return recalled

    def _owed_to(self, order: Recall) -> Iterator[Publication | None]:
        for record in self._records(order.after + 1, order.upto):
            if self.is_stopping:
                return
            if record is None:
                yield None
            elif any(to == order.to for to, _ in record.previous):
                yield self._publication(record, order.epoch)

    def _records(self, first: int, last: int) -> Iterator[Captured | None]:
        """Yield the captured publications that can still be read, None where some cannot."""
        writer = self.writer
        reader = Reader(self._path_of(writer.epoch), writer.durable)
        source = self._source(reader, first, last)
        while True:
            try:
                for _, record in source:
                    if isinstance(record, Captured) and record.number >= first:
                        if record.number > last:
                            return
                        yield record
            except JournalTrimmed:
                yield None
                left = reader.headers()
                if not left:
                    return
                source = reader.captured(left[0].number, last)
            except JournalDamaged as damaged:
                self.damage = str(damaged)
                yield None
                if damaged.resume is None:
                    return
                source = reader.read(damaged.resume)
            else:
                return

    def _source(self, reader: Reader, first: int, last: int) -> Iterator[tuple[int, Record]]:
        try:
            reader.headers()
        except JournalDamaged as damaged:  # records can be found without, if more slowly
            self.damage = str(damaged)
            return reader.read()
        return reader.captured(first, last)

    def _publication(self, record: Captured, epoch: int) -> Publication:
        return Publication(
            origin=self._node,
            life=epoch,
            number=record.number,
            qos=record.qos,
            topic=record.topic,
            payload=record.payload,
            retain=record.retain,
            previous=tuple((NodeId(node), number) for node, number in record.previous),
            properties=aged(record.properties, waited_s(record.time_ns, time.time_ns())),
            version=record.version,
        )


def _epochs(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
