"""The loop around one node: feeds it events and performs its effects.

Only here the node meets the clock, the links, the broker and the disk. Everything happens in
batches: the frames of one read are handled together, and the effects are written with one call per
link and one for the broker.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Protocol

from hansa.agent import tasks
from hansa.agent.error_text import describe_fault
from hansa.agent.links.link import Link
from hansa.agent.links.peer_guard import PeerGuard
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.telemetry.sampler import Sampler
from hansa.errors import InvalidFrame
from hansa.protocol.effects import (
    AppendToJournal,
    CloseLink,
    Deliver,
    Duplicate,
    Effect,
    EpochRolloverRequired,
    Gap,
    LinkRefused,
    ListRetained,
    NeighbourUp,
    PeerMisbehaved,
    PersistPeer,
    PersistProgressReport,
    PersistRetained,
    PublishRetained,
    ReadJournal,
    ReadRetained,
    Send,
    SubscribeAtBroker,
    UnsubscribeAtBroker,
)
from hansa.protocol.events import Event, FrameReceived, LinkClosed, LinkOpened, TimerFired
from hansa.protocol.forwarding.engine import Deliveries, Outgoing
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.model import LinkId, PlainMessage, Publication
from hansa.protocol.node import Node
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import AnyFrame, Hello
from hansa.telemetry.schema import CLEAN_STOP_REASON


class BrokerPort(Protocol):
    """What the driver needs of the broker client."""

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe; SubscriptionsGranted or SubscriptionsDenied will be fed."""

    def unsubscribe(self, filters: Sequence[str]) -> None: ...

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Publish QoS 0 to the broker's clients."""


class DeliveryPort(Protocol):
    """What the driver needs of delivery and disk."""

    def perform(
        self, command: ReadJournal | PersistPeer | PersistProgressReport | EpochRolloverRequired
    ) -> None:
        """Perform an effect about the disk; results will be fed."""

    def deliver(self, batch: Sequence[Publication | Gap]) -> None:
        """Take over publications of QoS 1 and 2 and gaps, in this order; results will be fed."""


class RetainedPort(Protocol):
    """What the driver needs of the retained store."""

    def perform(
        self, command: ListRetained | ReadRetained | PublishRetained | PersistRetained
    ) -> None:
        """Read or write values at the broker, or save them; results will be fed."""


class TopicCounterPort(Protocol):
    """What the driver needs of a topic counter."""

    def add_captured(self, publications: Iterable[LocalPublication]) -> None: ...

    def add_injected(self, publications: Iterable[PlainMessage | Publication | Gap]) -> None: ...


class TraceWatchPort(Protocol):
    """What the driver needs of the watches for marked publications."""

    def on_received(self, link: LinkId, frames: Iterable[bytes]) -> None: ...

    def on_sent(self, link: LinkId, frames: Iterable[bytes | bytearray]) -> None: ...

    def on_captured(self, publications: Iterable[LocalPublication]) -> None: ...

    def on_delivered(self, publications: Sequence[PlainMessage | Publication]) -> None: ...


class Driver:
    """Feeds a node and performs its effects."""

    def __init__(
        self,
        node: Node,
        on_notification: Callable[[Effect], None],
        on_link_closed: Callable[[Link, str], None],
    ) -> None:
        """`on_notification` gets the notifications of the node, `on_link_closed` the reason why
        a link has closed."""
        self.node = node
        self.broker: BrokerPort | None = None
        self.delivery: DeliveryPort | None = None
        self.recorded_topics = RecordedTopics()
        """Topics whose publications of QoS 1 and 2 are journaled even without a receiver."""
        self.sampler: Sampler | None = None
        """Sampler for telemetry, or None."""
        self.topic_counter: TopicCounterPort | None = None
        """Counts publications while an operator looks at the topics."""
        self.trace_watch: TraceWatchPort | None = None
        """Watches for the publication of a real trace while there is one."""
        self.retained: RetainedPort | None = None
        self.guard = PeerGuard()
        self.links: dict[LinkId, Link] = {}
        self.counters: Counter[str] = Counter()
        self._on_notification = on_notification
        self._on_link_closed = on_link_closed
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self._outgoing: Outgoing = defaultdict(list)
        self._deliveries: Deliveries = []
        self._guaranteed_deliveries: list[Publication | Gap] = []
        self._last_encoded: tuple[object, bytes] = (None, b"")
        self._events: deque[Event] = deque()
        self._is_handling = False

    # ------------------------------------------------------------ events

    def feed(self, *events: Event) -> None:
        """Feed events to the node, then perform all effects."""
        self._handle(events)
        self._flush()

    def link_opened(self, link: Link) -> None:
        self.links[link.id] = link
        self.guard.link_opened(link)
        self.feed(LinkOpened(link.id, link.dialled_address is not None, link.is_ordered))

    def publications_dropped(self, link: Link, count: int, reason: str) -> None:
        self.counters[f"dropped: {reason}"] += count

    def peer_misbehaved(self, link: Link, reason: str) -> None:
        self.guard.misbehaved(link, reason)

    def link_closed(self, link: Link, reason: str) -> None:
        if self.links.pop(link.id, None) is not None:
            self.guard.link_closed(link)
            self.counters["links lost"] += link.is_admitted
            self._on_link_closed(link, reason)
            self.feed(LinkClosed(link.id, reason))

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        """Handle a batch of frames; invalid ones are counted and dropped."""
        if self.guard.drops_frames(link):
            return
        if self.trace_watch is not None:
            self.trace_watch.on_received(link.id, frames)
        notifications: list[Effect] = []
        remaining = iter(frames)
        if self.sampler:
            remaining = self.sampler.watch_frames(
                link.id, frames, self._outgoing, self._deliveries, notifications
            )
        while True:
            control_data = self.node.forward_batch(
                link.id, remaining, self._outgoing, self._deliveries, notifications, monotonic()
            )
            if notifications:
                if self.sampler:
                    self.sampler.on_batch_notifications(notifications)
                self._perform_all(notifications)
                notifications.clear()
            if control_data is None:
                break
            self._receive_control(link, control_data)
        if self.node.delivery.next_deadline() is not None:
            self._update_timer()
        self._flush()
        self.guard.charge(link, len(frames))

    def _receive_control(self, link: Link, data: bytes) -> None:
        try:
            if self.guard.receive_revocations(link, data):
                return
            frame = decode(data)
            if not self.guard.accepts(link, frame):
                return
            if link.is_admitted or not self._reject_impostor(link, frame):
                self._handle((FrameReceived(link.id, frame),))
        except InvalidFrame as error:
            self.counters["invalid frames"] += 1
            self.guard.misbehaved(link, f"invalid frame: {error}")

    def capture_qos0(self, publications: Iterable[LocalPublication]) -> None:
        """Clients of this broker published at QoS 0."""
        if self.topic_counter is not None:
            publications = tuple(publications)
            self.topic_counter.add_captured(publications)
        if self.trace_watch is not None:
            publications = tuple(publications)
            self.trace_watch.on_captured(publications)
        queue_lengths = self.sampler.queue_lengths(self._outgoing) if self.sampler else {}
        notifications = self.node.publish_batch(publications, self._outgoing, monotonic())
        if self.sampler:
            self.sampler.on_qos0_published(notifications, queue_lengths, self._outgoing)
        self._perform_all(notifications)
        self._flush()

    def assign_position(self, publication: LocalPublication) -> Publication | None:
        """A client published at QoS 1 or 2: return the record to journal before it is sent, None
        if it need not be journaled."""
        to_journal: Publication | None = None
        if self.topic_counter is not None:
            self.topic_counter.add_captured((publication,))
        for effect in self.node.publish_batch((publication,), self._outgoing, monotonic()):
            if isinstance(effect, AppendToJournal):
                to_journal = effect.publication
            else:
                self._perform(effect)
        if to_journal is None and publication.topic in self.recorded_topics:
            to_journal = self.node.assign_position(publication)
        if to_journal is not None and self.sampler:
            self.sampler.on_captured(self.sampler.clock(), to_journal)
        return to_journal

    def close_links(self) -> None:
        """Close all links, for a clean stop."""
        for link in list(self.links.values()):
            link.close(CLEAN_STOP_REASON)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------ the loop

    def _handle(self, events: Iterable[Event]) -> None:
        """Handle events and perform all effects, in order.

        Performing an effect may cause events, such as a refusal by the broker that is known at
        once. They wait for their turn, otherwise frames would be sent in another order than the
        node decided.
        """
        self._events.extend(events)
        if self._is_handling:
            return
        self._is_handling = True
        # uvloop's clock does not advance within an iteration and has a resolution of 1 ms.
        now = monotonic()
        try:
            while self._events:
                event = self._events.popleft()
                effects = self.node.handle(event, now)
                if self.sampler:
                    self.sampler.on_event_handled(event, effects)
                self._perform_all(effects)
        finally:
            self._is_handling = False
        self._update_timer()

    def _perform_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(link, frame):
                self._send(link, frame)
            case Deliver(publication):
                if publication.qos and self.delivery:
                    self._guaranteed_deliveries.append(publication)
                else:
                    self._deliveries.append(publication)
                    if self.sampler:
                        self.sampler.on_delivered(publication)
            case Duplicate():
                self.counters["duplicates"] += 1
            case CloseLink(link, reason):
                self._flush_link(link)
                if link in self.links:
                    self._close(self.links[link], reason)
            case _:
                self._dispatch_effect(effect)

    def _dispatch_effect(self, effect: Effect) -> None:
        """Perform an effect for the broker or the disk; all others are notifications."""
        match effect:
            case SubscribeAtBroker(filters) if self.broker:
                self.broker.subscribe(filters)
            case UnsubscribeAtBroker(filters) if self.broker:
                self.broker.unsubscribe(filters)
            case ReadJournal() | PersistPeer() | PersistProgressReport() if self.delivery:
                self.delivery.perform(effect)
            case ListRetained() | ReadRetained() | PublishRetained() | PersistRetained():
                if self.retained:
                    self.retained.perform(effect)
            case Gap() if self.delivery:
                self._guaranteed_deliveries.append(effect)
                self._on_notification(effect)
            case EpochRolloverRequired() if self.delivery:
                self.delivery.perform(effect)
                self._on_notification(effect)
            case NeighbourUp() | LinkRefused() | PeerMisbehaved():
                self._act_on_peer(effect)
                self._on_notification(effect)
            case _:
                self._on_notification(effect)

    def _close(self, link: Link, reason: str) -> None:
        """Close a link. The reason may quote the peer, so it is not used as a counter name."""
        if not link.is_admitted and link.dialled_address is None:
            self.counters["refused: closed before hello accepted"] += 1
        link.close(reason)

    def _reject_impostor(self, link: Link, frame: AnyFrame | Publication) -> bool:
        """Close a link whose hello names another node than its transport; return whether it did."""
        if (
            link.expected_node is None
            or not isinstance(frame, Hello)
            or frame.node == link.expected_node
        ):
            return False
        said = f"its hello says {frame.node:016x}"
        reason = f"{said}, its certificate or topic {link.expected_node:016x}"
        self.guard.misbehaved(link, reason)
        self._close(link, reason)
        return True

    def _act_on_peer(self, effect: NeighbourUp | LinkRefused | PeerMisbehaved) -> None:
        """Admit a neighbour, let a refused one finish, or count an offence."""
        link = self.links.get(effect.link)
        if link is None:
            return
        match effect:
            case NeighbourUp():
                link.admit()
                self.guard.link_admitted(link)
            case LinkRefused():
                link.allow_last_frames()
            case PeerMisbehaved(_, reason):
                self.guard.misbehaved(link, reason)

    def _send(self, link: LinkId, frame: AnyFrame | Publication) -> None:
        """Encode once for several neighbours: such effects are adjacent."""
        if self._last_encoded[0] is not frame:
            try:
                self._last_encoded = (frame, encode(frame))
            except ValueError:
                if not isinstance(frame, Publication):
                    raise  # a fault of Hansa; a client's publication may be anything
                self.counters["dropped: larger than a frame"] += 1
                return
        data = self._last_encoded[1]
        self._outgoing[link].append(data)
        if self.sampler:
            self.sampler.on_frame_sent(link, frame, len(data))

    def _flush(self) -> None:
        if self._outgoing:
            for link in list(self._outgoing):
                self._flush_link(link)
        if self._guaranteed_deliveries and self.delivery is not None:
            guaranteed, self._guaranteed_deliveries = self._guaranteed_deliveries, []
            if self.topic_counter is not None:
                self.topic_counter.add_injected(guaranteed)
            self.delivery.deliver(guaranteed)
        if self._deliveries and self.broker is not None:
            deliveries, self._deliveries = self._deliveries, []
            if self.topic_counter is not None:
                self.topic_counter.add_injected(deliveries)
            self.broker.publish(deliveries)
            if self.trace_watch is not None:
                self.trace_watch.on_delivered(deliveries)

    def _flush_link(self, link_id: LinkId) -> None:
        frames = self._outgoing.pop(link_id, [])
        link = self.links.get(link_id)
        if link is not None and frames:
            if self.trace_watch is not None:
                self.trace_watch.on_sent(link_id, frames)
            try:
                link.send(frames)
            except Exception as fault:  # noqa: BLE001
                # A fault of one link must not stop the event that caused the frames.
                tasks.report_fault(fault)
                link.close(f"a fault of Hansa: {describe_fault(fault)}")

    def _update_timer(self) -> None:
        due = self.node.next_deadline()
        if due == self._timer_due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        if due is None:
            self._timer = None
        else:
            delay = max(0.0, due - monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        self.feed(TimerFired())
