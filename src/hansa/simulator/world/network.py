"""Links between sites: sessions that open, carry frames with delay and loss, and end.

A *link* is configured between two places; the smaller one redials while there is no session. A
*session* is one connection, with its own LinkId at each end. Frames of an old session never arrive.
The network does not interpret frames.
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
"""A reordered frame takes up to this many times the usual delay."""

_OPEN_MARKER = object()
_CLOSE_MARKER = object()
"""Open and close markers on a stream; on datagram links only close."""


class NetworkHost(Protocol):
    """The interface of a site towards the network."""

    place: int
    is_powered: bool
    """Whether the machine is on: only then it responds, at least with a reset."""
    link_ends: "dict[LinkId, LinkEnd]"
    """The open sessions of the running agent, by LinkId."""

    @property
    def is_listening(self) -> bool:
        """Whether an agent runs here (also a suspended one: its kernel accepts for it)."""

    @property
    def is_frozen(self) -> bool:
        """Whether the agent is suspended and does not dial."""

    def new_link_id(self) -> LinkId:
        """Return a LinkId that this site never used."""


class LinkDirection:
    """One direction of a link, for all sessions."""

    __slots__ = ("is_cut", "delay", "link")

    def __init__(self, link: "SimulatedLink", delay: float) -> None:
        self.link = link
        self.delay = delay
        self.is_cut = False
        """Whether everything sent in this direction is lost."""


class LinkEnd:
    """One side of a session, with its frames in flight."""

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
        """On a stream: frames in flight, in order."""
        self.last_arrival_at = 0.0
        """On a stream: when the newest frame arrives."""
        self.stalled_count = 0
        """On a stream: frames that were due while the direction was cut."""
        self.highest_sequence = 0
        """On datagram links: the highest sequence number sent; others are retransmissions."""


@dataclass(slots=True)
class LinkSession:
    """One connection."""

    is_aborted: bool = False
    """Whether it was aborted at both ends: nothing arrives any more."""


@dataclass(slots=True)
class SimulatedLink:
    """A configured link between two places."""

    a: NetworkHost
    b: NetworkHost
    delay: float
    a_to_b: LinkDirection = field(init=False)
    b_to_a: LinkDirection = field(init=False)
    sessions: list[tuple[LinkEnd, LinkEnd]] = field(default_factory=list)
    """Sessions with at least one open end: (end at a, end at b)."""
    is_dialling: bool = False
    is_removed: bool = False

    def __post_init__(self) -> None:
        self.a_to_b = LinkDirection(self, self.delay)
        self.b_to_a = LinkDirection(self, self.delay)

    @property
    def is_usable(self) -> bool:
        """Whether frames pass in both directions."""
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
        """Start without links. `on_event` passes an event to an agent."""
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
        """Sends a frame from one end of a session to the other."""

    def find_link(self, a: int, b: int) -> SimulatedLink | None:
        return self.links.get((min(a, b), max(a, b)))

    # ------------------------------------------------------------ configuration

    def add_link(self, one: NetworkHost, other: NetworkHost) -> None:
        """Add a link to the configuration and dial it."""
        a, b = sorted((one, other), key=lambda machine: machine.place)
        key = (a.place, b.place)
        if key in self.links:
            return
        usual = self._options.delay_ms / 1000
        delay = self._delays.get(key, self._delays.get((b.place, a.place), usual))
        link = self.links[key] = SimulatedLink(a, b, delay)
        self.start_dialling(link)

    def remove_link(self, link: SimulatedLink) -> None:
        """Remove a link from the configuration; both ends close it."""
        link.is_removed = True
        del self.links[(link.a.place, link.b.place)]
        self.abort_sessions(link, "link removed")

    # ------------------------------------------------------------ sessions

    def start_dialling(self, link: SimulatedLink) -> None:
        """Start dialling unless it is in progress."""
        if not link.is_dialling and not link.is_removed:
            link.is_dialling = True
            self._scheduler.after(0.0, self._try_to_dial, link)

    def _try_to_dial(self, link: SimulatedLink) -> None:
        """Send the first packet of the handshake, if an agent is running."""
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
        """Open a session after the handshake; the open marker reaches the other end before any
        frame."""
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
        """Close an end and notify the other; on a stream after the frames sent before."""
        if not end.is_open:
            return
        self._remove_end(end)
        self.send(end, _CLOSE_MARKER)

    def close_all_ends(self, host: NetworkHost, notify_peers: bool) -> None:
        """Close all ends of a stopped agent; with `notify_peers`, its kernel closes its streams."""
        for end in list(host.link_ends.values()):
            self._remove_end(end)
            if notify_peers and self._is_ordered:
                self._scheduler.after(self._close_delay, self._send_in_order, end, _CLOSE_MARKER)

    def abort_sessions(self, link: SimulatedLink, reason: str) -> None:
        """Abort all sessions of a link at both ends; frames in flight are lost."""
        for pair in list(link.sessions):
            pair[0].session.is_aborted = True
            for end in pair:
                self._scheduler.after(self._close_delay, self._report_closed, end, reason)

    def _remove_end(self, end: LinkEnd) -> None:
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
        if end.is_open:
            self._remove_end(end)
            self._on_event(end.host, LinkClosed(end.id, reason))

    # ------------------------------------------------------------ frames

    def is_window_full(self, end: LinkEnd) -> bool:
        """Whether a stream has so many frames in flight that the agent drops publications."""
        return 0 < self._options.frames_in_flight_max <= len(end.in_flight)

    def _send_in_order(self, end: LinkEnd, item: object) -> None:
        """Send on a stream: arrives after everything sent before."""
        arrival = self._scheduler.now + end.direction.delay
        if self._jitter:
            arrival += self._rng.uniform(0.0, self._jitter)
        end.last_arrival_at = arrival = max(arrival, end.last_arrival_at)
        end.in_flight.append(item)
        self._scheduler.at(arrival, self._deliver_next, end)

    def _deliver_next(self, end: LinkEnd) -> None:
        """Deliver the oldest frame of a stream, unless the direction is cut."""
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
        """Answer data for an unknown stream with a reset, which does not overtake earlier data."""
        if end.host.is_powered and end.peer.is_open and not end.direction.is_cut:
            at = max(self._scheduler.now + end.direction.delay, end.last_arrival_at)
            self._scheduler.at(at, self._report_closed, end.peer, "connection reset")

    def _send_datagram(self, end: LinkEnd, frame: object) -> None:
        """Send a datagram: it may be lost, duplicated or late."""
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
        """Receive a datagram; an agent without that session answers that it is closed."""
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
        """Lose everything sent in one direction."""
        direction.is_cut = True

    def restore_direction(self, direction: LinkDirection) -> None:
        """Restore a direction; streams retransmit the frames that were due."""
        direction.is_cut = False
        for end in self._sending_ends(direction):
            waiting, end.stalled_count = end.stalled_count, 0
            for _ in range(waiting):
                self._scheduler.after(direction.delay, self._deliver_next, end)

    def _sending_ends(self, direction: LinkDirection) -> Iterator[LinkEnd]:
        """Yield the ends that send in this direction."""
        return (
            end for pair in direction.link.sessions for end in pair if end.direction is direction
        )
