"""Sees publications that pass in bytes, and tells of those that are chosen.

The forwarding plane knows nothing of this: what became of a copy is read from what it added to the
lists that it fills. Of a copy that is not chosen only the number is looked at.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from hansa.errors import InvalidFrame
from hansa.journal.records import Bound
from hansa.protocol import effects
from hansa.protocol.effects import Effect
from hansa.protocol.forwarding.engine import Deliveries, Outgoing
from hansa.protocol.model import LinkId
from hansa.protocol.wire.codec import GROUP, HEAD, PLAIN, PUBLICATION, decode_publication
from hansa.telemetry import schema
from hansa.telemetry.event_mapper import Name, Narrator, Put, chosen, chosen_ends, names_of

Marks = dict[LinkId, int]
"""How many frames waited for each link."""

_END = slice(27, 29)
"""The last two bytes of a publication's number, by which it is chosen."""
_OF_COPIES = (effects.Duplicate, effects.Dropped, effects.Ignored)
_HEAD_BYTES = HEAD.size
_GROUP_BYTES = GROUP.size


class Witness(Narrator):
    """A narrator for the live agent."""

    def __init__(
        self, put: Put, identity: tuple[int, int], sample: int, clock: Callable[[], int]
    ) -> None:
        """As of a narrator."""
        super().__init__(put, identity, sample, clock)
        self._ends = chosen_ends(sample)

    def watch(
        self,
        link: LinkId,
        frames: list[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
    ) -> Iterator[bytes]:
        """Return the frames; whoever takes the next one has put what became of the one before into
        these lists. Frames that are no publications are told by `handled`."""
        ends, end = self._ends, _END
        some = self.sample > 1 and [data for data in frames if data[end] in ends]
        if some or self.sample == 1:
            return self._watch(link, frames, outgoing, deliveries, news)
        return iter(frames)

    def _watch(
        self,
        link: LinkId,
        frames: list[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
    ) -> Iterator[bytes]:
        every, ends, end = self.sample == 1, self._ends, _END
        for data in frames:
            if not every and data[end] not in ends:
                yield data
                continue
            peer = self.peer(link)
            if len(data) < _HEAD_BYTES or data[0] != PUBLICATION or peer is None:
                yield data  # without a neighbour the node takes them one by one
                continue
            marks, delivered, told = self.marks(outgoing), len(deliveries), len(news)
            yield data
            with suppress(InvalidFrame):  # then it was none, and is counted
                name, hops = _read(data)
                now, put = self.clock(), self.put
                put(schema.Received(now, *name, len(data), hops, peer))
                for effect in news[told:]:
                    if isinstance(effect, effects.Duplicate):
                        put(schema.Duplicate(now, *name[:4], peer))
                    elif isinstance(effect, effects.Dropped):
                        put(schema.Dropped(now, *name[:4], effect.reason))
                if len(deliveries) > delivered:
                    put(schema.Delivered(now, *name, hops))
                self._tell_sent(now, name, hops + 1, marks, outgoing)

    def noticed(self, news: Iterable[Effect]) -> None:
        """What passed in bytes brought news. Of the copies themselves `watch` tells."""
        now = self.clock()
        for effect in news:
            if isinstance(effect, effects.Deliver):
                self._take_in(effect.publication, effect.publication.hops + 1)
            elif not isinstance(effect, _OF_COPIES):
                self.told(now, effect)

    def marks(self, outgoing: Outgoing) -> Marks:
        """Remember how much goes out."""
        return {link: len(queue) for link, queue in outgoing.items()} if self.sample else {}

    def _tell_sent(self, now: int, name: Name, hops: int, marks: Marks, outgoing: Outgoing) -> None:
        for link, queue in outgoing.items():
            for data in queue[marks.get(link, 0) :]:
                self.put(schema.Sent(now, *name, len(data), hops, self.peer(link)))

    def started(self, news: Iterable[Effect], marks: Marks, outgoing: Outgoing) -> None:
        """Publications of QoS 0 that clients here made have been added to what goes out."""
        if not self.sample:
            return
        every, ends, end = self.sample == 1, self._ends, _END
        now, seen = self.clock(), set()
        for link, queue in outgoing.items():
            for data in queue[marks.get(link, 0) :]:
                if every or data[end] in ends:
                    name, hops = _read(data)
                    if name[2] not in seen:
                        seen.add(name[2])
                        self.put(schema.Captured(now, *name))
                    self.put(schema.Sent(now, *name, len(data), hops, self.peer(link)))
        for effect in news:
            if isinstance(effect, effects.Dropped) and chosen(effect.number, self.sample):
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
