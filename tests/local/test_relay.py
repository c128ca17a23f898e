"""The relay that makes a link long."""

import asyncio
import time

from hansa.local.relay import Relay


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


def test_everything_comes_back_after_twice_the_delay():
    answer, took = asyncio.run(there_and_back(0.05, b"hello"))
    assert answer == b"hello"
    assert took >= 0.1


def test_bytes_keep_their_order_and_the_delay_does_not_add_up():
    data = b"".join(number.to_bytes(4, "big") for number in range(250_000))
    answer, took = asyncio.run(there_and_back(0.1, data))
    assert answer == data
    assert took < 5.0  # one delay after another would be seconds more


def test_nobody_behind_it_looks_like_a_closed_connection():
    async def run() -> bytes:
        relay = Relay(1, 0.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", await relay.start())
        data = await reader.read()
        writer.close()
        await relay.stop()
        return data

    assert asyncio.run(run()) == b""


def test_a_cut_relay_is_silent_refuses_who_dials_and_loses_nothing():
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
        relay.mend()
        await answer
        writer.close()
        await relay.stop()
        server.close()
        return refused, is_silent, answer.result()

    assert asyncio.run(run()) == (b"", True, b"during")
