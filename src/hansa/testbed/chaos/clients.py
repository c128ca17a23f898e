"""Clients that keep a history: what they published, what was acknowledged, what they got.

They are careful, as a client of QoS 1 and 2 should be: a publisher sends nothing twice, so whatever
was not acknowledged when its connection broke is unknown; a subscriber keeps its session, so that
what its broker holds for it waits.
"""

import asyncio
import random
import socket
from collections.abc import Callable, Sequence

from hansa.agent import sockets
from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.delivery.inbox_journal import REDELIVERED
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import Options
from hansa.mqtt.properties import Property, encode
from hansa.mqtt.session import Session
from hansa.testbed.chaos.history import Event, Op, Stream, read_payload

SESSION_S = 3_600
PACKET_IDS = 64_999
PAUSE_S = 0.002
"""How often a publisher looks whether it is time, or whether there is room again."""

Note = Callable[[Event], None]


class _Client:
    """What both kinds share: one connection that is kept."""

    def __init__(self, address: BrokerAddress, options: Options, note: Note) -> None:
        self._note = note
        self._connection = Connection(address, options, self._told, random.Random())

    async def start(self) -> None:
        """Connect, and keep it so."""
        self._connection.keep()

    async def stop(self) -> None:
        """Leave."""
        await self._connection.stop()

    def _told(self, effect: effects.Effect) -> None:
        raise NotImplementedError

    def _event(self, op: Op, stream: Stream, counter: int, subscriber: str, qos: int) -> None:
        now = asyncio.get_running_loop().time()
        self._note(Event(now, op, stream, counter, subscriber, qos))


class Publisher(_Client):
    """Publishes counters to some streams in turn, at a steady pace."""

    has_properties = False
    """Whether what it publishes has properties of MQTT 5."""
    payload_bytes = 0
    """How long payloads are at least."""

    def __init__(
        self,
        address: BrokerAddress,
        name: str,
        topics: dict[str, int],
        rate: float,
        note: Note,
        count_max: int | None = None,
    ) -> None:
        """Publish to these topics, each at its QoS, so often a second and so many in all."""
        self.name = name
        self._count_max = count_max
        super().__init__(address, Options(client_id=name, clean_start=True), note)
        self._streams = [Stream(name, topic, qos) for topic, qos in topics.items()]
        self._counters = dict.fromkeys(self._streams, 0)
        self._interval = 1 / rate
        self._under_way: dict[int, tuple[Stream, int]] = {}
        self._next_id = 1
        self._publishing: asyncio.Task[None] | None = None

    def go(self) -> None:
        """Begin to publish."""
        self._publishing = asyncio.create_task(self._publish_all())

    async def pause(self) -> None:
        """Publish no more. If it had stopped by itself, this raises why, once."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.cancel()
            await asyncio.wait([publishing])
            if not publishing.cancelled():
                publishing.result()

    @property
    def count(self) -> int:
        """How much it has published."""
        return sum(self._counters.values())

    @property
    def is_quiet(self) -> bool:
        """Whether all that was published is acknowledged, or never will be."""
        return not self._under_way

    async def _publish_all(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        turn = 0
        while self._count_max is None or turn < self._count_max:
            session = self._connection.session
            if loop.time() < due or session is None or session.quota == 0:
                await asyncio.sleep(PAUSE_S)
                if session is None:
                    due = loop.time()  # what could not be published then is not made up for
                continue
            self._publish(self._streams[turn % len(self._streams)])
            turn += 1
            due += self._interval

    def _publish(self, stream: Stream) -> None:
        counter = self._counters[stream]
        self._counters[stream] += 1
        packet_id = 0
        if stream.qos:
            while self._next_id in self._under_way:
                self._next_id = self._next_id % PACKET_IDS + 1
            packet_id, self._next_id = self._next_id, self._next_id % PACKET_IDS + 1
            self._under_way[packet_id] = (stream, counter)
        self._event(Op.INVOKE, stream, counter, "", stream.qos)
        properties = _properties(counter) if self.has_properties else b""
        packet = packets.Publish(
            stream.topic,
            stream.payload(counter, properties, self.payload_bytes),
            stream.qos,
            packet_id=packet_id,
            properties=properties,
        )
        self._connection.order(inputs.Publish([packet]))
        if not stream.qos:
            self._event(Op.OK, stream, counter, "", 0)

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Answered(batch):
                self._take_answers(batch)
            case effects.Disconnected() | effects.ProtocolViolation() | effects.ConnectRefused():
                self._under_way.clear()
            case _:
                pass

    def _take_answers(self, batch: Sequence[packets.Handshake]) -> None:
        releases: list[packets.Handshake] = []
        for answer in batch:
            if isinstance(answer, packets.PubRec) and not answer.refused:
                releases.append(packets.PubRel(answer.packet_id))
                continue
            stream, counter = self._under_way.pop(answer.packet_id)
            op = Op.REFUSED if answer.refused else Op.OK
            self._event(op, stream, counter, "", stream.qos)
        if releases:
            self._connection.order(inputs.Answer(releases))


def _properties(counter: int) -> bytes:
    return encode(
        (
            (Property.CONTENT_TYPE, "text/plain"),
            (Property.RESPONSE_TOPIC, "plant/answers"),
            (Property.CORRELATION_DATA, b"%d" % counter),
            (Property.USER_PROPERTY, ("counter", str(counter))),
        )
    )


class Subscriber(_Client):
    """Takes everything that its filters bring, once as far as it can tell."""

    def __init__(
        self,
        address: BrokerAddress,
        name: str,
        filters: tuple[str, ...],
        note: Note,
        session_s: int = SESSION_S,
    ) -> None:
        """Subscribe at QoS 2 in a session that its broker keeps for so long."""
        options = Options(client_id=name, session_expiry=session_s)
        super().__init__(address, options, note)
        self.name = name
        self.arrivals = 0
        self.is_subscribed = False
        self._filters = filters
        self._held: set[int] = set()

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present):
                self.is_subscribed = present
                if not present:
                    self._held.clear()
                wishes = tuple(packets.Subscription(name, qos=2) for name in self._filters)
                self._connection.order(inputs.Subscribe(wishes))
            case effects.Subscribed():
                self.is_subscribed = True
            case effects.Disconnected() | effects.ProtocolViolation() | effects.ConnectRefused():
                self.is_subscribed = False
            case effects.PublishReceived(batch):
                self.take(batch)
            case effects.Answered(batch):
                released = [each.packet_id for each in batch if isinstance(each, packets.PubRel)]
                self._held.difference_update(released)
                self._connection.order(inputs.Answer([packets.PubComp(n) for n in released]))
            case _:
                pass

    def take(self, batch: Sequence[packets.Publish]) -> None:
        """Note what came, and answer."""
        for packet in batch:
            if packet.qos == 2 and packet.packet_id in self._held:
                continue  # the broker sends it again because it does not know that it came
            properties = packet.properties.removesuffix(REDELIVERED)
            found = read_payload(bytes(packet.payload), properties)
            self.arrivals += 1
            if found is None or found[0].topic != packet.topic or packet.retain:
                # Nobody published this, not like this.
                found = Stream("", packet.topic, packet.qos), self.arrivals
            self._event(Op.DELIVER, *found, self.name, packet.qos)
        answers = [
            (packets.PubAck if packet.qos == 1 else packets.PubRec)(packet.packet_id)
            for packet in batch
            if packet.qos
        ]
        self._held.update(packet.packet_id for packet in batch if packet.qos == 2)
        for kind in (packets.PubAck, packets.PubRec):
            some = [answer for answer in answers if isinstance(answer, kind)]
            if some:
                self._connection.order(inputs.Answer(some))


class Sleeper:
    """Subscribes to everything, and never reads what comes."""

    def __init__(self, address: BrokerAddress, name: str) -> None:
        """Prepare."""
        self._address = address
        self._options = Options(client_id=name, clean_start=True, keep_alive=0)
        self._socket: socket.socket | None = None

    async def start(self) -> None:
        """Connect, subscribe, and fall asleep."""
        loop = asyncio.get_running_loop()
        session = Session(self._options)
        self._socket = await sockets.connect(self._address.host, self._address.port)
        self._socket.setblocking(False)
        wish = inputs.Subscribe((packets.Subscription("#", qos=1),))
        for event in (inputs.Opened(), wish):
            for effect in session.handle(event, loop.time()):
                if isinstance(effect, effects.Write):
                    await loop.sock_sendall(self._socket, bytes(effect.data))
            if event is not wish:
                answer = await loop.sock_recv(self._socket, 1 << 10)
                session.handle(inputs.Received(memoryview(answer)), loop.time())

    def stop(self) -> None:
        """Go without a word."""
        if self._socket is not None:
            self._socket.close()
