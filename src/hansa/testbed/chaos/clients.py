"""Clients that record publications, acknowledgements and deliveries as history events.

A publisher never resends, so the fate of a publication that was unacknowledged when the connection
was lost is unknown. A subscriber has a persistent session, so its broker keeps publications for it.
"""

import asyncio
import random
import socket
from collections.abc import Callable, Sequence

from hansa.agent import sockets
from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.delivery.inbox import REDELIVERED_PROPERTY
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.properties import Property, encode_properties
from hansa.mqtt.types import PACKET_IDS_MAX
from hansa.testbed.chaos.history import (
    HistoryEvent,
    HistoryOperation,
    PublisherStream,
    parse_payload,
)

SESSION_S = 3_600
PACKET_ID_MAX = 64_999
POLL_S = 0.002
"""Seconds between checks of a publisher for the next due time and for quota."""

EventSink = Callable[[HistoryEvent], None]


class _HistoryClient:
    def __init__(self, address: BrokerAddress, options: ConnectOptions, record: EventSink) -> None:
        self._record = record
        self._connection = Connection(address, options, self._on_effect, random.Random())

    async def start(self) -> None:
        """Connect; the connection is re-established whenever it is lost."""
        self._connection.start()

    async def stop(self) -> None:
        await self._connection.stop()

    def _on_effect(self, effect: effects.Effect) -> None:
        raise NotImplementedError

    def _record_event(
        self, op: HistoryOperation, stream: PublisherStream, counter: int, subscriber: str, qos: int
    ) -> None:
        now = asyncio.get_running_loop().time()
        self._record(HistoryEvent(now, op, stream, counter, subscriber, qos))


class HistoryPublisher(_HistoryClient):
    """Publishes counters to its streams in turn, at a constant rate."""

    has_properties = False
    """Whether publications have MQTT 5 properties."""
    payload_bytes = 0
    """Least length of payloads."""

    def __init__(
        self,
        address: BrokerAddress,
        name: str,
        topics: dict[str, int],
        rate: float,
        record: EventSink,
        count_max: int | None = None,
    ) -> None:
        """`topics` maps topics to QoS, `rate` is per second, `count_max` limits the total."""
        self.name = name
        self._count_max = count_max
        super().__init__(address, ConnectOptions(client_id=name, clean_start=True), record)
        self._streams = [PublisherStream(name, topic, qos) for topic, qos in topics.items()]
        self._counters = dict.fromkeys(self._streams, 0)
        self._interval = 1 / rate
        self._in_flight: dict[int, tuple[PublisherStream, int]] = {}
        self._next_id = 1
        self._publishing: asyncio.Task[None] | None = None

    def start_publishing(self) -> None:
        self._publishing = asyncio.create_task(self._publish_all())

    async def stop_publishing(self) -> None:
        """Stop publishing; if the publisher had failed, raise its exception, once."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.cancel()
            await asyncio.wait([publishing])
            if not publishing.cancelled():
                publishing.result()

    @property
    def count(self) -> int:
        """Number of publications so far."""
        return sum(self._counters.values())

    @property
    def is_idle(self) -> bool:
        """Whether no publication waits for its acknowledgement."""
        return not self._in_flight

    async def _publish_all(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        turn = 0
        while self._count_max is None or turn < self._count_max:
            connection = self._connection.client_connection
            if loop.time() < due or connection is None or connection.quota == 0:
                await asyncio.sleep(POLL_S)
                if connection is None:
                    due = loop.time()  # do not catch up after a disconnection
                continue
            self._publish(self._streams[turn % len(self._streams)])
            turn += 1
            due += self._interval

    def _publish(self, stream: PublisherStream) -> None:
        counter = self._counters[stream]
        self._counters[stream] += 1
        packet_id = 0
        if stream.qos:
            while self._next_id in self._in_flight:
                self._next_id = self._next_id % PACKET_ID_MAX + 1
            packet_id, self._next_id = self._next_id, self._next_id % PACKET_ID_MAX + 1
            self._in_flight[packet_id] = (stream, counter)
        self._record_event(HistoryOperation.INVOKE, stream, counter, "", stream.qos)
        properties = _properties(counter) if self.has_properties else b""
        packet = packets.PublishPacket(
            stream.topic,
            stream.make_payload(counter, properties, self.payload_bytes),
            stream.qos,
            packet_id=packet_id,
            properties=properties,
        )
        self._connection.submit(inputs.Publish([packet]))
        if not stream.qos:
            self._record_event(HistoryOperation.OK, stream, counter, "", 0)

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.HandshakePacketsReceived(batch):
                self._handle_acks(batch)
            case effects.Disconnected() | effects.ProtocolViolation() | effects.ConnectRefused():
                self._in_flight.clear()
            case _:
                pass

    def _handle_acks(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        releases: list[packets.AnyHandshakePacket] = []
        for answer in batch:
            if isinstance(answer, packets.PubRecPacket) and not answer.is_refused:
                releases.append(packets.PubRelPacket(answer.packet_id))
                continue
            stream, counter = self._in_flight.pop(answer.packet_id)
            op = HistoryOperation.REFUSED if answer.is_refused else HistoryOperation.OK
            self._record_event(op, stream, counter, "", stream.qos)
        if releases:
            self._connection.submit(inputs.SendHandshakePackets(releases))


def _properties(counter: int) -> bytes:
    return encode_properties(
        (
            (Property.CONTENT_TYPE, "text/plain"),
            (Property.RESPONSE_TOPIC, "plant/answers"),
            (Property.CORRELATION_DATA, b"%d" % counter),
            (Property.USER_PROPERTY, ("counter", str(counter))),
        )
    )


class HistorySubscriber(_HistoryClient):
    """Subscribes at QoS 2 and records deliveries; redelivered QoS 2 packets are not recorded."""

    def __init__(
        self,
        address: BrokerAddress,
        name: str,
        filters: tuple[str, ...],
        record: EventSink,
        session_s: int = SESSION_S,
    ) -> None:
        # Mosquitto 2.0 itself changes the order for a client with a full window. In return it may
        # repeat QoS 2 after a restart with more than `max_inflight_messages` in flight.
        options = ConnectOptions(
            client_id=name, session_expiry=session_s, receive_maximum=PACKET_IDS_MAX
        )
        super().__init__(address, options, record)
        self.name = name
        self.arrival_count = 0
        self.is_subscribed = False
        self._filters = filters
        self._unreleased: set[int] = set()

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present):
                self.is_subscribed = present
                if not present:
                    self._unreleased.clear()
                subscriptions = tuple(packets.Subscription(name, qos=2) for name in self._filters)
                self._connection.submit(inputs.Subscribe(subscriptions))
            case effects.Subscribed():
                self.is_subscribed = True
            case effects.Disconnected() | effects.ProtocolViolation() | effects.ConnectRefused():
                self.is_subscribed = False
            case effects.PublishReceived(batch):
                self.receive(batch)
            case effects.HandshakePacketsReceived(batch):
                released = [
                    each.packet_id for each in batch if isinstance(each, packets.PubRelPacket)
                ]
                self._unreleased.difference_update(released)
                self._connection.submit(
                    inputs.SendHandshakePackets([packets.PubCompPacket(n) for n in released])
                )
            case _:
                pass

    def receive(self, batch: Sequence[packets.PublishPacket]) -> None:
        """Record and acknowledge publications."""
        for packet in batch:
            if packet.qos == 2 and packet.packet_id in self._unreleased:
                continue  # a redelivery: the broker did not get our PUBREC
            properties = packet.properties.removesuffix(REDELIVERED_PROPERTY)
            found = parse_payload(bytes(packet.payload), properties)
            self.arrival_count += 1
            if found is None or found[0].topic != packet.topic or packet.retain:
                # Not published by us, or altered: a stream without a publisher counts as phantom.
                found = PublisherStream("", packet.topic, packet.qos), self.arrival_count
            self._record_event(HistoryOperation.DELIVER, *found, self.name, packet.qos)
        answers = [
            (packets.PubAckPacket if packet.qos == 1 else packets.PubRecPacket)(packet.packet_id)
            for packet in batch
            if packet.qos
        ]
        self._unreleased.update(packet.packet_id for packet in batch if packet.qos == 2)
        for kind in (packets.PubAckPacket, packets.PubRecPacket):
            of_kind = [answer for answer in answers if isinstance(answer, kind)]
            if of_kind:
                self._connection.submit(inputs.SendHandshakePackets(of_kind))


class StalledSubscriber:
    """Subscribes to everything and never reads from its socket."""

    def __init__(self, address: BrokerAddress, name: str) -> None:
        self._address = address
        self._options = ConnectOptions(client_id=name, clean_start=True, keep_alive=0)
        self._socket: socket.socket | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        session = ClientConnection(self._options)
        self._socket = await sockets.connect(self._address.host, self._address.port)
        self._socket.setblocking(False)
        subscribe = inputs.Subscribe((packets.Subscription("#", qos=1),))
        for event in (inputs.Opened(), subscribe):
            for effect in session.handle(event, loop.time()):
                if isinstance(effect, effects.Write):
                    await loop.sock_sendall(self._socket, bytes(effect.data))
            if event is not subscribe:
                answer = await loop.sock_recv(self._socket, 1 << 10)
                session.handle(inputs.Received(memoryview(answer)), loop.time())

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
