"""Links over real TCP on loopback."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.waiting import until

from hansa.agent.links import tcp
from hansa.agent.links.tcp import Address, TcpLink, TcpLinks, split
from hansa.errors import InvalidFrame
from hansa.protocol.wire import FRAME_BYTES_MAX


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.opened: list[TcpLink] = []
        self.frames: list[bytes] = []
        self.closed: list[str] = []

    def link_opened(self, link: TcpLink) -> None:
        self.opened.append(link)

    def frames_received(self, link: TcpLink, frames: list[bytes]) -> None:
        self.frames += frames

    def link_closed(self, link: TcpLink, reason: str) -> None:
        self.closed.append(reason)


class Side:
    """One end: its links and what they told."""

    def __init__(self) -> None:
        self.ear = Ear()
        self.links = TcpLinks(self.ear, random.Random(1))
        self.failures: list[str] = []
        self.address = Address("127.0.0.1", 0)

    async def listen(self) -> None:
        self.address = await self.links.listen(self.address)

    def dial(self, address: Address) -> None:
        self.links.dial(address, lambda _, reason: self.failures.append(reason))

    async def stop(self) -> None:
        await self.links.stop()
        for link in self.ear.opened:
            link.close("test over")
        await until(lambda: len(self.ear.closed) == len(self.ear.opened), "all links closed")


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


async def joined() -> tuple[Side, Side]:
    """Two sides with a link between them; the second one dialled."""
    server, client = Side(), Side()
    await server.listen()
    client.dial(server.address)
    await until(lambda: server.ear.opened and client.ear.opened, "link up")
    return server, client


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(0, 60))
def test_splitting_returns_whole_frames_and_leaves_the_rest(frames, cut):
    data = framed(*frames)
    filled = max(0, len(data) - cut)
    found, used = split(bytearray(data), filled)
    assert found == frames[: len(found)]
    assert used == len(framed(*found))
    rest = filled - used
    assert rest < 4 or rest < 4 + int.from_bytes(data[used : used + 4], "big")


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_a_length_that_cannot_be_is_refused_before_its_bytes_come(length):
    with pytest.raises(InvalidFrame, match=f"a frame of {length} bytes, the limit is"):
        split(bytearray(length.to_bytes(4, "big")), 4)


def test_an_address_is_written_as_people_do():
    assert [str(Address("a", 1)), str(Address("::1", 2))] == ["a:1", "[::1]:2"]


def test_frames_arrive_whole_and_in_order_whatever_their_size():
    frames = [b"a", b"b" * 300_000, b"c", b"d" * FRAME_BYTES_MAX, b"e"]

    async def run() -> Side:
        server, client = await joined()
        client.ear.opened[0].send(frames[:2])
        client.ear.opened[0].send(frames[2:])
        await until(lambda: len(server.ear.frames) == len(frames), "all frames")
        await asyncio.gather(client.stop(), server.stop())
        return server

    server = asyncio.run(run())
    assert server.ear.frames == frames
    assert server.ear.opened[0].bytes_in == len(framed(*frames))


def test_bytes_that_come_one_by_one_make_frames():
    async def run() -> Side:
        server = Side()
        await server.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        for byte in framed(b"abc", b"d"):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        await until(lambda: len(server.ear.frames) == 2, "two frames")
        writer.close()
        await server.stop()
        return server

    assert asyncio.run(run()).ear.frames == [b"abc", b"d"]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00", b"\xff" * 9000]
)
def test_garbage_closes_the_connection_and_says_why(garbage):
    async def run() -> list[str]:
        server = Side()
        await server.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write(garbage)
        with_reset = asyncio.gather(reader.read(), return_exceptions=True)
        await until(lambda: server.ear.closed, "closed")
        await with_reset
        writer.close()
        await server.stop()
        return server.ear.closed

    (reason,) = asyncio.run(run())
    assert reason.startswith("this is no neighbour of ours: a frame of ")


def test_a_neighbour_that_never_reads_is_given_up(monkeypatch):
    monkeypatch.setattr(tcp, "BUFFER_BYTES_MAX", 1 << 18)
    monkeypatch.setattr(tcp, "STUCK_BYTES_MAX", 1 << 20)

    async def run() -> tuple[bool, list[str]]:
        server = Side()
        await server.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: server.ear.opened, "link up")
        (link,) = server.ear.opened
        was_congested = False
        for _ in range(1_000):
            link.send([b"x" * 100_000])
            was_congested |= link.congested
            await asyncio.sleep(0)
            if server.ear.closed:
                break
        writer.transport.abort()
        await server.stop()
        return was_congested, server.ear.closed

    was_congested, (reason,) = asyncio.run(run())
    assert was_congested
    assert reason.startswith("the neighbour does not read: ")


def test_more_connections_than_the_bound_are_turned_away(monkeypatch):
    monkeypatch.setattr(tcp, "LINKS_MAX", 2)

    async def run() -> tuple[int, bytes]:
        server = Side()
        await server.listen()
        port = server.address.port
        kept = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(2)]
        await until(lambda: len(server.ear.opened) == 2, "two links")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            end = await reader.read()
        except ConnectionError:
            end = b""
        count = len(server.ear.opened)
        for each in (*kept, writer):
            each.close()
        await server.stop()
        return count, end

    assert asyncio.run(run()) == (2, b"")


def test_dialling_goes_on_until_somebody_is_there(monkeypatch):
    monkeypatch.setattr(tcp, "DIAL_MIN_S", 0.01)
    monkeypatch.setattr(tcp, "DIAL_MAX_S", 0.05)

    async def run() -> list[str]:
        server, client = Side(), Side()
        await server.listen()
        address = server.address
        await server.stop()
        client.dial(address)
        await until(lambda: len(client.failures) >= 3, "three failures")
        again = Side()
        again.address = address
        await again.listen()
        await until(lambda: client.ear.opened, "link up")
        await asyncio.gather(client.stop(), again.stop())
        return client.failures

    assert set(asyncio.run(run())) == {"Connection refused"}


def test_a_lost_link_is_dialled_again():
    async def run() -> list[str]:
        server, client = await joined()
        server.ear.opened[0].close("cut")
        await until(lambda: len(client.ear.opened) == 2, "second link")
        await asyncio.gather(client.stop(), server.stop())
        return [*server.ear.closed[:1], *client.ear.closed[:1]]

    assert asyncio.run(run()) == ["cut", "closed by the other side"]


def test_pauses_grow_up_to_a_bound_and_are_spread(monkeypatch):
    pauses: list[float] = []

    async def run() -> None:
        client = Side()
        sleep = asyncio.sleep

        async def note(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0 if len(pauses) < 12 else 3600)

        monkeypatch.setattr("hansa.agent.links.tcp.asyncio.sleep", note)
        client.dial(Address("127.0.0.1", 1))
        while len(pauses) < 12:
            await sleep(0.001)
        await client.links.stop()

    asyncio.run(run())
    for number, pause in enumerate(pauses):
        most = min(tcp.DIAL_MIN_S * 2**number, tcp.DIAL_MAX_S)
        assert most / 2 <= pause <= most
