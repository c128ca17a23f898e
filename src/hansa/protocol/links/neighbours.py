"""Links and who is behind them: hello, heartbeat, round-trip time, and when a neighbour is gone.

A link is *greeting* until both hellos agreed, then it is the link to a neighbour. There is one link
per neighbour: of two, both sides keep the same. Nothing here knows what the frames above mean.
"""

from dataclasses import dataclass, field

from hansa.protocol.effects import (
    CloseLink,
    Effect,
    Ignored,
    LinkRefused,
    NeighbourDown,
    NeighbourUp,
    Send,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.links.ordering import Channel
from hansa.protocol.membership.quotas import Allowance
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.settings import NEIGHBOURS_MAX, Metric, ProtocolSettings
from hansa.protocol.wire.frames import (
    PROTOCOL_VERSION,
    Acknowledge,
    Goodbye,
    Heartbeat,
    Hello,
    Numbered,
    Ordered,
)
from hansa.protocol.wire.frames import Any as AnyFrame

RTT_UNIT = 0.0001
"""Seconds per unit of distance when the metric is round-trip time."""

RTT_UNKNOWN = 10_000
"""The cost of a link, in units, until its round trip has been measured: one second."""

RTT_SAMPLES = 8

RTT_NOISE = 0.001
"""Seconds of round trip that are never worth a report; nor is anything below a factor of two."""

BEATS_REMEMBERED = 8

DIALLED_RESERVE = 64
"""Places for neighbours that this node dials, which those who dial it cannot take."""

MISMATCHES_MIN = 2
MISMATCHES_MAX = 256
"""Heartbeats in a row with another digest than ours until databases are compared: one may just have
crossed a change. Doubled each time, because two databases may differ for good reason: a bound, or
leases that end at different times."""

GREETING_BEATS = 2
"""Heartbeats that belong to the greeting: databases still differ then, and are being compared."""


@dataclass(slots=True)
class Link:
    """One connection."""

    id: LinkId
    dialled: bool
    channel: Channel | None
    heard_at: float
    peer: Hello | None = None
    """Who is behind it; None while greeting."""
    closed: bool = False
    """Closed, but not believed yet (`trust_close` off)."""
    refused: str | None = None
    """Why it was turned away: it only waits for the other side's goodbye or for its end."""
    samples: list[float] = field(default_factory=list)
    """The newest round-trip times."""
    rtt: float | None = None
    """The shortest of them: queues and pauses only ever make a round trip longer."""
    reported_rtt: float | None = None
    """The value that others were told; it follows `rtt` only when it is well off."""
    beat: int = 0
    beats: dict[int, float] = field(default_factory=dict)
    """When the newest heartbeats were sent."""
    echo: int = 0
    echo_at: float = 0.0
    patience: int = MISMATCHES_MIN
    """How many of the next kind it takes until databases are compared."""
    mismatches: int = 0
    """Heartbeats in a row whose digest was not ours."""
    allowance: Allowance = field(default_factory=Allowance)
    """Bytes of records that the other side may ask for."""
    compared: bool = False
    """Our summary has gone out and theirs has not come in since."""


class Neighbours:
    """All links of one node."""

    def __init__(self, settings: ProtocolSettings) -> None:
        """Start without links."""
        self._settings = settings
        self.links: dict[LinkId, Link] = {}
        self.by_node: dict[NodeId, Link] = {}
        self._beat_due: float | None = None
        self._datagrams = False  # whether any link needs its channel looked at
        self._check_due = 0.0  # never later than the first link can have been silent too long

    @property
    def oldest(self) -> NodeId | None:
        """The neighbour that has been linked the longest."""
        return next(iter(self.by_node), None)

    def is_trusted(self, node: NodeId) -> bool:
        """Whether this node dialled a neighbour, or has been linked to it the longest: strangers
        dial, and come later than the neighbours that were configured."""
        link = self.by_node.get(node)
        return node == self.oldest or (link is not None and link.dialled)

    # ------------------------------------------------------------ opening and closing

    def open(self, event: LinkOpened, hello: Hello, now: float) -> list[Effect]:
        """A connection stands: introduce ourselves."""
        channel = None if event.ordered else Channel(self._settings.unacknowledged_max)
        link = self.links[event.link] = Link(event.link, event.dialled, channel, now)
        self._datagrams |= not event.ordered
        if self._beat_due is None:
            self._beat_due = now + self._settings.heartbeat_interval
            self._check_due = now + self._settings.heartbeat_limit
        return self.send(link, hello, now)

    def greet(self, link: Link, theirs: Hello, ours: Hello, now: float) -> list[Effect]:
        """Take a neighbour's hello: make it a neighbour, or turn it away with the reason."""
        reason = disagreement(ours, theirs)
        if reason:
            return self.refuse(link, reason, now)
        effects: list[Effect] = []
        old = self.by_node.get(theirs.node)
        if old is not None:
            assert old.peer is not None
            if not self._prefer(link, theirs, old, ours.node):
                return self.refuse(link, "another link to this node is in use", now)
            effects += self.drop(old, "replaced by a newer link")
            effects.append(CloseLink(old.id, "replaced by a newer link"))
        elif len(self.by_node) >= NEIGHBOURS_MAX - (0 if link.dialled else DIALLED_RESERVE):
            return self.refuse(link, f"{name_in(ours)} has as many neighbours as it can have", now)
        link.peer = theirs
        self.by_node[theirs.node] = link
        effects.append(NeighbourUp(theirs.node, link.id))
        return effects

    def refuse(self, link: Link, reason: str, now: float) -> list[Effect]:
        """Tell the other side why. It may be about to say goodbye itself, with a reason that this
        side should log, so the link stays until it does, or closes, or the limit passes."""
        link.refused, link.heard_at = reason, now
        return [LinkRefused(link.id, reason), *self.send(link, Goodbye(reason), now)]

    def drop(self, link: Link, reason: str) -> list[Effect]:
        """Forget a link; if a neighbour was behind it, it is gone."""
        self.links.pop(link.id, None)
        if not self.links:
            self._beat_due = None
        if link.peer is None or self.by_node.get(link.peer.node) is not link:
            return []
        del self.by_node[link.peer.node]
        return [NeighbourDown(link.peer.node, reason)]

    def closed(self, link: Link, reason: str) -> list[Effect]:
        """The connection is gone. Without trust in that, silence will have to prove it."""
        if self._settings.trust_close or link.peer is None:
            return self.drop(link, reason)
        link.closed = True
        return []

    def _prefer(self, new: Link, theirs: Hello, old: Link, ours: NodeId) -> bool:
        """Of two links to one node, which do both sides keep? A newer life; else the newer link of
        the same dialler; else the one that the smaller id dialled."""
        assert old.peer is not None
        if theirs.incarnation != old.peer.incarnation:
            return theirs.incarnation > old.peer.incarnation
        if old.closed or new.dialled == old.dialled:
            return True
        return new.dialled == (ours < theirs.node)

    # ------------------------------------------------------------ frames

    def send(self, link: Link, frame: Ordered, now: float) -> list[Effect]:
        """Send a control frame in order."""
        if link.channel is None:
            return [Send(link.id, frame)]
        return [Send(link.id, link.channel.number(frame, now))]

    def unpack(
        self, link: Link, frame: AnyFrame, now: float
    ) -> tuple[list[AnyFrame], list[Effect]]:
        """Note that the link lives; return the frames whose turn has come."""
        if link.refused is None:  # or whoever keeps talking would keep it
            link.heard_at = now
        if not isinstance(frame, (Numbered, Acknowledge)):
            return [frame], []
        if link.channel is None:
            return [], [Ignored("numbered frame on a stream link")]
        if isinstance(frame, Numbered):
            ready, acknowledgement = link.channel.accept(frame)
            return [*ready], [Send(link.id, acknowledgement)]
        again = link.channel.acknowledge(frame, link.rtt, now)
        return [], [Send(link.id, numbered) for numbered in again]

    # ------------------------------------------------------------ heartbeats

    def heartbeat(self, link: Link, digest: int, now: float) -> Send:
        """Make the next heartbeat for a link."""
        link.beat += 1
        link.beats[link.beat] = now
        if len(link.beats) > BEATS_REMEMBERED:
            del link.beats[next(iter(link.beats))]
        held = round((now - link.echo_at) * 1e6) if link.echo else 0
        return Send(link.id, Heartbeat(link.beat, link.echo, held, digest))

    def heard(self, link: Link, frame: Heartbeat, digest: int, now: float) -> list[Effect]:
        """Take a heartbeat: measure the round trip, answer the very first one at once."""
        first = link.echo == 0
        if frame.number > link.echo:
            link.echo, link.echo_at = frame.number, now
        sent_at = link.beats.pop(frame.echo, None)
        if sent_at is not None:
            sample = max(0.0, now - sent_at - frame.held_us / 1e6)
            link.samples.append(sample)
            del link.samples[:-RTT_SAMPLES]
            link.rtt = min(link.samples)
        if frame.digest == digest:
            link.mismatches, link.patience = 0, MISMATCHES_MIN
        elif frame.number > GREETING_BEATS:
            link.mismatches += 1
        return [self.heartbeat(link, digest, now)] if first else []

    def settle_rtt(self, link: Link) -> bool:
        """Whether the reported round-trip time had to follow the measured one."""
        if link.rtt is None:
            return False
        told = link.reported_rtt
        if told is not None and told / 2 - RTT_NOISE <= link.rtt <= told * 2 + RTT_NOISE:
            return False
        link.reported_rtt = link.rtt
        return True

    def cost(self, link: Link) -> int:
        """Return the length of a link in the federation's metric."""
        if self._settings.metric is Metric.HOPS:
            return 1
        if link.reported_rtt is None:
            return RTT_UNKNOWN
        return max(1, round(link.reported_rtt / RTT_UNIT))

    def fire(self, digest: int, now: float) -> tuple[list[Effect], list[Link]]:
        """Beat if due; return also the links that have been silent or stuck for too long."""
        effects: list[Effect] = []
        lost: list[Link] = []
        if not self._datagrams and ((due := self.next_deadline()) is None or now < due):
            return effects, lost
        if self._beat_due is not None and now >= self._beat_due:
            if now - self._beat_due > self._settings.heartbeat_interval:
                self._forgive(now)
            self._beat_due = now + self._settings.heartbeat_interval
            effects += [self.heartbeat(link, digest, now) for link in self.by_node.values()]
        heard = [now]
        for link in self.links.values():
            if now >= link.heard_at + self._settings.heartbeat_limit or (
                link.channel and link.channel.overflowed
            ):
                lost.append(link)
                continue
            heard.append(link.heard_at)
            if link.channel:
                effects += [Send(link.id, frame) for frame in link.channel.fire(now)]
        self._check_due = min(heard) + self._settings.heartbeat_limit
        return effects, lost

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        if self._beat_due is None:
            return None
        due = self._beat_due if self._beat_due < self._check_due else self._check_due
        if not self._datagrams:
            return due
        for link in self.links.values():
            if link.channel and (retry := link.channel.next_deadline()) is not None:
                due = min(due, retry)
        return due

    def _forgive(self, now: float) -> None:
        """This node itself was suspended: the silence was its own, so nobody is blamed for it."""
        for link in self.links.values():
            link.heard_at = now


def disagreement(ours: Hello, theirs: Hello) -> str | None:
    """Return why two nodes cannot be neighbours, None if they can.

    Both log it, so it says whose is whose.
    """
    they, we = name_in(theirs), name_in(ours)
    if theirs.version != PROTOCOL_VERSION:
        return f"protocol version {theirs.version} of {they} meets {PROTOCOL_VERSION} of {we}"
    if theirs.federation != ours.federation:
        return f"federation {theirs.federation!r} of {they} meets {ours.federation!r} of {we}"
    if theirs.agreement != ours.agreement:
        they_have = _beyond(theirs.agreement, ours.agreement)
        we_have = _beyond(ours.agreement, theirs.agreement)
        return f"settings differ: {they_have} of {they} meets {we_have} of {we}"
    return None


def _beyond(one: str, other: str) -> str:
    """Return the words of an agreement that another lacks; all, if they are only in disorder."""
    known = other.split()
    return " ".join(word for word in one.split() if word not in known) or one


def name_in(hello: Hello) -> str:
    """Return what people call the node of a hello."""
    return hello.name or f"{hello.node:016x}"
