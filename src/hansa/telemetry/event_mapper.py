"""Maps the events and effects of a node to telemetry records; agent and simulator share it.

The caller reports handled events with their effects, sent frames, and deliveries to the broker. The
mapper never changes the node. It learns the peer of each link from the node's own effects.
Records about publications are written only if `is_sampled` selects the publication, which gives the
same choice on all nodes.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

from hansa.protocol import effects, events
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    Heartbeat,
    RepairResponse,
    SealedBulk,
    SequencedFrame,
)
from hansa.telemetry import schema

PENDING_HEARTBEATS_MAX = 2
"""Unanswered heartbeats remembered per link."""
PENDING_DELIVERIES_MAX = 65_536
"""QoS 1 and 2 publications whose hops are remembered until the broker acknowledges them."""

PublicationFields = tuple[int, int, int, int, str, int]
"""Origin, epoch, sequence, QoS, topic and payload size: common to all publication records."""

RecordSink = Callable[[schema.AnyRecord], None]


def is_sampled(sequence: int, sample_rate: int) -> bool:
    """Return whether records about this publication are written, for 1 in `sample_rate`; 0: none.

    The low 16 bits of the sequence decide, so that a frame need not be decoded. They are hashed,
    because every n-th publication would often have the same topic."""
    end = (sequence & 0xFFFF).to_bytes(2, "big")
    return sample_rate == 1 or (sample_rate > 1 and crc32(end) % sample_rate == 0)


def sampled_endings(sample_rate: int) -> frozenset[bytes]:
    """Return the last two bytes of all sampled sequence numbers; empty if all or none are."""
    ends = range(1 << 16) if sample_rate > 1 else ()
    return frozenset(end.to_bytes(2, "big") for end in ends if is_sampled(end, sample_rate))


class EventMapper:
    """Maps the activity of one incarnation of one node."""

    def __init__(
        self,
        emit: RecordSink,
        identity: tuple[int, int],
        sample_rate: int,
        clock: Callable[[], int],
    ) -> None:
        """Pass records to `emit`; `identity` is node and incarnation, `clock` gives nanoseconds."""
        self.emit = emit
        self.clock = clock
        self.sample_rate = sample_rate
        self.node, self._incarnation = identity
        self._peers: dict[LinkId, NodeId] = {}
        self._parents: dict[NodeId, tuple[NodeId, ...]] = {}
        self._pending_heartbeats: dict[LinkId, dict[int, int]] = {}
        """When the newest heartbeats were sent: the echo of one may cross the next."""
        self._hops_by_publication: dict[tuple[int, ...], int | None] = {}
        """For publications the broker has not acknowledged yet; None for those from a journal."""

    def peer_of(self, link: LinkId) -> NodeId | None:
        """Return the neighbour on a link, None before its handshake."""
        return self._peers.get(link)

    # ------------------------------------------------------------ reports of the caller

    def on_event_handled(self, event: events.Event, outputs: Sequence[effects.Effect]) -> None:
        """Record an event that the node handled, and its effects."""
        now = self.clock()
        match event:
            case events.FrameReceived(link, Publication() as copy):
                self._record_copy_received(now, copy, link, outputs)
                return
            case events.ClientPublished():
                self._record_client_published(now, outputs)
                return
            case events.FrameReceived(link, Heartbeat(_, echo, held_us)):
                self._record_round_trip(now, link, echo, held_us)
            case events.InterestChanged(added, removed):
                for name in added:
                    self.emit(schema.InterestAdded(now, name))
                for name in removed:
                    self.emit(schema.InterestRemoved(now, name))
        repaired = isinstance(event, events.FrameReceived) and _is_repair_response(event.frame)
        for effect in outputs:
            if isinstance(effect, effects.Deliver):
                self._remember_hops(
                    effect.publication, None if repaired else effect.publication.hops + 1
                )
            else:
                self.on_effect(now, effect)

    def on_frame_sent(self, link: LinkId, frame: AnyFrame | Publication, frame_bytes: int) -> None:
        """Record a frame that leaves over a link."""
        if isinstance(frame, Publication):
            if is_sampled(frame.sequence, self.sample_rate):
                hops = frame.hops + 1
                copy_fields = (frame_bytes, hops, self._peers.get(link))
                self.emit(schema.CopySent(self.clock(), *publication_fields(frame), *copy_fields))
            return
        now = self.clock()
        inner = frame.frame if isinstance(frame, SequencedFrame) else frame
        announcement_fields: tuple[int, ...] = ()
        if isinstance(inner, CoreAnnouncement):
            announcement_fields = (inner.core, inner.sequence, inner.distance, inner.incarnation)
        elif isinstance(inner, Heartbeat):
            beats = self._pending_heartbeats.setdefault(link, {})
            beats[inner.number] = now
            if len(beats) > PENDING_HEARTBEATS_MAX:
                del beats[next(iter(beats))]
        peer = self._peers.get(link)
        self.emit(
            schema.ControlFrameSent(
                now, type(inner).__name__, frame_bytes, peer, *announcement_fields
            )
        )

    def on_delivered(self, publication: Publication) -> None:
        """Record that the broker received a publication of another node's client."""
        fields = publication_fields(publication)
        if publication.qos:
            self.on_guaranteed_delivered(fields)
        elif is_sampled(publication.sequence, self.sample_rate):
            self.emit(schema.Delivered(self.clock(), *fields, publication.hops + 1))

    def on_guaranteed_delivered(self, fields: PublicationFields) -> None:
        """Record that the broker acknowledged a QoS 1 or 2 publication."""
        if is_sampled(fields[2], self.sample_rate):
            hops = self._hops_by_publication.pop(fields[:3], None)
            self.emit(schema.Delivered(self.clock(), *fields, hops))

    # ------------------------------------------------------------ publications

    def _record_copy_received(
        self, now: int, copy: Publication, link: LinkId, outputs: Sequence[effects.Effect]
    ) -> None:
        peer = self._peers.get(link)
        is_recorded = is_sampled(copy.sequence, self.sample_rate)
        if is_recorded:
            copy_fields = (len(encode(copy)), copy.hops + 1, peer)
            self.emit(schema.CopyReceived(now, *publication_fields(copy), *copy_fields))
        for effect in outputs:
            if isinstance(effect, effects.Duplicate):
                if is_recorded:
                    name = (copy.origin, copy.epoch, copy.sequence, copy.qos)
                    self.emit(schema.Duplicate(now, *name, peer))
            elif isinstance(effect, effects.Dropped):
                if is_recorded:
                    self.on_dropped(now, effect, (copy.epoch, copy.qos))
            elif isinstance(effect, effects.Deliver):
                self._remember_hops(effect.publication, effect.publication.hops + 1)
            else:
                self._record_publication_effect(now, effect)

    def _record_client_published(self, now: int, outputs: Sequence[effects.Effect]) -> None:
        """Record a publication of a client; at QoS 0 its first copy says epoch and sequence."""
        is_captured = False
        for effect in outputs:
            match effect:
                case effects.Send(_, Publication() as first):
                    if not is_captured:
                        is_captured = True
                        self.on_captured(now, first)
                case effects.AppendToJournal(publication):
                    self.on_captured(now, publication)
                case effects.Dropped():
                    if is_sampled(effect.sequence, self.sample_rate):
                        self.on_dropped(now, effect)
                case _:
                    self._record_publication_effect(now, effect)

    def on_captured(self, now: int, publication: Publication) -> None:
        """Record that a client's publication got its sequence number."""
        if is_sampled(publication.sequence, self.sample_rate):
            self.emit(schema.Captured(now, *publication_fields(publication)))

    def on_dropped(
        self, now: int, effect: effects.Dropped, epoch_and_qos: tuple[int, int] | None = None
    ) -> None:
        """Record a dropped copy; `epoch_and_qos` is given unless it was published here at QoS 0."""
        epoch, qos = epoch_and_qos or (self._incarnation, 0)
        self.emit(schema.Dropped(now, effect.origin, epoch, effect.sequence, qos, effect.reason))

    def _record_publication_effect(self, now: int, effect: effects.Effect) -> None:
        # Publications may be ignored in large numbers: the node only counts them.
        if not isinstance(effect, effects.Ignored):
            self.on_effect(now, effect)

    def _remember_hops(self, publication: Publication, hops: int | None) -> None:
        """Keep the hop count until the broker acknowledges, which may take long at QoS 1 and 2."""
        if publication.qos and is_sampled(publication.sequence, self.sample_rate):
            if len(self._hops_by_publication) >= PENDING_DELIVERIES_MAX:
                self._hops_by_publication.pop(next(iter(self._hops_by_publication)))
            self._hops_by_publication[publication_fields(publication)[:3]] = hops

    # ------------------------------------------------------------ everything else

    def _record_round_trip(self, now: int, link: LinkId, echo: int, held_us: int) -> None:
        peer = self._peers.get(link)
        sent_at = self._pending_heartbeats.get(link, {}).get(echo)
        if sent_at is not None and peer is not None:
            self.emit(schema.RoundTrip(now, peer, max(0.0, (now - sent_at) / 1e6 - held_us / 1e3)))

    def on_effect(self, now: int, effect: effects.Effect) -> None:
        """Record an effect, if there is a record kind for it."""
        match effect:
            case effects.SubscribeAtBroker(filters):
                for name in filters:
                    self.emit(schema.SubscribedAtBroker(now, name))
            case effects.UnsubscribeAtBroker(filters):
                for name in filters:
                    self.emit(schema.UnsubscribedAtBroker(now, name))
            case effects.NeighbourUp(node, link):
                self._peers[link] = node
                self.emit(schema.LinkUp(now, node))
            case effects.NeighbourDown(node, reason):
                self._forget_neighbour(node)
                self.emit(schema.LinkDown(now, node, reason))
            case effects.ParentsChanged(core, _, sequence, distance, parents):
                self._record_parents(now, core, (sequence, distance), parents)
            case effects.IncarnationRaised(incarnation):
                self._incarnation = incarnation
                self.emit(schema.IncarnationRaised(now, incarnation))
            case _:
                make = _DIRECT_MAPPINGS.get(type(effect))
                if make is not None:
                    self.emit(make(now, effect))

    def _forget_neighbour(self, node: NodeId) -> None:
        for link in [link for link, peer in self._peers.items() if peer == node]:
            del self._peers[link]
            self._pending_heartbeats.pop(link, None)

    def _record_parents(
        self,
        now: int,
        core: NodeId,
        sequence_and_distance: tuple[int, int],
        parents: tuple[NodeId, ...],
    ) -> None:
        before = self._parents.pop(core, ())
        if parents:
            self._parents[core] = parents
        gained = tuple(node for node in parents if node not in before)
        lost = tuple(node for node in before if node not in parents)
        self.emit(schema.ParentsChanged(now, core, *sequence_and_distance, parents, gained, lost))


def publication_fields(publication: Publication) -> PublicationFields:

    return (
        publication.origin,
        publication.epoch,
        publication.sequence,
        publication.qos,
        publication.topic,
        len(publication.payload),
    )


def _is_repair_response(frame: object) -> bool:
    """Whether deliveries that follow from a frame are repaired: of sealed frames only repair
    responses cause any."""
    inner = frame.frame if isinstance(frame, SequencedFrame) else frame
    return isinstance(inner, (RepairResponse, SealedBulk))


_DIRECT_MAPPINGS: dict[type, Callable[..., schema.AnyRecord]] = {
    effects.LinkRefused: lambda now, it: schema.LinkRefused(now, it.reason),
    effects.NodeReachable: lambda now, it: schema.NodeReachable(now, it.node),
    effects.NodeUnreachable: lambda now, it: schema.NodeUnreachable(now, it.node),
    effects.CoreElected: lambda now, it: schema.CoreElected(now, it.group, it.core),
    effects.CoreLost: lambda now, it: schema.CoreLost(now, it.group, it.core),
    effects.MeshJoined: lambda now, it: schema.MeshJoined(now, it.group),
    effects.MeshLeft: lambda now, it: schema.MeshLeft(now, it.group),
    effects.InterestInstalled: lambda now, it: schema.InterestInstalled(now, str(it.version)),
    effects.Repaired: lambda now, it: schema.Repaired(now, it.origin, it.count),
    effects.EpochRolloverRequired: lambda now, it: schema.EpochRolloverRequired(now, it.epoch),
    effects.Ignored: lambda now, it: schema.Ignored(now, it.reason),
    effects.PeerMisbehaved: lambda now, it: schema.Ignored(now, it.reason),
    effects.Gap: lambda now, it: schema.Gap(now, it.origin, it.epoch, it.first, it.last, it.reason),
    effects.DeliveryAbandoned: lambda now, it: schema.DeliveryAbandoned(
        now, it.node, it.epoch, it.first, it.last
    ),
}
"""Effects that map to a record with the same fields."""
