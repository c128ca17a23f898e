"""A TCP relay on loopback with delay, bandwidth and faults, in place of kernel traffic shaping.

Bytes leave in the order of their arrival, each after the delay. A relay can be cut, in one
direction or both: nothing passes and neither end is notified, like an unplugged cable. It can
reset connections at both ends, or at the dialling end only.
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
"""Limit of delayed bytes per direction; at the limit the relay stops reading."""

READ_BYTES = 1 << 16

PIECE_BYTES = 1 << 10
"""Bytes per write of a link with limited bandwidth."""

LINGER_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with RST and discard unsent bytes."""


@dataclass(slots=True, eq=False)
class RelayedConnection:
    near: asyncio.StreamWriter
    """Towards the dialler."""
    far: asyncio.StreamWriter
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    is_half_open: bool = False
    """Whether only the near end was reset."""


class Relay:
    """Relays between a port of its own and a target port."""

    def __init__(self, target_port: int, delay_s: float) -> None:
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
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(
        self, directions: Iterable[Direction] = BOTH_DIRECTIONS, refuse_connections: bool = True
    ) -> None:
        """Let nothing pass in these directions; bytes sent meanwhile are buffered. New connections
        are refused, or get no answer."""
        for direction in directions:
            self._passing[direction].clear()
        self._refuses_connections = refuse_connections

    def restore(self) -> None:
        """Undo `cut`; buffered bytes pass first, as TCP would retransmit them."""
        self._refuses_connections = False
        for direction in self._passing.values():
            direction.set()

    def reset(self) -> None:
        """Reset every connection at both ends."""
        for connection in self._relayed:
            connection.broken.set()
            _abort(connection.near)
            _abort(connection.far)

    def make_half_open(self) -> None:
        """Reset every connection at the dialler; the target still considers it open."""
        for connection in self._relayed:
            connection.is_half_open = True
            connection.broken.set()
            _abort(connection.near)

    async def wait_until_passing(self, direction: Direction) -> None:
        await self._passing[direction].wait()

    def next_delay_s(self) -> float:
        """Return the delay of the next bytes, with jitter."""
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
            pass  # no target, or stopped: the dialler sees a closed connection
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
        connection = RelayedConnection(writer, far_writer)
        self._relayed.add(connection)
        out = RelayedStream(self, Direction.OUT, reader, far_writer)
        back = RelayedStream(self, Direction.BACK, far_reader, writer)
        coroutines = (out.run(), back.run(), _wait_until_broken(connection))
        tasks = [asyncio.create_task(each) for each in coroutines]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if connection.is_half_open:
                while await far_reader.read(READ_BYTES):
                    pass  # until the target closes the connection
        finally:
            self._relayed.discard(connection)
            for task in tasks:
                task.cancel()
            far_writer.close()


async def _wait_until_broken(connection: RelayedConnection) -> None:
    await connection.broken.wait()


def _abort(writer: asyncio.StreamWriter) -> None:
    tcp_socket = writer.get_extra_info("socket")
    with suppress(OSError):  # already closed
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
        self._relay = relay
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self._delayed: deque[tuple[float, bytes]] = deque()
        self._delayed_bytes = 0
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Relay until end of file, and until the last byte is written."""
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
