"""The direct transport over real sockets on loopback, on both loops."""

import asyncio
import resource
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.agent.live import eventually
from tests.agent.waiting import until

from hansa.agent import sockets
from hansa.agent.sockets import SocketTransport, acknowledged_bytes

MUCH = bytes(range(256)) * (1 << 16)  # 16 MiB: more than the buffers of both kernels


class RecordingProtocol(asyncio.BufferedProtocol):
    """Records received bytes and the end of the connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self._buffer = bytearray(1 << 16)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class FaultyProtocol(RecordingProtocol):
    def buffer_updated(self, nbytes: int) -> None:
        raise ZeroDivisionError


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialled = socket.create_connection(listening.getsockname())
        return dialled, listening.accept()[0]


Work = Callable[[SocketTransport, RecordingProtocol, socket.socket], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def joined(request):
    """Return a function that runs work with a transport, its protocol and the remote socket."""

    def run(work: Work, protocol: RecordingProtocol | None = None) -> RecordingProtocol:
        protocol = protocol or RecordingProtocol()

        async def inside() -> None:
            ours, theirs = pair()
            with theirs:
                theirs.setblocking(False)
                transport = SocketTransport(ours, protocol)
                await work(transport, protocol, theirs)
                transport.abort()
                await until(lambda: protocol.lost, "lost")

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(inside())
        return protocol

    return run


async def read(theirs: socket.socket, count: int) -> bytes:
    """Read `count` bytes, or all until the end."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < count and (data := await loop.sock_recv(theirs, 1 << 16)):
        received += data
    return bytes(received)


def test_frames_pass_in_both_directions(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        transport.write(b"to you")
        assert await read(theirs, 6) == b"to you"
        theirs.send(b"to me")
        await until(lambda: protocol.received == b"to me", "heard")

    joined(work)


def test_small_writes_leave_at_once(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.write(b"now")
        theirs.setblocking(True)  # the event loop is blocked meanwhile
        theirs.settimeout(5.0)
        assert theirs.recv(10) == b"now"

    joined(work)


def test_bytes_that_cannot_be_sent_wait_and_arrive_whole(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        transport.write(MUCH)
        waiting = transport.get_write_buffer_size()
        assert waiting
        transport.write(b"end")
        assert transport.get_write_buffer_size() == waiting + 3
        assert await read(theirs, len(MUCH) + 3) == MUCH + b"end"
        await until(lambda: not transport.get_write_buffer_size(), "all sent")
        transport.write(b"more")
        assert await read(theirs, 4) == b"more"

    joined(work)


def test_accepted_bytes_are_forwarded_and_the_protocol_gets_the_rest(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        near, far = pair()
        with far:
            far.setblocking(False)
            target = SocketTransport(near, RecordingProtocol())
            buffer = protocol.get_buffer(-1)
            transport.forward_to(target, buffer, lambda data, count: bytes(data[:count]) != b"mine")
            for data in (b"one", b"mine", b"two"):
                theirs.send(data)
                if data == b"mine":
                    await until(lambda: protocol.received == b"mine", "heard")
                else:
                    assert await read(far, 3) == data
            target.abort()

    joined(work)


def test_forwarded_bytes_that_cannot_be_sent_wait_in_their_order(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        near, far = pair()
        with far:
            far.setblocking(False)
            target = SocketTransport(near, RecordingProtocol())
            transport.forward_to(target, protocol.get_buffer(-1), lambda data, count: True)
            target.write(MUCH)
            waiting = target.get_write_buffer_size()
            for data in (b"first", b"other"):  # both are read into the same buffer
                theirs.send(data)
                waiting += len(data)
                await until(lambda: target.get_write_buffer_size() == waiting, "waits")  # noqa: B023
            assert await read(far, len(MUCH) + 10) == MUCH + b"firstother"
            target.abort()

    joined(work)


def test_closing_waits_for_written_bytes(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        transport.write(MUCH)
        transport.close()
        transport.close()
        assert transport.is_closing()
        transport.write(b"too late")
        assert await read(theirs, len(MUCH) + 8) == MUCH
        await until(lambda: protocol.lost, "lost")

    assert joined(work).lost == [None]


def test_aborting_does_not_wait(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        transport.write(MUCH)
        transport.abort()
        assert not protocol.lost  # never during a call
        await until(lambda: protocol.lost, "lost")
        assert len(await read(theirs, len(MUCH))) < len(MUCH)

    assert joined(work).lost == [None]


def test_end_of_the_other_side_is_reported(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        theirs.close()
        await until(lambda: protocol.lost, "lost")

    assert joined(work).lost == [None]


def _reset(theirs: socket.socket) -> None:
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()


def test_connection_lost_right_after_the_last_bytes_is_reported(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        await asyncio.sleep(0)  # the event loop polls the socket by now
        theirs.send(b"last words")
        _reset(theirs)  # both have arrived when the event loop polls again
        await until(lambda: protocol.lost, "lost")

    protocol = joined(work)
    assert bytes(protocol.received) == b"last words"
    assert [type(each) for each in protocol.lost] == [ConnectionResetError]


@pytest.mark.parametrize("data", [b"", b"x", MUCH], ids=["reading", "writing", "waiting"])
def test_broken_connection_is_reported_with_its_reason(joined, data):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        if data == MUCH:
            transport.write(data)
        _reset(theirs)
        if data:
            transport.write(data)
        await until(lambda: protocol.lost, "lost")
        assert not transport.get_write_buffer_size()

    (error,) = joined(work).lost
    assert isinstance(error, OSError)


def test_protocol_exception_closes_connection_and_is_raised(joined):
    faults: list[object] = []

    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        theirs.send(b"x")
        await until(lambda: protocol.lost, "lost")

    joined(work, FaultyProtocol())
    assert isinstance(faults[0], ZeroDivisionError)


def test_connection_closed_before_accept_is_lost_like_any_other(joined):
    async def work(
        transport: SocketTransport, protocol: RecordingProtocol, theirs: socket.socket
    ) -> None:
        ours, other = pair()
        _reset(other)
        second = RecordingProtocol()
        SocketTransport(ours, second)
        await until(lambda: second.lost, "lost")
        assert isinstance(second.lost[0], ConnectionError)

    joined(work)


def test_server_accepts_until_closed():
    async def run() -> None:
        accepted: list[socket.socket] = []
        (listening,) = await sockets.listen("127.0.0.1", 0)
        port = listening.getsockname()[1]
        server = sockets.SocketServer([listening], accepted.append)
        made = [await sockets.connect("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(accepted) == 3, "three connections")
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await sockets.connect("127.0.0.1", port)
        for each in (*made, *accepted):
            each.close()

    asyncio.run(run())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_server_without_file_descriptors_continues_when_some_are_free(new_loop, monkeypatch):
    monkeypatch.setattr(sockets, "ACCEPT_PAUSE_S", 0.01)

    async def run() -> None:
        accepted: list[socket.socket] = []
        (listening,) = await sockets.listen("127.0.0.1", 0)
        made = await sockets.connect("127.0.0.1", listening.getsockname()[1])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (made.fileno(), limits[1]))
        server = sockets.SocketServer([listening], accepted.append)
        try:
            await asyncio.sleep(0.05)
            assert not accepted
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: accepted, "the connection that waited")
        server.close()
        for each in (made, *accepted):
            each.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def test_listen_and_connect_over_loopback():
    async def run() -> None:
        (listening,) = await sockets.listen("127.0.0.1", 0)
        port = listening.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            await sockets.listen("127.0.0.1", port)
        (await sockets.connect("127.0.0.1", port)).close()
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            await sockets.connect("127.0.0.1", port)

    asyncio.run(run())


def test_bytes_that_the_other_side_has_received_are_counted():
    ours, theirs = pair()
    with ours, theirs:
        before = acknowledged_bytes(ours)
        ours.sendall(bytes(1_000))
        eventually(lambda: acknowledged_bytes(ours) - before == 1_000, "all of them")
    assert acknowledged_bytes(ours) == 0
