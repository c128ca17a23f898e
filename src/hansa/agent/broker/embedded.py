"""amqtt as a broker in the agent's own process, for evaluation without Mosquitto.

Its plugin events report subscriptions and publications exactly, and publications of other nodes are
handed to it directly. So the agent and this broker exchange no MQTT packets and there are no
echoes. Why it is not for production: docs/decisions/0010-embedded-broker.md.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amqtt.broker import Broker, BrokerContext
from amqtt.errors import AMQTTError
from amqtt.plugins.base import BasePlugin

from hansa.agent.broker.client import ClientDeliveryPort
from hansa.delivery import inputs
from hansa.delivery.subscriptions.table import SubscriptionTable
from hansa.errors import InvalidTopic
from hansa.mqtt import packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version
from hansa.observers.base import FilterCounts, Observer, ObserverOutput
from hansa.protocol.events import Event, SubscriptionsGranted
from hansa.protocol.model import PlainMessage, Publication
from hansa.protocol.topics import check_filter

_LIMITS = BrokerLimits(
    version=Version.V311, client_id="", keep_alive=0, session_expiry=0, qos_max=0
)
"""Limits of the embedded broker: everything at QoS 0."""

QUEUE_MAX = 10_000
"""Publications that wait for the broker; more are dropped and counted."""


class EmbeddedObserver(Observer):
    """Subscriptions as the broker reports them."""

    is_complete = True
    incomplete_reason = ""

    def __init__(self) -> None:
        self._filter_counts = FilterCounts()
        self._filters_by_client: dict[str, set[str]] = {}

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the subscribed filters, sorted."""
        return self._filter_counts.subscribed_filters()

    def on_subscribed(self, client_id: str, topic_filter: str) -> ObserverOutput:
        """Add a subscription; a filter that cannot be announced is ignored."""
        try:
            check_filter(topic_filter)
        except InvalidTopic:
            return self._filter_counts.drain_changes()
        held = self._filters_by_client.setdefault(client_id, set())
        if topic_filter not in held:
            held.add(topic_filter)
            self._filter_counts.add(topic_filter)
        return self._filter_counts.drain_changes()

    def on_unsubscribed(self, client_id: str, topic_filter: str) -> ObserverOutput:
        """Remove a subscription."""
        held = self._filters_by_client.get(client_id, set())
        if topic_filter in held:
            held.remove(topic_filter)
            self._filter_counts.remove(topic_filter)
        return self._filter_counts.drain_changes()

    def on_session_ended(self, client_id: str) -> ObserverOutput:
        """Remove all subscriptions of a client."""
        for topic_filter in sorted(self._filters_by_client.pop(client_id, ())):
            self._filter_counts.remove(topic_filter)
        return self._filter_counts.drain_changes()


class AmqttPlugin(BasePlugin[BrokerContext]):
    """Plugin that amqtt instantiates by class name; the owner is set afterwards."""

    owner: "EmbeddedBroker"

    async def on_broker_client_connected(self, *, client_id: str, client_session: Any) -> None:
        """A clean session starts without subscriptions."""
        if client_session.clean_session:
            self.owner.on_observer_output(self.owner.observer.on_session_ended(client_id))

    async def on_broker_client_disconnected(self, *, client_id: str, client_session: Any) -> None:
        """A clean session ends with its connection."""
        if client_session.clean_session:
            self.owner.on_observer_output(self.owner.observer.on_session_ended(client_id))

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        """Called for granted subscriptions only."""
        self.owner.on_observer_output(self.owner.observer.on_subscribed(client_id, topic))

    async def on_broker_client_unsubscribed(self, *, client_id: str, topic: str) -> None:
        self.owner.on_observer_output(self.owner.observer.on_unsubscribed(client_id, topic))

    async def on_broker_message_broadcast(self, *, client_id: str, message: Any) -> None:
        """A client published, and amqtt allowed it."""
        retain = bool(message.publish_packet and message.publish_packet.retain_flag)
        self.owner.receive_publication(
            packets.PublishPacket(message.topic, bytes(message.data), 0, retain)
        )


class EmbeddedBroker:
    """The embedded broker; it has the interface of `BrokerClient`."""

    limits: BrokerLimits | None = None
    """It grants the agent nothing: they exchange no packets."""

    def __init__(
        self,
        address: str,
        observer: EmbeddedObserver,
        delivery: ClientDeliveryPort,
        feed: Callable[[Event], None],
        on_captured: Callable[[Iterable[packets.PublishPacket]], None],
        on_status: Callable[[str], None],
    ) -> None:
        """`delivery` journals publications of other nodes at QoS 1 and 2 until this broker has
        them; publications of its own clients leave at QoS 0. `on_status` is called with the reason
        when the broker does not run and with an empty text when it does."""
        self.observer = observer
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda change: None
        """Called when subscriptions of clients have changed."""
        self.counters: Counter[str] = Counter()
        self.problem = "not started yet"
        self.connection = self
        self._address = address
        self._delivery = delivery
        self._feed = feed
        self._on_captured = on_captured
        self._on_status = on_status
        self._subscriptions = SubscriptionTable()
        self._broker: Broker | None = None
        self._queue: asyncio.Queue[PlainMessage] = asyncio.Queue(QUEUE_MAX)

    # ------------------------------------------------------------ commands of the node

    def subscribe(self, filters: Sequence[str]) -> None:
        """Capture matching publications from now on."""
        for name in filters:
            self._subscriptions.assign_identifier(name)
        self._feed(SubscriptionsGranted(tuple(filters)))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Stop capturing matching publications."""
        for name in filters:
            self._subscriptions.deactivate(name)

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Publish QoS 0 to the broker's clients."""
        for each in publications:
            if self.problem or self._queue.full():
                reason = "broker disconnected" if self.problem else "broker buffer full"
                self.counters[f"dropped: {reason}"] += 1
            else:
                self.counters["injected"] += 1
                plain = each if isinstance(each, tuple) else (each.topic, each.payload)
                self._queue.put_nowait(plain)

    def inject(self, batch: Sequence[packets.PublishPacket]) -> None:
        """Publish QoS 1 and 2 to the broker's clients."""
        self.publish([(each.topic, each.payload) for each in batch])

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Do nothing: publications are handed over in order."""

    def send_handshake_packets(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """Do nothing: there are no handshakes."""

    def send_subscribe(self, subscription: packets.Subscription, identifier: int | None) -> None:
        """Do nothing: `subscribe` is enough."""

    def send_unsubscribe(self, topic_filter: str) -> None:
        """Do nothing: `unsubscribe` is enough."""

    # ------------------------------------------------------------ events of the broker

    def receive_publication(self, publication: packets.PublishPacket) -> None:
        """Capture a client's publication if it matches a filter."""
        if self._subscriptions.deciding_identifier(publication.topic) > 0:
            self.counters["captured"] += 1
            self._on_captured([publication])

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Run the broker and feed it until cancelled."""
        for name in ("amqtt", "transitions"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the agent logs what matters
        self._broker = broker = Broker(_configuration(self._address))
        for plugin in broker.plugins_manager.plugins:
            if isinstance(plugin, AmqttPlugin):
                plugin.owner = self
        try:
            await broker.start()
        except (AMQTTError, OSError) as error:
            self.problem = f"the embedded broker does not start on {self._address}: {error}"
            self._on_status(self.problem)
            return
        self.problem = ""
        self._on_status("")
        self._delivery.handle(inputs.Connected(True, _LIMITS))
        while True:
            topic, payload = await self._queue.get()
            await broker.internal_message_broadcast(topic, payload, qos=0)

    async def disconnect(self) -> None:
        """Stop the broker."""
        if self._broker is not None and not self.problem:
            self.problem = "stopped"
            await self._broker.shutdown()

    def abort(self) -> None:
        """Do nothing: there is no connection."""


def _configuration(address: str) -> dict[str, Any]:
    return {
        "listeners": {"default": {"type": "tcp", "bind": address}},
        "plugins": {
            "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
            f"{AmqttPlugin.__module__}.{AmqttPlugin.__name__}": {},
        },
    }
