"""Random scripts of MQTT packets, socket cuts and restarts, drawn from a seed.

A step is drawn while the script runs, because a client's answer depends on what it received.
"""

import random
from dataclasses import dataclass, field

from hansa.mqtt import packets
from hansa.mqtt.packets import AnyPacket, ConnectPacket, PublishPacket, Subscription, Will
from hansa.mqtt.properties import Properties, Property, encode_properties
from hansa.mqtt.types import Version
from hansa.simulator.broker import MosquittoSettings, MosquittoVersion, Restart

CLIENTS = ("ann", "bob", "cid")
TOPICS = ("a", "a/b", "a/b/c", "d", "d/b")
FILTERS = ("a", "a/b", "a/+", "a/#", "#", "+", "+/b", "+/#", "d/#", "a/b/c")
SHARES = ("$share/g/a/#", "$share/g/#", "$share/h/a/b", "$share/h/+/b")
PAYLOADS = (b"1", b"1", b"1", b"2", b"")
EXPIRY_S = 1_000_000
PROPERTIES = encode_properties(
    ((Property.CONTENT_TYPE, "text"), (Property.USER_PROPERTY, ("k", "v")))
)


@dataclass(frozen=True)
class Connect:
    connection_id: int
    packet: ConnectPacket


@dataclass(frozen=True)
class SendPacket:
    connection_id: int
    packet: AnyPacket


@dataclass(frozen=True)
class Cut:
    connection_id: int


@dataclass(frozen=True)
class RestartBroker:
    kind: Restart


@dataclass(frozen=True)
class Wait:
    seconds: float


Step = Connect | SendPacket | Cut | RestartBroker | Wait


@dataclass
class Client:
    """A client's own view of its handshakes."""

    client_id: str
    version: Version = Version.V5
    connection_id: int | None = None
    last_packet_id: int = 0
    published: dict[int, PublishPacket] = field(default_factory=dict)
    """Own QoS 1 and 2 publications without final answer."""
    recorded: list[int] = field(default_factory=list)
    """Own packet ids for which PUBREC arrived."""
    to_answer: list[tuple[type[AnyPacket], int, int]] = field(default_factory=list)
    """Packet type, packet id and QoS of received packets that want an answer."""

    def note(self, packet: AnyPacket) -> None:
        """Take a packet from the broker."""
        match packet:
            case PublishPacket() if packet.qos:
                self.to_answer.append((PublishPacket, packet.packet_id, packet.qos))
            case packets.PubRelPacket():
                self.to_answer.append((packets.PubRelPacket, packet.packet_id, 2))
            case packets.PubAckPacket():
                self.published.pop(packet.packet_id, None)
            case packets.PubRecPacket():
                if not packet.is_refused:
                    self.recorded.append(packet.packet_id)
            case packets.ConnAckPacket():
                if not packet.session_present:
                    self.published.clear()
                    self.recorded.clear()
            case _:
                pass


def draw_settings(
    rng: random.Random, version: MosquittoVersion, is_unlimited: bool
) -> MosquittoSettings:
    return MosquittoSettings(
        version=version,
        max_inflight_messages=rng.choice((0, 1) if is_unlimited else (1, 2, 3, 20)),
        max_queued_messages=0 if is_unlimited else rng.choice((1, 2, 5, 1_000, 1_000)),
        allow_duplicate_messages=is_unlimited,
        autosave_interval=rng.choice((0, 1, 1, 3)),
        autosave_on_changes=True,
    )


class FixedScript:
    """A script of given steps, which keeps what clients receive."""

    def __init__(self, settings: MosquittoSettings, *steps: Step) -> None:
        self.settings = settings
        self.length = len(steps)
        self.received: dict[int, list[AnyPacket]] = {}
        self._steps = iter(steps)

    def draw_step(self) -> Step:
        return next(self._steps)

    def note_output(self, connection_id: int, packet: AnyPacket) -> None:
        self.received.setdefault(connection_id, []).append(packet)

    def note_closed(self, connection_id: int) -> None:
        pass


class Script:
    """A random script."""

    def __init__(
        self,
        seed: int,
        version: MosquittoVersion = MosquittoVersion.V2_0,
        is_unlimited: bool = False,
    ) -> None:
        """Draw the settings."""
        self._rng = random.Random(seed)
        self.settings = draw_settings(self._rng, version, is_unlimited)
        self._clients = [Client(name) for name in CLIENTS]
        self._connection_count = 0
        self.length = self._rng.randint(20, 60)

    def note_output(self, connection_id: int, packet: AnyPacket) -> None:
        """Tell the client what it received."""
        for client in self._clients:
            if client.connection_id == connection_id:
                client.note(packet)

    def note_closed(self, connection_id: int) -> None:
        for client in self._clients:
            if client.connection_id == connection_id:
                client.connection_id = None

    # ------------------------------------------------------------ steps

    def draw_step(self) -> Step:
        rng = self._rng
        client = rng.choice(self._clients)
        if rng.random() < 0.03:
            return RestartBroker(rng.choice(list(Restart)[:2]))
        if client.connection_id is None:
            return self._draw_connect(client)
        if client.to_answer and rng.random() < 0.45:
            return self._draw_answer(client)
        if client.recorded and rng.random() < 0.4:
            return self._draw_release(client)
        draw = rng.choices(
            (
                self._draw_publish,
                self._draw_subscribe,
                self._draw_unsubscribe,
                self._draw_connect,
                self._draw_end,
                self._draw_odd_packet,
            ),
            (50, 22, 6, 3, 8, 3),
        )[0]
        return draw(client)

    def _draw_connect(self, client: Client) -> Step:
        rng = self._rng
        self._connection_count += 1
        client.connection_id = self._connection_count
        client.version = rng.choices((Version.V5, Version.V311), (8, 2))[0]
        client.to_answer.clear()
        properties: Properties = ()
        if client.version is Version.V5:
            if rng.random() < 0.7:
                properties += ((Property.SESSION_EXPIRY_INTERVAL, EXPIRY_S),)
            if rng.random() < 0.5:
                properties += ((Property.RECEIVE_MAXIMUM, rng.choice((1, 2, 3, 10))),)
        will = None
        # In 2.1 a client's own will is written to its lost connection, with any outcome.
        if rng.random() < 0.2 and not self.settings.is_v2_1:
            will = Will(rng.choice(TOPICS), b"will", rng.randint(0, 2), rng.random() < 0.3)
        return Connect(
            client.connection_id,
            ConnectPacket(
                client.client_id,
                client.version,
                rng.random() < 0.3,
                rng.choice((0, 600)),
                will=will,
                properties=properties,
            ),
        )

    def _draw_publish(self, client: Client) -> Step:
        rng = self._rng
        if client.published and rng.random() < 0.2:
            packet_id = rng.choice(list(client.published))
            old = client.published[packet_id]
            properties = old.properties if client.version is Version.V5 else b""
            again = PublishPacket(
                old.topic, old.payload, old.qos, old.retain, True, packet_id, (), properties
            )
            return self._send(client, again)
        qos = rng.randint(0, 2)
        packet_id = 0
        if qos:
            packet_id = self._next_packet_id(client)
            if client.published and rng.random() < 0.05:
                packet_id = rng.choice(list(client.published))
        packet = PublishPacket(
            rng.choice(TOPICS),
            rng.choice(PAYLOADS),
            qos,
            rng.random() < 0.25,
            False,
            packet_id,
            (),
            PROPERTIES if client.version is Version.V5 and rng.random() < 0.2 else b"",
        )
        if qos:
            client.published[packet_id] = packet
        return self._send(client, packet)

    def _draw_subscribe(self, client: Client) -> Step:
        rng = self._rng
        is_v5 = client.version is Version.V5
        properties: Properties = ()
        if is_v5 and rng.random() < 0.5:
            properties = ((Property.SUBSCRIPTION_IDENTIFIER, rng.randint(1, 300)),)
        subscriptions = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            is_shared = rng.random() < 0.2
            subscriptions.append(
                Subscription(
                    rng.choice(SHARES if is_shared else FILTERS),
                    rng.choice((0, 1, 2, 2)),
                    is_v5 and not is_shared and rng.random() < 0.3,
                    is_v5 and rng.random() < 0.4,
                    rng.choice((0, 0, 1, 2)) if is_v5 else 0,
                )
            )
        packet_id = self._next_packet_id(client)
        return self._send(
            client, packets.SubscribePacket(packet_id, tuple(subscriptions), properties)
        )

    def _draw_unsubscribe(self, client: Client) -> Step:
        filters = tuple(
            self._rng.choice(FILTERS + SHARES) for _ in range(self._rng.choice((1, 1, 2)))
        )
        return self._send(client, packets.UnsubscribePacket(self._next_packet_id(client), filters))

    def _draw_answer(self, client: Client) -> Step:
        rng = self._rng
        index = 0 if rng.random() < 0.8 else rng.randrange(len(client.to_answer))
        kind, packet_id, qos = client.to_answer.pop(index)
        if kind is packets.PubRelPacket:
            return self._send(client, packets.PubCompPacket(packet_id))
        reason = 0x80 if client.version is Version.V5 and rng.random() < 0.08 else 0
        answer = packets.PubAckPacket if qos == 1 else packets.PubRecPacket
        return self._send(client, answer(packet_id, reason))

    def _draw_release(self, client: Client) -> Step:
        rng = self._rng
        packet_id = client.recorded.pop(0)
        if rng.random() < 0.1:
            client.recorded.insert(0, packet_id)
        client.published.pop(packet_id, None)
        return self._send(client, packets.PubRelPacket(packet_id))

    def _draw_end(self, client: Client) -> Step:
        assert client.connection_id is not None
        rng = self._rng
        if rng.random() < 0.5:
            connection_id, client.connection_id = client.connection_id, None
            return Cut(connection_id)
        properties: Properties = ()
        reason = 0
        if client.version is Version.V5:
            if rng.random() < 0.3:
                properties = ((Property.SESSION_EXPIRY_INTERVAL, rng.choice((0, EXPIRY_S))),)
            reason = rng.choice((0, 0, 4))
        return self._send(client, packets.DisconnectPacket(reason, properties))

    def _draw_odd_packet(self, client: Client) -> Step:
        """A packet that does not fit the client's state."""
        rng = self._rng
        kind = rng.choice(
            (
                packets.PubAckPacket,
                packets.PubRecPacket,
                packets.PubRelPacket,
                packets.PubCompPacket,
            )
        )
        return self._send(client, kind(rng.choice((1, 2, 3, 4, 500))))

    def _send(self, client: Client, packet: AnyPacket) -> SendPacket:
        assert client.connection_id is not None
        return SendPacket(client.connection_id, packet)

    def _next_packet_id(self, client: Client) -> int:
        client.last_packet_id = client.last_packet_id % 100 + 1
        return client.last_packet_id
