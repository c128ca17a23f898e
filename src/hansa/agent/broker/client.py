"""The agent's main client at its broker.

It passes packets between the connection and the delivery core, which subscribes, selects copies and
owns all handshakes of QoS 1 and 2. QoS 0 passes straight through. When the broker is disconnected
or too slow, QoS 0 publications are dropped and counted, except the newest retained value of each
topic.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from time import monotonic
from typing import Protocol

from hansa.agent.broker.connection import ConnectHooks, ConnectionFactory
from hansa.delivery import inputs as delivery_inputs
from hansa.delivery.core import DeliveryCore
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Reason
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import PlainMessage, Publication

BUFFER_BYTES_MAX = 16 << 20
"""Bytes that may wait for the broker, in addition to one publication of the largest size. Above
this, QoS 0 publications are dropped."""

DELAYED_RETAINED_MAX = 1_024
"""Topics whose newest retained value of QoS 0 waits for the broker. Their payloads together are at
most BUFFER_BYTES_MAX."""

RETAINED_RETRY_S = 1.0
"""Seconds until delayed retained values are offered again to a slow broker."""

SESSION_TAKEN_OVER = (
    "another client has the agent's client id, and may have got publications that are now lost: "
    "every client needs an id of its own"
)


class ClientDeliveryPort(ConnectHooks, Protocol):
    """What the client needs of the delivery shell."""

    @property
    def core(self) -> DeliveryCore: ...

    def handle(self, happened: delivery_inputs.Input) -> None:
        """Hand an input to the core and perform the effects."""

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        """Keep those of QoS 0 that must not be stored before pending ones; return the others."""


class BrokerClient:
    """Passes packets between one connection and the delivery core."""

    def __init__(
        self,
        connection: ConnectionFactory,
        delivery: ClientDeliveryPort,
        on_captured: Callable[[Iterable[packets.PublishPacket]], None],
        on_status: Callable[[str], None],
    ) -> None:
        """`connection` makes the connection that reports to this client. `on_captured` gets
        publications of QoS 0. `on_status` is called with the reason when the connection is lost and
        with an empty text when it is up."""
        self.connection = connection(self._on_effect)
        self.connection.connect_hooks = delivery
        saved = delivery.core.saved_subscriptions
        if saved.has_session:
            self.connection.mark_version_known(saved.version)
        self.on_session_lost: Callable[[], None] | None = None
        """Called when the broker has lost the previous session."""
        self.on_session_taken_over: Callable[[str], None] | None = None
        """Called when another client has taken over the session."""
        self.counters: Counter[str] = Counter()
        self.limits: BrokerLimits | None = None
        """What the broker granted; None while it is not connected."""
        self._delivery = delivery
        self._core = delivery.core
        self._on_captured = on_captured
        self._on_status = on_status
        self._delayed_retained: dict[str, Publication] = {}
        self._delayed_bytes = 0
        self._retry_timer: asyncio.TimerHandle | None = None

    @property
    def is_subscribed(self) -> bool:
        """Whether it is connected and has a subscription that the broker confirmed."""
        table = self._core.subscriptions
        return self.limits is not None and any(
            identifier <= table.last_confirmed and not table.is_unsubscribing(name)
            for name, identifier in table.active_identifiers.items()
        )

    # ------------------------------------------------------------ commands of the node

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe now or at the next connection; the node gets SubscriptionsGranted or
        SubscriptionsDenied."""
        self._delivery.handle(delivery_inputs.RequireFilters(filters))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        self._delivery.handle(delivery_inputs.ReleaseFilters(filters))

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Publish QoS 0 to the broker's clients, with one write."""
        if self._delivery.has_pending_retained:
            publications = self._delivery.hold_back(publications)
        reason = self._blocked_reason()
        if reason:
            self.counters[f"dropped: {reason}"] += len(publications) - self._delay_retained(
                publications
            )
            if self._delayed_retained and self.limits is not None and self._retry_timer is None:
                self._retry_timer = asyncio.get_running_loop().call_later(
                    RETAINED_RETRY_S, self._retry_delayed
                )
            return
        if self._delayed_retained:
            delayed, self._delayed_retained, self._delayed_bytes = self._delayed_retained, {}, 0
            publications = [*delayed.values(), *publications]
        if self._core.subscriptions.has_local_topics:
            publications = self._without_local_topics(publications)
        self.counters["injected"] += len(publications)
        if self._core.selection.expects_echoes:
            published = (
                each if isinstance(each, tuple) else (each.topic, each.payload)
                for each in publications
            )
            self._core.expect_echoes(published, monotonic())
        batch = [
            p
            if isinstance(p, tuple)
            else packets.PublishPacket(p.topic, p.payload, 0, p.retain, False, 0, (), p.properties)
            for p in publications
        ]
        self.connection.submit(inputs.Publish(batch))

    def _delay_retained(self, publications: Sequence[PlainMessage | Publication]) -> int:
        """Keep the newest retained value of each topic until the broker accepts it."""
        count = 0
        for each in publications:
            if isinstance(each, tuple) or not each.retain:
                continue
            before = self._delayed_retained.get(each.topic)
            size = self._delayed_bytes + len(each.payload) - (len(before.payload) if before else 0)
            is_known = before is not None or len(self._delayed_retained) < DELAYED_RETAINED_MAX
            if is_known and size <= BUFFER_BYTES_MAX:
                self._delayed_retained[each.topic] = each
                self._delayed_bytes = size
                count += 1
        return count

    def _retry_delayed(self) -> None:
        self._retry_timer = None
        if self._delayed_retained:
            self.publish(())

    def _without_local_topics(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        is_local = self._core.subscriptions.is_local_topic
        found = [p for p in publications if not is_local(p[0] if isinstance(p, tuple) else p.topic)]
        self.counters["dropped: local topic"] += len(publications) - len(found)
        return found

    def _blocked_reason(self) -> str:
        """Return why nothing can be published now; empty if it can."""
        if self.limits is None:
            return "broker disconnected"
        is_behind = self._core.selection.expects_echoes and self._core.is_awaiting_echoes(
            monotonic()
        )
        return "broker buffer full" if is_behind or self._is_buffer_full() else ""

    def _is_buffer_full(self) -> bool:
        room = BUFFER_BYTES_MAX + self.connection.packet_bytes_max
        return self.connection.waiting_bytes > room

    # ------------------------------------------------------------ commands of delivery

    def inject(self, batch: Sequence[packets.PublishPacket]) -> None:
        """Publish with the given packet ids."""
        self.connection.submit(inputs.Publish(batch))

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Discard delayed QoS 0 values of these topics: newer ones have arrived at QoS 1 or 2."""
        for topic in topics:
            if (older := self._delayed_retained.pop(topic, None)) is not None:
                self._delayed_bytes -= len(older.payload)

    def send_handshake_packets(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """Send acknowledgements of QoS 1 and 2."""
        if self.limits is not None:
            self.connection.submit(inputs.SendHandshakePackets(batch))

    def send_subscribe(self, subscription: packets.Subscription, identifier: int | None) -> None:
        self.connection.submit(inputs.Subscribe((subscription,), identifier))

    def send_unsubscribe(self, topic_filter: str) -> None:
        self.connection.submit(inputs.Unsubscribe((topic_filter,)))

    # ------------------------------------------------------------ effects of the connection

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive_publications(batch)
            case effects.HandshakePacketsReceived(batch):
                self._delivery.handle(delivery_inputs.HandshakePacketsReceived(batch))
            case effects.Connected():
                self._on_connected(effect)
            case effects.Subscribed(subscriptions, reasons):
                self._delivery.handle(delivery_inputs.SubscribeAnswered(subscriptions, reasons))
            case effects.Unsubscribed(filters):
                self._delivery.handle(delivery_inputs.UnsubscribeAnswered(filters))
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._on_disconnected(effect)
            case effects.PublishNotSent():
                self._on_not_sent(effect)
            case effects.OversizedPublishReceived(publication):
                self._drop_oversized(publication)
            case _:
                pass

    def _on_connected(self, effect: effects.Connected) -> None:
        self.limits = effect.broker_limits
        self._on_status("")
        self._delivery.handle(
            delivery_inputs.Connected(effect.session_present, effect.broker_limits)
        )
        self._retry_delayed()
        if self.on_session_lost and not effect.session_present:
            self.on_session_lost()

    def _on_disconnected(self, effect: effects.ConnectionEnd) -> None:
        self.limits = None
        self._delivery.handle(delivery_inputs.Disconnected())
        self._on_status(effect.text)
        if self.on_session_taken_over and effect.reason == Reason.SESSION_TAKEN_OVER:
            self.on_session_taken_over(SESSION_TAKEN_OVER)

    def _receive_publications(self, batch: Sequence[packets.PublishPacket]) -> None:
        if not any([p.qos for p in batch]):
            self._on_captured(self._core.select_qos0(batch, monotonic()))
            return
        # In order: a value may replace an earlier one.
        for is_guaranteed, some in groupby(batch, lambda p: p.qos > 0):
            if is_guaranteed:
                self._delivery.handle(delivery_inputs.PublicationsReceived(list(some)))
            else:
                self._on_captured(self._core.select_qos0(list(some), monotonic()))

    def _drop_oversized(self, publication: packets.OversizedPublish) -> None:
        if publication.qos:
            self._delivery.handle(delivery_inputs.OversizedReceived(publication))
        else:
            self.counters[f"dropped: {TOO_LARGE}"] += 1

    def _on_not_sent(self, effect: effects.PublishNotSent) -> None:
        """Report publications that cannot be sent. QoS 1 and 2 wait for the next connection if
        only this one has ended; the connection reports that after the broker's last packets."""
        batch, reason = effect.batch, effect.reason
        guaranteed = [p for p in batch if not isinstance(p, tuple) and p.qos]
        if len(guaranteed) < len(batch):
            self.counters[f"dropped: {reason}"] += len(batch) - len(guaranteed)
        if guaranteed and not effect.connection_ended:
            self._delivery.handle(delivery_inputs.PublicationsNotSent(guaranteed, reason))
