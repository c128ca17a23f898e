"""Targets of the fuzzers: everything that a stranger or a peer sends, before it is trusted.

Each target has `run(rng)`, which makes one input and passes it to production code. Whatever it
raises is a bug; refusals are part of the targets.

| target | input |
|---|---|
| `handshake` | bytes to a link port with TLS, before the peer is authenticated |
| `stream` | bytes on an authenticated link: lengths, fragments, window acks, frames |
| `frames` | control frames and publications at a node, valid, senseless and damaged |
| `datagrams` | datagrams on a UDP link with certificates, before and after its keys are agreed |
| `http` | requests to the HTTP endpoints |
| `members` | what a member signs and seals with its own keys: `members.py` |
| `issuers` | connections to `hansa invite` and `hansa ca serve`: `issuers.py` |
| `documents` | requests, certificates, revocation lists, bundles, tokens: `documents.py` |

Requests to the manager: `tests/manager/test_fuzz.py`.
"""

import asyncio
import random
import struct
import tempfile
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from tests.fuzz.structured import damage, make_value, types_of
from tests.identity.certified import certify, make_authority

from hansa.agent.admin.access import AdminAccess
from hansa.agent.admin.server import HttpResponse, Protection, json_response, serve
from hansa.agent.exposure import HostRule
from hansa.agent.links.admission import Admission
from hansa.agent.links.datagrams import BODY_BYTES_MAX, DATA, FRAGMENT
from hansa.agent.links.link import Address, Link
from hansa.agent.links.security import LinkSecurity
from hansa.agent.links.stream import DEFAULT_LIMITS, LENGTH, StreamLink
from hansa.agent.links.tls import secure_protocol
from hansa.agent.links.udp_link import DatagramEndpoint, UdpLink
from hansa.agent.sockets import ByteProtocol
from hansa.errors import InvalidFrame
from hansa.identity.keys import KEY_FILE
from hansa.protocol.effects import CloseLink, NodeUnreachable
from hansa.protocol.events import ClockRead, FrameReceived, LinkOpened, TimerFired
from hansa.protocol.model import KEY_BYTES, Identity, LinkId, Publication, node_id
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import AnyFrame, Hello

CORPUS_MAX = 64
LINK = LinkId(1)


class Target(Protocol):
    def run(self, rng: random.Random) -> None:
        """Make one input and pass it on; raise if the code under test does."""

    def close(self) -> None: ...


class Corpus:
    """Recent inputs, to be mixed with others."""

    def __init__(self, *first: bytes) -> None:
        self.inputs = list(first)

    def draw(self, rng: random.Random, made: bytes) -> bytes:
        self.inputs.append(made)
        if len(self.inputs) > CORPUS_MAX:
            del self.inputs[rng.randrange(len(self.inputs) // 2)]
        return made if rng.random() < 0.3 else damage(made, rng, self.inputs)


class SilentListener:
    """Takes events of links."""

    def link_opened(self, link: Link) -> None:
        link.admit()

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        for frame in frames:
            try:
                decode(frame)
            except InvalidFrame:
                pass

    def publications_dropped(self, link: Link, count: int, reason: str) -> None: ...

    def peer_misbehaved(self, link: Link, reason: str) -> None: ...

    def link_closed(self, link: Link, reason: str) -> None: ...


class MemoryTransport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def feed(protocol: ByteProtocol, transport: MemoryTransport, data: bytes) -> None:
    """Give bytes to a protocol as a socket would."""
    view = memoryview(data)
    while view and not transport.is_closing():
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(view))
        assert size, "a protocol without room"
        buffer[:size] = view[:size]
        view = view[size:]
        protocol.buffer_updated(size)


def encode_drawn(draw: Callable[[], Any]) -> bytes:
    """Return a frame. Most that are drawn are beyond the bounds of the encoder, so draw again; one
    that `draw` itself cannot make counts as such."""
    while True:
        try:
            return bytes(encode(draw()))
        except (ValueError, OverflowError, TypeError, struct.error):
            continue


class FrameSource:
    """Makes control frames and publications that mean something to a node."""

    def __init__(self, known: tuple[int, ...]) -> None:
        self._known = known
        self._types = [*types_of(AnyFrame), *types_of(Publication)]

    def make(self, rng: random.Random) -> bytes:
        """Return an encoded frame."""
        return encode_drawn(lambda: make_value(rng.choice(self._types), rng, self._known))


class StreamTarget:
    """Bytes on an authenticated stream link."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._source = FrameSource((1, 2, 3))
        self._corpus = Corpus(LENGTH.pack(1 << 31 | 5), LENGTH.pack(1 << 30 | 8) + bytes(8))

    def run(self, rng: random.Random) -> None:
        frame = self._source.make(rng)
        made = self._corpus.draw(rng, LENGTH.pack(len(frame)) + frame)
        self._loop.run_until_complete(self._play(made))

    async def _play(self, data: bytes) -> None:
        link = StreamLink(LINK, SilentListener(), DEFAULT_LIMITS, "192.0.2.1:1")
        transport = MemoryTransport()
        link.connection_made(transport)
        feed(link, transport, data)
        assert len(link.get_buffer(-1)) <= 32 << 20, "the buffer is not bounded"
        link.close("over")
        link.connection_lost(None)

    def close(self) -> None:
        self._loop.close()


class HandshakeTarget:
    """Bytes before the peer is authenticated, on both sides of the handshake."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._directory = tempfile.TemporaryDirectory()
        state = Path(self._directory.name)
        certify(make_authority(state / "ca"), state / "node")
        self._admission = Admission(
            LinkSecurity(state / "node", state / "node" / KEY_FILE, lambda text: None)
        )
        self._ids = count(1)
        hello = self._loop.run_until_complete(self._first_flight())
        self._corpus = Corpus(hello, hello[:40], b"\x16\x03\x03\x00\x05hello")

    def _protocol(self, is_dialled: bool) -> ByteProtocol:
        dialled = Address("192.0.2.1", 1) if is_dialled else None
        link = StreamLink(
            LinkId(next(self._ids)),
            *(SilentListener(), DEFAULT_LIMITS, "192.0.2.1:1", dialled, self._admission),
        )
        return secure_protocol(link, self._admission)

    async def _first_flight(self) -> bytes:
        transport = MemoryTransport()
        self._protocol(is_dialled=False).connection_made(transport)
        return bytes(transport.written)

    def run(self, rng: random.Random) -> None:
        made = self._corpus.draw(rng, rng.choice(self._corpus.inputs))
        answers = self._loop.run_until_complete(self._play(made, rng.random() < 0.5))
        if answers:
            self._corpus.draw(rng, answers)

    async def _play(self, data: bytes, is_dialled: bool) -> bytes:
        protocol, transport = self._protocol(is_dialled), MemoryTransport()
        protocol.connection_made(transport)
        feed(protocol, transport, data)
        protocol.connection_lost(None)
        return bytes(transport.written)

    def close(self) -> None:
        self._loop.close()
        self._directory.cleanup()


class DatagramTarget:
    """Datagrams to one UDP link: of a peer during the handshake, or sealed by a member."""

    INPUTS_PER_LINK = 20

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._directory = tempfile.TemporaryDirectory()
        state = Path(self._directory.name)
        authority = make_authority(state / "ca")
        for name in ("listener", "dialler"):
            certify(authority, state / name)
        self._admissions = [
            Admission(LinkSecurity(state / name, state / name / KEY_FILE, lambda text: None))
            for name in ("listener", "dialler")
        ]
        self._source = FrameSource((1, 2, 3))
        self._corpus = Corpus()

    def run(self, rng: random.Random) -> None:
        self._loop.run_until_complete(self._play(rng))

    async def _play(self, rng: random.Random) -> None:
        """Let two links agree on keys, or be disturbed before; then disturb them."""
        queues: list[list[bytes]] = [[], []]
        links = [
            UdpLink(LINK, SilentListener(), bytes(16), endpoint, admission)
            for endpoint, admission in zip(
                (
                    DatagramEndpoint("192.0.2.1:1", None, queues[1].append, lambda: None),
                    DatagramEndpoint(
                        *("192.0.2.1:1", Address("192.0.2.1", 1)), queues[0].append, lambda: None
                    ),
                ),
                self._admissions,
                strict=True,
            )
        ]
        for link in links:
            link.start()
        is_disturbed_early = rng.random() < 0.5
        for _ in range(self.INPUTS_PER_LINK):
            for link, queue in zip(links, queues, strict=True):
                arrived = list(queue)
                queue.clear()
                if not arrived or not is_disturbed_early:
                    link.receive(arrived)
                for each in arrived or self._corpus.inputs[-1:]:
                    link.receive([self._corpus.draw(rng, each)])
                if link.certificate is not None:
                    link.send([self._source.make(rng)])
                    sealed = self._corpus.draw(rng, rng.randbytes(rng.randrange(40)))
                    link.transmit(rng.choice((DATA, FRAGMENT)), sealed[:BODY_BYTES_MAX])
        for link in links:
            link.close("over")

    def close(self) -> None:
        self._loop.close()
        self._directory.cleanup()


class NodeUnderTest:
    """Frames at a node with one neighbour, which keeps its state for a while."""

    INPUTS_PER_NODE = 200

    def __init__(self) -> None:
        self._played = 0
        self._now = 0.0
        self._node = self.start()

    def start(self) -> Node:
        """Return a node with a link to its neighbour."""
        raise NotImplementedError

    def make(self, rng: random.Random) -> bytes:
        """Return a frame of the neighbour."""
        raise NotImplementedError

    def run(self, rng: random.Random) -> None:
        if self._played >= self.INPUTS_PER_NODE:
            self._played, self._now = 0, 0.0
            self._node = self.start()
        self._played += 1
        made = self.make(rng)
        self._now += 0.05
        control = self._node.forward_batch(LINK, iter([made]), {}, [], [], self._now)
        if control is None:
            return
        try:
            frame = decode(control)
        except InvalidFrame:
            return
        for each in self._node.handle(FrameReceived(LINK, frame), self._now):
            if hasattr(each, "frame"):
                encode(each.frame)
            if isinstance(each, CloseLink | NodeUnreachable):  # little is heard from now on
                self._played = self.INPUTS_PER_NODE
        due = self._node.next_deadline()
        if due is not None and due <= self._now:
            self._node.handle(TimerFired(), self._now)

    def close(self) -> None: ...


class FrameTarget(NodeUnderTest):
    """Frames at a node without certificates."""

    def __init__(self) -> None:
        keys = [bytes([number]) * KEY_BYTES for number in range(1, 5)]
        self._identity = Identity(node_id(keys[0]), keys[0], 1_000, "me", (), 1.0)
        self._peer_key = keys[1]
        known = tuple(node_id(key) for key in keys) + (1, 2, 999, 1_000, 1_001)
        self._source = FrameSource(known)
        self._corpus = Corpus()
        super().__init__()

    def start(self) -> Node:
        node = Node(self._identity, ProtocolSettings(nodes_max=16, filters_max=64))
        node.handle(ClockRead(10_000), 0.0)
        effects = node.handle(LinkOpened(LINK, True, True), 0.0)
        ours = next(each.frame for each in effects if hasattr(each, "frame"))
        assert isinstance(ours, Hello)
        values = {name: getattr(ours, name) for name in ours.__struct_fields__}
        hello = Hello(**{**values, "node": node_id(self._peer_key), "key": self._peer_key})
        node.handle(FrameReceived(LINK, hello), 0.0)
        return node

    def make(self, rng: random.Random) -> bytes:
        return self._corpus.draw(rng, self._source.make(rng))


class HttpTarget:
    """Requests to the HTTP server, over a real socket."""

    PARTS = (
        b"GET",
        b"POST",
        b"/status",
        b"/do?node=1",
        b"/logs",
        b"/%00",
        b"/../x",
        b"HTTP/1.1",
        b"?",
    )
    HEADERS = (
        *(b"Host: localhost", b"Host: evil.example", b"Host: [::1", b"Origin: http://localhost"),
        *(b"Authorization: Bearer secret", b"Authorization: Basic !!", b"Content-Length: 9"),
        *(b":", b"x", b"Authorization: Basic OmE=", b"\xff\xfe: \x00"),
    )

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._corpus = Corpus()
        protection = Protection(HostRule("127.0.0.1"), AdminAccess("secret", "read"))
        self._server = self._loop.run_until_complete(
            serve("127.0.0.1", 0, {"/status": self._page}, self._echo, protection, self._handlers())
        )

    def _page(self) -> HttpResponse:
        return json_response({"ok": True})

    async def _echo(self, path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
        return json_response({path: query})

    def _handlers(self) -> dict[str, Any]:
        return {"POST /do": self._echo, "/ask": self._echo}

    def run(self, rng: random.Random) -> None:
        line = b" ".join(rng.choice(self.PARTS) for _ in range(rng.choice((3, 3, 3, 1, 5))))
        headers = [rng.choice(self.HEADERS) for _ in range(rng.randrange(5))]
        made = self._corpus.draw(rng, b"\r\n".join([line, *headers, b"", b""]))
        answer = self._loop.run_until_complete(self._ask(made))
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:80]
        assert not answer.startswith(b"HTTP/1.1 500"), answer[:200]

    async def _ask(self, request: bytes) -> bytes:
        port = self._server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            writer.write_eof()
            async with asyncio.timeout(30):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def close(self) -> None:
        self._server.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
