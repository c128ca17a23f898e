"""A broker in the agent's own process, amqtt, for trying things out where there is no Mosquitto.

Its plugin events tell who subscribes and what is published, exactly; what others sent is handed to
it directly. So no MQTT is spoken between the two, and nothing of the agent's own comes back.
Why it is no broker for production: docs/decisions/0010-embedded-broker.md.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amqtt.broker import Broker, BrokerContext
from amqtt.errors import AMQTTError
from amqtt.plugins.base import BasePlugin

from hansa.agent.broker.ports import GuaranteedDeliveryPort
from hansa.agent.broker.subscription_table import SubscriptionTable
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
"""What it grants the agent: everything at QoS 0."""

QUEUE_MAX = 10_000
"""Publications that wait to be handed to the broker; more are dropped and counted."""


class EmbeddedObserver(Observer):
    """Who wants what, as the broker itself tells."""

    is_complete = True
    incomplete_reason = ""

    def __init__(self) -> None:
        """Start with nobody."""
        self._filter_counts = FilterCounts()
        self._filters_by_client: dict[str, set[str]] = {}

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the filters, sorted."""
        return self._filter_counts.subscribed_filters()

    def on_subscribed(self, client_id: str, topic_filter: str) -> ObserverOutput:
        """A client wants a filter; one that cannot be announced is left out."""
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
        """A client wants a filter no more."""
        held = self._filters_by_client.get(client_id, set())
        if topic_filter in held:
            held.remove(topic_filter)
            self._filter_counts.remove(topic_filter)
        return self._filter_counts.drain_changes()

    def on_session_ended(self, client_id: str) -> ObserverOutput:
        """A client's session is over, and all that it wanted."""
        for topic_filter in sorted(self._filters_by_client.pop(client_id, ())):
            self._filter_counts.remove(topic_filter)
        return self._filter_counts.drain_changes()


class AmqttPlugin(BasePlugin[BrokerContext]):
    """What amqtt calls; it finds this class by its name, so its owner is told afterwards."""

    owner: "EmbeddedBroker"

    async def on_broker_client_connected(self, *, client_id: str, client_session: Any) -> None:
        """A clean session begins with nothing."""
        if client_session.clean_session:
            self.owner.on_observer_output(self.owner.observer.on_session_ended(client_id))

    async def on_broker_client_disconnected(self, *, client_id: str, client_session: Any) -> None:
        """A clean session ends with its connection, however that ended."""
        if client_session.clean_session:
            self.owner.on_observer_output(self.owner.observer.on_session_ended(client_id))

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        """Granted subscriptions only."""
        self.owner.on_observer_output(self.owner.observer.on_subscribed(client_id, topic))

    async def on_broker_client_unsubscribed(self, *, client_id: str, topic: str) -> None:
        """A client unsubscribed."""
        self.owner.on_observer_output(self.owner.observer.on_unsubscribed(client_id, topic))

    async def on_broker_message_broadcast(self, *, client_id: str, message: Any) -> None:
        """A client published something that is allowed to be."""
        retain = bool(message.publish_packet and message.publish_packet.retain_flag)
        self.owner.receive_publication(
            packets.PublishPacket(message.topic, bytes(message.data), 0, retain)
        )


class EmbeddedBroker:
    """The broker, and in one the agent's way to it: what `BrokerClient` is for one elsewhere."""

    def __init__(
        self,
        address: str,
        feed: Callable[[Event], None],
        on_captured: Callable[[Iterable[packets.PublishPacket]], None],
        on_status: Callable[[str], None],
    ) -> None:
        """`status` is told why the broker does not run, and an empty text when it does."""
        self.observer = EmbeddedObserver()
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda change: None
        """Who is told what changed about the interest of clients."""
        self.delivery: GuaranteedDeliveryPort | None = None
        """Who has others' publications of QoS 1 and 2; they are safe until this broker gets them.
        What its own clients publish leaves at QoS 0."""
        self.counters: Counter[str] = Counter()
        self.problem = "not started yet"
        self.connection = self
        self._address = address
        self._feed = feed
        self._on_captured = on_captured
        self._on_status = on_status
        self._subscriptions = SubscriptionTable()
        self._broker: Broker | None = None
        self._queue: asyncio.Queue[PlainMessage] = asyncio.Queue(QUEUE_MAX)

    # ------------------------------------------------------------ what the node orders

    def subscribe(self, filters: Sequence[str]) -> None:
        """Take what these match, from now on."""
        for name in filters:
            self._subscriptions.assign_identifier(name)
        self._feed(SubscriptionsGranted(tuple(filters)))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Take what these match no more."""
        for name in filters:
            self._subscriptions.deactivate(name)

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Hand publications to the broker's clients."""
        for each in publications:
            if self.problem or self._queue.full():
                reason = "broker disconnected" if self.problem else "broker buffer full"
                self.counters[f"dropped: {reason}"] += 1
            else:
                self.counters["injected"] += 1
                plain = each if isinstance(each, tuple) else (each.topic, each.payload)
                self._queue.put_nowait(plain)

    def inject(self, batch: Sequence[packets.PublishPacket]) -> None:
        """Hand over what was kept for the broker."""
        self.publish([(each.topic, each.payload) for each in batch])

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Nothing waits that is not in order."""

    def send_handshake_steps(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """There are no handshakes."""

    def is_local_topic(self, topic: str) -> bool:
        """Nothing stays."""
        return False

    @property
    def newest_subscription(self) -> int:
        """Subscriptions have no identifiers."""
        return 0

    # ------------------------------------------------------------ what the broker tells

    def receive_publication(self, publication: packets.PublishPacket) -> None:
        """A client published; others may want it."""
        if self._subscriptions.deciding_identifier(publication.topic) > 0:
            self.counters["captured"] += 1
            self._on_captured([publication])

    # ------------------------------------------------------------ running

    async def run(self) -> None:
        """Start the broker and feed it until cancelled."""
        for name in ("amqtt", "transitions"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters, the agent logs
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
        if self.delivery is not None:
            self.delivery.on_connected(True, False, _LIMITS)
        while True:
            topic, payload = await self._queue.get()
            await broker.internal_message_broadcast(topic, payload, qos=0)

    async def disconnect(self) -> None:
        """Stop the broker."""
        if self._broker is not None and not self.problem:
            self.problem = "stopped"
            await self._broker.shutdown()

    def abort(self) -> None:
        """There is no connection to cut."""


def _configuration(address: str) -> dict[str, Any]:
    return {
        "listeners": {"default": {"type": "tcp", "bind": address}},
        "plugins": {
            "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
            f"{AmqttPlugin.__module__}.{AmqttPlugin.__name__}": {},
        },
    }
