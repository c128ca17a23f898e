"""The loop around one node: the only place where it meets the clock, links and its broker.

Everything happens in batches: what one read brought is handled as a whole, and what it caused is
written with one call per link and one for the broker.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Protocol

from hansa.agent import tasks
from hansa.agent.error_text import describe_fault
from hansa.agent.links.link import Link
from hansa.agent.telemetry.recorded_topics import Topics
from hansa.agent.telemetry.sampler import Witness
from hansa.errors import InvalidFrame
from hansa.protocol.effects import (
    CloseLink,
    Deliver,
    Duplicate,
    Effect,
    EpochRenewed,
    Gap,
    Hear,
    Keep,
    LinkRefused,
    Memorise,
    NeighbourUp,
    ReadStored,
    Recall,
    Remember,
    Send,
    Store,
    Subscribe,
    Survey,
    Unsubscribe,
)
from hansa.protocol.events import Event, LinkClosed, LinkOpened, Received, TimerFired
from hansa.protocol.forwarding.engine import Deliveries, Outgoing
from hansa.protocol.forwarding.numbering import Captured
from hansa.protocol.model import LinkId, Plain, Publication
from hansa.protocol.node import Node
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import Any as AnyFrame
from hansa.protocol.wire.frames import Hello

INVALID_MAX = 3
"""Frames that cannot be read until the link is closed."""


class BrokerPort(Protocol):
    """What the driver asks of the broker's side."""

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe; `Granted` or `Denied` will be fed."""

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Give these up."""

    def publish(self, publications: Sequence[Plain | Publication]) -> None:
        """Publish to the broker's clients."""


class CustodyPort(Protocol):
    """What the driver asks of the disk."""

    def perform(self, order: Recall | Remember | Hear | EpochRenewed) -> None:
        """Read, save or begin anew; answers will be fed."""

    def deliver(self, batch: Sequence[Publication | Gap]) -> None:
        """Take over publications of QoS 1 and 2, and note which will not come, in this order;
        `Stored` will be fed."""


class StoredPort(Protocol):
    """What the driver asks of who keeps retained values."""

    def perform(self, order: Survey | ReadStored | Store | Memorise) -> None:
        """Read or write what the broker holds, or save what is known; answers will be fed."""


class Driver:
    """Feeds a node and performs what it wants."""

    def __init__(
        self,
        node: Node,
        news: Callable[[Effect], None],
        closed: Callable[[Link, str], None],
    ) -> None:
        """`news` is told what the node tells, `closed` why a link is gone."""
        self.node = node
        self.broker: BrokerPort | None = None
        self.custody: CustodyPort | None = None
        self.recorded = Topics()
        """Topics whose publications of QoS 1 and 2 are kept even if nobody is owed them."""
        self.witness: Witness | None = None
        """Sees everything, for telemetry; None if nobody wants any."""
        self.stored: StoredPort | None = None
        self.links: dict[LinkId, Link] = {}
        self.counters: Counter[str] = Counter()
        self._news = news
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None
        self._outgoing: Outgoing = defaultdict(list)
        self._deliveries: Deliveries = []
        self._sure: list[Publication | Gap] = []
        self._encoded: tuple[object, bytes] = (None, b"")
        self._invalid: Counter[LinkId] = Counter()
        self._events: deque[Event] = deque()
        self._busy = False

    # ------------------------------------------------------------ what happens

    def feed(self, *events: Event) -> None:
        """Hand events to the node, then perform all that followed."""
        self._handle(events)
        self._flush()

    def link_opened(self, link: Link) -> None:
        """A connection stands."""
        self.links[link.id] = link
        self.feed(LinkOpened(link.id, link.dialled is not None, link.ordered))

    def publications_dropped(self, link: Link, count: int, reason: str) -> None:
        """A link could not take some publications."""
        self.counters[f"dropped: {reason}"] += count

    def link_closed(self, link: Link, reason: str) -> None:
        """A connection is gone."""
        if self.links.pop(link.id, None) is not None:
            self._invalid.pop(link.id, None)
            self._closed(link, reason)
            self.feed(LinkClosed(link.id, reason))

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        """A batch of frames arrived; what cannot be read is counted and dropped."""
        news: list[Effect] = []
        rest = iter(frames)
        if self.witness:
            rest = self.witness.watch(link.id, frames, self._outgoing, self._deliveries, news)
        while True:
            other = self.node.pass_on(
                link.id, rest, self._outgoing, self._deliveries, news, monotonic()
            )
            if news:
                if self.witness:
                    self.witness.noticed(news)
                self._perform_all(news)
                news.clear()
            if other is None:
                break
            try:
                frame = decode(other)
                if link.admitted or not self._is_impostor(link, frame):
                    self._handle((Received(link.id, frame),))
            except InvalidFrame as error:
                self._note_invalid(link, error)
        if self.node.custody.next_deadline() is not None:
            self._rearm()
        self._flush()

    def captured(self, publications: Iterable[Captured]) -> None:
        """Clients of this broker published something that others want."""
        marks = self.witness.marks(self._outgoing) if self.witness else {}
        news = self.node.start(publications, self._outgoing, monotonic())
        if self.witness:
            self.witness.started(news, marks, self._outgoing)
        self._perform_all(news)
        self._flush()

    def captured_surely(self, publication: Captured) -> Publication | None:
        """A client published at QoS 1 or 2; return it as it has to be kept before it leaves, None
        if it need not be kept."""
        kept: Publication | None = None
        for effect in self.node.start((publication,), self._outgoing, monotonic()):
            if isinstance(effect, Keep):
                kept = effect.publication
            else:
                self._perform(effect)
        if kept is None and publication.topic in self.recorded:
            kept = self.node.custody.outbox.capture(publication, ())
        if kept is not None and self.witness:
            self.witness.captured(self.witness.clock(), kept)
        return kept

    def close_links(self, reason: str) -> None:
        """Close all links, for a clean end."""
        for link in list(self.links.values()):
            link.close(reason)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------ the loop

    def _handle(self, events: Iterable[Event]) -> None:
        """Handle events and perform all that follows, in order.

        Performing may itself make events: a broker's refusal that is known at once. They wait for
        their turn, or frames would leave in another order than the node decided.
        """
        self._events.extend(events)
        if self._busy:
            return
        self._busy = True
        # uvloop's own clock stands still in an iteration, and counts milliseconds.
        now = monotonic()
        try:
            while self._events:
                event = self._events.popleft()
                effects = self.node.handle(event, now)
                if self.witness:
                    self.witness.handled(event, effects)
                self._perform_all(effects)
        finally:
            self._busy = False
        self._rearm()

    def _perform_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(link, frame):
                self._send(link, frame)
            case Deliver(publication):
                if publication.qos and self.custody:
                    self._sure.append(publication)
                else:
                    self._deliveries.append(publication)
                    if self.witness:
                        self.witness.delivered(publication)
            case Duplicate():
                self.counters["duplicates"] += 1
            case CloseLink(link, reason):
                self._flush_link(link)
                if link in self.links:
                    self._close(self.links[link], reason)
            case _:
                self._ask_others(effect)

    def _ask_others(self, effect: Effect) -> None:
        """Perform what is for the broker or the disk; what is left is news."""
        match effect:
            case Subscribe(filters) if self.broker:
                self.broker.subscribe(filters)
            case Unsubscribe(filters) if self.broker:
                self.broker.unsubscribe(filters)
            case Recall() | Remember() | Hear() if self.custody:
                self.custody.perform(effect)
            case Survey() | ReadStored() | Store() | Memorise():
                if self.stored:
                    self.stored.perform(effect)
            case Gap() if self.custody:
                self._sure.append(effect)
                self._news(effect)
            case EpochRenewed() if self.custody:
                self.custody.perform(effect)
                self._news(effect)
            case NeighbourUp(link=link) | LinkRefused(link=link):
                self._settle_admission(link, isinstance(effect, NeighbourUp))
                self._news(effect)
            case _:
                self._news(effect)

    def _close(self, link: Link, reason: str) -> None:
        """Close a link; the reason may quote the peer, so it is no name for a counter."""
        if not link.admitted and link.dialled is None:
            self.counters["refused: silent or refused before the hellos agreed"] += 1
        link.close(reason)

    def _is_impostor(self, link: Link, frame: AnyFrame | Publication) -> bool:
        """Whether a hello names another node than the link's transport does; then close it."""
        if link.named is None or not isinstance(frame, Hello) or frame.node == link.named:
            return False
        self._close(link, f"its hello says {frame.node:016x}, its topic says {link.named:016x}")
        return True

    def _settle_admission(self, link_id: LinkId, is_neighbour: bool) -> None:
        link = self.links.get(link_id)
        if link is not None and is_neighbour:
            link.admit()
        elif link is not None:
            link.refuse()

    def _send(self, link: LinkId, frame: AnyFrame | Publication) -> None:
        """Encode once what goes to several neighbours: they follow each other."""
        if self._encoded[0] is not frame:
            try:
                self._encoded = (frame, encode(frame))
            except ValueError:
                if not isinstance(frame, Publication):
                    raise  # a fault of ours; what a client published may be anything
                self.counters["dropped: no frame can hold it"] += 1
                return
        data = self._encoded[1]
        self._outgoing[link].append(data)
        if self.witness:
            self.witness.sent(link, frame, len(data))

    def _flush(self) -> None:
        for link in list(self._outgoing):
            self._flush_link(link)
        if self._sure and self.custody is not None:
            sure, self._sure = self._sure, []
            self.custody.deliver(sure)
        if self._deliveries and self.broker is not None:
            deliveries, self._deliveries = self._deliveries, []
            self.broker.publish(deliveries)

    def _flush_link(self, link_id: LinkId) -> None:
        frames = self._outgoing.pop(link_id, [])
        link = self.links.get(link_id)
        if link is not None and frames:
            try:
                link.send(frames)
            except Exception as fault:  # noqa: BLE001  # who caused them has no part in it
                tasks.tell(fault)
                link.close(f"a fault of Hansa: {describe_fault(fault)}")

    def _note_invalid(self, link: Link, error: InvalidFrame) -> None:
        self.counters["invalid frames"] += 1
        self._invalid[link.id] += 1
        if self._invalid[link.id] >= INVALID_MAX:
            link.close(f"too many invalid frames, the last one: {error}")

    def _rearm(self) -> None:
        due = self.node.next_deadline()
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        if due is None:
            self._timer = None
        else:
            self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.feed(TimerFired())
