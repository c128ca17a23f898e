"""A wire that connects real nodes in virtual time. Every frame takes `DELAY`; nothing is random.

Frames travel as bytes. Brokers grant every subscription at once, disks commit at once. A place is a
number, which is also the id of its node unless a test says otherwise. `log` holds all inputs and
effects.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, TypeVar

from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    AppendToJournal,
    CloseLink,
    Deliver,
    Effect,
    EpochRolloverRequired,
    ListRetained,
    PersistPeer,
    PersistProgressReport,
    PublishRetained,
    ReadJournal,
    ReadRetained,
    Send,
    SubscribeAtBroker,
)
from hansa.protocol.events import (
    ClientPublished,
    EpochStarted,
    Event,
    FrameReceived,
    InboxCommitted,
    InterestChanged,
    JournalCommitted,
    JournalRead,
    LinkClosed,
    LinkOpened,
    PeersPersisted,
    ProgressReportPersisted,
    RetainedListed,
    RetainedRead,
    SubscriptionsGranted,
    TimerFired,
)
from hansa.protocol.membership.rights import UNLIMITED, Rights
from hansa.protocol.model import KEY_BYTES, Identity, LinkId, NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.pair_authentication import KeyExchange
from hansa.protocol.retained.digest import payload_digest
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import matches
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import AnyFrame
from hansa.simulator.world.authority import SimulatedAuthenticator, SimulatedAuthority

DELAY = 0.01
"""Seconds that a frame, or the close of a connection, takes."""

T = TypeVar("T")
End = tuple[int, LinkId]


@dataclass(frozen=True)
class Step:
    """One input of one node, and its effects."""

    at: float
    place: int
    event: Event
    effects: list[Effect]


def key(number: int) -> bytes:
    """Return the public key of the node at a place."""
    return number.to_bytes(KEY_BYTES, "big")


def pairs(text: str) -> list[tuple[int, int]]:
    """Read `0-1 1-2`."""
    return [(int(a), int(b)) for a, b in (pair.split("-") for pair in text.split())]


class Wire:
    """Some nodes and the links between them."""

    def __init__(
        self, links: str = "", rights: dict[int, Rights] | None = None, **settings: Any
    ) -> None:
        """Start a node at every end of these links, open them, and let the nodes converge. With
        `rights`, by place, nodes have certificates; places that it does not name may do
        everything. Among the settings, `keys` makes the exchange key of each node; without it,
        unicast frames prove nothing."""
        self._make_keys: Callable[[], KeyExchange] | None = settings.pop("keys", None)
        self.keys: dict[int, KeyExchange | None] = {}
        """The exchange key of each place."""
        self.authority = SimulatedAuthority(0)
        self.rights = rights
        self.authenticators: dict[int, SimulatedAuthenticator] = {}
        self.settings = ProtocolSettings(**settings)
        self.now = 0.0
        self.nodes: dict[int, Node] = {}
        self.log: list[Step] = []
        self.is_lost: Callable[[int, int, AnyFrame | Publication], bool] = lambda *_: False
        """Whether a frame from one place to another is lost."""
        self.alter: Callable[[int, int, AnyFrame | Publication], AnyFrame | Publication] = (
            lambda source, target, frame: frame
        )
        """Returns a frame as it leaves one place for another."""
        self.delay: Callable[[int, int], float] = lambda *_: DELAY
        """Seconds that a frame takes from one place to another."""
        self.ends: dict[End, End] = {}
        self.peers: dict[End, int] = {}
        """The place at the other end of each link, also of closed ones."""
        self.journals: dict[int, list[Publication]] = {}
        """The journal of each place."""
        self.disk_works = True
        self.stored: dict[int, dict[str, ClientPublished]] = {}
        """The retained values of brokers; only brokers of these places answer."""
        self._frozen: dict[int, list[Event]] = {}
        self._numbers = count(1)
        self._queue: list[tuple[float, int, int, Event]] = []
        for place in sorted({place for pair in pairs(links) for place in pair}):
            self.start(place)
        self.join(links)
        self.run(1.0)

    # ------------------------------------------------------------ what happens

    def start(
        self,
        place: int,
        identity: Identity | None = None,
        settings: ProtocolSettings | None = None,
        restored: RestoredState | None = None,
    ) -> Node:
        identity = identity or Identity(NodeId(place), key(place), incarnation=1)
        keys = self.keys[place] = self._make_keys() if self._make_keys else None
        authenticator = self.enrol(identity, place) if self.rights is not None else None
        if authenticator is not None:
            self.authenticators[place] = authenticator
        self.nodes[place] = Node(identity, settings or self.settings, restored, keys, authenticator)
        return self.nodes[place]

    def enrol(self, identity: Identity, place: int) -> SimulatedAuthenticator:
        """Return the authenticator of the node at a place."""
        rights = (self.rights or {}).get(place, UNLIMITED)
        return self.authority.enrol(identity.node, identity.key, rights)

    def stop(self, place: int) -> None:
        """Kill a node: its connections close without a goodbye."""
        del self.nodes[place]
        for end in [end for end in self.ends if end[0] == place]:
            self._close(end, "connection closed")

    def join(self, links: str, ordered: bool = True) -> None:
        """Open links; the first of each pair dials."""
        for dialler, listener in pairs(links):
            ends = [(place, LinkId(next(self._numbers))) for place in (dialler, listener)]
            self.ends.update({ends[0]: ends[1], ends[1]: ends[0]})
            self.peers.update({ends[0]: listener, ends[1]: dialler})
            for place, link in ends:
                self.give(place, LinkOpened(link, place == dialler, ordered))

    def cut(self, links: str) -> None:
        """Cut links; both sides notice."""
        for pair in pairs(links):
            for end in [end for end, other in self.ends.items() if (end[0], other[0]) == pair]:
                self._post(end[0], LinkClosed(end[1], "cut"))
                self._close(end, "cut")

    def subscribe(self, place: int, *filters: str) -> None:
        """The first clients subscribe to filters."""
        self.give(place, InterestChanged(added=filters))

    def unsubscribe(self, place: int, *filters: str) -> None:
        """The last clients unsubscribe from filters."""
        self.give(place, InterestChanged(removed=filters))

    def publish(
        self, place: int, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False
    ) -> None:
        event = ClientPublished(topic, payload, qos, retain)
        self.store(place, event)
        self.give(place, event)

    def store(self, place: int, value: ClientPublished | Publication) -> None:
        """A broker stores or clears a retained value."""
        stored_values = self.stored.get(place)
        if value.retain and stored_values is not None:
            stored_values.pop(value.topic, None)
            if value.payload:
                stored_values[value.topic] = ClientPublished(
                    value.topic, value.payload, value.qos, True
                )

    def retained_at(self, place: int) -> dict[str, bytes]:
        """Return the retained values of a broker."""
        return {topic: value.payload for topic, value in self.stored[place].items()}

    def freeze(self, place: int) -> None:
        """Suspend a node: its inputs wait."""
        self._frozen[place] = []

    def thaw(self, place: int) -> None:
        """Resume a node: a late timer comes first, then its waiting inputs."""
        for event in (TimerFired(), *self._frozen.pop(place)):
            self.give(place, event)

    # ------------------------------------------------------------ what can be seen

    def effects(self, place: int, kind: type[T]) -> list[T]:
        """Return all effects of a kind at a place, in order."""
        steps = (step for step in self.log if step.place == place)
        return [effect for step in steps for effect in step.effects if isinstance(effect, kind)]

    def deliveries(self) -> dict[int, list[bytes]]:
        """Return the payloads that every place delivered."""
        found = {place: self.effects(place, Deliver) for place in sorted(self.nodes)}
        return {
            place: [e.publication.payload for e in found[place]] for place in found if found[place]
        }

    def copies(self) -> list[tuple[int, int]]:
        """Return the links that publications crossed, in order, as (from, to)."""
        return [
            (step.place, self.peers[step.place, effect.link])
            for step in self.log
            for effect in step.effects
            if isinstance(effect, Send) and isinstance(effect.frame, Publication)
        ]

    # ------------------------------------------------------------ time

    def run(self, seconds: float) -> None:
        """Let time pass; at the same time, arrivals come before timers."""
        until = self.now + seconds
        while (at := min(self._arrival(), self._timer()[0])) <= until:
            self.now = max(self.now, at)
            if self._arrival() <= self._timer()[0]:
                _, _, place, event = heapq.heappop(self._queue)
                if place in self.nodes:
                    self.give(place, event)
            else:
                self.give(self._timer()[1], TimerFired())
        self.now = until

    def give(self, place: int, event: Event) -> list[Effect]:
        """Let a node handle an event now, and perform its effects."""
        if place in self._frozen:
            self._frozen[place].append(event)
            return []
        effects = self.nodes[place].handle(event, self.now)
        for effect in effects:
            if isinstance(effect, Deliver):
                self.store(place, effect.publication)
        assert all(isinstance(effect, Effect) for effect in effects)
        self.log.append(Step(self.now, place, event, effects))
        for effect in effects:
            self._perform(place, effect)
        return effects

    def _arrival(self) -> float:
        return self._queue[0][0] if self._queue else inf

    def _timer(self) -> tuple[float, int]:
        awake = [place for place in self.nodes if place not in self._frozen]
        dues = [(self.nodes[place].next_deadline(), place) for place in awake]
        return min(((due, place) for due, place in dues if due is not None), default=(inf, -1))

    def _perform(self, place: int, effect: Effect) -> None:
        match effect:
            case Send(link, frame) if (place, link) in self.ends:
                target, arriving = self.ends[place, link]
                if not self.is_lost(place, target, frame):
                    altered = self.alter(place, target, frame)
                    event = FrameReceived(arriving, decode(encode(altered)))
                    self._post(target, event, self.delay(place, target))
            case CloseLink(link, reason) if (place, link) in self.ends:
                self._close((place, link), reason)
            case SubscribeAtBroker(filters):
                self._post(place, SubscriptionsGranted(filters), 0.0)
            case ListRetained() | ReadRetained() if place in self.stored:
                self._post(place, self._read(place, effect), 0.0)
            case PublishRetained(publication):
                self.store(place, publication)
            case _ if self.disk_works:
                self._use_disk(place, effect)

    def _read(self, place: int, order: ListRetained | ReadRetained) -> Event:
        stored_values = self.stored[place]
        if isinstance(order, ReadRetained):
            return RetainedRead(
                order.requester, tuple(stored_values[t] for t in order.topics if t in stored_values)
            )
        found = [t for t in stored_values if any(matches(name, t) for name in order.filters)]
        return RetainedListed(
            order.filters, tuple((t, payload_digest(stored_values[t].payload)) for t in found)
        )

    def _use_disk(self, place: int, effect: Effect) -> None:
        match effect:
            case AppendToJournal(publication):
                self.journals.setdefault(place, []).append(publication)
                self._post(place, JournalCommitted(publication.epoch, publication.sequence), 0.0)
            case ReadJournal(to, epoch, after, upto, bytes_max):
                found = [
                    item
                    for item in self.journals.get(place, [])
                    if item.epoch == epoch and after < item.sequence <= upto
                    if to in dict(item.receivers)
                ]
                selected = [item for at, item in enumerate(found) if at < max(1, bytes_max // 100)]
                end = upto if selected == found else selected[-1].sequence
                self._post(place, JournalRead(to, epoch, after, end, tuple(selected)), 0.0)
            case Deliver(Publication(origin=origin, epoch=epoch, sequence=sequence, qos=1 | 2)):
                self._post(place, InboxCommitted(origin, epoch, sequence), 0.0)
            case PersistPeer(number):
                self._post(place, PeersPersisted(number), 0.0)
            case PersistProgressReport(node):
                self._post(place, ProgressReportPersisted(node), 0.0)
            case EpochRolloverRequired(epoch):
                self._post(place, EpochStarted(epoch, 1, ()), 0.0)

    def _close(self, end: End, reason: str) -> None:
        """One side has closed a link: the other side is notified."""
        other = self.ends.pop(end)
        del self.ends[other]
        self._post(other[0], LinkClosed(other[1], reason))

    def _post(self, place: int, event: Event, delay: float = DELAY) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._numbers), place, event))
