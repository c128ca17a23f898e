"""Unfinished TLS handshakes at an HTTPS port: bounded, and the oldest gives way."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
from tests.agent.waiting import until
from tests.identity.certified import write_https_certificate

from hansa.agent import handshakes
from hansa.agent.handshakes import EVICTED, FAILED, TlsServer
from hansa.agent.sockets import listen


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return write_https_certificate(tmp_path / "https.pem")


Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    found: Loop = pytest.importorskip(request.param).new_event_loop
    return found


def run(
    loop: Loop, certificate: Path, test: Callable[[int, Counter[str]], Awaitable[None]]
) -> None:
    async def serve() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        counters: Counter[str] = Counter()
        server = TlsServer(await listen("127.0.0.1", 0), Echo, context, counters)
        try:
            await test(server.sockets[0].getsockname()[1], counters)
        finally:
            server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(serve())


async def echo(port: int, certificate: Path) -> None:
    context = ssl.create_default_context(cafile=certificate)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"x" * 100_000)
    assert await reader.readexactly(100_000) == b"x" * 100_000
    writer.close()
    await writer.wait_closed()


def test_newcomer_is_served_beside_idle_connections_and_the_oldest_is_closed(
    loop, certificate, monkeypatch
):
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 3)

    async def test(port: int, counters: Counter[str]) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        await echo(port, certificate)
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in idle]
        await asyncio.gather(*ends[:3], return_exceptions=True)  # 5 idle and 1 more, 3 places
        assert counters[EVICTED] == 3
        assert [each.done() for each in ends[3:]] == [False, False]
        for end, (_, writer) in zip(ends, idle, strict=True):
            end.cancel()
            writer.close()

    run(loop, certificate, test)


def test_handshake_that_takes_too_long_is_closed_and_counted(loop, certificate, monkeypatch):
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIMEOUT_S", 0.05)

    async def test(port: int, counters: Counter[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00")  # the head of a ClientHello
        assert await reader.read() == b""
        writer.close()
        await until(lambda: counters == {FAILED: 1}, "counted")

    run(loop, certificate, test)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b""])
def test_connection_without_tls_is_closed_and_counted(loop, certificate, data):
    async def test(port: int, counters: Counter[str]) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.close()
        await until(lambda: counters == {FAILED: 1}, "counted")
        await echo(port, certificate)

    run(loop, certificate, test)


def test_request_that_comes_with_the_end_of_the_handshake_is_not_lost(loop, certificate):
    """Both are in one segment."""

    async def test(port: int, counters: Counter[str]) -> None:
        context = ssl.create_default_context(cafile=certificate)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        client.write(b"request")
        writer.write(outgoing.read())
        answer = b""
        while not answer:
            incoming.write(await reader.read(65_536))
            try:
                answer = client.read()
            except ssl.SSLWantReadError:
                pass
        assert answer == b"request"
        writer.close()

    run(loop, certificate, test)
