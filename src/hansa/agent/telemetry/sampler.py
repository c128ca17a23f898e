"""Samples publications that are forwarded as bytes, for telemetry.

The forwarding engine does not know the sampler: it reads the fate of a copy from the lists that the
engine fills. Of a copy that is not sampled it only reads the sequence number.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from hansa.errors import InvalidFrame
from hansa.journal.records import InboxRecord
from hansa.protocol import effects
from hansa.protocol.effects import Effect
from hansa.protocol.forwarding.engine import Deliveries, Outgoing
from hansa.protocol.model import LinkId
from hansa.protocol.wire.codec import (
    GROUP_ID_STRUCT,
    PLAIN_FIRST_BYTES,
    PUBLICATION,
    PUBLICATION_HEADER,
    decode_publication,
)
from hansa.telemetry import schema
from hansa.telemetry.event_mapper import (
    EventMapper,
    PublicationFields,
    RecordSink,
    is_sampled,
    publication_fields,
    sampled_endings,
)

QueueLengths = dict[LinkId, int]
"""Frames that waited for each link."""

_SAMPLING_BYTES = slice(27, 29)
"""The last two bytes of a sequence number decide whether the publication is sampled."""
_COPY_EFFECTS = (effects.Duplicate, effects.Dropped, effects.Ignored)
_HEADER_BYTES = PUBLICATION_HEADER.size
_GROUP_BYTES = GROUP_ID_STRUCT.size


class Sampler(EventMapper):
    """Event mapper of the live agent."""

    def __init__(
        self, put: RecordSink, identity: tuple[int, int], sample: int, clock: Callable[[], int]
    ) -> None:
        super().__init__(put, identity, sample, clock)
        self._sampled_endings = sampled_endings(sample)

    def watch_frames(
        self,
        link: LinkId,
        frames: list[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        notifications: list[Effect],
    ) -> Iterator[bytes]:
        """Yield the frames. When the consumer takes the next frame, it has put the results of
        the previous one into these lists. Other frames than publications are recorded by
        `on_event_handled`."""
        ends, end = self._sampled_endings, _SAMPLING_BYTES
        some = self.sample_rate > 1 and [data for data in frames if data[end] in ends]
        if some or self.sample_rate == 1:
            return self._watch_sampled(link, frames, outgoing, deliveries, notifications)
        return iter(frames)

    def _watch_sampled(
        self,
        link: LinkId,
        frames: list[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        notifications: list[Effect],
    ) -> Iterator[bytes]:
        every, ends, end = self.sample_rate == 1, self._sampled_endings, _SAMPLING_BYTES
        for data in frames:
            if not every and data[end] not in ends:
                yield data
                continue
            peer = self.peer_of(link)
            if len(data) < _HEADER_BYTES or data[0] != PUBLICATION or peer is None:
                yield data  # without a neighbour the node handles them one by one
                continue
            queue_lengths, delivered, notification_count = (
                self.queue_lengths(outgoing),
                len(deliveries),
                len(notifications),
            )
            yield data
            with suppress(InvalidFrame):  # not a publication, and counted
                name, hops = read_publication(data)
                now, put = self.clock(), self.emit
                put(schema.CopyReceived(now, *name, len(data), hops, peer))
                for effect in notifications[notification_count:]:
                    if isinstance(effect, effects.Duplicate):
                        put(schema.Duplicate(now, *name[:4], peer))
                    elif isinstance(effect, effects.Dropped):
                        put(schema.Dropped(now, *name[:4], effect.reason))
                if len(deliveries) > delivered:
                    put(schema.Delivered(now, *name, hops))
                self._record_sent(now, name, hops + 1, queue_lengths, outgoing)

    def on_batch_notifications(self, notifications: Iterable[Effect]) -> None:
        """Record notifications of a batch; `watch_frames` records the copies themselves."""
        now = self.clock()
        for effect in notifications:
            if isinstance(effect, effects.Deliver):
                self._remember_hops(effect.publication, effect.publication.hops + 1)
            elif not isinstance(effect, _COPY_EFFECTS):
                self.on_effect(now, effect)

    def queue_lengths(self, outgoing: Outgoing) -> QueueLengths:
        """Return how many frames wait for each link."""
        return {link: len(queue) for link, queue in outgoing.items()} if self.sample_rate else {}

    def _record_sent(
        self,
        now: int,
        name: PublicationFields,
        hops: int,
        queue_lengths: QueueLengths,
        outgoing: Outgoing,
    ) -> None:
        for link, queue in outgoing.items():
            for data in queue[queue_lengths.get(link, 0) :]:
                self.emit(schema.CopySent(now, *name, len(data), hops, self.peer_of(link)))

    def on_qos0_published(
        self, notifications: Iterable[Effect], queue_lengths: QueueLengths, outgoing: Outgoing
    ) -> None:
        """Record QoS 0 publications of local clients that were queued for links."""
        if not self.sample_rate:
            return
        every, ends, end = self.sample_rate == 1, self._sampled_endings, _SAMPLING_BYTES
        now, seen = self.clock(), set()
        for link, queue in outgoing.items():
            for data in queue[queue_lengths.get(link, 0) :]:
                if every or data[end] in ends:
                    name, hops = read_publication(data)
                    if name[2] not in seen:
                        seen.add(name[2])
                        self.emit(schema.Captured(now, *name))
                    self.emit(schema.CopySent(now, *name, len(data), hops, self.peer_of(link)))
        for effect in notifications:
            if isinstance(effect, effects.Dropped) and is_sampled(
                effect.sequence, self.sample_rate
            ):
                self.on_dropped(now, effect)

    def on_injected(self, record: InboxRecord) -> None:
        """The broker acknowledged a publication of QoS 1 or 2."""
        name = (record.origin, record.epoch, record.sequence, record.qos, record.topic)
        self.on_guaranteed_delivered((*name, len(record.payload)))


def read_publication(data: bytes | bytearray) -> tuple[PublicationFields, int]:
    """Return the id of a QoS 0 publication and the number of its hop, from 1."""
    first_bytes, hops, count, origin, epoch, sequence, topic_bytes = PUBLICATION_HEADER.unpack_from(
        data
    )
    if first_bytes != PLAIN_FIRST_BYTES:
        publication = decode_publication(data)
        return publication_fields(publication), publication.hops + 1
    begin = _HEADER_BYTES + _GROUP_BYTES * count
    end = begin + topic_bytes
    topic = data[begin:end].decode("utf-8", "replace")
    return (origin, epoch, sequence, 0, topic, len(data) - end), hops + 1
