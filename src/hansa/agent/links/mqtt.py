"""Endogenous links, as in Spohn 2021: frames travel as publications through a neighbour's broker.

Whoever dials becomes a client of the neighbour's broker, with that broker's own authentication; the
neighbour's agent is one already. So nothing but brokers' ports has to be open between two nodes,
and only one of the two. Every link is a stream (`mqtt_stream`) with a name by chance:

    <prefix>/up/<name>      from the dialler to the agent beside the broker
    <prefix>/down/<name>    back
    <prefix>/gone           the broker says so for the agent beside it: its will

A dialler's will ends its own stream, so that a death is known as soon as that of a TCP connection.
"""

import asyncio
import random
import secrets
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hansa.agent import tasks
from hansa.agent.brokers.connection import BrokerAddress, Connection
from hansa.agent.links.dialling import Dialler, Failed
from hansa.agent.links.link import LINKS_MAX, Address, Listener
from hansa.agent.links.mqtt_stream import (
    ACCEPT,
    CLOSE,
    OPEN,
    MqttStream,
    closed_because,
    closing,
)
from hansa.agent.links.settings import CHUNK_BYTES_MAX
from hansa.agent.links.stream import USUAL, LinkLimits, StreamLink
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import Limits
from hansa.mqtt.options import Options
from hansa.mqtt.vocabulary import REFUSED
from hansa.protocol.vocabulary import LinkId

ASK_AGAIN_S = 0.25
"""Seconds until an unanswered OPEN is sent again."""

ASK_COUNT = 12
"""Attempts until it is said that nobody is there."""

NAME_CHARS_MAX = 64
"""Of a link: a longer one is not from a dialler of ours."""

ENVELOPE_BYTES = 1_024
"""Room in a packet for all that is not a chunk: topic, number, what MQTT adds."""


@dataclass(frozen=True, slots=True)
class Access:
    """How links through brokers are made: under which topics, and how to be let in."""

    prefix: str
    own: BrokerAddress
    """The broker beside us."""
    client_id: str
    """How our client ids begin."""
    username: str | None = None
    """At the neighbours' brokers; the following as well."""
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Bytes of a link in one publication, at most."""

    def options(self, name: str, will: packets.Will) -> Options:
        """Return how one client of ours introduces itself."""
        client_id = f"{self.client_id}{name}"
        return Options(client_id=client_id, clean_start=True, will=will)

    def broker_at(self, address: Address) -> BrokerAddress:
        """Return a neighbour's broker."""
        return BrokerAddress(address.host, address.port, self.username, self.password, self.tls)

    def chunk_bytes_at(self, limits: Limits) -> int:
        """Return the bytes of a link in one publication that a broker takes."""
        return max(1, min(self.chunk_bytes, limits.packet_bytes_max - ENVELOPE_BYTES))


class MqttLinks:
    """Listens at the own broker and dials others', for as long as it runs."""

    def __init__(
        self,
        listener: Listener,
        chance: random.Random,
        ids: Iterator[int],
        access: Access,
        limits: LinkLimits = USUAL,
    ) -> None:
        """Prepare; `ids` are shared with links of other kinds."""
        self._listener = listener
        self._chance = chance
        self._ids = ids
        self._access = access
        self._limits = limits
        self.dialler = Dialler(self._connect, chance)
        self._porter: _Porter | None = None

    def listen(self, failed: Failed) -> None:
        """Take links at the own broker; `failed` is told why it does not let us."""
        self._porter = _Porter(self, self._access, self._chance, failed)

    def dial(self, address: Address, failed: Failed) -> None:
        """Keep a link to a neighbour; `failed` is told of every attempt in vain."""
        self.dialler.dial(address, failed)

    async def stop(self) -> None:
        """Dial no more, take no more links. Those that stand are closed by their owner."""
        await self.dialler.stop()
        if self._porter is not None:
            self._porter.stop()

    def new_link(self, remote: str, dialled: Address | None = None) -> StreamLink:
        """Return a link whose stream is about to begin."""
        id_ = LinkId(next(self._ids))
        return StreamLink(id_, self._listener, self._limits, remote, dialled)

    async def _connect(self, address: Address) -> StreamLink:
        call = _Call(self, self._access, address, self._chance)
        try:
            return await call.answer
        except BaseException:
            call.hang_up()
            raise


class _Call:
    """One link that we dialled: a client at the neighbour's broker until the link ends."""

    def __init__(
        self, links: MqttLinks, access: Access, address: Address, chance: random.Random
    ) -> None:
        """Call at once."""
        self.answer: asyncio.Future[StreamLink] = asyncio.get_running_loop().create_future()
        self._links = links
        self._access = access
        self._address = address
        name, prefix = secrets.token_hex(8), access.prefix
        self._up, self._down = f"{prefix}/up/{name}", f"{prefix}/down/{name}"
        self._gone = f"{prefix}/gone"
        self._stream: MqttStream | None = None
        self._chunk_bytes = access.chunk_bytes
        self._asking: asyncio.TimerHandle | None = None
        self._ended = False
        options = access.options(f"link-{name}", packets.Will(self._up, closing("gone")))
        self._connection = Connection(
            access.broker_at(address), options, self._told, chance, prompt=True
        )
        self._connection.keep()

    def hang_up(self) -> None:
        """Leave the broker."""
        if self._ended:
            return
        self._ended = True
        if self._asking is not None:
            self._asking.cancel()
        tasks.start(_leave(self._connection))

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive(batch)
            case effects.Connected(limits=limits):
                self._chunk_bytes = self._access.chunk_bytes_at(limits)
                wishes = (packets.Subscription(self._down), packets.Subscription(self._gone))
                self._connection.order(inputs.Subscribe(wishes))
            case effects.Subscribed(reasons=reasons):
                if max(reasons) >= REFUSED:
                    self._fail(f"the broker does not let us subscribe to {self._down}")
                else:
                    self._ask(ASK_COUNT)
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._fail(f"broker {self._address}: {effect.text}")
            case effects.NotSent(reason=reason):
                self._fail(f"broker {self._address}: {reason}")
            case _:
                pass

    def _ask(self, count: int) -> None:
        """Ask for the stream; the agent may not be there yet."""
        if not count:
            self._fail(f"no agent takes links there, or {self._up} may not be published to")
            return
        self._publish(bytes((OPEN,)))
        loop = asyncio.get_running_loop()
        self._asking = loop.call_later(ASK_AGAIN_S, self._ask, count - 1)

    def _publish(self, payload: bytes) -> None:
        self._connection.order(inputs.Publish([(self._up, payload)]))

    def _receive(self, batch: Sequence[packets.Publish]) -> None:
        if any(each.topic == self._gone for each in batch):
            self._fail("the neighbour's agent has gone")
            return
        payloads = [each.payload for each in batch]
        if self._stream is None and not self._ended and payloads[0][:1] == bytes((CLOSE,)):
            self._fail(closed_because(payloads[0]))
        elif self._stream is None and not self._ended:
            self._begin()
        if self._stream is not None:
            self._stream.receive(payloads)

    def _begin(self) -> None:
        """The first word from there is yes, whatever it is: its ACCEPT may have been lost."""
        assert self._asking is not None
        self._asking.cancel()
        link = self._links.new_link(str(self._address), self._address)
        self._stream = MqttStream(link, self._publish, self.hang_up, self._chunk_bytes)
        self._stream.begin()
        if not self.answer.done():
            self.answer.set_result(link)

    def _fail(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.lose(reason)
        elif not self.answer.done():
            self.answer.set_exception(ConnectionError(reason))


class _Porter:
    """Takes links at the own broker: one client for all of them."""

    def __init__(
        self, links: MqttLinks, access: Access, chance: random.Random, failed: Failed
    ) -> None:
        """Connect at once, and again whenever the broker was away."""
        self._links = links
        self._access = access
        self._failed = failed
        self._streams: dict[str, MqttStream] = {}
        self._chunk_bytes = access.chunk_bytes
        self._accepting = True
        will = packets.Will(f"{access.prefix}/gone", closing("gone"))
        options = access.options("links", will)
        self._connection = Connection(access.own, options, self._told, chance, prompt=True)
        self._connection.keep()

    def stop(self) -> None:
        """Take no more."""
        self._accepting = False
        self._leave_if_unused()

    def _leave_if_unused(self) -> None:
        if not self._accepting and not self._streams:
            tasks.start(_leave(self._connection))

    def _told(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive(batch)
            case effects.Connected(limits=limits):
                self._chunk_bytes = self._access.chunk_bytes_at(limits)
                wish = packets.Subscription(f"{self._access.prefix}/up/+")
                self._connection.order(inputs.Subscribe((wish,)))
            case effects.Subscribed(subscriptions=wishes, reasons=reasons):
                if max(reasons) >= REFUSED:
                    name = wishes[0].topic_filter
                    self._tell(f"the broker does not let us subscribe to {name}")
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                for stream in list(self._streams.values()):
                    stream.lose(f"our broker: {effect.text}")
                if self._accepting:
                    self._tell(f"no links are taken at our broker: {effect.text}")
            case effects.NotSent(reason=reason):
                self._tell(f"the broker does not take what a link sends: {reason}")
            case _:
                pass

    def _tell(self, problem: str) -> None:
        self._failed(Address(self._access.own.host, self._access.own.port), problem)

    def _receive(self, batch: Sequence[packets.Publish]) -> None:
        above = len(self._access.prefix) + len("/up/")
        payloads: dict[str, list[bytes]] = {}
        for each in batch:
            payloads.setdefault(each.topic[above:], []).append(each.payload)
        for name, found in payloads.items():
            if found[0] == bytes((OPEN,)):
                self._answer(name)
                del found[0]
            stream = self._streams.get(name)
            if stream is not None:
                stream.receive(found)
            elif found and found[0][:1] != bytes((CLOSE,)) and len(name) <= NAME_CHARS_MAX:
                self._publish(name, closing("this link is not known here"))

    def _answer(self, name: str) -> None:
        if name in self._streams:
            self._publish(name, bytes((ACCEPT,)))
        elif not self._accepting or len(self._streams) >= LINKS_MAX:
            self._publish(name, closing("turned away"))
        elif len(name) <= NAME_CHARS_MAX:
            self._publish(name, bytes((ACCEPT,)))
            self._begin(name)

    def _begin(self, name: str) -> None:
        def ended() -> None:
            del self._streams[name]
            self._leave_if_unused()

        link = self._links.new_link(f"mqtt:{name}")
        stream = self._streams[name] = MqttStream(
            link, lambda payload: self._publish(name, payload), ended, self._chunk_bytes
        )
        stream.begin()

    def _publish(self, name: str, payload: bytes) -> None:
        topic = f"{self._access.prefix}/down/{name}"
        self._connection.order(inputs.Publish([(topic, payload)]))


async def _leave(connection: Connection) -> None:
    await connection.stop()
    connection.cut()
