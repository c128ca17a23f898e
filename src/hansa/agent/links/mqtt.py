"""Endogenous links, as in Spohn 2021: frames travel as publications through a neighbour's broker.

Whoever dials becomes a client of the neighbour's broker, with that broker's own authentication; the
neighbour's agent is one already. So nothing but brokers' ports has to be open between two nodes,
and only one of the two. Every link is a stream (`mqtt_stream`) with a name by chance:

    <prefix>/up/<node>/<name>      from the dialler to the agent beside the broker
    <prefix>/down/<node>/<name>    back
    <prefix>/gone                  the broker says so for the agent beside it: its will

A dialler's will ends its own stream, so that a death is known as soon as that of a TCP connection.

<node> is the dialler's node id. Its hello must name the same node, so an ACL of the broker that
lets each user write only below the ids of its own nodes decides who can be whom. Without such an
ACL, every client of the broker that may publish and subscribe below the prefix can do what somebody
on the network of a TCP link can do: open a link as a stranger, and read and inject frames. With a
forged DATA publication it can also end the links of others, but not with CLOSE or `gone`
(`mqtt_stream`). It cannot open a link without reading the answer.

User name and password are only sent to configured addresses: other addresses come from records of
other nodes or from a manager, and anybody could have chosen them.
"""

import asyncio
import hashlib
import random
import re
import secrets
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hansa.agent import tasks
from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.links.admission import NO_ROOM, Admission
from hansa.agent.links.dialler import Dialler, Failed
from hansa.agent.links.link import LINKS_MAX, Address, Listener
from hansa.agent.links.mqtt_stream import (
    ACCEPT,
    CHALLENGE,
    CLOSE,
    COMMITMENT_BYTES,
    CONFIRM,
    FORGED,
    OPEN,
    TOKEN_BYTES,
    Ending,
    MqttStream,
    closed_because,
    closing,
    commitment_to,
    is_closing,
)
from hansa.agent.links.settings import CHUNK_BYTES_MAX
from hansa.agent.links.stream import USUAL, LinkLimits, StreamLink
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import Limits
from hansa.mqtt.options import Options
from hansa.mqtt.types import REFUSED
from hansa.protocol.model import LinkId, NodeId

ASK_AGAIN_S = 0.25
"""Seconds until an unanswered OPEN is sent again."""

ASK_COUNT = 12
"""Attempts until it is said that nobody is there."""

NAME = re.compile("([0-9a-f]{16})/([0-9a-zA-Z]{1,64})")
"""Node and name of a link, as a dialler writes them in its topics."""

NOBODY = bytes(TOKEN_BYTES)
"""The token in a CLOSE for a stream that is not known here."""

WITHHELD = "withheld: user name and password from an address that is not configured"
NOT_ACCEPTED = "[link.mqtt] accept does not name the node"

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
    node: str = "0" * 16
    """Our node id, part of the topics of links that we dial."""
    trusted: frozenset[Address] = frozenset()
    """Addresses that get the user name and the password."""
    accept: frozenset[str] = frozenset()
    """Nodes that may open links here; all if empty."""

    def options(self, name: str, will: packets.Will) -> Options:
        """Return how one client of ours introduces itself."""
        client_id = f"{self.client_id}{name}"
        return Options(client_id=client_id, clean_start=True, will=will)

    def withholds_from(self, address: Address) -> bool:
        """Whether there are a user name and a password that an address must not get."""
        return self.username is not None and address not in self.trusted

    def broker_at(self, address: Address) -> BrokerAddress:
        """Return a neighbour's broker."""
        name, password = self.username, self.password
        if self.withholds_from(address):
            name = password = None
        login = "username and password in [link.mqtt]"
        return BrokerAddress(address.host, address.port, name, password, self.tls, login)

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
        admission: Admission | None = None,
    ) -> None:
        """Prepare; `ids` and `admission` are shared with links of other kinds."""
        self.admission = admission or Admission()
        self._listener = listener
        self._chance = chance
        self._ids = ids
        self.counters: Counter[str] = Counter()
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

    def note_forged(self) -> None:
        """Count a publication that another client made."""
        self.counters[FORGED] += 1

    def new_link(self, remote: str, dialled: Address | None = None) -> StreamLink:
        """Return a link whose stream is about to begin."""
        id_ = LinkId(next(self._ids))
        return StreamLink(id_, self._listener, self._limits, remote, dialled, self.admission)

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
        self._up = f"{prefix}/up/{access.node}/{name}"
        self._down = f"{prefix}/down/{access.node}/{name}"
        self._gone = f"{prefix}/gone"
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._gone_commitment = b""
        self._question = bytes((OPEN,))
        self._stream: MqttStream | None = None
        self._chunk_bytes = access.chunk_bytes
        self._asking: asyncio.TimerHandle | None = None
        self._ended = False
        will = packets.Will(self._up, closing(self._token, "gone"))
        options = access.options(f"link-{name}", will)
        if access.withholds_from(address):
            links.counters[WITHHELD] += 1
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
            case effects.ConnectRefused() if self._access.withholds_from(self._address):
                self._fail(
                    f"broker {self._address}: {effect.text}; user name and password were not sent:"
                    " only [link] neighbours and [link.mqtt] trusted get them"
                )
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._fail(f"broker {self._address}: {effect.text}")
            case effects.NotSent(reason=reason):
                self._fail(f"broker {self._address}: {reason}")
            case _:
                pass

    def _ask(self, count: int) -> None:
        """Ask for the stream, or confirm it; the agent may not be there yet."""
        if not count:
            self._fail(f"no agent takes links there, or {self._up} may not be published to")
            return
        self._publish(self._question)
        loop = asyncio.get_running_loop()
        self._asking = loop.call_later(ASK_AGAIN_S, self._ask, count - 1)

    def _publish(self, payload: bytes) -> None:
        self._connection.order(inputs.Publish([(self._up, payload)]))

    def _receive(self, batch: Sequence[packets.Publish]) -> None:
        payloads: list[bytes] = []
        for each in batch:
            if each.topic != self._gone:
                payloads.append(each.payload)
            elif is_closing(each.payload, self._gone_commitment):
                self._fail("the neighbour's agent has gone")
                return
            elif self._stream is not None:
                self._links.note_forged()
        while payloads and self._stream is None and not self._ended:
            self._negotiate(payloads.pop(0))
        if payloads and self._stream is not None:
            self._stream.receive(payloads)

    def _negotiate(self, payload: bytes) -> None:
        """Take an answer of the agent before the stream stands."""
        kind, rest = payload[:1], payload[1:]
        if kind == bytes((CHALLENGE,)) and len(rest) == TOKEN_BYTES:
            self._question = bytes((CONFIRM,)) + rest + commitment_to(self._token)
            self._publish(self._question)
        elif kind == bytes((ACCEPT,)) and len(rest) == 2 * COMMITMENT_BYTES:
            self._gone_commitment = rest[COMMITMENT_BYTES:]
            self._begin(Ending(rest[:COMMITMENT_BYTES], self._token))
        elif kind == bytes((CLOSE,)):
            self._fail(closed_because(payload))

    def _begin(self, ending: Ending) -> None:
        assert self._asking is not None
        self._asking.cancel()
        link = self._links.new_link(str(self._address), self._address)
        self._stream = MqttStream(
            link, self._publish, self.hang_up, self._chunk_bytes, ending, self._links.note_forged
        )
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
        self._streams: dict[str, tuple[MqttStream, Ending]] = {}
        self._secret = secrets.token_bytes(32)  # makes cookies
        self._gone_token = b""
        self._chunk_bytes = access.chunk_bytes
        self._accepting = True
        options = access.options("links", self._new_will())
        self._connection = Connection(access.own, options, self._told, chance, prompt=True)
        self._connection.keep()

    def _new_will(self) -> packets.Will:
        self._gone_token = secrets.token_bytes(TOKEN_BYTES)
        return packets.Will(f"{self._access.prefix}/gone", closing(self._gone_token, "gone"))

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
                wish = packets.Subscription(f"{self._access.prefix}/up/+/+")
                self._connection.order(inputs.Subscribe((wish,)))
            case effects.Subscribed(subscriptions=wishes, reasons=reasons):
                if max(reasons) >= REFUSED:
                    name = wishes[0].topic_filter
                    self._tell(f"the broker does not let us subscribe to {name}")
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._connection.change_will(self._new_will())  # the old one may be public by now
                for stream, _ in list(self._streams.values()):
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
            while found and found[0][:1] in (bytes((OPEN,)), bytes((CONFIRM,))):
                self._answer(name, found.pop(0))
            if name in self._streams:
                self._streams[name][0].receive(found)
            elif found and found[0][:1] != bytes((CLOSE,)) and NAME.fullmatch(name):
                self._publish(name, closing(NOBODY, "this link is not known here"))

    def _answer(self, name: str, payload: bytes) -> None:
        """Answer OPEN and CONFIRM. Nothing is kept for a dialler that does not read our answer: it
        returns the cookie, which only we can make."""
        named = NAME.fullmatch(name)
        cookie = hashlib.blake2b(name.encode(), key=self._secret, digest_size=TOKEN_BYTES).digest()
        rest = payload[1:]
        if named is None:
            self._links.note_forged()
        elif name in self._streams:
            self._accept(name, self._streams[name][1])
        elif self._access.accept and named[1] not in self._access.accept:
            self._links.admission.count(NOT_ACCEPTED)
            self._publish(name, closing(NOBODY, NOT_ACCEPTED))
        elif not self._accepting or len(self._streams) >= LINKS_MAX:
            self._links.admission.count(NO_ROOM)
            self._publish(name, closing(NOBODY, "turned away"))
        elif payload[:1] == bytes((OPEN,)):
            self._publish(name, bytes((CHALLENGE,)) + cookie)
        elif len(rest) == TOKEN_BYTES + COMMITMENT_BYTES and secrets.compare_digest(
            rest[:TOKEN_BYTES], cookie
        ):
            self._begin(name, NodeId(int(named[1], 16)), Ending(rest[TOKEN_BYTES:]))
        else:
            self._links.note_forged()

    def _accept(self, name: str, ending: Ending) -> None:
        answer = bytes((ACCEPT,)) + ending.commitment + commitment_to(self._gone_token)
        self._publish(name, answer)

    def _begin(self, name: str, node: NodeId, ending: Ending) -> None:
        def ended() -> None:
            del self._streams[name]
            self._leave_if_unused()

        self._accept(name, ending)
        link = self._links.new_link(f"mqtt:{name}")
        link.named = node
        stream = MqttStream(
            link,
            lambda payload: self._publish(name, payload),
            ended,
            self._chunk_bytes,
            ending,
            self._links.note_forged,
        )
        self._streams[name] = stream, ending
        stream.begin()
        self._links.admission.watch(link)

    def _publish(self, name: str, payload: bytes) -> None:
        topic = f"{self._access.prefix}/down/{name}"
        self._connection.order(inputs.Publish([(topic, payload)]))


async def _leave(connection: Connection) -> None:
    await connection.stop()
    connection.cut()
