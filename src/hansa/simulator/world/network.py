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

from hansa.protocol.events import LinkClosed, LinkOpened, Received
from hansa.protocol.model import LinkId
from hansa.simulator.options import LinkOptions
from hansa.simulator.world.scheduler import Scheduler

LinkEvent = LinkOpened | LinkClosed | Received

REORDER_FACTOR = 10
"A frame that is held back takes up to so many times the usual delay."

_OPEN = object()
_CLOSE = object()
"""What a stream carries besides frames: its beginning and its end; datagrams tell the end too."""


class Machine(Protocol):
    """What the network must know about a place."""

    place: int
    powered: bool
    """Whether the machine is on: only then it answers, if only with a reset."""
    ends: "dict[LinkId, End]"
    """The open sessions of the agent that runs now, by their LinkId."""

    @property
    def listening(self) -> bool:
        """Whether an agent runs here (a suspended one counts: its kernel accepts for it)."""

    @property
    def frozen(self) -> bool:
        """Whether the agent is suspended: it will not dial."""

    def new_link(self) -> LinkId:
        """Return a LinkId that was never used at this place."""


class Pipe:
    """One direction of a link, whatever session uses it."""

    __slots__ = ("cut", "delay", "link")

    def __init__(self, link: "Link", delay: float) -> None:
        self.link = link
        self.delay = delay
        self.cut = False
        """Whether all that is sent here is swallowed."""


class End:
    """One side of a session: what was sent from here and has not arrived."""

    __slots__ = (
        "arrival",
        "id",
        "machine",
        "newest",
        "open",
        "other",
        "pipe",
        "queue",
        "session",
        "stalled",
    )

    other: "End"

    def __init__(self, machine: Machine, pipe: Pipe, session: "Session") -> None:
        self.machine = machine
        self.id = machine.new_link()
        self.pipe = pipe
        self.session = session
        self.open = False
        self.queue: deque[object] = deque()
        """On a stream: what is under way, in order."""
        self.arrival = 0.0
        """On a stream: when the newest of it arrives."""
        self.stalled = 0
        """On a stream: how much should have arrived while the pipe was cut."""
        self.newest = 0
        """On datagrams: the highest number that was sent; what is not above it is sent again."""


@dataclass(slots=True)
class Session:
    """One connection."""

    torn: bool = False
    """Cut, both ends told: nothing of it arrives any more."""


@dataclass(slots=True)
class Link:
    """Two places that want a session."""

    a: Machine
    b: Machine
    delay: float
    out: Pipe = field(init=False)
    back: Pipe = field(init=False)
    sessions: list[tuple[End, End]] = field(default_factory=list)
    """Those of which at least one end is open: (at a, at b)."""
    dialling: bool = False
    removed: bool = False

    def __post_init__(self) -> None:
        self.out = Pipe(self, self.delay)
        self.back = Pipe(self, self.delay)

    @property
    def usable(self) -> bool:
        """Whether frames get through in both directions."""
        return not (self.out.cut or self.back.cut)


class Network:
    """All links of a world."""

    def __init__(
        self,
        options: LinkOptions,
        seed: int,
        scheduler: Scheduler,
        post: Callable[[Machine, LinkEvent], None],
    ) -> None:
        """Start without links. Events for an agent go to `post`."""
        self._options = options
        self._ordered = options.ordered
        self._jitter = options.jitter_ms / 1000
        self._close_delay = options.close_delay_ms / 1000
        self._scheduler = scheduler
        self._post = post
        self._chance = random.Random(f"{seed} frames")
        self._dial_chance = random.Random(f"{seed} dial")
        self._delays = {(a, b): delay / 1000 for a, b, delay in options.delays_ms}
        self.links: dict[tuple[int, int], Link] = {}
        self.send = self._push if self._ordered else self._throw
        """Carries a frame from one end of a session to the other."""

    def link(self, a: int, b: int) -> Link | None:
        """Return the link between two places."""
        return self.links.get((min(a, b), max(a, b)))

    # ------------------------------------------------------------ configuration

    def add(self, one: Machine, other: Machine) -> None:
        """Configure a link and dial it."""
        a, b = sorted((one, other), key=lambda machine: machine.place)
        key = (a.place, b.place)
        if key in self.links:
            return
        usual = self._options.delay_ms / 1000
        delay = self._delays.get(key, self._delays.get((b.place, a.place), usual))
        link = self.links[key] = Link(a, b, delay)
        self.dial(link)

    def remove(self, link: Link) -> None:
        """Take a link out of the configuration; both ends close it."""
        link.removed = True
        del self.links[(link.a.place, link.b.place)]
        self.tear(link, "link removed")

    # ------------------------------------------------------------ sessions

    def dial(self, link: Link) -> None:
        """Start dialling unless that is already under way."""
        if not link.dialling and not link.removed:
            link.dialling = True
            self._scheduler.after(0.0, self._attempt, link)

    def _attempt(self, link: Link) -> None:
        """Send the first packet of a handshake, if somebody is there to send it."""
        if link.removed or not link.a.listening or self._has_session(link.a, link):
            link.dialling = False  # the next start of the agent or end of the session dials again
        elif link.usable and not link.a.frozen and link.b.listening:
            self._scheduler.after(2 * link.delay, self._connect, link)
        else:
            self._retry(link)

    def _retry(self, link: Link) -> None:
        self._scheduler.after(
            self._dial_chance.uniform(*self._options.redial_s), self._attempt, link
        )

    def _connect(self, link: Link) -> None:
        """The handshake came back: a session stands, and the other end learns of it first thing."""
        if not (link.usable and link.a.listening and link.b.listening) or link.removed:
            self._retry(link)
            return
        link.dialling = False
        session = Session()
        near = End(link.a, link.out, session)
        far = End(link.b, link.back, session)
        near.other, far.other = far, near
        link.sessions.append((near, far))
        if self._ordered:
            self._push(near, _OPEN)
        else:
            self._scheduler.after(link.delay, self._open, far, False)
        self._open(near, dialled=True)

    def _open(self, end: End, dialled: bool) -> None:
        if end.session.torn or end.other.pipe.cut or not end.machine.listening:
            return
        end.open = True
        end.machine.ends[end.id] = end
        self._post(end.machine, LinkOpened(end.id, dialled, self._ordered))

    def _has_session(self, machine: Machine, link: Link) -> bool:
        return any(end.open for pair in link.sessions for end in pair if end.machine is machine)

    def close(self, end: End) -> None:
        """An agent closes its end and tells the other: on a stream after what was sent before."""
        if not end.open:
            return
        self._forget(end)
        self.send(end, _CLOSE)

    def hang_up(self, machine: Machine, tell: bool) -> None:
        """An agent is gone; if `tell`, its kernel closes its streams."""
        for end in list(machine.ends.values()):
            self._forget(end)
            if tell and self._ordered:
                self._scheduler.after(self._close_delay, self._push, end, _CLOSE)

    def tear(self, link: Link, reason: str) -> None:
        """End all sessions of a link; both ends learn of it and what was under way is lost."""
        for pair in list(link.sessions):
            pair[0].session.torn = True
            for end in pair:
                self._scheduler.after(self._close_delay, self._lose, end, reason)

    def _forget(self, end: End) -> None:
        """An end is closed, from whatever side."""
        end.open = False
        end.machine.ends.pop(end.id, None)
        link = end.pipe.link
        link.sessions = [pair for pair in link.sessions if pair[0].open or pair[1].open]
        if end.machine is link.a:
            self._redial(link)

    def _redial(self, link: Link) -> None:
        if not link.dialling and not link.removed:
            link.dialling = True
            self._retry(link)

    def _lose(self, end: End, reason: str) -> None:
        """Tell an agent that its session has ended."""
        if end.open:
            self._forget(end)
            self._post(end.machine, LinkClosed(end.id, reason))

    # ------------------------------------------------------------ frames

    def is_full(self, end: End) -> bool:
        """Whether so much is under way on a stream that an agent sends no publications there."""
        return 0 < self._options.window <= len(end.queue)

    def _push(self, end: End, item: object) -> None:
        """Put something on a stream: it arrives after all that was put there before."""
        arrival = self._scheduler.now + end.pipe.delay
        if self._jitter:
            arrival += self._chance.uniform(0.0, self._jitter)
        end.arrival = arrival = max(arrival, end.arrival)
        end.queue.append(item)
        self._scheduler.at(arrival, self._pull, end)

    def _pull(self, end: End) -> None:
        """The oldest thing on a stream arrives, unless the way is cut: then it waits."""
        if end.pipe.cut:
            end.stalled += 1
            return
        item = end.queue.popleft()
        if not end.session.torn:
            self._arrive(end.other, item)

    def _arrive(self, end: End, item: object) -> None:
        if item is _OPEN:
            self._open(end, False)
            if not end.open:
                self._reset(end)
        elif not end.open:
            self._reset(end)
        elif item is _CLOSE:
            self._lose(end, "connection closed")
        else:
            self._post(end.machine, Received(end.id, item))  # type: ignore[arg-type]

    def _reset(self, end: End) -> None:
        """Nobody has this end of a stream: a machine that is on answers with a reset, which does
        not overtake what was sent before."""
        if end.machine.powered and end.other.open and not end.pipe.cut:
            at = max(self._scheduler.now + end.pipe.delay, end.arrival)
            self._scheduler.at(at, self._lose, end.other, "connection reset")

    def _throw(self, end: End, frame: object) -> None:
        """Send a datagram: it may be lost, come twice, or late."""
        options = self._options
        copies = 1 + (options.duplicate > 0 and self._chance.random() < options.duplicate)
        for _ in range(copies):
            if options.loss and self._chance.random() < options.loss:
                continue
            delay = end.pipe.delay
            if self._jitter:
                delay += self._chance.uniform(0.0, self._jitter)
            if options.reorder and self._chance.random() < options.reorder:
                delay *= self._chance.uniform(1.0, REORDER_FACTOR)
            self._scheduler.after(delay, self._land, end, frame)

    def _land(self, end: End, frame: object) -> None:
        """A datagram arrives. An agent that does not know its session answers that it is closed."""
        if end.pipe.cut or end.session.torn:
            return
        there = end.other
        if frame is _CLOSE:
            self._lose(there, "connection closed")
        elif there.open:
            self._post(there.machine, Received(there.id, frame))  # type: ignore[arg-type]
        elif there.machine.listening and not there.machine.frozen:
            self._throw(there, _CLOSE)

    # ------------------------------------------------------------ cuts

    def cut(self, pipe: Pipe) -> None:
        """Swallow what is sent in one direction."""
        pipe.cut = True

    def mend(self, pipe: Pipe) -> None:
        """Let everything through again. A stream sends again what did not get through."""
        pipe.cut = False
        for end in self._ends_of(pipe):
            waiting, end.stalled = end.stalled, 0
            for _ in range(waiting):
                self._scheduler.after(pipe.delay, self._pull, end)

    def _ends_of(self, pipe: Pipe) -> Iterator[End]:
        """Yield the ends that send through this pipe."""
        return (end for pair in pipe.link.sessions for end in pair if end.pipe is pipe)
