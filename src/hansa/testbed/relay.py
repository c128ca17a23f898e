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

from hansa.testbed.link_conditions import BOTH_DIRECTIONS, Direction, LinkConditions

DELAYED_BYTES_MAX = 4 << 20
"""Bytes that one direction holds back; then it stops reading, as a long cable does."""

READ_BYTES = 1 << 16

PIECE_BYTES = 1 << 10
"""Bytes that a narrow line carries at a time."""

LINGER_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with RST, and forget what was not sent."""


@dataclass(slots=True, eq=False)
class RelayedConnection:
    """One connection: both its ends, until something breaks it."""

    near: asyncio.StreamWriter
    """To who dialled."""
    far: asyncio.StreamWriter
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    is_half_open: bool = False
    """Whether the far end is not told."""


class Relay:
    """Listens on loopback and leads to one other port of it."""

    def __init__(self, target_port: int, delay_s: float) -> None:
        """Prepare; nothing happens before `start`."""
        self.conditions = LinkConditions(delay_s)
        self._target_port = target_port
        self._rng = random.Random(target_port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._relayed: set[RelayedConnection] = set()
        self._passing = {direction: asyncio.Event() for direction in Direction}
        self.restore()

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

    def cut(
        self, directions: Iterable[Direction] = BOTH_DIRECTIONS, refuse_connections: bool = True
    ) -> None:
        """Let nothing pass: what is sent meanwhile is held back. Who dials is refused, or else
        hears nothing."""
        for direction in directions:
            self._passing[direction].clear()
        self._refuses_connections = refuse_connections

    def restore(self) -> None:
        """Let everything pass again, first what was held back: TCP would send it once more."""
        self._refuses_connections = False
        for direction in self._passing.values():
            direction.set()

    def reset(self) -> None:
        """Break every connection off; both ends are told at once."""
        for joint in self._relayed:
            joint.broken.set()
            _abort(joint.near)
            _abort(joint.far)

    def make_half_open(self) -> None:
        """Break every connection off towards who dialled; the other end believes that it stands."""
        for joint in self._relayed:
            joint.is_half_open = True
            joint.broken.set()
            _abort(joint.near)

    async def wait_until_passing(self, direction: Direction) -> None:
        """Wait until bytes may pass."""
        await self._passing[direction].wait()

    def next_delay_s(self) -> float:
        """Return how long the next bytes take."""
        return self.conditions.delay_s + self._rng.uniform(0.0, self.conditions.jitter_s)

    @property
    def _is_passing_both_ways(self) -> bool:
        return all(direction.is_set() for direction in self._passing.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._relay_connection(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # nobody behind it, or the end: both sides see a closed connection
        finally:
            writer.close()
            self._connections.discard(task)

    async def _relay_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._refuses_connections and not self._is_passing_both_ways:
            return
        for direction in Direction:
            await self.wait_until_passing(direction)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        joint = RelayedConnection(writer, far_writer)
        self._relayed.add(joint)
        out = RelayedStream(self, Direction.OUT, reader, far_writer)
        back = RelayedStream(self, Direction.BACK, far_reader, writer)
        tasks = [
            asyncio.create_task(each) for each in (out.run(), back.run(), _wait_until_broken(joint))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if joint.is_half_open:
                while await far_reader.read(READ_BYTES):
                    pass  # until that end gives up by itself
        finally:
            self._relayed.discard(joint)
            for task in tasks:
                task.cancel()
            far_writer.close()


async def _wait_until_broken(joint: RelayedConnection) -> None:
    await joint.broken.wait()


def _abort(writer: asyncio.StreamWriter) -> None:
    tcp_socket = writer.get_extra_info("socket")
    with suppress(OSError):  # it may be closed already
        tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    writer.transport.abort()


class RelayedStream:
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
        self._delayed: deque[tuple[float, bytes]] = deque()
        self._delayed_bytes = 0
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
            due = max(due, loop.time() + self._relay.next_delay_s())
            async with self._changed:
                self._delayed.append((due, data))
                self._delayed_bytes += len(data)
                self._changed.notify_all()
                if not data:
                    return
                await self._changed.wait_for(lambda: self._delayed_bytes < DELAYED_BYTES_MAX)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._delayed))
                due, data = self._delayed.popleft()
                self._delayed_bytes -= len(data)
                self._changed.notify_all()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._relay.wait_until_passing(self._direction)
            if not data:
                return
            await self._write_paced(data)

    async def _write_paced(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            speed = self._relay.conditions.bytes_per_s
            size = len(data) if speed == math.inf else PIECE_BYTES
            piece = data[at : at + size]
            if speed < math.inf:
                await asyncio.sleep(len(piece) / speed)
            self._writer.write(piece)
            await self._writer.drain()
            at += size
