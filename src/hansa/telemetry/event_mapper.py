"""Turns what goes into a node and comes out of it into records: the same words in every shell.

A shell tells what a node handled and what it wants, what was really sent and what the broker got;
nothing here changes any of it. Who is behind a link is learned from the node's own news. Of
publications only those are told that `chosen` names, on all nodes the same ones.
"""

from collections.abc import Callable, Sequence
from zlib import crc32

from hansa.protocol import effects, events
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Announce, Heartbeat, Numbered, Resend
from hansa.protocol.wire.frames import Any as AnyFrame
from hansa.telemetry import schema

BEATS_MAX = 2
"""Heartbeats of one link whose echo is waited for."""
UNDER_WAY_MAX = 65_536
"""Publications of QoS 1 and 2 whose hops are remembered until the broker has them."""

Name = tuple[int, int, int, int, str, int]
"""Origin, life, number, QoS, topic and bytes of the payload: what is told of every publication."""

Put = Callable[[schema.Any], None]


def chosen(number: int, sample: int) -> bool:
    """Whether the publication with this number is told, if one in `sample` is; 0 is none.

    The last 16 bits of the number decide, so that it takes only a look at a frame. Not every n-th
    is told: that would often be always the same topic."""
    end = (number & 0xFFFF).to_bytes(2, "big")
    return sample == 1 or (sample > 1 and crc32(end) % sample == 0)


def chosen_ends(sample: int) -> frozenset[bytes]:
    """Return the last two bytes of all numbers that are chosen, if not all are."""
    ends = range(1 << 16) if sample > 1 else ()
    return frozenset(end.to_bytes(2, "big") for end in ends if chosen(end, sample))


class Narrator:
    """Tells what one node does in one life."""

    def __init__(
        self, put: Put, identity: tuple[int, int], sample: int, clock: Callable[[], int]
    ) -> None:
        """Hand records to `put`; `identity` is node and incarnation, `clock` gives nanoseconds."""
        self.put = put
        self.clock = clock
        self.sample = sample
        self.node, self._life = identity
        self._peers: dict[LinkId, NodeId] = {}
        self._parents: dict[NodeId, tuple[NodeId, ...]] = {}
        self._beats: dict[LinkId, dict[int, int]] = {}
        """The newest heartbeats that were sent, and when: the echo of one may cross the next."""
        self._hops: dict[tuple[int, ...], int | None] = {}
        """Of what is on its way into the broker; None for what came out of a journal."""

    def peer(self, link: LinkId) -> NodeId | None:
        """Return who is behind a link, None before that was agreed."""
        return self._peers.get(link)

    # ------------------------------------------------------------ what a shell tells

    def handled(self, event: events.Event, wanted: Sequence[effects.Effect]) -> None:
        """The node has handled an event, and wants this."""
        now = self.clock()
        match event:
            case events.Received(link, Publication() as copy):
                self._take(now, copy, link, wanted)
                return
            case events.Published():
                self._start(now, wanted)
                return
            case events.Received(link, Heartbeat(_, echo, held_us)):
                self._measure(now, link, echo, held_us)
            case events.InterestChanged(added, removed):
                for name in added:
                    self.put(schema.Wanted(now, name))
                for name in removed:
                    self.put(schema.Unwanted(now, name))
        repaired = isinstance(event, events.Received) and _is_resend(event.frame)
        for effect in wanted:
            if isinstance(effect, effects.Deliver):
                self._take_in(effect.publication, None if repaired else effect.publication.hops + 1)
            else:
                self.told(now, effect)

    def sent(self, link: LinkId, frame: AnyFrame | Publication, frame_bytes: int) -> None:
        """A frame of so many bytes leaves over a link."""
        if isinstance(frame, Publication):
            if chosen(frame.number, self.sample):
                hops = frame.hops + 1
                place = (frame_bytes, hops, self._peers.get(link))
                self.put(schema.Sent(self.clock(), *names_of(frame), *place))
            return
        now = self.clock()
        inner = frame.frame if isinstance(frame, Numbered) else frame
        about: tuple[int, ...] = ()
        if isinstance(inner, Announce):
            about = (inner.core, inner.seq, inner.distance, inner.incarnation)
        elif isinstance(inner, Heartbeat):
            beats = self._beats.setdefault(link, {})
            beats[inner.number] = now
            if len(beats) > BEATS_MAX:
                del beats[next(iter(beats))]
        peer = self._peers.get(link)
        self.put(schema.Control(now, type(inner).__name__, frame_bytes, peer, *about))

    def delivered(self, publication: Publication) -> None:
        """The broker has got a publication of another node's client."""
        name = names_of(publication)
        if publication.qos:
            self.delivered_surely(name)
        elif chosen(publication.number, self.sample):
            self.put(schema.Delivered(self.clock(), *name, publication.hops + 1))

    def delivered_surely(self, name: Name) -> None:
        """The broker has got a publication of QoS 1 or 2, which was taken in some time ago."""
        if chosen(name[2], self.sample):
            hops = self._hops.pop(name[:3], None)
            self.put(schema.Delivered(self.clock(), *name, hops))

    # ------------------------------------------------------------ publications

    def _take(
        self, now: int, copy: Publication, link: LinkId, wanted: Sequence[effects.Effect]
    ) -> None:
        peer = self._peers.get(link)
        told = chosen(copy.number, self.sample)
        if told:
            place = (len(encode(copy)), copy.hops + 1, peer)
            self.put(schema.Received(now, *names_of(copy), *place))
        for effect in wanted:
            if isinstance(effect, effects.Duplicate):
                if told:
                    name = (copy.origin, copy.life, copy.number, copy.qos)
                    self.put(schema.Duplicate(now, *name, peer))
            elif isinstance(effect, effects.Dropped):
                if told:
                    self.drop(now, effect, (copy.life, copy.qos))
            elif isinstance(effect, effects.Deliver):
                self._take_in(effect.publication, effect.publication.hops + 1)
            else:
                self._tell_of_publication(now, effect)

    def _start(self, now: int, wanted: Sequence[effects.Effect]) -> None:
        """A client published; at QoS 0 the copies that leave tell its name."""
        known = False
        for effect in wanted:
            match effect:
                case effects.Send(_, Publication() as first):
                    if not known:
                        known = True
                        self.captured(now, first)
                case effects.Keep(publication):
                    self.captured(now, publication)
                case effects.Dropped():
                    if chosen(effect.number, self.sample):
                        self.drop(now, effect)
                case _:
                    self._tell_of_publication(now, effect)

    def captured(self, now: int, publication: Publication) -> None:
        """A publication of a client here has its name."""
        if chosen(publication.number, self.sample):
            self.put(schema.Captured(now, *names_of(publication)))

    def drop(self, now: int, effect: effects.Dropped, kind: tuple[int, int] | None = None) -> None:
        """Part of the way of a publication was given up; `kind` is its life and QoS, if it did not
        just start here at QoS 0."""
        life, qos = kind or (self._life, 0)
        self.put(schema.Dropped(now, effect.origin, life, effect.number, qos, effect.reason))

    def _tell_of_publication(self, now: int, effect: effects.Effect) -> None:
        """What is ignored of publications may be very much: the node counts it."""
        if not isinstance(effect, effects.Ignored):
            self.told(now, effect)

    def _take_in(self, publication: Publication, hops: int | None) -> None:
        """A publication is on its way into the broker, which may take long at QoS 1 and 2."""
        if publication.qos and chosen(publication.number, self.sample):
            if len(self._hops) >= UNDER_WAY_MAX:
                self._hops.pop(next(iter(self._hops)))
            self._hops[names_of(publication)[:3]] = hops

    # ------------------------------------------------------------ everything else

    def _measure(self, now: int, link: LinkId, echo: int, held_us: int) -> None:
        peer = self._peers.get(link)
        sent_at = self._beats.get(link, {}).get(echo)
        if sent_at is not None and peer is not None:
            self.put(schema.RoundTrip(now, peer, max(0.0, (now - sent_at) / 1e6 - held_us / 1e3)))

    def told(self, now: int, effect: effects.Effect) -> None:
        """Tell one thing that a node wants or says, if there is a record for it."""
        match effect:
            case effects.Subscribe(filters):
                for name in filters:
                    self.put(schema.Subscribed(now, name))
            case effects.Unsubscribe(filters):
                for name in filters:
                    self.put(schema.Unsubscribed(now, name))
            case effects.NeighbourUp(node, link):
                self._peers[link] = node
                self.put(schema.LinkUp(now, node))
            case effects.NeighbourDown(node, reason):
                self._forget(node)
                self.put(schema.LinkDown(now, node, reason))
            case effects.ParentsChanged(core, _, seq, distance, parents):
                self._change_parents(now, core, (seq, distance), parents)
            case effects.IncarnationRaised(incarnation):
                self._life = incarnation
                self.put(schema.LifeRaised(now, incarnation))
            case _:
                make = _PLAINLY.get(type(effect))
                if make is not None:
                    self.put(make(now, effect))

    def _forget(self, node: NodeId) -> None:
        for link in [link for link, peer in self._peers.items() if peer == node]:
            del self._peers[link]
            self._beats.pop(link, None)

    def _change_parents(
        self, now: int, core: NodeId, place: tuple[int, int], parents: tuple[NodeId, ...]
    ) -> None:
        before = self._parents.pop(core, ())
        if parents:
            self._parents[core] = parents
        gained = tuple(node for node in parents if node not in before)
        lost = tuple(node for node in before if node not in parents)
        self.put(schema.Parents(now, core, *place, parents, gained, lost))


def names_of(publication: Publication) -> Name:
    """Return the name of a publication."""
    return (
        publication.origin,
        publication.life,
        publication.number,
        publication.qos,
        publication.topic,
        len(publication.payload),
    )


def _is_resend(frame: object) -> bool:
    return isinstance(frame.frame if isinstance(frame, Numbered) else frame, Resend)


_PLAINLY: dict[type, Callable[..., schema.Any]] = {
    effects.LinkRefused: lambda now, it: schema.LinkRefused(now, it.reason),
    effects.MemberJoined: lambda now, it: schema.MemberJoined(now, it.node),
    effects.MemberLost: lambda now, it: schema.MemberLost(now, it.node),
    effects.CoreElected: lambda now, it: schema.CoreElected(now, it.group, it.core),
    effects.CoreLost: lambda now, it: schema.CoreLost(now, it.group, it.core),
    effects.MeshJoined: lambda now, it: schema.MeshJoined(now, it.group),
    effects.MeshLeft: lambda now, it: schema.MeshLeft(now, it.group),
    effects.InterestInstalled: lambda now, it: schema.Installed(now, str(it.version)),
    effects.Repaired: lambda now, it: schema.Repaired(now, it.origin, it.count),
    effects.EpochRenewed: lambda now, it: schema.EpochRenewed(now, it.epoch),
    effects.Ignored: lambda now, it: schema.Ignored(now, it.reason),
    effects.Gap: lambda now, it: schema.Gap(now, it.origin, it.epoch, it.first, it.last, it.reason),
    effects.GivenUp: lambda now, it: schema.GivenUp(now, it.node, it.epoch, it.first, it.last),
}
"""News that become a record with the same words."""
