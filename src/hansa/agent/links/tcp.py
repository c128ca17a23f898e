"""Links over TCP: a length before each frame, one write per batch, back-off when dialling.

Nothing here knows what a frame means. A neighbour that does not read costs itself only: its
publications are dropped and counted when its buffer is full, and it is given up when even control
frames pile up.
"""

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from hansa.agent.reasons import explain
from hansa.errors import InvalidFrame
from hansa.protocol.vocabulary import LinkId
from hansa.protocol.wire import FRAME_BYTES_MAX

LENGTH = struct.Struct(">I")
LENGTH_BYTES = LENGTH.size
READ_BYTES = 1 << 18
"""Bytes that one read takes at most; a frame that is longer makes the buffer grow to its size."""

BUFFER_BYTES_MAX = 8 << 20
"""Bytes that may wait for a neighbour before its publications are dropped."""

STUCK_BYTES_MAX = 16 << 20
"""Bytes that may wait for a neighbour before the link is given up."""

LINKS_MAX = 1_024
"""Connections at the same time, whoever they are; more are closed at once."""

DIAL_MIN_S = 0.1
DIAL_MAX_S = 2.0
"""Seconds between two attempts to reach a neighbour: what healing may wait after a partition."""

DIAL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a neighbour listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Listener(Protocol):
    """Who is told what happens on links."""

    def link_opened(self, link: "TcpLink") -> None:
        """A connection stands."""

    def frames_received(self, link: "TcpLink", frames: list[bytes]) -> None:
        """Frames arrived, whole and in order."""

    def link_closed(self, link: "TcpLink", reason: str) -> None:
        """A connection is gone."""


class TcpLink(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self, id_: LinkId, listener: Listener, dialled: Address | None) -> None:
        """Prepare for a connection that is about to stand."""
        self.id = id_
        self.dialled = dialled
        self.bytes_in = 0
        self.bytes_out = 0
        self.dropped = 0
        self.remote = str(dialled) if dialled else "unknown"
        """Where the other side is: the address that was dialled, or the one that it came from."""
        self.closed = asyncio.Event()
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(READ_BYTES)
        self._filled = 0
        self._reason = ""

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send small frames at once; this side batches them itself."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.dialled is None:
            self.remote = str(Address(*transport.get_extra_info("peername")[:2]))
        self._listener.link_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what arrived into frames."""
        self.bytes_in += nbytes
        self._filled += nbytes
        if self._reason:
            self._filled = 0  # it is being closed: what still comes means nothing
            return
        try:
            frames, used = split(self._buffer, self._filled)
        except InvalidFrame as error:
            self.close(f"this is no neighbour of ours: {error}")
            self._filled = 0
            return
        rest = self._filled - used
        self._buffer[:rest] = self._buffer[used : self._filled]
        self._filled = rest
        self._make_room()
        if frames:
            self._listener.frames_received(self, frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell why, as far as it is known."""
        self.closed.set()
        reason = self._reason or (str(exc) if exc else "closed by the other side")
        self._listener.link_closed(self, reason)

    def _make_room(self) -> None:
        """A frame larger than the buffer needs a larger one, for as long as it takes."""
        needed = READ_BYTES
        if self._filled >= LENGTH_BYTES:
            needed = max(needed, LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big"))
        if needed != len(self._buffer):
            larger = bytearray(needed)
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger

    # ------------------------------------------------------------ called by the agent

    @property
    def congested(self) -> bool:
        """Whether the neighbour reads too slowly for more publications."""
        return self._waiting() > BUFFER_BYTES_MAX

    def send(self, frames: Sequence[bytes]) -> None:
        """Write frames with one call."""
        if self._transport is None or self._transport.is_closing():
            return
        pack = LENGTH.pack
        data = b"".join([part for frame in frames for part in (pack(len(frame)), frame)])
        self.bytes_out += len(data)
        self._transport.write(data)
        if self._waiting() > STUCK_BYTES_MAX:
            self.close(f"the neighbour does not read: {self._waiting()} bytes wait")

    def close(self, reason: str) -> None:
        """Close once what was written has left; who does not read is not waited for."""
        if self._transport is None:
            return
        self._reason = self._reason or reason
        if self._waiting() > BUFFER_BYTES_MAX:
            self._transport.abort()
        else:
            self._transport.close()

    def _waiting(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport else 0


def split(buffer: bytearray, filled: int) -> tuple[list[bytes], int]:
    """Return the whole frames at the start of a buffer, and how many bytes they took."""
    frames: list[bytes] = []
    at = 0
    data = bytes(memoryview(buffer)[:filled])  # slices of bytes are faster than those of a view
    while filled - at >= LENGTH_BYTES:
        start = at + LENGTH_BYTES
        (length,) = LENGTH.unpack_from(data, at)
        if not 0 < length <= FRAME_BYTES_MAX:
            raise InvalidFrame(f"a frame of {length} bytes, the limit is {FRAME_BYTES_MAX}")
        if filled - start < length:
            break
        at = start + length
        frames.append(data[start:at])
    return frames, at


class TurnedAway(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        cast(asyncio.Transport, transport).abort()


class TcpLinks:
    """Listens for neighbours and dials those that are configured, for as long as it runs."""

    def __init__(self, listener: Listener, chance: random.Random) -> None:
        """Prepare; `chance` spreads the back-off, so that a restart is not a stampede."""
        self._listener = listener
        self._chance = chance
        self._last_id = 0
        self._open: set[TcpLink] = set()
        self._server: asyncio.Server | None = None
        self._dialling: list[asyncio.Task[None]] = []

    async def listen(self, address: Address) -> Address:
        """Listen; return the address with the port that was taken if 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, address.host, address.port)
        port = self._server.sockets[0].getsockname()[1]
        return Address(address.host, port)

    def dial(self, address: Address, failed: Callable[[Address, str], None]) -> None:
        """Keep a link to a neighbour; `failed` is told of every attempt in vain."""
        self._dialling.append(asyncio.create_task(self._keep_dialling(address, failed)))

    async def stop(self) -> None:
        """Listen and dial no more. Links that stand are closed by their owner."""
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    def _accept(self) -> asyncio.BaseProtocol:
        self._open = {link for link in self._open if not link.closed.is_set()}
        if len(self._open) >= LINKS_MAX:
            return TurnedAway()
        link = self._new_link(None)
        self._open.add(link)
        return link

    def _new_link(self, dialled: Address | None) -> TcpLink:
        self._last_id += 1
        return TcpLink(LinkId(self._last_id), self._listener, dialled)

    async def _keep_dialling(
        self, address: Address, failed: Callable[[Address, str], None]
    ) -> None:
        pause = DIAL_MIN_S
        loop = asyncio.get_running_loop()
        while True:
            link = self._new_link(address)
            try:
                connect: Coroutine[Any, Any, Any] = loop.create_connection(
                    lambda link=link: link,  # type: ignore[misc]
                    address.host,
                    address.port,
                )
                async with asyncio.timeout(DIAL_TIMEOUT_S):  # wait_for of 3.11 can miss our own end
                    await connect
            except (OSError, UnicodeError) as error:  # the latter for what cannot be a host name
                failed(address, explain(error))
            else:
                began = loop.time()
                await link.closed.wait()
                if loop.time() - began > DIAL_MAX_S:
                    pause = DIAL_MIN_S
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            pause = min(2 * pause, DIAL_MAX_S)
