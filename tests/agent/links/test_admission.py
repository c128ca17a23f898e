"""Connections that are not admitted: limits of time, bytes and number."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count

import pytest
from tests.agent.links.listener import RecordingListener
from tests.agent.links.test_stream import framed
from tests.agent.waiting import until

from hansa.agent.links import admission
from hansa.agent.links.admission import (
    EVICTED,
    HELLO_BYTES,
    NO_HELLO,
    REFUSED_BYTES,
    TOO_MANY_BYTES,
    Admission,
)
from hansa.agent.links.link import Address
from hansa.agent.links.stream import (
    DEFAULT_LIMITS,
    FIRST_READ_BYTES,
    LENGTH_BYTES,
    READ_BYTES,
    StreamLink,
)
from hansa.agent.links.tcp import TcpLinks
from hansa.agent.links.udp import UdpLinks
from hansa.agent.links.udp_link import UdpLink
from hansa.protocol.model import LinkId

Scene = Callable[["Port"], Awaitable[None]]


class Port:
    """A link port that admits no connection automatically."""

    def __init__(self) -> None:
        self.listener = RecordingListener(admits=False)
        self.admission = Admission()
        self.links = TcpLinks(self.listener, random.Random(1), count(1), admission=self.admission)
        self.address = Address("127.0.0.1", 0)
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        known = len(self.listener.opened)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.address.port)
        self._writers.append(writer)
        await until(lambda: len(self.listener.opened) > known, "accepted")
        return reader, writer

    async def stop(self) -> None:
        await self.links.stop()
        for link in self.listener.opened:
            link.close("test over")
        for writer in self._writers:
            writer.close()
        await until(
            lambda: len(self.listener.closed) == len(self.listener.opened), "all links closed"
        )


def play(scene: Scene) -> Port:
    async def run() -> Port:
        port = Port()
        port.address = await port.links.listen(port.address)
        await scene(port)
        await port.stop()
        return port

    return asyncio.run(run())


def test_connection_without_hello_is_closed_in_time(monkeypatch):
    monkeypatch.setattr(admission, "HELLO_S", 0.05)

    async def scene(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(framed(b"x"))  # its content is ignored until the node admits it
        assert await reader.read() == b""

    port = play(scene)
    assert port.listener.closed == [NO_HELLO]
    assert port.admission.counters == {f"refused: {NO_HELLO}": 1}


def test_admitted_connection_stays(monkeypatch):
    monkeypatch.setattr(admission, "HELLO_S", 1.0)  # accepting may take half of it on busy cores

    async def scene(port: Port) -> None:
        await port.connect()
        port.listener.opened[0].admit()
        await asyncio.sleep(1.1)
        assert not port.listener.closed

    assert not play(scene).admission.counters


@pytest.mark.parametrize(
    "data",
    [
        framed(*[b"x" * 60] * 100),
        framed(b"x" * 10_000),
        framed(b"x" * 10_000)[:8],  # only the length is sent
        framed(b"x" * HELLO_BYTES)[:HELLO_BYTES],
    ],
)
def test_more_bytes_than_a_hello_needs_close_the_connection(data):
    async def scene(port: Port) -> None:
        _, writer = await port.connect()
        writer.write(data)
        await until(lambda: port.listener.closed, "closed")

    port = play(scene)
    assert port.listener.closed == [TOO_MANY_BYTES]
    assert port.admission.counters == {f"refused: {TOO_MANY_BYTES}": 1}


def test_buffer_grows_only_for_an_admitted_connection():
    async def scene(port: Port) -> None:
        await port.connect()
        (link,) = port.listener.opened
        assert isinstance(link, StreamLink)
        assert len(link.get_buffer(-1)) == HELLO_BYTES
        link.admit()
        assert len(link.get_buffer(-1)) == FIRST_READ_BYTES
        frame = framed(b"x" * (FIRST_READ_BYTES - LENGTH_BYTES))
        for read, room in ((frame[:-1], 1), (frame[-1:], READ_BYTES)):
            link.get_buffer(-1)[: len(read)] = read
            link.buffer_updated(len(read))
            assert len(link.get_buffer(-1)) == room

    play(scene)


def test_large_frame_right_behind_the_hello_arrives():
    frames = [b"hello", b"x" * 200_000]

    async def scene(port: Port) -> None:
        _, writer = await port.connect()
        received = port.listener.frames_received

        def admit_first(link, found):
            received(link, found)
            link.admit()

        port.listener.frames_received = admit_first  # type: ignore[method-assign]
        writer.write(framed(*frames))
        await until(lambda: port.listener.frames == frames, "both frames")

    assert not play(scene).admission.counters


def test_refused_neighbour_may_still_send_its_goodbye():
    goodbye = b"x" * (REFUSED_BYTES // 2)

    async def scene(port: Port) -> None:
        _, writer = await port.connect()
        port.listener.opened[0].allow_last_frames()
        writer.write(framed(goodbye))
        await until(lambda: port.listener.frames == [goodbye], "the goodbye")
        writer.write(framed(goodbye))
        await until(lambda: port.listener.closed, "closed: it said more than a goodbye")

    assert play(scene).listener.closed == [TOO_MANY_BYTES]


def test_oldest_pending_connection_is_evicted_for_a_new_one(monkeypatch):
    monkeypatch.setattr(admission, "PENDING_MAX", 3)

    async def scene(port: Port) -> None:
        for number in range(6):
            await port.connect()
            if number == 1:
                port.listener.opened[1].admit()
        await until(lambda: len(port.listener.closed) == 2, "two gave way")
        closed = [link.closed.is_set() for link in port.listener.opened]
        assert closed == [True, False, True, False, False, False]

    port = play(scene)
    assert port.admission.counters == {f"refused: {EVICTED}": 2}


@pytest.mark.pure
def test_connection_of_the_host_with_most_is_evicted(monkeypatch):
    monkeypatch.setattr(admission, "PENDING_MAX", 3)

    async def run() -> list[bool]:
        watching, listener = Admission(), RecordingListener(admits=False)
        remotes = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1")
        made = [FakeLink(listener, remote) for remote in remotes]
        for link in made:
            watching.watch(link)
        return [link.closed.is_set() for link in made]

    assert asyncio.run(run()) == [False, True, False, False]


class FakeLink(StreamLink):
    """A link without a connection."""

    def __init__(self, listener: RecordingListener, remote: str) -> None:
        super().__init__(LinkId(1), listener, DEFAULT_LIMITS, remote)

    def close(self, reason: str) -> None:
        self.closed.set()


def test_datagram_session_has_the_same_limits(monkeypatch):
    monkeypatch.setattr(admission, "HELLO_S", 0.3)

    async def run() -> tuple[Admission, list[str]]:
        listener, watching = RecordingListener(admits=False), Admission()
        server = UdpLinks(listener, random.Random(1), count(1), watching)
        address = await server.listen(Address("127.0.0.1", 0))
        far = RecordingListener()
        client = UdpLinks(far, random.Random(2), count(1))
        for number in range(2):
            client.dialler.dial_once(address, lambda *_: None)
            await until(lambda: len(listener.opened) > number, "a session")  # noqa: B023
        await until(lambda: len(far.opened) == 2, "both sessions")
        flooding = far.opened[0]
        assert isinstance(flooding, UdpLink)
        flooding.send([b"x" * 1_000] * 5)
        await until(lambda: len(listener.closed) == 2, "both closed")
        for link in far.opened:
            link.close("test over")
        await asyncio.gather(client.stop(), server.stop())
        return watching, listener.closed

    watching, closed = asyncio.run(run())
    assert sorted(closed) == sorted([TOO_MANY_BYTES, NO_HELLO])
    assert watching.counters == {f"refused: {reason}": 1 for reason in (TOO_MANY_BYTES, NO_HELLO)}
