"""Links over real datagrams on loopback."""

import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

import pytest
import uvloop
from tests.agent.links.listener import End, join
from tests.agent.waiting import until

from hansa.agent.links import dialler, udp, udp_session
from hansa.agent.links.datagrams import ACCEPT, CLOSE, CONFIRM, DATA, FRAGMENT, OFFER, OPEN
from hansa.agent.links.link import Address
from hansa.agent.links.udp import UdpLinks
from hansa.agent.links.udp_link import QUEUED_BYTES_MAX
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION
from hansa.testbed.datagram_relay import DatagramRelay

CONTROL = b"\x10"


class Side(End[UdpLinks]):
    """One end of links of this kind."""

    def __init__(self) -> None:
        super().__init__(lambda listener: UdpLinks(listener, random.Random(1), count(1)))


async def joined() -> tuple[Side, Side]:
    """Two sides with a link between them; the second one dialled."""
    server, client = Side(), Side()
    await join(server, client)
    return server, client


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(
    work: Callable[[Side, Side], Coroutine[Any, Any, None]], loop: str = "asyncio"
) -> tuple[Side, Side]:
    """Run a function with two joined sides."""

    async def whole() -> tuple[Side, Side]:
        server, client = await joined()
        await work(server, client)
        await asyncio.gather(client.stop(), server.stop())
        return server, client

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(whole())


@pytest.mark.parametrize("loop", LOOPS)
def test_small_frames_share_datagrams_and_large_control_frames_are_fragmented(loop):
    small, large = [b"a", PUBLICATION.to_bytes() + b"b", b"c"], CONTROL * CONTROL_BYTES_MAX

    async def work(server: Side, client: Side) -> None:
        (link,) = client.listener.opened
        link.send([*small, large])
        assert link.outstanding_bytes > 0
        await until(lambda: len(server.listener.frames) == 4, "all frames")
        assert link.outstanding_bytes == 0
        server.listener.opened[0].send([b"back"])
        await until(lambda: client.listener.frames, "an answer")

    server, client = run(work, loop)
    assert sorted(server.listener.frames, key=len) == [b"a", b"c", small[1], large]
    assert client.listener.frames == [b"back"]
    assert server.listener.opened[0].bytes_in > CONTROL_BYTES_MAX


def test_publication_larger_than_a_datagram_is_dropped_and_reported():
    large, small = bytes((PUBLICATION,)) * 2_000, bytes((PUBLICATION,)) * 1_000

    async def work(server: Side, client: Side) -> None:
        client.listener.opened[0].send([large, small, large])
        await until(lambda: server.listener.frames, "the small one")

    server, client = run(work)
    assert server.listener.frames == [small]
    assert client.listener.dropped == [(2, "too large for a datagram link")]
    assert client.listener.opened[0].drop_reasons.total() == 2


def test_waiting_large_frames_are_bounded_and_unique():
    async def work(server: Side, client: Side) -> None:
        (link,) = client.listener.opened
        frames = [CONTROL + bytes((number,)) + bytes(1 << 20) for number in range(12)]
        link.send(frames[:1])
        before = link.outstanding_bytes
        link.send(frames[:1])
        assert link.outstanding_bytes == before
        link.send(frames)
        assert QUEUED_BYTES_MAX < link.outstanding_bytes < QUEUED_BYTES_MAX + (2 << 20)

    run(work)


def test_end_is_reported_with_its_reason():
    async def work(server: Side, client: Side) -> None:
        client.listener.opened[0].close("enough")
        client.listener.opened[0].close("said twice")
        await until(lambda: server.listener.closed, "closed")

    server, client = run(work)
    assert server.listener.closed[0] == "closed by the other side: enough"
    assert client.listener.closed[0] == "enough"


def test_lost_link_is_redialled():
    async def work(server: Side, client: Side) -> None:
        server.listener.opened[0].close("cut")
        await until(lambda: len(client.listener.opened) == 2, "second link")
        await until(lambda: len(server.listener.opened) == 2, "on both sides")

    run(work)


def test_listener_without_session_ends_it():
    async def work(server: Side, client: Side) -> None:
        server.links._sessions.clear()  # noqa: SLF001  as a restart does
        server.listener.opened.clear()
        client.listener.opened[0].send([b"anybody?"])
        await until(lambda: client.listener.closed, "closed")

    _, client = run(work)
    assert client.listener.closed[0] == "closed by the other side"


@pytest.mark.parametrize("frame", [b"anybody?", CONTROL * 1_500], ids=["small", "two pieces"])
def test_missing_listener_is_detected_at_once(frame):
    async def work(server: Side, client: Side) -> None:
        await server.links.stop()
        server.links._sessions.clear()  # noqa: SLF001
        server.links._close_if_unused()  # noqa: SLF001  as kill -9 does
        server.listener.opened.clear()
        (link,) = client.listener.opened

        def noticed() -> bool:
            link.send([frame])
            return bool(client.listener.closed)

        await until(noticed, "closed")

    _, client = run(work)
    assert client.listener.closed[0] == "Connection refused"


def test_dialling_continues_until_a_listener_answers(monkeypatch):
    monkeypatch.setattr(dialler, "DIAL_MIN_S", 0.01)
    monkeypatch.setattr(dialler, "DIAL_MAX_S", 0.05)

    async def whole() -> list[str]:
        server, client = Side(), Side()
        await server.listen()
        await server.stop()
        client.dial(server.address)
        await until(lambda: len(client.failures) >= 3, "three failures")
        again = Side()
        again.address = server.address
        await again.listen()
        await until(lambda: client.listener.opened, "link up")
        await asyncio.gather(client.stop(), again.stop())
        return client.failures

    assert set(asyncio.run(whole())) == {"Connection refused"}


def test_dialling_a_silent_listener_times_out(monkeypatch):
    monkeypatch.setattr(dialler, "DIAL_TIMEOUT_S", 10 * udp_session.HANDSHAKE_RETRY_S)

    async def whole() -> list[str]:
        client = Side()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            client.dial(Address("127.0.0.1", silent.getsockname()[1]))
            await until(lambda: client.failures, "a failure")
            asked = [silent.recv(100)[:1] for _ in range(2)]
            assert asked == [OPEN, OPEN]
        await client.stop()
        return client.failures

    assert asyncio.run(whole())[0] == "no answer in time"


def test_link_opens_despite_one_third_packet_loss():
    large = CONTROL * 100_000

    async def whole() -> list[bytes]:
        server, client = Side(), Side()
        await server.listen()
        relay = DatagramRelay(server.address.port, 0.001, 0.33)
        client.dial(Address("127.0.0.1", await relay.start()))
        await until(lambda: server.listener.opened and client.listener.opened, "link up")

        def arrived() -> bool:
            link = client.listener.opened[-1]
            if not link.outstanding_bytes:
                link.send([large])  # like a node that misses an acknowledgement
            return large in server.listener.frames

        await until(arrived, "the large frame")
        await asyncio.gather(client.stop(), server.links.stop())
        for link in server.listener.opened:  # the closing datagram may be lost
            link.close("test over")
        await relay.stop()
        return server.listener.frames

    assert large in asyncio.run(whole())


# ---------------------------------------------------------------- unknown senders


class Stranger:
    """A raw socket that sends arbitrary datagrams to a listener."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setblocking(False)

    async def ask(self, datagram: bytes) -> bytes:
        self.socket.send(datagram)
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recv(self.socket, 2_000)


def strange(work: Callable[[Side, Stranger], Coroutine[Any, Any, None]]) -> Side:
    async def whole() -> Side:
        server = Side()
        await server.listen()
        stranger = Stranger(server.address.port)
        with stranger.socket:
            await work(server, stranger)
            await server.stop()
        return server

    return asyncio.run(whole())


async def opened(stranger: Stranger) -> bytes:
    """Open a link as a neighbour does; return its session."""
    offer = await stranger.ask(OPEN + b"12345678" + bytes(8))
    assert offer[:1] == OFFER
    assert await stranger.ask(CONFIRM + offer[1:]) == ACCEPT + offer[1:]
    return offer[1:]


def test_garbage_opens_no_link_and_replies_do_not_amplify():
    async def work(server: Side, stranger: Stranger) -> None:
        for kind in (CONFIRM, DATA, FRAGMENT):  # a session without an offer
            assert await stranger.ask(kind + b"s" * 16) == CLOSE + b"s" * 16
        for garbage in (b"", b"?", b"GET / HTTP/1.1\r\n\r\n", bytes(1_500), CLOSE + b"s" * 16):
            stranger.socket.send(garbage)
        assert len(await stranger.ask(OPEN + bytes(16))) == len(OPEN + bytes(16))

    server = strange(work)
    assert server.listener.opened == []
    assert server.links.counters == {"invalid datagrams": 4}


def test_offer_is_valid_for_one_sender_only():
    async def work(server: Side, stranger: Stranger) -> None:
        offer = await stranger.ask(OPEN + b"12345678" + bytes(8))
        other = Stranger(server.address.port)
        with other.socket:
            assert await other.ask(CONFIRM + offer[1:]) == CLOSE + offer[1:]

    assert strange(work).listener.opened == []


def test_repeated_confirmation_is_answered_twice_and_opens_one_link():
    async def work(server: Side, stranger: Stranger) -> None:
        session = await opened(stranger)
        assert await stranger.ask(CONFIRM + session) == ACCEPT + session

    assert len(strange(work).listener.opened) == 1


@pytest.mark.parametrize("bad", [DATA, FRAGMENT])
def test_neighbour_that_sends_invalid_frames_gets_the_reason(bad):
    async def work(server: Side, stranger: Stranger) -> None:
        session = await opened(stranger)
        answer = await stranger.ask(bad + session + b"\xff\xff?")
        assert answer.startswith(CLOSE + session + b"invalid bytes from the other side: a ")

    assert strange(work).listener.closed[0].startswith("invalid bytes from the other side: a ")


def test_links_beyond_limit_are_rejected(monkeypatch):
    monkeypatch.setattr(udp, "LINKS_MAX", 1)

    async def work(server: Side, stranger: Stranger) -> None:
        await opened(stranger)
        client = Side()
        client.dial(server.address)
        await until(lambda: client.failures, "a refusal")
        await client.stop()
        assert client.failures[0] == "refused by the other side"

    assert len(strange(work).listener.opened) == 1
