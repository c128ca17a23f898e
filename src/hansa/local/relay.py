"""A TCP relay that holds everything back for a while: a link as long as one likes, on loopback.

Not every kernel can delay packets, and the papers' delays have to come from somewhere. Bytes leave
in the order they came, each `delay_s` after it came, in both directions. A relay can also be cut:
then nothing passes and nobody is told, as when a cable is pulled out.
"""

import asyncio
from collections import deque
from contextlib import suppress

HELD_BYTES_MAX = 4 << 20
"""Bytes that one direction holds back; then it stops reading, as a long cable does."""

READ_BYTES = 1 << 16


class Relay:
    """Listens on loopback and leads to one other port of it."""

    def __init__(self, target_port: int, delay_s: float) -> None:
        """Prepare; nothing happens before `start`."""
        self._target_port = target_port
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._whole = asyncio.Event()
        self._whole.set()

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Listen no more and cut what stands."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing pass: what is sent meanwhile is held back, who dials is refused."""
        self._whole.clear()

    def mend(self) -> None:
        """Let everything pass again, first what was held back: TCP would send it once more."""
        self._whole.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # nobody behind it, or the end: both sides see a closed connection
        finally:
            writer.close()
            self._connections.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole.is_set():
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        ways = [
            asyncio.create_task(Way(reader, far_writer, self._delay_s, self._whole).run()),
            asyncio.create_task(Way(far_reader, writer, self._delay_s, self._whole).run()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.close()


class Way:
    """One direction of one connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        delay_s: float,
        whole: asyncio.Event,
    ) -> None:
        """Prepare to carry from the reader to the writer, while the link is whole."""
        self._reader = reader
        self._writer = writer
        self._delay_s = delay_s
        self._whole = whole
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Carry until the reader ends and the last byte has left."""
        reading = asyncio.create_task(self._read())
        try:
            with suppress(ConnectionError):
                await self._write()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            async with self._changed:
                self._held.append((loop.time() + self._delay_s, data))
                self._held_bytes += len(data)
                self._changed.notify_all()
                if not data:
                    return
                await self._changed.wait_for(lambda: self._held_bytes < HELD_BYTES_MAX)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._held))
                due, data = self._held.popleft()
                self._held_bytes -= len(data)
                self._changed.notify_all()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._whole.wait()
            if not data:
                return
            self._writer.write(data)
            await self._writer.drain()
