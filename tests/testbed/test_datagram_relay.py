"""The UDP relay."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hansa.testbed.datagram_relay import DatagramRelay
from hansa.testbed.link_conditions import LinkConditions


async def echoed(count: int, delay_s: float, loss: float) -> tuple[int, float]:
    """Send datagrams through a relay to an echo server; return count and first round trip."""
    loop = asyncio.get_running_loop()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        echo.bind(("127.0.0.1", 0))
        echo.setblocking(False)
        client.setblocking(False)
        loop.add_reader(echo, lambda: echo.sendto(*echo.recvfrom(100)))
        relay = DatagramRelay(echo.getsockname()[1], delay_s, loss)
        client.connect(("127.0.0.1", await relay.start()))
        # The first datagrams of a dialler may be lost while a port is opened for it.
        first = asyncio.create_task(loop.sock_recv(client, 100))
        while not first.done():
            client.send(b"open")
            await asyncio.wait([first], timeout=0.2)
        came: list[float] = []
        ended = asyncio.Event()

        def note() -> None:
            match client.recv(100):
                case b"x":
                    came.append(time.monotonic())
                case b"end":  # all have the same delay: missing ones are lost
                    ended.set()

        loop.add_reader(client, note)
        began = time.monotonic()
        for _ in range(count):
            client.send(b"x")
            await asyncio.sleep(0.0005)
        async with asyncio.timeout(20):
            while not ended.is_set():
                client.send(b"end")
                await asyncio.sleep(0.01)
        loop.remove_reader(client)
        loop.remove_reader(echo)
        await relay.stop()
    return len(came), came[0] - began


def test_round_trip_takes_twice_the_delay():
    count, first = asyncio.run(echoed(50, 0.05, 0.0))
    assert count == 50
    assert first >= 0.1


def test_datagrams_are_lost_both_ways():
    count, _ = asyncio.run(echoed(400, 0.001, 0.3))
    assert 100 < count < 300  # 196 are expected


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[socket.socket, DatagramRelay, list[bytes]]]:
    """A client that sends through a relay, and the datagrams that arrive at the target."""
    loop = asyncio.get_running_loop()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as target,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        target.bind(("127.0.0.1", 0))
        arrived: list[bytes] = []
        loop.add_reader(target, lambda: arrived.append(target.recv(100)))
        relay = DatagramRelay(target.getsockname()[1], 0.0, 0.0)
        client.connect(("127.0.0.1", await relay.start()))
        try:
            yield client, relay, arrived
        finally:
            loop.remove_reader(target)
            await relay.stop()


def test_cut_drops_all_datagrams():
    async def run() -> tuple[bool, bool]:
        async with relayed() as (client, relay, arrived):

            async def sent(data: bytes, patience: float) -> bool:
                deadline = time.monotonic() + patience
                while data not in arrived and time.monotonic() < deadline:
                    client.send(data)
                    await asyncio.sleep(0.01)
                return data in arrived

            assert await sent(b"before", 10)
            relay.cut()
            passed = await sent(b"cut", 0.2)
            relay.restore()
            again = await sent(b"after", 10)
            return passed, again

    assert asyncio.run(run()) == (False, True)


def test_datagrams_are_duplicated_and_reordered():
    async def run() -> list[bytes]:
        async with relayed() as (client, relay, arrived):
            async with asyncio.timeout(20):
                while not arrived:
                    client.send(b"open")
                    await asyncio.sleep(0.01)
                relay.conditions = LinkConditions(jitter_s=0.05, duplicate=1.0)
                for number in range(50):
                    client.send(b"%d" % number)
                    await asyncio.sleep(0)
                while sum(data != b"open" for data in arrived) < 100:
                    await asyncio.sleep(0.01)
            return [data for data in arrived if data != b"open"]

    came = asyncio.run(run())
    sent = [b"%d" % number for number in range(50)]
    assert sorted(came) == sorted(sent * 2)
    assert list(dict.fromkeys(came)) != sent
