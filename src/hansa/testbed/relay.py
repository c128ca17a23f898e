"""A TCP relay that holds everything back for a while: a link as long as one likes, on loopback.

Not every kernel can delay packets, and the papers' delays have to come from somewhere. Bytes leave
in the order they came, each a delay after it came, in both directions. A relay can also be cut:
then nothing passes and nobody is told, as when a cable is pulled out; in one direction alone, if
one likes. It can break connections off, towards both ends or towards one.
"""

import asyncio
import math
import random
import socket
import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hansa.testbed.link_conditions import BOTH, Direction, Line

HELD_BYTES_MAX = 4 << 20
"""Bytes that one direction holds back; then it stops reading, as a long cable does."""

READ_BYTES = 1 << 16

PIECE_BYTES = 1 << 10
"""Bytes that a narrow line carries at a time."""

AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with RST, and forget what was not sent."""


@dataclass(slots=True, eq=False)
class Joint:
    """One connection: both its ends, until something breaks it."""

    near: asyncio.StreamWriter
    """To who dialled."""
    far: asyncio.StreamWriter
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    is_stranded: bool = False
    """Whether the far end is not told."""


class Relay:
    """Listens on loopback and leads to one other port of it."""

    def __init__(self, target_port: int, delay_s: float) -> None:
        """Prepare; nothing happens before `start`."""
        self.line = Line(delay_s)
        self._target_port = target_port
        self._chance = random.Random(target_port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._joints: set[Joint] = set()
        self._open = {direction: asyncio.Event() for direction in Direction}
        self.mend()

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

    def cut(self, directions: Iterable[Direction] = BOTH, refuses: bool = True) -> None:
        """Let nothing pass: what is sent meanwhile is held back. Who dials is refused, or else
        hears nothing."""
        for direction in directions:
            self._open[direction].clear()
        self._refuses = refuses

    def mend(self) -> None:
        """Let everything pass again, first what was held back: TCP would send it once more."""
        self._refuses = False
        for direction in self._open.values():
            direction.set()

    def reset(self) -> None:
        """Break every connection off; both ends are told at once."""
        for joint in self._joints:
            joint.broken.set()
            _abort(joint.near)
            _abort(joint.far)

    def strand(self) -> None:
        """Break every connection off towards who dialled; the other end believes that it stands."""
        for joint in self._joints:
            joint.is_stranded = True
            joint.broken.set()
            _abort(joint.near)

    async def passes(self, direction: Direction) -> None:
        """Wait until bytes may pass."""
        await self._open[direction].wait()

    def delay(self) -> float:
        """Return how long the next bytes take."""
        return self.line.delay_s + self._chance.uniform(0.0, self.line.jitter_s)

    @property
    def _is_whole(self) -> bool:
        return all(direction.is_set() for direction in self._open.values())

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
        if self._refuses and not self._is_whole:
            return
        for direction in Direction:
            await self.passes(direction)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        joint = Joint(writer, far_writer)
        self._joints.add(joint)
        out = Way(self, Direction.OUT, reader, far_writer)
        back = Way(self, Direction.BACK, far_reader, writer)
        tasks = [asyncio.create_task(each) for each in (out.run(), back.run(), _end(joint))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if joint.is_stranded:
                while await far_reader.read(READ_BYTES):
                    pass  # until that end gives up by itself
        finally:
            self._joints.discard(joint)
            for task in tasks:
                task.cancel()
            far_writer.close()


async def _end(joint: Joint) -> None:
    await joint.broken.wait()


def _abort(writer: asyncio.StreamWriter) -> None:
    plug = writer.get_extra_info("socket")
    with suppress(OSError):  # it may be closed already
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.transport.abort()


class Way:
    """One direction of one connection."""

    def __init__(
        self,
        relay: Relay,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Prepare to carry from the reader to the writer, as the relay is at that time."""
        self._relay = relay
        self._direction = direction
        self._reader = reader
        self._writer = writer
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
        due = 0.0
        while True:
            try:
                data = await self._reader.read(READ_BYTES)
            except ConnectionError:
                data = b""
            due = max(due, loop.time() + self._relay.delay())
            async with self._changed:
                self._held.append((due, data))
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
            await self._relay.passes(self._direction)
            if not data:
                return
            await self._carry(data)

    async def _carry(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            speed = self._relay.line.bytes_per_s
            size = len(data) if speed == math.inf else PIECE_BYTES
            piece = data[at : at + size]
            if speed < math.inf:
                await asyncio.sleep(len(piece) / speed)
            self._writer.write(piece)
            await self._writer.drain()
            at += size
