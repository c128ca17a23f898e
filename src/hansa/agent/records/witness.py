"""Sees publications that pass in bytes, and tells of those that are chosen.

The forwarding plane knows nothing of this: what became of a copy is read from what it added to the
lists that it fills. Of a copy that is not chosen only the number is looked at.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from zlib import crc32

from hansa.errors import InvalidFrame
from hansa.journal.records import Bound
from hansa.protocol import effects
from hansa.protocol.effects import Effect
from hansa.protocol.plane import Deliveries, Outgoing
from hansa.protocol.vocabulary import LinkId
from hansa.protocol.wire import GROUP, HEAD, PLAIN, PUBLICATION, decode_publication
from hansa.telemetry import schema
from hansa.telemetry.narrator import Narrator, chosen, names_of

Marks = dict[LinkId, int]
"""How many frames waited for each link."""

_NUMBER = slice(21, 29)
_QOS = 3
_HEAD_BYTES = HEAD.size
_GROUP_BYTES = GROUP.size

Name = tuple[int, int, int, int, str, int]
"""Origin, life, number, QoS, topic and bytes of the payload."""


class Witness(Narrator):
    """A narrator for the live agent."""

    def watch(
        self,
        link: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
    ) -> Iterator[bytes]:
        """Return the frames; whoever takes the next one has put what became of the one before into
        these lists. Frames that are no publications are told by `handled`."""
        if not self.sample:
            return frames
        return self._watch(link, frames, outgoing, deliveries, news)

    def _watch(
        self,
        link: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
    ) -> Iterator[bytes]:
        sample = self.sample
        for data in frames:
            if (
                len(data) < _HEAD_BYTES
                or data[0] != PUBLICATION
                or self.peer(link) is None  # then the node takes them one by one
            ):
                yield data
            elif data[1] & _QOS:
                marks, told = self.marks(outgoing), len(news)
                yield data
                with suppress(InvalidFrame):  # then it was none, and is counted
                    copy = decode_publication(data)
                    self._take(self.clock(), copy, link, news[told:])
                    if chosen(copy.number, sample):
                        name, hops = names_of(copy), copy.hops + 2
                        self._tell_sent(self.clock(), name, hops, marks, outgoing)
            elif sample == 1 or crc32(data[_NUMBER]) % sample == 0:
                marks, delivered, told = self.marks(outgoing), len(deliveries), len(news)
                yield data
                name, hops = _read(data)
                now, put, peer = self.clock(), self.put, self.peer(link)
                put(schema.Received(now, *name, len(data), hops, peer))
                for effect in news[told:]:
                    if isinstance(effect, effects.Duplicate):
                        put(schema.Duplicate(now, *name[:4], peer))
                    elif isinstance(effect, effects.Dropped):
                        put(schema.Dropped(now, *name[:4], effect.reason))
                if len(deliveries) > delivered:
                    put(schema.Delivered(now, *name, hops))
                self._tell_sent(now, name, hops + 1, marks, outgoing)
            else:
                yield data

    def marks(self, outgoing: Outgoing) -> Marks:
        """Remember how much goes out."""
        return {link: len(queue) for link, queue in outgoing.items()} if self.sample else {}

    def _tell_sent(self, now: int, name: Name, hops: int, marks: Marks, outgoing: Outgoing) -> None:
        for link, queue in outgoing.items():
            for data in queue[marks.get(link, 0) :]:
                self.put(schema.Sent(now, *name, len(data), hops, self.peer(link)))

    def started(self, news: Iterable[Effect], marks: Marks, outgoing: Outgoing) -> None:
        """Publications of QoS 0 that clients here made have been added to what goes out."""
        sample = self.sample
        if not sample:
            return
        now, seen = self.clock(), set()
        for link, queue in outgoing.items():
            for data in queue[marks.get(link, 0) :]:
                if sample == 1 or crc32(data[_NUMBER]) % sample == 0:
                    name, hops = _read(data)
                    if name[2] not in seen:
                        seen.add(name[2])
                        self.put(schema.Captured(now, *name))
                    self.put(schema.Sent(now, *name, len(data), hops, self.peer(link)))
        for effect in news:
            if isinstance(effect, effects.Dropped) and chosen(effect.number, sample):
                self.drop(now, effect)

    def injected(self, bound: Bound) -> None:
        """The broker has acknowledged a publication of QoS 1 or 2."""
        name = (bound.origin, bound.epoch, bound.number, bound.qos, bound.topic)
        self.delivered_surely((*name, len(bound.payload)))


def _read(data: bytes | bytearray) -> tuple[Name, int]:
    """Return the name of a publication of QoS 0, and which link of its way it is on, from 1."""
    opening, hops, count, origin, life, number, topic_bytes = HEAD.unpack_from(data)
    if opening != PLAIN:
        publication = decode_publication(data)
        return names_of(publication), publication.hops + 1
    begin = _HEAD_BYTES + _GROUP_BYTES * count
    end = begin + topic_bytes
    topic = data[begin:end].decode("utf-8", "replace")
    return (origin, life, number, 0, topic, len(data) - end), hops + 1
