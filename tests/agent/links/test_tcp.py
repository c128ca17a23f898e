"""Links over real TCP on loopback."""

import asyncio
import random
import socket
import struct
from itertools import count

import pytest
import uvloop
from tests.agent.links.listener import End, join
from tests.agent.links.test_stream import framed, window_ack
from tests.agent.waiting import until

from hansa.agent.links import dialler, stream, tcp
from hansa.agent.links.link import Address
from hansa.agent.links.stream import WINDOW_ACK_BYTES, LinkLimits
from hansa.agent.links.tcp import TcpLinks
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire import codec
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION, encode
from hansa.protocol.wire.frames import RepairResponse

CONTROL = bytes((codec.CONTROL,))
WINDOW = 4 * WINDOW_ACK_BYTES
LIMITS = LinkLimits(WINDOW, 16 << 20)


class Side(End[TcpLinks]):
    """One end of links of this kind."""

    def __init__(self) -> None:
        super().__init__(lambda listener: TcpLinks(listener, random.Random(1), count(1), LIMITS))


async def joined() -> tuple[Side, Side]:
    """Two sides with a link between them; the second one dialled."""
    server, client = Side(), Side()
    await join(server, client)
    return server, client


def test_address_is_formatted_as_host_and_port():
    assert [str(Address("a", 1)), str(Address("::1", 2))] == ["a:1", "[::1]:2"]


def test_frames_of_any_size_arrive_whole_and_in_order():
    frames = [b"a", CONTROL * 300_000, b"c", CONTROL * CONTROL_BYTES_MAX, b"e"]

    async def run() -> Side:
        server, client = await joined()
        client.listener.opened[0].send(frames[:2])
        client.listener.opened[0].send(frames[2:])
        await until(lambda: len(server.listener.frames) == len(frames), "all frames")
        assert client.listener.opened[0].frames_out == len(frames)
        await asyncio.gather(client.stop(), server.stop())
        return server

    server = asyncio.run(run())
    assert server.listener.frames == frames
    assert server.listener.opened[0].bytes_in == len(framed(*frames))


def test_frames_are_parsed_from_single_bytes():
    async def run() -> Side:
        server = Side()
        await server.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        for byte in framed(b"abc", b"d"):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        await until(lambda: len(server.listener.frames) == 2, "two frames")
        writer.close()
        await server.stop()
        return server

    assert asyncio.run(run()).listener.frames == [b"abc", b"d"]


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes, the limit is "),
        (b"\x00\x00\x00\x00", "a frame of 0 bytes, the limit is "),
        (b"\xff" * 9000, "a window ack for "),
        (window_ack(1), "a window ack for 1 bytes, 0 are in flight"),
    ],
)
def test_garbage_closes_connection_with_reason(garbage, reason):
    async def run() -> list[str]:
        server = Side()
        await server.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write(garbage)
        with_reset = asyncio.gather(reader.read(), return_exceptions=True)
        await until(lambda: server.listener.closed, "closed")
        await with_reset
        writer.close()
        await server.stop()
        return server.listener.closed

    (said,) = asyncio.run(run())
    assert said.startswith(f"invalid bytes from the other side: {reason}")


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_reset_connection_is_reported_without_an_error_number(make_loop):
    async def run() -> list[str]:
        server = Side()
        await server.listen()
        with socket.create_connection(("127.0.0.1", server.address.port)) as client:
            await until(lambda: server.listener.opened, "link up")
            no_linger = struct.pack("ii", 1, 0)  # closing with unread data resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        await until(lambda: server.listener.closed, "closed")
        await server.stop()
        return server.listener.closed

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(run()) == ["Connection reset by peer"]


async def unread() -> tuple[Side, asyncio.StreamWriter]:
    """A side linked to a peer that never reads."""
    server = Side()
    await server.listen()
    _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: server.listener.opened, "link up")
    return server, writer


def test_publications_beyond_window_of_unresponsive_neighbour_are_dropped():
    publication, control = bytes((PUBLICATION,)) * 10_000, CONTROL * 10_000

    async def run() -> Side:
        server, writer = await unread()
        (link,) = server.listener.opened
        for _ in range(1_000):
            link.send([publication, control] if link.outstanding_bytes < WINDOW else [publication])
            await asyncio.sleep(0)
        assert link.outstanding_bytes <= WINDOW + 2 * 10_008
        before = link.outstanding_bytes
        link.send([publication, control, publication])
        assert link.outstanding_bytes == before + len(framed(control))
        writer.transport.abort()
        await server.stop()
        return server

    server = asyncio.run(run())
    assert {reason for _, reason in server.listener.dropped} == {"the neighbour's window is full"}
    assert server.listener.dropped[-1][0] == 2
    assert (
        server.listener.opened[0].drop_reasons.total()
        == sum(count for count, _ in server.listener.dropped)
        > 900
    )


def test_neighbour_that_does_not_read_control_frames_is_disconnected(monkeypatch):
    monkeypatch.setattr(stream, "EXCESS_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(stream, "CLOSE_GRACE_S", 0.01)

    async def run() -> Side:
        server, writer = await unread()
        for _ in range(1_000):
            server.listener.opened[0].send([CONTROL * 100_000])
        await until(lambda: server.listener.closed, "given up, without waiting until it reads")
        writer.transport.abort()
        await server.stop()
        return server

    server = asyncio.run(run())
    assert server.listener.closed[0].startswith("the neighbour does not read: ")
    assert server.listener.opened[0].outstanding_bytes < WINDOW + (2 << 20)


def bulk_responses(total_bytes: int) -> list[bytes]:
    """Small repair responses of so many bytes together."""
    size = 50_000
    return [
        encode(RepairResponse(NodeId(1), NodeId(2), 1, number, number, 0, (bytes(size),)))
        for number in range(total_bytes // size)
    ]


def test_bulk_responses_beyond_the_window_wait_and_do_not_close_the_link(monkeypatch):
    monkeypatch.setattr(stream, "EXCESS_BYTES_MAX", 1 << 20)

    async def run() -> Side:
        server, writer = await unread()
        (link,) = server.listener.opened
        for response in bulk_responses(2 * WINDOW + (4 << 20)):
            link.send([response])
        assert link.outstanding_bytes <= WINDOW + 60_000
        link.send([CONTROL * 100])
        assert server.listener.closed == []
        writer.transport.abort()
        await server.stop()
        return server

    asyncio.run(run())


def test_bulk_responses_that_waited_for_the_window_arrive_in_order():
    responses = bulk_responses(2 * WINDOW)

    async def run() -> Side:
        server, client = await joined()
        (link,) = client.listener.opened
        for response in responses:  # without a pause in which the other side could read
            link.send([response])
        await until(lambda: len(server.listener.frames) == len(responses), "all responses")
        await asyncio.gather(client.stop(), server.stop())
        return server

    assert asyncio.run(run()).listener.frames == responses


def test_outstanding_bytes_return_to_zero_when_the_neighbour_has_handled_everything(monkeypatch):
    """Fewer than WINDOW_ACK_BYTES are acknowledged after a delay; acks are not acknowledged."""
    monkeypatch.setattr(stream, "WINDOW_ACK_DELAY_S", 0.05)

    async def run() -> None:
        server, client = await joined()
        (sender,), (receiver,) = client.listener.opened, server.listener.opened
        sender.send([CONTROL * 100])
        assert sender.outstanding_bytes == sender.bytes_out == len(framed(CONTROL * 100))
        await until(lambda: sender.outstanding_bytes == 0, "a window ack for a few bytes")
        assert sender.bytes_out == len(framed(CONTROL * 100))
        assert (receiver.bytes_out, receiver.outstanding_bytes) == (len(window_ack(1)), 0)
        receiver.send([CONTROL * 10])
        await until(lambda: receiver.outstanding_bytes == 0, "a window ack in the other direction")
        assert (sender.bytes_in, sender.bytes_out) == (4 + 14, 104 + 4)
        await asyncio.gather(client.stop(), server.stop())

    asyncio.run(run())


def test_window_acks_keep_the_window_open():
    publication = bytes((PUBLICATION,)) * 10_000

    async def run() -> tuple[Side, Side]:
        server, client = await joined()
        (link,) = client.listener.opened
        for _ in range(1_000):
            link.send([publication])
            await until(lambda: link.outstanding_bytes <= WINDOW, "room for more")
        await until(lambda: link.outstanding_bytes == 0, "window acks for everything")
        await asyncio.gather(client.stop(), server.stop())
        return server, client

    server, client = asyncio.run(run())
    assert len(server.listener.frames) == 1_000
    assert client.listener.dropped == []


def test_small_publications_overtake_waiting_large_one():
    large = encode(Publication(NodeId(1), 1, 1, 0, "large", bytes(8 << 20)))
    small = encode(Publication(NodeId(1), 1, 2, 0, "small", b""))

    async def run() -> Side:
        server, client = await joined()
        (link,) = client.listener.opened
        link.send([large])
        link.send([small])
        await until(lambda: len(server.listener.frames) == 2, "both")
        await asyncio.gather(client.stop(), server.stop())
        return server

    server = asyncio.run(run())
    assert server.listener.frames == [small, large]


def test_large_publication_gets_share_of_busy_link():
    large = encode(Publication(NodeId(1), 1, 1, 0, "large", bytes(1 << 20)))
    small = encode(Publication(NodeId(1), 1, 2, 0, "small", bytes(1 << 14)))

    async def run() -> Side:
        server, client = await joined()
        (link,) = client.listener.opened
        link.send([large])
        while large not in server.listener.frames:
            if link.outstanding_bytes < WINDOW:
                link.send([small] * 4)  # more than the link sends at once
            await asyncio.sleep(0)
        await asyncio.gather(client.stop(), server.stop())
        return server

    assert large in asyncio.run(run()).listener.frames


def test_large_publications_use_half_of_the_window_and_excess_is_dropped():
    large = encode(Publication(NodeId(1), 1, 1, 0, "large", bytes(2 * WINDOW)))

    async def run() -> Side:
        server, writer = await unread()
        (link,) = server.listener.opened
        link.send([large] * 3)
        assert link.outstanding_bytes <= WINDOW // 2 + WINDOW_ACK_BYTES
        writer.transport.abort()
        await server.stop()
        return server

    assert asyncio.run(run()).listener.dropped == [(2, "the neighbour's window is full")]


@pytest.mark.parametrize("total", [1, 1 << 30])
def test_invalid_fragments_close_link(total):
    async def run() -> Side:
        server = Side()
        await server.listen()
        _, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
        writer.write((stream.FRAGMENT_BIT | 5).to_bytes(4, "big") + total.to_bytes(4, "big") + b"x")
        await until(lambda: server.listener.closed, "closed")
        writer.close()
        await server.stop()
        return server

    reason = f"invalid bytes from the other side: a frame of {total} bytes in pieces, the limit is"
    assert asyncio.run(run()).listener.closed[0].startswith(reason)


def test_connections_beyond_limit_are_rejected(monkeypatch):
    monkeypatch.setattr(tcp, "LINKS_MAX", 2)

    async def run() -> tuple[int, bytes]:
        server = Side()
        await server.listen()
        port = server.address.port
        kept = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(2)]
        await until(lambda: len(server.listener.opened) == 2, "two links")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            end = await reader.read()
        except ConnectionError:
            end = b""
        count = len(server.listener.opened)
        for each in (*kept, writer):
            each.close()
        await server.stop()
        return count, end

    assert asyncio.run(run()) == (2, b"")


def test_dialling_continues_until_a_listener_answers(monkeypatch):
    monkeypatch.setattr(dialler, "DIAL_MIN_S", 0.01)
    monkeypatch.setattr(dialler, "DIAL_MAX_S", 0.05)

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
        await until(lambda: client.listener.opened, "link up")
        await asyncio.gather(client.stop(), again.stop())
        return client.failures

    assert set(asyncio.run(run())) == {"Connection refused"}


def test_lost_link_is_redialled():
    async def run() -> list[str]:
        server, client = await joined()
        server.listener.opened[0].close("cut")
        await until(lambda: len(client.listener.opened) == 2, "second link")
        await asyncio.gather(client.stop(), server.stop())
        return [*server.listener.closed[:1], *client.listener.closed[:1]]

    assert asyncio.run(run()) == ["cut", "closed by the other side"]


def test_dial_backoff_is_bounded_and_jittered(monkeypatch):
    pauses: list[float] = []

    async def run() -> None:
        client = Side()
        sleep, here = asyncio.sleep, asyncio.get_running_loop()

        async def note(seconds: float) -> None:
            if asyncio.get_running_loop() is not here:  # a federation of other tests, in a thread
                await sleep(seconds)
                return
            pauses.append(seconds)
            await sleep(0 if len(pauses) < 12 else 3600)

        monkeypatch.setattr("hansa.agent.links.dialler.asyncio.sleep", note)
        client.dial(Address("127.0.0.1", 1))
        while len(pauses) < 12:
            await sleep(0.001)
        await client.links.stop()

    asyncio.run(run())
    for number, pause in enumerate(pauses):
        most = min(dialler.DIAL_MIN_S * 2**number, dialler.DIAL_MAX_S)
        assert most / 2 <= pause <= most


def test_paused_link_is_read_later():
    async def run() -> None:
        server, client = await joined()
        server.listener.opened[0].pause(0.05)
        client.listener.opened[0].send([b"a"])
        assert not server.listener.frames
        await until(lambda: server.listener.frames == [b"a"], "read after the pause")
        server.listener.opened[0].pause(60)
        client.listener.opened[0].send([b"b"])
        await asyncio.sleep(0.05)  # long enough for b to arrive, if it were read
        assert server.listener.frames == [b"a"]
        await asyncio.gather(client.stop(), server.stop())

    asyncio.run(run())


def test_bytes_that_no_honest_neighbour_sends_are_reported():
    async def run() -> Side:
        server = Side()
        await server.listen()
        _, writer = await asyncio.open_connection(server.address.host, server.address.port)
        writer.write(struct.pack(">I", CONTROL_BYTES_MAX + 1))
        await until(lambda: server.listener.closed, "closed")
        writer.close()
        await server.stop()
        return server

    assert asyncio.run(run()).listener.offences == [
        f"a frame of {CONTROL_BYTES_MAX + 1} bytes, the limit is {CONTROL_BYTES_MAX}"
    ]
