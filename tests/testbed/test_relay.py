"""The TCP relay."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hansa.testbed.link_conditions import Direction, LinkConditions
from hansa.testbed.relay import Relay


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def there_and_back(delay_s: float, data: bytes) -> tuple[bytes, float]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1], delay_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", await relay.start())
    began = time.monotonic()
    writer.write(data)
    answer = await reader.readexactly(len(data))
    took = time.monotonic() - began
    writer.close()
    await relay.stop()
    server.close()
    return answer, took


def test_round_trip_takes_twice_the_delay():
    answer, took = asyncio.run(there_and_back(0.05, b"hello"))
    assert answer == b"hello"
    assert took >= 0.1


def test_bytes_keep_their_order_and_delays_do_not_accumulate():
    data = b"".join(number.to_bytes(4, "big") for number in range(250_000))
    answer, took = asyncio.run(there_and_back(0.1, data))
    assert answer == data
    assert took < 5.0  # accumulated delays would take seconds more


def test_missing_target_closes_the_connection():
    async def run() -> bytes:
        relay = Relay(1, 0.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", await relay.start())
        data = await reader.read()
        writer.close()
        await relay.stop()
        return data

    assert asyncio.run(run()) == b""


def test_cut_buffers_bytes_and_refuses_connections():
    async def run() -> tuple[bytes, bool, bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        relay = Relay(server.sockets[0].getsockname()[1], 0.0)
        port = await relay.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"before")
        await reader.readexactly(6)
        relay.cut()
        writer.write(b"during")
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", port)
        refused = await late_reader.read()
        late_writer.close()
        answer = asyncio.create_task(reader.readexactly(6))
        await asyncio.wait([answer], timeout=0.1)
        is_silent = not answer.done()
        relay.restore()
        await answer
        writer.close()
        await relay.stop()
        server.close()
        return refused, is_silent, answer.result()

    assert asyncio.run(run()) == (b"", True, b"during")


class Linked:
    """Both ends of a connection through a relay."""

    def __init__(self, relay: Relay, port: int) -> None:
        self.relay = relay
        self.port = port
        self.accepted: asyncio.Queue[Any] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def dial(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.far_reader, self.far_writer = await self.accepted.get()
        self._writers += [self.writer, self.far_writer]

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def linked(delay_s: float = 0.0) -> AsyncIterator[Linked]:
    server = await asyncio.start_server(lambda *far: ends.accepted.put(far), "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1], delay_s)
    ends = Linked(relay, await relay.start())
    await ends.dial()
    async with asyncio.timeout(20):
        yield ends
    ends.close()
    await relay.stop()
    server.close()


async def is_silent(reader: asyncio.StreamReader) -> bool:
    reading = asyncio.ensure_future(reader.readexactly(1))
    await asyncio.wait([reading], timeout=0.1)
    silent = not reading.done()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return silent


def test_one_direction_alone_can_be_cut():
    async def run() -> tuple[bytes, bool, bytes]:
        async with linked() as ends:
            ends.relay.cut([Direction.OUT])
            ends.writer.write(b"out")
            ends.far_writer.write(b"back")
            back = await ends.reader.readexactly(4)
            silent = await is_silent(ends.far_reader)
            ends.relay.restore()
            return back, silent, await ends.far_reader.readexactly(3)

    assert asyncio.run(run()) == (b"back", True, b"out")


def test_connection_through_a_black_hole_waits_for_its_end():
    async def run() -> tuple[bool, bytes]:
        async with linked() as ends:
            ends.relay.cut(refuse_connections=False)
            dialling = asyncio.ensure_future(ends.dial())
            await asyncio.wait([dialling], timeout=0.1)
            silent = not dialling.done()
            ends.relay.restore()
            await dialling
            ends.writer.write(b"hello")
            return silent, await ends.far_reader.readexactly(5)

    assert asyncio.run(run()) == (True, b"hello")


def test_reset_reaches_both_ends():
    async def run() -> None:
        async with linked() as ends:
            ends.relay.reset()
            for reader in (ends.reader, ends.far_reader):
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)

    asyncio.run(run())


def test_half_open_connection_is_not_noticed_by_the_target():
    async def run() -> tuple[bool, bytes]:
        async with linked() as ends:
            ends.relay.make_half_open()
            with pytest.raises(ConnectionResetError):
                await ends.reader.read(1)
            old_reader, old_writer = ends.far_reader, ends.far_writer
            old_writer.write(b"is anybody there?")
            await ends.dial()
            ends.writer.write(b"hello")
            came = await ends.far_reader.readexactly(5)
            return await is_silent(old_reader), came

    assert asyncio.run(run()) == (True, b"hello")


def test_bandwidth_and_jitter_keep_the_order():
    async def run() -> tuple[bytes, float]:
        async with linked() as ends:
            ends.relay.conditions = LinkConditions(0.0, 0.02, bytes_per_s=20_000.0)
            began = time.monotonic()
            for number in range(40):
                ends.writer.write(b"%0100d" % number)
                await asyncio.sleep(0)
            data = await ends.far_reader.readexactly(4_000)
            return data, time.monotonic() - began

    data, took = asyncio.run(run())
    assert data == b"".join(b"%0100d" % number for number in range(40))
    assert took >= 0.19
