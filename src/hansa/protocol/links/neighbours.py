"""Links and neighbours: hello, heartbeat, round-trip time, and detection of lost neighbours.

A link is in its *handshake* until both hellos agree; then it is the link to a neighbour. There is
one link per neighbour: of two, both sides keep the same one. A peer that disagrees is told the
reason and refused.
"""

from dataclasses import dataclass, field

from hansa.protocol.effects import (
    CloseLink,
    Effect,
    LinkRefused,
    NeighbourDown,
    NeighbourUp,
    PeerMisbehaved,
    Send,
)
from hansa.protocol.events import LinkOpened
from hansa.protocol.links.ordering import OrderedChannel
from hansa.protocol.membership.quotas import Allowance
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.settings import NEIGHBOURS_MAX, Metric, ProtocolSettings
from hansa.protocol.wire.frames import (
    PROTOCOL_VERSION,
    AnyFrame,
    FrameAck,
    Goodbye,
    Heartbeat,
    Hello,
    OrderedFrame,
    SequencedFrame,
)

RTT_UNIT = 0.0001
"""Seconds per unit of distance when the metric is round-trip time."""

RTT_UNKNOWN = 10_000
"""Cost of a link, in units, before its round trip has been measured: one second."""

RTT_SAMPLES = 8

RTT_NOISE = 0.001
"""Changes of the round trip below this many seconds, or below a factor of two, are not reported."""

HEARTBEATS_REMEMBERED = 8

DIALLED_RESERVE = 64
"""Neighbours reserved for links that this node dials; incoming links cannot take these places."""

MISMATCHES_MIN = 2
MISMATCHES_MAX = 256
"""Consecutive heartbeats with a different digest before databases are compared: a single one may
have crossed a change. Doubled each time, because two databases may differ for a good reason: a
bound, or leases that end at different times."""

HANDSHAKE_HEARTBEATS = 2
"""Heartbeats that belong to the handshake, while databases are still being compared."""


@dataclass(slots=True)
class NeighbourLink:
    id: LinkId
    dialled: bool
    channel: OrderedChannel | None
    last_received_at: float
    peer: Hello | None = None
    """The hello of the other side; None during the handshake."""
    is_closed: bool = False
    """The connection is closed, but `trust_close` is off."""
    refusal_reason: str | None = None
    """Why it was refused. The link only waits for the other side's goodbye or for its end."""
    rtt_samples: list[float] = field(default_factory=list)
    """The newest round-trip times."""
    rtt: float | None = None
    """The shortest of them: queues and pauses only make a round trip longer."""
    reported_rtt: float | None = None
    """The value in this node's record; it follows `rtt` only when it differs a lot."""
    last_sent_heartbeat: int = 0
    heartbeat_sent_at: dict[int, float] = field(default_factory=dict)
    """When the newest heartbeats were sent."""
    last_received_heartbeat: int = 0
    heartbeat_received_at: float = 0.0
    mismatches_allowed: int = MISMATCHES_MIN
    """How many mismatches it takes until databases are compared."""
    mismatches: int = 0
    """Consecutive heartbeats whose digest differed from ours."""
    allowance: Allowance = field(default_factory=Allowance)
    """Bytes of records that the other side may request."""
    awaits_summary: bool = False
    """Our summary was sent and theirs has not arrived since."""


class Neighbours:
    def __init__(self, settings: ProtocolSettings) -> None:
        self._settings = settings
        self.links: dict[LinkId, NeighbourLink] = {}
        self.by_node: dict[NodeId, NeighbourLink] = {}
        self._heartbeat_due: float | None = None
        self._has_datagram_links = False  # whether any link has an ordered channel
        self._silence_check_due = (
            0.0  # lower bound of the time at which a link has been silent too long
        )

    @property
    def oldest(self) -> NodeId | None:
        """The neighbour that has been linked the longest."""
        return next(iter(self.by_node), None)

    def is_trusted(self, node: NodeId) -> bool:
        """Whether this node dialled a neighbour, or has been linked to it the longest: unknown
        peers dial in, and later than the configured neighbours."""
        link = self.by_node.get(node)
        return node == self.oldest or (link is not None and link.dialled)

    # ------------------------------------------------------------ opening and closing

    def open_link(self, event: LinkOpened, hello: Hello, now: float) -> list[Effect]:
        """A connection is open: send our hello."""
        channel = None if event.ordered else OrderedChannel(self._settings.unacknowledged_max)
        link = self.links[event.link] = NeighbourLink(event.link, event.dialled, channel, now)
        self._has_datagram_links |= not event.ordered
        if self._heartbeat_due is None:
            self._heartbeat_due = now + self._settings.heartbeat_interval
            self._silence_check_due = now + self._settings.heartbeat_limit
        return self.send(link, hello, now)

    def receive_hello(
        self, link: NeighbourLink, theirs: Hello, ours: Hello, now: float
    ) -> list[Effect]:
        """Accept the peer as a neighbour, or refuse it with the reason."""
        reason = find_disagreement(ours, theirs)
        if reason:
            return self.refuse_link(link, reason, now)
        effects: list[Effect] = []
        old = self.by_node.get(theirs.node)
        if old is not None:
            assert old.peer is not None
            if not self._is_preferred(link, theirs, old, ours.node):
                return self.refuse_link(link, "another link to this node is in use", now)
            effects += self.remove_link(old, "replaced by a newer link")
            effects.append(CloseLink(old.id, "replaced by a newer link"))
        elif len(self.by_node) >= NEIGHBOURS_MAX - (0 if link.dialled else DIALLED_RESERVE):
            return self.refuse_link(
                link, f"{name_in(ours)} has as many neighbours as it can have", now
            )
        link.peer = theirs
        self.by_node[theirs.node] = link
        effects.append(NeighbourUp(theirs.node, link.id))
        return effects

    def refuse_link(self, link: NeighbourLink, reason: str, now: float) -> list[Effect]:
        """Tell the other side why. It may be about to send a goodbye with a reason that this side
        should log, so the link stays until the goodbye, until it closes, or until the limit
        passes."""
        link.refusal_reason, link.last_received_at = reason, now
        return [LinkRefused(link.id, reason), *self.send(link, Goodbye(reason), now)]

    def remove_link(self, link: NeighbourLink, reason: str) -> list[Effect]:
        """Delete a link; if it led to a neighbour, the neighbour is lost."""
        self.links.pop(link.id, None)
        if not self.links:
            self._heartbeat_due = None
        if link.peer is None or self.by_node.get(link.peer.node) is not link:
            return []
        del self.by_node[link.peer.node]
        return [NeighbourDown(link.peer.node, reason)]

    def on_link_closed(self, link: NeighbourLink, reason: str) -> list[Effect]:
        """The connection is closed. Without `trust_close`, the neighbour is lost only after
        silence."""
        if self._settings.trust_close or link.peer is None:
            return self.remove_link(link, reason)
        link.is_closed = True
        return []

    def _is_preferred(
        self, new: NeighbourLink, theirs: Hello, old: NeighbourLink, ours: NodeId
    ) -> bool:
        """Decide which of two links to one node both sides keep: that of the newer incarnation;
        else the newer link of the same dialler; else the one that the smaller id dialled."""
        assert old.peer is not None
        if theirs.incarnation != old.peer.incarnation:
            return theirs.incarnation > old.peer.incarnation
        if old.is_closed or new.dialled == old.dialled:
            return True
        return new.dialled == (ours < theirs.node)

    # ------------------------------------------------------------ frames

    def send(self, link: NeighbourLink, frame: OrderedFrame, now: float) -> list[Effect]:
        """Send a control frame in order."""
        if link.channel is None:
            return [Send(link.id, frame)]
        return [Send(link.id, link.channel.assign_sequence(frame, now))]

    def unwrap_frame(
        self, link: NeighbourLink, frame: AnyFrame, now: float
    ) -> tuple[list[AnyFrame], list[Effect]]:
        """Note activity on the link; return the frames that are next in order."""
        if link.refusal_reason is None:  # else a refused peer could keep the link by sending
            link.last_received_at = now
        if not isinstance(frame, (SequencedFrame, FrameAck)):
            return [frame], []
        if link.channel is None:
            return [], [PeerMisbehaved(link.id, "sequenced frame on a stream link")]
        if isinstance(frame, SequencedFrame):
            ready, acknowledgement = link.channel.receive_frame(frame)
            return [*ready], [Send(link.id, acknowledgement)]
        again = link.channel.receive_ack(frame, link.rtt, now)
        return [], [Send(link.id, numbered) for numbered in again]

    # ------------------------------------------------------------ heartbeats

    def make_heartbeat(self, link: NeighbourLink, digest: int, now: float) -> Send:
        link.last_sent_heartbeat += 1
        link.heartbeat_sent_at[link.last_sent_heartbeat] = now
        if len(link.heartbeat_sent_at) > HEARTBEATS_REMEMBERED:
            del link.heartbeat_sent_at[next(iter(link.heartbeat_sent_at))]
        held = (
            round((now - link.heartbeat_received_at) * 1e6) if link.last_received_heartbeat else 0
        )
        return Send(
            link.id, Heartbeat(link.last_sent_heartbeat, link.last_received_heartbeat, held, digest)
        )

    def receive_heartbeat(
        self, link: NeighbourLink, frame: Heartbeat, local_digest: int, now: float
    ) -> list[Effect]:
        """Measure the round trip; answer the very first heartbeat at once."""
        first = link.last_received_heartbeat == 0
        if frame.number > link.last_received_heartbeat:
            link.last_received_heartbeat, link.heartbeat_received_at = frame.number, now
        sent_at = link.heartbeat_sent_at.pop(frame.echo, None)
        if sent_at is not None:
            sample = max(0.0, now - sent_at - frame.held_us / 1e6)
            link.rtt_samples.append(sample)
            del link.rtt_samples[:-RTT_SAMPLES]
            link.rtt = min(link.rtt_samples)
        if frame.digest == local_digest:
            link.mismatches, link.mismatches_allowed = 0, MISMATCHES_MIN
        elif frame.number > HANDSHAKE_HEARTBEATS:
            link.mismatches += 1
        return [self.make_heartbeat(link, local_digest, now)] if first else []

    def update_reported_rtt(self, link: NeighbourLink) -> bool:
        """Update the reported round-trip time if the measured one differs a lot; say whether it
        did."""
        if link.rtt is None:
            return False
        reported = link.reported_rtt
        if (
            reported is not None
            and reported / 2 - RTT_NOISE <= link.rtt <= reported * 2 + RTT_NOISE
        ):
            return False
        link.reported_rtt = link.rtt
        return True

    def link_cost(self, link: NeighbourLink) -> int:
        """Return the length of a link in the federation's metric."""
        if self._settings.metric is Metric.HOPS:
            return 1
        if link.reported_rtt is None:
            return RTT_UNKNOWN
        return max(1, round(link.reported_rtt / RTT_UNIT))

    def handle_timer(self, digest: int, now: float) -> tuple[list[Effect], list[NeighbourLink]]:
        """Send heartbeats that are due; return also the links that were silent or stuck too
        long."""
        effects: list[Effect] = []
        lost: list[NeighbourLink] = []
        if not self._has_datagram_links and ((due := self.next_deadline()) is None or now < due):
            return effects, lost
        if self._heartbeat_due is not None and now >= self._heartbeat_due:
            if now - self._heartbeat_due > self._settings.heartbeat_interval:
                self._reset_silence_timers(now)
            self._heartbeat_due = now + self._settings.heartbeat_interval
            effects += [self.make_heartbeat(link, digest, now) for link in self.by_node.values()]
        received_times = [now]
        for link in self.links.values():
            if now >= link.last_received_at + self._settings.heartbeat_limit or (
                link.channel and link.channel.has_overflowed
            ):
                lost.append(link)
                continue
            received_times.append(link.last_received_at)
            if link.channel:
                effects += [Send(link.id, frame) for frame in link.channel.handle_timer(now)]
        self._silence_check_due = min(received_times) + self._settings.heartbeat_limit
        return effects, lost

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        if self._heartbeat_due is None:
            return None
        due = (
            self._heartbeat_due
            if self._heartbeat_due < self._silence_check_due
            else self._silence_check_due
        )
        if not self._has_datagram_links:
            return due
        for link in self.links.values():
            if link.channel and (retry := link.channel.next_deadline()) is not None:
                due = min(due, retry)
        return due

    def pending_max(self) -> int:
        """Return the number of waiting frames of the datagram link with the most, 0 if there are
        none."""
        if not self._has_datagram_links:  # the usual case; checkers ask after every input
            return 0
        counts = [link.channel.pending_count for link in self.links.values() if link.channel]
        return max(counts, default=0)

    def _reset_silence_timers(self, now: float) -> None:
        """This node itself was suspended: restart all silence timers instead of dropping
        neighbours."""
        for link in self.links.values():
            link.last_received_at = now


def find_disagreement(ours: Hello, theirs: Hello) -> str | None:
    """Return why two nodes cannot be neighbours, None if they can.

    Both sides log it, so it says which value is whose.
    """
    they, we = name_in(theirs), name_in(ours)
    if theirs.version != PROTOCOL_VERSION:
        return f"protocol version {theirs.version} of {they} meets {PROTOCOL_VERSION} of {we}"
    if theirs.federation != ours.federation:
        return f"federation {theirs.federation!r} of {they} meets {ours.federation!r} of {we}"
    if theirs.shared_settings != ours.shared_settings:
        they_have = _settings_not_in(theirs.shared_settings, ours.shared_settings)
        we_have = _settings_not_in(ours.shared_settings, theirs.shared_settings)
        return f"settings differ: {they_have} of {they} meets {we_have} of {we}"
    return None


def _settings_not_in(one: str, other: str) -> str:
    """Return the settings in one text that the other lacks; all, if only the order differs."""
    known = other.split()
    return " ".join(word for word in one.split() if word not in known) or one


def name_in(hello: Hello) -> str:
    """Return the display name of the node of a hello."""
    return hello.name or f"{hello.node:016x}"
