"""The journal of what clients here published at QoS 1 and 2: what others are owed.

One directory per epoch, the greatest is the present one. After a restart it tells where the
positions go on, what each receiver is owed, and which packets the broker may send again. A copy
that was put back begins a new epoch.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from hansa.agent.custody import originality
from hansa.agent.custody.renewal import Renewal, remove_remains
from hansa.agent.records.topics import Topics
from hansa.errors import JournalDamaged, JournalError, JournalTrimmed
from hansa.journal.reader import Reader
from hansa.journal.records import Captured, Chained, Custody, Record, Settled, Unsettled, waited_s
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import Writer
from hansa.mqtt.packets import Publish
from hansa.mqtt.properties import aged, ageless
from hansa.protocol.effects import Recall
from hansa.protocol.events import Recalled
from hansa.protocol.vocabulary import NodeId, Publication

RECENT = 8_192
"""Publications of QoS 1 that are remembered although they were acknowledged: the broker may not
have got that. More than can be under way; far less than it takes to use a packet id again."""

NOTHING = Topics()


def digest(publish: Publish | Captured) -> bytes:
    """Return 16 bytes that tell publications apart; one that waited at the broker is the same."""
    state = blake2b(publish.payload, digest_size=16)
    topic = publish.topic.encode()
    state.update(b"%d,%d,%d," % (publish.qos, publish.retain, len(topic)))
    state.update(topic)
    state.update(ageless(publish.properties))
    return state.digest()


@dataclass(slots=True)
class Seen:
    """A captured publication that the broker may send again."""

    packet_id: int
    qos: int
    digest: bytes
    number: int
    """Its position. If that is of an epoch that has ended, its packet id, negative: it has to have
    a number of its own by which it is settled."""
    offset: int = -1
    """Where it is in the journal; -1 if it was there when the journal was opened."""
    connection: int = 0
    """On which connection it came last; 0 for one of a former life."""
    receipt: int = 0
    """How many came before it in this life."""
    acknowledged: bool = False


class Keeping:
    """The journal of one node's own publications."""

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
        self.remembered: Callable[[], Iterable[Seen]] = tuple
        """Returns what the broker may send again, to be carried into new segments."""
        self.found: list[Seen] = []
        """What a former life left of that."""
        self.last = b""
        """The digest of the last one that a former life captured."""
        self.damage = ""
        """What of this journal, or of a former one, is lost."""
        self.unreadable = ""
        """Why the journal could not be read when it was last tried."""
        remove_remains(directory)
        epoch = max(_epochs(directory), default=new_epoch)
        try:
            self.writer = self._open(epoch)
            self._recover()
        except JournalDamaged as error:
            aside = directory / f"damaged-{epoch}"
            self.damage = f"{error}; it is set aside as {aside.name}, what was owed may be lost"
            self.owed.clear()
            self.acknowledged.clear()
            self._path_of(epoch).rename(aside)
            epoch = max(new_epoch, epoch + 1)
            self.writer = self._open(epoch)
        self.is_copy = originality.is_copy(self._path_of(epoch))
        """Whether a copy of a journal was put back, and the original may have gone on."""
        self.drop_former()

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
                case Chained(last):
                    self.owed.update({NodeId(node): number for node, number in last})
                case Custody(node, _, number):
                    self.acknowledged[NodeId(node)] = number
                case Captured(number=number, qos=qos, previous=previous, packet_id=packet_id):
                    self.owed.update({NodeId(node): number for node, _ in previous})
                    seen.pop(packet_id, None)
                    self.last = digest(record)
                    seen[packet_id] = Seen(packet_id, qos, self.last, number)
                    packet_ids[number] = packet_id
                case Unsettled(number, packet_id, qos, kept):
                    seen[packet_id] = Seen(packet_id, qos, kept, number)
                    packet_ids[number] = packet_id
                case Settled(number):
                    packet_id = packet_ids.pop(number, 0)
                    if packet_id in seen and seen[packet_id].number == number:
                        del seen[packet_id]
                case _:
                    pass
        once = [each for each in seen.values() if each.qos == 1][-RECENT:]
        self.found = [each for each in seen.values() if each.qos > 1] + once

    def _carry(self) -> Iterator[Record]:
        yield Chained(tuple(self.owed.items()))
        for node, number in self.acknowledged.items():
            yield Custody(node, 0, number)
        for seen in self.remembered():
            yield unsettled(seen)

    def keep(self, publication: Publication, packet_id: int) -> int:
        """Write a publication; return its offset. It must not leave before that is durable."""
        assert all(before < publication.number for _, before in publication.previous)
        offset = self.writer.append(
            Captured(
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
            )
        )
        for receiver, _ in publication.previous:
            self.owed[receiver] = publication.number
        return offset

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

    def forget(self, node: NodeId) -> None:
        """Owe a node nothing any more."""
        self.owed.pop(node, None)
        self.acknowledged.pop(node, None)

    def renewal(self, epoch: int) -> Renewal:
        """Return what a new epoch begins with: this journal was an old copy."""
        assert epoch > self.writer.epoch
        repeatable = {seen.number: unsettled(seen) for seen in self.remembered()}
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
        self.is_copy = False

    def recall(self, order: Recall) -> Recalled:
        """Read what a node is owed; for a thread of its own."""
        try:
            found, upto = self._find(order)
            self.unreadable = ""
        except (JournalError, OSError) as error:
            self.unreadable = str(error)
            found, upto = [], order.after  # nothing is lost by it: the node will ask again
        return Recalled(order.to, order.epoch, order.after, upto, tuple(found))

    def _find(self, order: Recall) -> tuple[list[Publication], int]:
        """Return what there is, and up to where that is all."""
        found: list[Publication] = []
        room = order.bytes_max
        for record in self._records(order.after + 1, order.upto):
            if record is None:
                if found:  # the next answer will begin with what is lost here
                    return found, found[-1].number
            elif any(to == order.to for to, _ in record.previous):
                room -= len(record.payload)
                if found and room < 0:
                    return found, found[-1].number
                found.append(self._publication(record, order.epoch))
        return found, order.upto

    def _records(self, first: int, last: int) -> Iterator[Captured | None]:
        """Yield the captured publications that can still be read, None where some cannot."""
        reader = Reader(self._path_of(self.writer.epoch))
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


def unsettled(seen: Seen) -> Unsettled:
    """Return what the journal says of it."""
    return Unsettled(seen.number, seen.packet_id, seen.qos, seen.digest)


def _epochs(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
