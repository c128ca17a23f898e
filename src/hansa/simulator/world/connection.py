"""The connection of one agent process to its model broker, in virtual time.

Packets take the one-way delay and keep their order. A packet arrives even if its sender dies,
unless the connection was closed before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hansa.delivery import effects, inputs
from hansa.mqtt import packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import AnyPacket, PublishPacket
from hansa.mqtt.properties import Property
from hansa.mqtt.types import Version
from hansa.simulator.broker import CloseConnection, SendToClient
from hansa.simulator.broker import Effect as BrokerEffect
from hansa.simulator.world.scheduler import BatchedCalls, Scheduler
from hansa.simulator.world.site import Site

RECONNECT_DELAY_S = 0.01
"""Seconds until an agent whose connection was closed connects again."""

FIRST_REQUEST_ID = 65_000
"""First packet id of subscriptions, as in `mqtt/in_flight`."""


class ConnectionOwner(Protocol):
    """What the connection needs of the agent process."""

    def is_running(self) -> bool:
        """Whether the process still runs."""

    def call_when_awake(self, call: Callable[..., None], *arguments: object) -> None:
        """Call now, or when the agent is resumed; not at all if its process has ended."""

    def handle(self, happened: inputs.Input) -> None:
        """Let the delivery core handle an input."""

    def receive_qos0(self, publish: PublishPacket) -> None:
        """A publication of QoS 0 has arrived."""


class SimulatedConnection:
    """Connects, and connects again when the broker closes the connection."""

    def __init__(
        self,
        scheduler: Scheduler,
        site: Site,
        broker_s: float,
        in_flight_max: int,
        owner: ConnectionOwner,
    ) -> None:
        """`broker_s` is the one-way delay, `in_flight_max` the Receive Maximum of the agent."""
        self._scheduler = scheduler
        self._site = site
        self._broker_s = broker_s
        self._in_flight_max = in_flight_max
        self._owner = owner
        self._connection: int | None = None
        """The connection at the broker, until one side closes it."""
        self._is_connecting = False
        self._request_count = 0
        self._requests: dict[int, packets.Subscription | str] = {}
        self._to_broker = BatchedCalls(scheduler, broker_s, self._deliver_to_broker)
        self._from_broker = BatchedCalls(scheduler, broker_s, self._receive)

    def connect(self) -> None:
        """Connect to the broker, when it accepts the agent."""
        if self._connection is not None or self._is_connecting or not self._owner.is_running():
            return
        self._is_connecting = True
        disk = self._site.state.disk
        if self._site.is_durable and self._scheduler.now >= disk.full_until:
            disk.has_connect_marker = True
        self._owner.handle(inputs.ConnectStarted())
        self._scheduler.after(self._broker_s, self._connect_at_broker)

    def _connect_at_broker(self) -> None:
        broker, now = self._site.broker, self._scheduler.now
        if not self._owner.is_running():
            return
        if now < broker.refuses_until:
            self._scheduler.at(broker.refuses_until, self._connect_at_broker)
            return
        self._is_connecting = False
        caused = broker.connect_agent(self._site.is_durable, self._in_flight_max, now)
        self._connection = broker.agent_connection
        self.perform_broker_effects(caused)

    def on_closed(self) -> None:
        """The broker closed the connection: connect again soon."""
        self._connection = None
        self._owner.call_when_awake(self._owner.handle, inputs.Disconnected())
        self._scheduler.after(RECONNECT_DELAY_S, self._owner.call_when_awake, self.connect)

    def stop(self) -> None:
        """The process has ended. Its last packets still reach the broker; then the kernel closes
        the connection."""
        if self._connection is not None:
            self._scheduler.after(self._broker_s, self._close_at_broker, self._connection)

    def _close_at_broker(self, connection: int) -> None:
        if connection == self._site.broker.agent_connection:
            self._site.broker.close_agent(self._scheduler.now)

    # ------------------------------------------------------------ from the broker

    def perform_broker_effects(self, caused: Sequence[BrokerEffect]) -> None:
        """Pass on what the broker sends to the agent; its clients need no answer."""
        concerned = [each for each in caused if each.connection_id == self._connection]
        sent = [each.packet for each in concerned if isinstance(each, SendToClient)]
        if sent:
            assert self._connection is not None
            self._from_broker.add(self._connection, sent)
        if any(isinstance(each, CloseConnection) for each in concerned):
            self._site.broker.close_agent(self._scheduler.now)
            self.on_closed()

    def _receive(self, connection: int, batch: Sequence[AnyPacket]) -> None:
        self._owner.call_when_awake(self._receive_awake, connection, batch)

    def _receive_awake(self, connection: int, batch: Sequence[AnyPacket]) -> None:
        """Handle packets of the broker, unless their connection has ended."""
        subscribed: list[packets.SubAckPacket] = []
        for packet in batch:
            if isinstance(packet, packets.SubAckPacket):
                subscribed.append(packet)
                continue
            self._receive_subscribed(connection, subscribed)
            if connection == self._connection and self._owner.is_running():
                self._receive_packet(packet)
        self._receive_subscribed(connection, subscribed)

    def _receive_subscribed(self, connection: int, batch: list[packets.SubAckPacket]) -> None:
        """Handle answers to SUBSCRIBE that directly follow each other as one input."""
        if batch and connection == self._connection and self._owner.is_running():
            wishes = [self._requests.pop(packet.packet_id) for packet in batch]
            reasons = b"".join(packet.reasons for packet in batch)
            self._owner.handle(inputs.SubscribeAnswered(wishes, reasons))  # type: ignore[arg-type]
        batch.clear()

    def _receive_packet(self, packet: AnyPacket) -> None:
        match packet:
            case PublishPacket(qos=0):
                self._owner.receive_qos0(packet)
            case PublishPacket():
                self._owner.handle(inputs.PublicationsReceived((packet,)))
            case (
                packets.PubAckPacket()
                | packets.PubRecPacket()
                | packets.PubRelPacket()
                | packets.PubCompPacket()
            ):
                self._owner.handle(inputs.HandshakePacketsReceived((packet,)))
            case packets.ConnAckPacket(session_present, _, properties):
                self._owner.handle(inputs.Connected(session_present, _limits(dict(properties))))
            case packets.UnsubAckPacket(packet_id):
                name = self._requests.pop(packet_id)
                assert isinstance(name, str)
                self._owner.handle(inputs.UnsubscribeAnswered((name,)))
            case _:
                raise AssertionError(f"the model broker sent {packet}")

    # ------------------------------------------------------------ to the broker

    def send(self, batch: Sequence[AnyPacket]) -> None:
        """Send packets; without a connection they are dropped."""
        if self._connection is not None:
            self._to_broker.add(self._connection, batch)

    def _deliver_to_broker(self, connection: int, batch: Sequence[AnyPacket]) -> None:
        broker = self._site.broker
        for packet in batch:
            caused = broker.receive_from_agent(connection, packet, self._scheduler.now)
            self.perform_broker_effects(caused)

    def send_subscribe(self, effect: effects.Subscribe) -> None:
        packet_id = self._new_request_id(effect.subscription)
        identifier = effect.identifier
        properties = ((Property.SUBSCRIPTION_IDENTIFIER, identifier),) if identifier else ()
        self.send((packets.SubscribePacket(packet_id, (effect.subscription,), properties),))

    def send_unsubscribe(self, effect: effects.Unsubscribe) -> None:
        packet_id = self._new_request_id(effect.topic_filter)
        self.send((packets.UnsubscribePacket(packet_id, (effect.topic_filter,)),))

    def _new_request_id(self, request: packets.Subscription | str) -> int:
        self._request_count += 1
        packet_id = FIRST_REQUEST_ID + self._request_count % 500
        self._requests[packet_id] = request
        return packet_id


def _limits(properties: Mapping[Property, object]) -> BrokerLimits:
    receive_maximum = properties.get(Property.RECEIVE_MAXIMUM, 65_535)
    assert isinstance(receive_maximum, int)
    return BrokerLimits(
        version=Version.V5,
        client_id="",
        keep_alive=0,
        session_expiry=0,
        receive_maximum=receive_maximum,
    )
