"""Endogenous links, as in Spohn 2021: frames travel as publications through a neighbour's broker.

The dialler becomes a client of the neighbour's broker, with that broker's own authentication; the
neighbour's agent is one already. So only broker ports have to be open between two nodes, and only
one of the two. Every link is a stream (`mqtt_stream`) with a random name:

    <prefix>/up/<node>/<name>      from the dialler to the agent beside the broker
    <prefix>/down/<node>/<name>    back
    <prefix>/gone                  the will of the agent beside the broker

A dialler's will ends its own stream, so its death is known as soon as that of a TCP connection.

<node> is the dialler's node id. Its hello must name the same node, so an ACL of the broker that
lets each user write only below the ids of its own nodes authenticates nodes. Without such an ACL,
every client of the broker that may publish and subscribe below the prefix can do what an attacker
on the network of a TCP link can do: open a link as a stranger, and read and inject frames. With a
forged DATA publication it can also end the links of others, but not with CLOSE or `gone`
(`mqtt_stream`). It cannot open a link without reading the answer.

User name and password are only sent to configured addresses: other addresses come from records of
other nodes or from a manager, and an attacker could have chosen them.
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
from hansa.agent.links.dialler import Dialler, OnDialFailed
from hansa.agent.links.link import LINKS_MAX, Address, LinkListener
from hansa.agent.links.mqtt_stream import (
    ACCEPT,
    CHALLENGE,
    CLOSE,
    COMMITMENT_BYTES,
    CONFIRM,
    FORGED_PUBLICATION,
    OPEN,
    TOKEN_BYTES,
    CloseTokens,
    MqttStream,
    close_payload,
    close_reason,
    commitment_of,
    is_valid_close,
)
from hansa.agent.links.settings import CHUNK_BYTES_MAX
from hansa.agent.links.stream import DEFAULT_LIMITS, LinkLimits, StreamLink
from hansa.agent.links.tls import secure_protocol
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import REFUSAL_CODE_MIN
from hansa.protocol.model import LinkId, NodeId

OPEN_RETRY_S = 0.25
"""Seconds until an unanswered OPEN is sent again."""

OPEN_ATTEMPTS = 12
"""Attempts until the neighbour's agent counts as absent."""

LINK_NAME = re.compile("([0-9a-f]{16})/([0-9a-zA-Z]{1,64})")
"""Node id and name of a link in topics."""

UNKNOWN_STREAM_TOKEN = bytes(TOKEN_BYTES)
"""The token in a CLOSE for an unknown stream."""

CREDENTIALS_WITHHELD = "credentials withheld: address not configured"
NODE_NOT_ACCEPTED = "[link.mqtt] accepted_nodes does not name the node"

PACKET_OVERHEAD_BYTES = 1_024
"""Bytes in a packet besides the chunk: topic, sequence number, MQTT headers."""


@dataclass(frozen=True, slots=True)
class MqttLinkAccess:
    """Topics, addresses and credentials of links through brokers."""

    prefix: str
    own_broker: BrokerAddress
    """The broker beside this agent."""
    client_id_prefix: str
    """Prefix of the agent's client ids."""
    username: str | None = None
    """Credentials and TLS for neighbours' brokers."""
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    chunk_bytes: int = CHUNK_BYTES_MAX
    """Most bytes of a link in one publication."""
    node: str = "0" * 16
    """This node's id, part of the topics of dialled links."""
    trusted_brokers: frozenset[Address] = frozenset()
    """Addresses that get the user name and the password."""
    accepted_nodes: frozenset[str] = frozenset()
    """Nodes that may open links here; all if empty."""

    def client_options(self, name: str, will: packets.Will) -> ConnectOptions:
        client_id = f"{self.client_id_prefix}{name}"
        return ConnectOptions(client_id=client_id, clean_start=True, will=will)

    def withholds_credentials(self, address: Address) -> bool:
        """Whether credentials are configured that an address must not get."""
        return self.username is not None and address not in self.trusted_brokers

    def broker_at(self, address: Address) -> BrokerAddress:
        """Return the connection data of a neighbour's broker."""
        name, password = self.username, self.password
        if self.withholds_credentials(address):
            name = password = None
        login = "username and password in [link.mqtt]"
        return BrokerAddress(address.host, address.port, name, password, self.tls, login)

    def chunk_bytes_at(self, limits: BrokerLimits) -> int:
        """Return the bytes of a link in one publication that a broker accepts."""
        return max(1, min(self.chunk_bytes, limits.packet_bytes_max - PACKET_OVERHEAD_BYTES))


class MqttLinks:
    """Accepts links at its own broker and dials others."""

    def __init__(
        self,
        listener: LinkListener,
        rng: random.Random,
        ids: Iterator[int],
        access: MqttLinkAccess,
        limits: LinkLimits = DEFAULT_LIMITS,
        admission: Admission | None = None,
    ) -> None:
        """`ids` and `admission` are shared with other transports. TLS is used inside the stream of
        publications."""
        self.admission = admission or Admission()
        self._listener = listener
        self._rng = rng
        self._ids = ids
        self.counters: Counter[str] = Counter()
        self._access = access
        self._limits = limits
        self.dialler = Dialler(self._connect, rng)
        self._acceptor: _LinkAcceptor | None = None

    def listen(self, on_failed: OnDialFailed) -> None:
        """Accept links at its own broker; `on_failed` gets the reason if it refuses."""
        self._acceptor = _LinkAcceptor(self, self._access, self._rng, on_failed)

    async def stop(self) -> None:
        """Stop dialling and accepting. Owners close open links."""
        await self.dialler.stop()
        if self._acceptor is not None:
            self._acceptor.stop()

    def count_forged(self) -> None:
        """Count a publication of another client."""
        self.counters[FORGED_PUBLICATION] += 1

    def new_link(self, remote: str, dialled: Address | None = None) -> StreamLink:
        """Return a link for a stream that is about to open."""
        id_ = LinkId(next(self._ids))
        return StreamLink(id_, self._listener, self._limits, remote, dialled, self.admission)

    async def _connect(self, address: Address) -> StreamLink:
        dialled = _DialledLink(self, self._access, address, self._rng)
        try:
            link = await dialled.opened
            await link.wait_until_open()
            return link
        except BaseException:
            dialled.close()
            raise


class _DialledLink:
    """A dialled link: a client at the neighbour's broker until the link ends."""

    def __init__(
        self, links: MqttLinks, access: MqttLinkAccess, address: Address, rng: random.Random
    ) -> None:
        self.opened: asyncio.Future[StreamLink] = asyncio.get_running_loop().create_future()
        self._links = links
        self._access = access
        self._address = address
        name, prefix = secrets.token_hex(8), access.prefix
        self._up_topic = f"{prefix}/up/{access.node}/{name}"
        self._down_topic = f"{prefix}/down/{access.node}/{name}"
        self._gone_topic = f"{prefix}/gone"
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._gone_commitment = b""
        self._request = bytes((OPEN,))
        self._stream: MqttStream | None = None
        self._chunk_bytes = access.chunk_bytes
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        will = packets.Will(self._up_topic, close_payload(self._token, "gone"))
        options = access.client_options(f"link-{name}", will)
        if access.withholds_credentials(address):
            links.counters[CREDENTIALS_WITHHELD] += 1
        self._connection = Connection(
            access.broker_at(address), options, self._on_effect, rng, is_low_latency=True
        )
        self._connection.start()

    def close(self) -> None:
        """Disconnect from the broker."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        tasks.start_task(_disconnect(self._connection))

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive(batch)
            case effects.Connected(broker_limits=limits):
                self._chunk_bytes = self._access.chunk_bytes_at(limits)
                subscriptions = (
                    packets.Subscription(self._down_topic),
                    packets.Subscription(self._gone_topic),
                )
                self._connection.submit(inputs.Subscribe(subscriptions))
            case effects.Subscribed(reasons=reasons):
                if max(reasons) >= REFUSAL_CODE_MIN:
                    self._fail(f"the broker does not let us subscribe to {self._down_topic}")
                else:
                    self._send_request(OPEN_ATTEMPTS)
            case effects.ConnectRefused() if self._access.withholds_credentials(self._address):
                self._fail(
                    f"broker {self._address}: {effect.text}; user name and password were not sent:"
                    " only [link] neighbours and [link.mqtt] trusted_brokers get them"
                )
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._fail(f"broker {self._address}: {effect.text}")
            case effects.PublishNotSent(reason=reason):
                self._fail(f"broker {self._address}: {reason}")
            case _:
                pass

    def _send_request(self, count: int) -> None:
        """Send OPEN or CONFIRM again; the neighbour's agent may not be connected yet."""
        if not count:
            self._fail(f"no agent takes links there, or {self._up_topic} may not be published to")
            return
        self._publish(self._request)
        loop = asyncio.get_running_loop()
        self._retry_timer = loop.call_later(OPEN_RETRY_S, self._send_request, count - 1)

    def _publish(self, payload: bytes) -> None:
        self._connection.submit(inputs.Publish([(self._up_topic, payload)]))

    def _receive(self, batch: Sequence[packets.PublishPacket]) -> None:
        payloads: list[bytes] = []
        for each in batch:
            if each.topic != self._gone_topic:
                payloads.append(each.payload)
            elif is_valid_close(each.payload, self._gone_commitment):
                self._fail("the neighbour's agent has gone")
                return
            elif self._stream is not None:
                self._links.count_forged()
        while payloads and self._stream is None and not self._is_closed:
            self._negotiate(payloads.pop(0))
        if payloads and self._stream is not None:
            self._stream.receive(payloads)

    def _negotiate(self, payload: bytes) -> None:
        """Process a response of the agent before the stream is open."""
        kind, rest = payload[:1], payload[1:]
        if kind == bytes((CHALLENGE,)) and len(rest) == TOKEN_BYTES:
            self._request = bytes((CONFIRM,)) + rest + commitment_of(self._token)
            self._publish(self._request)
        elif kind == bytes((ACCEPT,)) and len(rest) == 2 * COMMITMENT_BYTES:
            self._gone_commitment = rest[COMMITMENT_BYTES:]
            self._start_stream(CloseTokens(rest[:COMMITMENT_BYTES], self._token))
        elif kind == bytes((CLOSE,)):
            self._fail(close_reason(payload))

    def _start_stream(self, tokens: CloseTokens) -> None:
        assert self._retry_timer is not None
        self._retry_timer.cancel()
        link = self._links.new_link(str(self._address), self._address)
        protocol = secure_protocol(link, self._links.admission)
        self._stream = MqttStream(
            protocol, self._publish, self.close, self._chunk_bytes, tokens, self._links.count_forged
        )
        self._stream.start()
        if not self.opened.done():
            self.opened.set_result(link)

    def _fail(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.close_silently(reason)
        elif not self.opened.done():
            self.opened.set_exception(ConnectionError(reason))


class _LinkAcceptor:
    """Accepts links at its own broker, with one client for all of them."""

    def __init__(
        self, links: MqttLinks, access: MqttLinkAccess, rng: random.Random, on_failed: OnDialFailed
    ) -> None:
        """Connect at once and reconnect as needed."""
        self._links = links
        self._access = access
        self._on_failed = on_failed
        self._streams: dict[str, tuple[MqttStream, CloseTokens]] = {}
        self._secret = secrets.token_bytes(32)  # key for cookies
        self._gone_token = b""
        self._chunk_bytes = access.chunk_bytes
        self._is_accepting = True
        options = access.client_options("links", self._new_will())
        self._connection = Connection(
            access.own_broker, options, self._on_effect, rng, is_low_latency=True
        )
        self._connection.start()

    def _new_will(self) -> packets.Will:
        self._gone_token = secrets.token_bytes(TOKEN_BYTES)
        return packets.Will(f"{self._access.prefix}/gone", close_payload(self._gone_token, "gone"))

    def stop(self) -> None:
        """Stop accepting."""
        self._is_accepting = False
        self._leave_if_unused()

    def _leave_if_unused(self) -> None:
        if not self._is_accepting and not self._streams:
            tasks.start_task(_disconnect(self._connection))

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PublishReceived(batch):
                self._receive(batch)
            case effects.Connected(broker_limits=limits):
                self._chunk_bytes = self._access.chunk_bytes_at(limits)
                subscription = packets.Subscription(f"{self._access.prefix}/up/+/+")
                self._connection.submit(inputs.Subscribe((subscription,)))
            case effects.Subscribed(subscriptions=wishes, reasons=reasons):
                if max(reasons) >= REFUSAL_CODE_MIN:
                    name = wishes[0].topic_filter
                    self._report_problem(f"the broker does not let us subscribe to {name}")
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                self._connection.set_will(
                    self._new_will()
                )  # the previous will may have been published
                for stream, _ in list(self._streams.values()):
                    stream.close_silently(f"our broker: {effect.text}")
                if self._is_accepting:
                    self._report_problem(f"no links are taken at our broker: {effect.text}")
            case effects.PublishNotSent(reason=reason):
                self._report_problem(f"the broker does not take what a link sends: {reason}")
            case _:
                pass

    def _report_problem(self, problem: str) -> None:
        self._on_failed(
            Address(self._access.own_broker.host, self._access.own_broker.port), problem
        )

    def _receive(self, batch: Sequence[packets.PublishPacket]) -> None:
        prefix_length = len(self._access.prefix) + len("/up/")
        payloads: dict[str, list[bytes]] = {}
        for each in batch:
            payloads.setdefault(each.topic[prefix_length:], []).append(each.payload)
        for name, stream_payloads in payloads.items():
            while stream_payloads and stream_payloads[0][:1] in (bytes((OPEN,)), bytes((CONFIRM,))):
                self._answer_request(name, stream_payloads.pop(0))
            if name in self._streams:
                self._streams[name][0].receive(stream_payloads)
            elif (
                stream_payloads
                and stream_payloads[0][:1] != bytes((CLOSE,))
                and LINK_NAME.fullmatch(name)
            ):
                self._publish(
                    name, close_payload(UNKNOWN_STREAM_TOKEN, "this link is not known here")
                )

    def _answer_request(self, name: str, payload: bytes) -> None:
        """Answer OPEN and CONFIRM. The agent keeps nothing for a dialler that does not read the
        answer: the dialler returns the cookie, which only the agent can make."""
        named = LINK_NAME.fullmatch(name)
        cookie = hashlib.blake2b(name.encode(), key=self._secret, digest_size=TOKEN_BYTES).digest()
        rest = payload[1:]
        if named is None:
            self._links.count_forged()
        elif name in self._streams:
            self._send_accept(name, self._streams[name][1])
        elif self._access.accepted_nodes and named[1] not in self._access.accepted_nodes:
            self._links.admission.count_refused(NODE_NOT_ACCEPTED)
            self._publish(name, close_payload(UNKNOWN_STREAM_TOKEN, NODE_NOT_ACCEPTED))
        elif not self._is_accepting or len(self._streams) >= LINKS_MAX:
            self._links.admission.count_refused(NO_ROOM)
            self._publish(name, close_payload(UNKNOWN_STREAM_TOKEN, NO_ROOM))
        elif payload[:1] == bytes((OPEN,)):
            self._publish(name, bytes((CHALLENGE,)) + cookie)
        elif len(rest) == TOKEN_BYTES + COMMITMENT_BYTES and secrets.compare_digest(
            rest[:TOKEN_BYTES], cookie
        ):
            self._start_stream(name, NodeId(int(named[1], 16)), CloseTokens(rest[TOKEN_BYTES:]))
        else:
            self._links.count_forged()

    def _send_accept(self, name: str, tokens: CloseTokens) -> None:
        answer = bytes((ACCEPT,)) + tokens.own_commitment + commitment_of(self._gone_token)
        self._publish(name, answer)

    def _start_stream(self, name: str, node: NodeId, tokens: CloseTokens) -> None:
        def ended() -> None:
            del self._streams[name]
            self._leave_if_unused()

        self._send_accept(name, tokens)
        link = self._links.new_link(f"mqtt:{name}")
        link.expected_node = node
        stream = MqttStream(
            secure_protocol(link, self._links.admission),
            lambda payload: self._publish(name, payload),
            ended,
            self._chunk_bytes,
            tokens,
            self._links.count_forged,
        )
        self._streams[name] = stream, tokens
        stream.start()
        self._links.admission.watch(link)

    def _publish(self, name: str, payload: bytes) -> None:
        topic = f"{self._access.prefix}/down/{name}"
        self._connection.submit(inputs.Publish([(topic, payload)]))


async def _disconnect(connection: Connection) -> None:
    await connection.stop()
    connection.abort()
