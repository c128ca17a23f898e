"""Links between places: sessions that open, carry frames late or not at all, and end.

A *link* is configured between two places; the smaller one dials, again and again while it has no
session. A *session* is one connection, with a LinkId of its own at each end. What belongs to an old
session never arrives. Nothing here knows what the frames mean; the world hands them in and out.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from hansa.protocol.events import FrameReceived, LinkClosed, LinkOpened
from hansa.protocol.model import LinkId
from hansa.simulator.options import LinkOptions
from hansa.simulator.world.scheduler import Scheduler

LinkEvent = LinkOpened | LinkClosed | FrameReceived

REORDER_FACTOR = 10
"A frame that is held back takes up to so many times the usual delay."

_OPEN_MARKER = object()
_CLOSE_MARKER = object()
"""What a stream carries besides frames: its beginning and its end; datagrams tell the end too."""


class NetworkHost(Protocol):
    """What the network must know about a place."""

    place: int
    is_powered: bool
    """Whether the machine is on: only then it answers, if only with a reset."""
    link_ends: "dict[LinkId, LinkEnd]"
    """The open sessions of the agent that runs now, by their LinkId."""

    @property
    def is_listening(self) -> bool:
        """Whether an agent runs here (a suspended one counts: its kernel accepts for it)."""

    @property
    def is_frozen(self) -> bool:
        """Whether the agent is suspended: it will not dial."""

    def new_link_id(self) -> LinkId:
        """Return a LinkId that was never used at this place."""


class LinkDirection:
    """One direction of a link, whatever session uses it."""

    __slots__ = ("is_cut", "delay", "link")

    def __init__(self, link: "SimulatedLink", delay: float) -> None:
        self.link = link
        self.delay = delay
        self.is_cut = False
        """Whether all that is sent here is swallowed."""


class LinkEnd:
    """One side of a session: what was sent from here and has not arrived."""

    __slots__ = (
        "last_arrival_at",
        "id",
        "host",
        "highest_sequence",
        "is_open",
        "peer",
        "direction",
        "in_flight",
        "session",
        "stalled_count",
    )

    peer: "LinkEnd"

    def __init__(self, host: NetworkHost, direction: LinkDirection, session: "LinkSession") -> None:
        self.host = host
        self.id = host.new_link_id()
        self.direction = direction
        self.session = session
        self.is_open = False
        self.in_flight: deque[object] = deque()
        """On a stream: what is under way, in order."""
        self.last_arrival_at = 0.0
        """On a stream: when the newest of it arrives."""
        self.stalled_count = 0
        """On a stream: how much should have arrived while the pipe was cut."""
        self.highest_sequence = 0
        """On datagrams: the highest number that was sent; what is not above it is sent again."""


@dataclass(slots=True)
class LinkSession:
    """One connection."""

    is_aborted: bool = False
    """Cut, both ends told: nothing of it arrives any more."""


@dataclass(slots=True)
class SimulatedLink:
    """Two places that want a session."""

    a: NetworkHost
    b: NetworkHost
    delay: float
    a_to_b: LinkDirection = field(init=False)
    b_to_a: LinkDirection = field(init=False)
    sessions: list[tuple[LinkEnd, LinkEnd]] = field(default_factory=list)
    """Those of which at least one end is open: (at a, at b)."""
    is_dialling: bool = False
    is_removed: bool = False

    def __post_init__(self) -> None:
        self.a_to_b = LinkDirection(self, self.delay)
        self.b_to_a = LinkDirection(self, self.delay)

    @property
    def is_usable(self) -> bool:
        """Whether frames get through in both directions."""
        return not (self.a_to_b.is_cut or self.b_to_a.is_cut)


class Network:
    """All links of a world."""

    def __init__(
        self,
        options: LinkOptions,
        seed: int,
        scheduler: Scheduler,
        on_event: Callable[[NetworkHost, LinkEvent], None],
    ) -> None:
        """Start without links. Events for an agent go to `post`."""
        self._options = options
        self._is_ordered = options.is_ordered
        self._jitter = options.jitter_ms / 1000
        self._close_delay = options.close_delay_ms / 1000
        self._scheduler = scheduler
        self._on_event = on_event
        self._rng = random.Random(f"{seed} frames")
        self._dial_rng = random.Random(f"{seed} dial")
        self._delays = {(a, b): delay / 1000 for a, b, delay in options.delays_ms}
        self.links: dict[tuple[int, int], SimulatedLink] = {}
        self.send = self._send_in_order if self._is_ordered else self._send_datagram
        """Carries a frame from one end of a session to the other."""

    def find_link(self, a: int, b: int) -> SimulatedLink | None:
        """Return the link between two places."""
        return self.links.get((min(a, b), max(a, b)))

    # ------------------------------------------------------------ configuration

    def add_link(self, one: NetworkHost, other: NetworkHost) -> None:
        """Configure a link and dial it."""
        a, b = sorted((one, other), key=lambda machine: machine.place)
        key = (a.place, b.place)
        if key in self.links:
            return
        usual = self._options.delay_ms / 1000
        delay = self._delays.get(key, self._delays.get((b.place, a.place), usual))
        link = self.links[key] = SimulatedLink(a, b, delay)
        self.start_dialling(link)

    def remove_link(self, link: SimulatedLink) -> None:
        """Take a link out of the configuration; both ends close it."""
        link.is_removed = True
        del self.links[(link.a.place, link.b.place)]
        self.abort_sessions(link, "link removed")

    # ------------------------------------------------------------ sessions

    def start_dialling(self, link: SimulatedLink) -> None:
        """Start dialling unless that is already under way."""
        if not link.is_dialling and not link.is_removed:
            link.is_dialling = True
            self._scheduler.after(0.0, self._try_to_dial, link)

    def _try_to_dial(self, link: SimulatedLink) -> None:
        """Send the first packet of a handshake, if somebody is there to send it."""
        if link.is_removed or not link.a.is_listening or self._has_session(link.a, link):
            link.is_dialling = (
                False  # the next start of the agent or end of the session dials again
            )
        elif link.is_usable and not link.a.is_frozen and link.b.is_listening:
            self._scheduler.after(2 * link.delay, self._open_session, link)
        else:
            self._schedule_dial(link)

    def _schedule_dial(self, link: SimulatedLink) -> None:
        self._scheduler.after(
            self._dial_rng.uniform(*self._options.redial_wait_s), self._try_to_dial, link
        )

    def _open_session(self, link: SimulatedLink) -> None:
        """The handshake came back: a session stands, and the other end learns of it first thing."""
        if not (link.is_usable and link.a.is_listening and link.b.is_listening) or link.is_removed:
            self._schedule_dial(link)
            return
        link.is_dialling = False
        session = LinkSession()
        near = LinkEnd(link.a, link.a_to_b, session)
        far = LinkEnd(link.b, link.b_to_a, session)
        near.peer, far.peer = far, near
        link.sessions.append((near, far))
        if self._is_ordered:
            self._send_in_order(near, _OPEN_MARKER)
        else:
            self._scheduler.after(link.delay, self._open_end, far, False)
        self._open_end(near, dialled=True)

    def _open_end(self, end: LinkEnd, dialled: bool) -> None:
        if end.session.is_aborted or end.peer.direction.is_cut or not end.host.is_listening:
            return
        end.is_open = True
        end.host.link_ends[end.id] = end
        self._on_event(end.host, LinkOpened(end.id, dialled, self._is_ordered))

    def _has_session(self, machine: NetworkHost, link: SimulatedLink) -> bool:
        return any(end.is_open for pair in link.sessions for end in pair if end.host is machine)

    def close_end(self, end: LinkEnd) -> None:
        """An agent closes its end and tells the other: on a stream after what was sent before."""
        if not end.is_open:
            return
        self._remove_end(end)
        self.send(end, _CLOSE_MARKER)

    def close_all_ends(self, host: NetworkHost, notify_peers: bool) -> None:
        """An agent is gone; if `tell`, its kernel closes its streams."""
        for end in list(host.link_ends.values()):
            self._remove_end(end)
            if notify_peers and self._is_ordered:
                self._scheduler.after(self._close_delay, self._send_in_order, end, _CLOSE_MARKER)

    def abort_sessions(self, link: SimulatedLink, reason: str) -> None:
        """End all sessions of a link; both ends learn of it and what was under way is lost."""
        for pair in list(link.sessions):
            pair[0].session.is_aborted = True
            for end in pair:
                self._scheduler.after(self._close_delay, self._report_closed, end, reason)

    def _remove_end(self, end: LinkEnd) -> None:
        """An end is closed, from whatever side."""
        end.is_open = False
        end.host.link_ends.pop(end.id, None)
        link = end.direction.link
        link.sessions = [pair for pair in link.sessions if pair[0].is_open or pair[1].is_open]
        if end.host is link.a:
            self._redial(link)

    def _redial(self, link: SimulatedLink) -> None:
        if not link.is_dialling and not link.is_removed:
            link.is_dialling = True
            self._schedule_dial(link)

    def _report_closed(self, end: LinkEnd, reason: str) -> None:
        """Tell an agent that its session has ended."""
        if end.is_open:
            self._remove_end(end)
            self._on_event(end.host, LinkClosed(end.id, reason))

    # ------------------------------------------------------------ frames

    def is_window_full(self, end: LinkEnd) -> bool:
        """Whether so much is under way on a stream that an agent sends no publications there."""
        return 0 < self._options.frames_in_flight_max <= len(end.in_flight)

    def _send_in_order(self, end: LinkEnd, item: object) -> None:
        """Put something on a stream: it arrives after all that was put there before."""
        arrival = self._scheduler.now + end.direction.delay
        if self._jitter:
            arrival += self._rng.uniform(0.0, self._jitter)
        end.last_arrival_at = arrival = max(arrival, end.last_arrival_at)
        end.in_flight.append(item)
        self._scheduler.at(arrival, self._deliver_next, end)

    def _deliver_next(self, end: LinkEnd) -> None:
        """The oldest thing on a stream arrives, unless the way is cut: then it waits."""
        if end.direction.is_cut:
            end.stalled_count += 1
            return
        item = end.in_flight.popleft()
        if not end.session.is_aborted:
            self._receive_item(end.peer, item)

    def _receive_item(self, end: LinkEnd, item: object) -> None:
        if item is _OPEN_MARKER:
            self._open_end(end, False)
            if not end.is_open:
                self._send_reset(end)
        elif not end.is_open:
            self._send_reset(end)
        elif item is _CLOSE_MARKER:
            self._report_closed(end, "connection closed")
        else:
            self._on_event(end.host, FrameReceived(end.id, item))  # type: ignore[arg-type]

    def _send_reset(self, end: LinkEnd) -> None:
        """Nobody has this end of a stream: a machine that is on answers with a reset, which does
        not overtake what was sent before."""
        if end.host.is_powered and end.peer.is_open and not end.direction.is_cut:
            at = max(self._scheduler.now + end.direction.delay, end.last_arrival_at)
            self._scheduler.at(at, self._report_closed, end.peer, "connection reset")

    def _send_datagram(self, end: LinkEnd, frame: object) -> None:
        """Send a datagram: it may be lost, come twice, or late."""
        options = self._options
        copies = 1 + (options.duplicate > 0 and self._rng.random() < options.duplicate)
        for _ in range(copies):
            if options.loss and self._rng.random() < options.loss:
                continue
            delay = end.direction.delay
            if self._jitter:
                delay += self._rng.uniform(0.0, self._jitter)
            if options.reorder and self._rng.random() < options.reorder:
                delay *= self._rng.uniform(1.0, REORDER_FACTOR)
            self._scheduler.after(delay, self._receive_datagram, end, frame)

    def _receive_datagram(self, end: LinkEnd, frame: object) -> None:
        """A datagram arrives. An agent that does not know its session answers that it is closed."""
        if end.direction.is_cut or end.session.is_aborted:
            return
        there = end.peer
        if frame is _CLOSE_MARKER:
            self._report_closed(there, "connection closed")
        elif there.is_open:
            self._on_event(there.host, FrameReceived(there.id, frame))  # type: ignore[arg-type]
        elif there.host.is_listening and not there.host.is_frozen:
            self._send_datagram(there, _CLOSE_MARKER)

    # ------------------------------------------------------------ cuts

    def cut_direction(self, direction: LinkDirection) -> None:
        """Swallow what is sent in one direction."""
        direction.is_cut = True

    def restore_direction(self, direction: LinkDirection) -> None:
        """Let everything through again. A stream sends again what did not get through."""
        direction.is_cut = False
        for end in self._sending_ends(direction):
            waiting, end.stalled_count = end.stalled_count, 0
            for _ in range(waiting):
                self._scheduler.after(direction.delay, self._deliver_next, end)

    def _sending_ends(self, direction: LinkDirection) -> Iterator[LinkEnd]:
        """Yield the ends that send through this pipe."""
        return (
            end for pair in direction.link.sessions for end in pair if end.direction is direction
        )
