"""Streams of documents: made only while a client reads, bounded, closed cleanly."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from hansa.agent.admin import server as server_module
from hansa.agent.admin import streams as streams_module
from hansa.agent.admin.server import EventStream, json_response, serve
from hansa.agent.admin.streams import DocumentStreams


class Source:
    """A document that changes when the test says so."""

    def __init__(self) -> None:
        self.running = 0
        self.starts = 0
        self._changed = asyncio.Condition()
        self._document: object = 0

    async def follow(self) -> AsyncGenerator[object, None]:
        self.running += 1
        self.starts += 1
        try:
            while True:
                yield self._document
                async with self._changed:
                    await self._changed.wait()
        finally:
            self.running -= 1

    async def change(self, document: object) -> None:
        self._document = document
        async with self._changed:
            self._changed.notify_all()
        for _ in range(5):  # until the source has yielded it
            await asyncio.sleep(0)


def event(document: object, name: str = "a") -> bytes:
    return f"event: {name}\ndata: {document}\n\n".encode()


def test_document_is_made_only_while_somebody_follows():
    async def run() -> None:
        source = Source()
        streams = DocumentStreams({"a": source.follow})
        assert source.starts == 0
        first, second = streams.open(["a"]), streams.open(["a"])
        assert await anext(first) == await anext(second) == event(0)
        assert (source.running, source.starts) == (1, 1)
        await first.aclose()
        await source.change(1)
        assert await anext(second) == event(1)
        await second.aclose()
        await asyncio.sleep(0)
        assert source.running == 0
        third = streams.open(["a"])
        assert await anext(third) == event(1)
        assert source.starts == 2
        await third.aclose()

    asyncio.run(run())


def test_slow_client_gets_the_newest_document_only():
    async def run() -> None:
        source = Source()
        stream = DocumentStreams({"a": source.follow}).open(["a"])
        assert await anext(stream) == event(0)
        for number in range(1, 50):
            await source.change(number)
        assert await anext(stream) == event(49)
        await stream.aclose()

    asyncio.run(run())


def test_unknown_document_and_too_many_streams_are_refused(monkeypatch):
    monkeypatch.setattr(streams_module, "CLIENTS_MAX", 1)

    async def run() -> None:
        source = Source()
        streams = DocumentStreams({"a": source.follow, "b": source.follow})
        assert streams.refusal(["a", "b"]) is None
        assert streams.refusal(["c"]) == (400, "there is no document 'c'; there are a, b")
        stream = streams.open(["a"])
        await anext(stream)
        assert streams.refusal(["a"]) == (
            503,
            "1 streams are open, which is the limit: close other pages",
        )
        assert streams.counters == {"refused: too many open streams": 1}
        await stream.aclose()
        assert streams.refusal(["a"]) is None

    asyncio.run(run())


def test_streams_end_when_the_agent_stops():
    async def run() -> None:
        streams = DocumentStreams({"a": Source().follow})
        stream = streams.open(["a"])
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        streams.close()
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(run())


def over_a_socket(check, source_pieces=None):
    """Serve a stream at /stream and check it with a connection."""

    async def run() -> None:
        source = Source()
        streams = DocumentStreams({"a": source_pieces or source.follow})

        async def handle(path, query, headers):
            if refused := streams.refusal(["a"]):
                return json_response({"error": refused[1]}, refused[0])
            return EventStream(streams.open(["a"]))

        server = await serve("127.0.0.1", 0, {}, handlers={"/stream": handle})
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await check(streams, source, reader, writer)
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_stream_over_a_socket_ends_with_its_client():
    async def check(streams, source, reader, writer) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")
        assert await reader.readuntil(b"\n\n") == event(0)
        await source.change(1)
        assert await reader.readuntil(b"\n\n") == event(1)
        writer.close()
        while source.running:  # the agent notices, though it sends nothing
            await asyncio.sleep(0.01)

    over_a_socket(check)


def test_stream_over_a_socket_ends_with_the_agent():
    async def check(streams, source, reader, writer) -> None:
        await reader.readuntil(b"\n\n")
        streams.close()
        assert await reader.read() == b""

    over_a_socket(check)


def test_client_that_does_not_read_is_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "EVENT_TIMEOUT_S", 0.2)
    ended = asyncio.Event()

    async def large() -> AsyncGenerator[object, None]:
        try:
            while True:
                yield "x" * (1 << 20)
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def check(streams, source, reader, writer) -> None:
        await ended.wait()

    over_a_socket(check, large)
