"""TCP with low latency: received bytes are processed, and the results written, in one wake-up.

The transports of asyncio and uvloop read through several layers and write later in the loop's
iteration. That costs some 20 µs per agent on the path of a message, so links, and brokers without
TLS, use this transport. It only needs readiness events and runs on either loop.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

ACCEPT_BACKLOG = 1_024
"""Connections that wait to be accepted. The kernel drops those beyond it, and the client retries
only after a second; accepting takes a fraction of a millisecond each."""

ACCEPT_PAUSE_S = 1.0
"""Seconds until the next attempt when a connection cannot be accepted: too many open files."""

WRITE_BYTES = 1 << 18
"""Most bytes of the queue that one write offers."""

TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
"""Linux only; None elsewhere."""

BYTES_ACKED_FROM, BYTES_ACKED_TO = 120, 128
"""Place of `tcpi_bytes_acked` in Linux's `struct tcp_info`."""


class ByteTransport(Protocol):
    """The part of `asyncio.Transport` that this project's protocols use."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def get_extra_info(self, name: str) -> Any: ...


class ByteProtocol(Protocol):
    """The part of `asyncio.BufferedProtocol` that this project's transports use."""

    def connection_made(self, transport: Any) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class SocketTransport:
    """A connected socket, as far as this project's protocols use one: a `ByteTransport`.

    Bytes that the other side does not read wait here without a bound: the writer checks
    `get_write_buffer_size` and decides what to drop, or stops at `pause_writing`, which is called
    as soon as bytes wait.
    """

    __slots__ = (
        "_forward_buffer",
        "_forward_target",
        "_is_closing",
        "_is_forwarded",
        "_is_lost",
        "_is_paused",
        "_loop",
        "_protocol",
        "_socket",
        "_unsent",
    )
    _forward_target: "SocketTransport | None"
    _forward_buffer: memoryview
    _is_forwarded: Callable[[memoryview, int], bool]

    def __init__(self, connected_socket: socket.socket, protocol: ByteProtocol) -> None:
        """Report the connection to the protocol, then start reading."""
        connected_socket.setblocking(False)
        connected_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected_socket
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._is_closing = False
        self._is_lost = False
        self._is_paused = False
        self._forward_target = None
        protocol.connection_made(self)
        if not self._is_closing and not self._is_paused:
            self._loop.add_reader(connected_socket, self._read)

    # ------------------------------------------------------------ called by the loop

    def _read(self) -> None:
        target = self._forward_target
        buffer = self._protocol.get_buffer(-1) if target is None else self._forward_buffer
        try:
            count = self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close_soon(error)
            return
        if not count:
            self.close()
            return
        try:
            if target is not None and self._is_forwarded(self._forward_buffer, count):
                target.write(self._forward_buffer[:count])
            else:
                self._protocol.buffer_updated(count)
        except BaseException:
            self.abort()  # the position in the stream is lost
            raise
        # If the connection was lost right after that, uvloop does not call again.
        if number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._close_soon(OSError(number, os.strerror(number)))

    def _write_unsent(self) -> None:
        try:
            with memoryview(self._unsent) as view:
                count = self._socket.send(view[:WRITE_BYTES])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close_soon(error)
            return
        del self._unsent[:count]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
            if self._is_closing:
                self._close_soon(None)
            else:
                self._protocol.resume_writing()

    # ------------------------------------------------------------ called by the protocol

    def forward_to(
        self,
        target: "SocketTransport",
        buffer: memoryview,
        is_forwarded: Callable[[memoryview, int], bool],
    ) -> None:
        """Read into this buffer from now on, which is the protocol's own, and write to `target`
        at once what `is_forwarded(buffer, count)` accepts; the protocol gets the rest. Each call
        of Python between `recv` and `send` costs some microseconds where caches are cold."""
        self._forward_target = target
        self._forward_buffer = buffer
        self._is_forwarded = is_forwarded

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send as much as possible at once; the rest follows."""
        if self._is_closing:
            return
        if self._unsent:
            self._unsent += data
            return
        try:
            count = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._close_soon(error)
            return
        if count < len(data):
            self._unsent += memoryview(data)[count:]
            self._loop.add_writer(self._socket, self._write_unsent)
            self._protocol.pause_writing()

    def get_extra_info(self, name: str) -> Any:
        """Return the socket by the name `socket`, as transports of asyncio do."""
        return self._socket if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        """Return the number of waiting bytes."""
        return len(self._unsent)

    def pause_reading(self) -> None:
        """Leave what arrives in the kernel, until `resume_reading`."""
        if not self._is_paused:
            self._is_paused = True
            if not self._is_closing:
                self._loop.remove_reader(self._socket)

    def resume_reading(self) -> None:
        """Read again."""
        if self._is_paused:
            self._is_paused = False
            if not self._is_closing:
                self._loop.add_reader(self._socket, self._read)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._is_closing

    def close(self) -> None:
        """Stop reading, and close when waiting bytes are sent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.remove_reader(self._socket)
        if not self._unsent:
            self._close_soon(None)

    def abort(self) -> None:
        """Close now; waiting bytes are lost."""
        self._close_soon(None)

    def _close_soon(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._unsent.clear()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._loop.call_soon(self._finish_close, error)  # never within a call from the protocol

    def _finish_close(self, error: OSError | None) -> None:
        self._socket.close()
        self._protocol.connection_lost(error)


def acknowledged_bytes(connected: socket.socket) -> int:
    """Return how many bytes the other side has received on a connection; 0 where the system does
    not report it. Transports with TLS do not show which part of their buffer has been sent."""
    if TCP_INFO is None:
        return 0
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, TCP_INFO, BYTES_ACKED_TO)
    except OSError:  # it is closed
        return 0
    return int.from_bytes(info[BYTES_ACKED_FROM:BYTES_ACKED_TO], sys.byteorder)


async def connect(host: str, port: int) -> socket.socket:
    """Return a connected socket; raise OSError if none of the host's addresses answers."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{host} has no address")
    try:  # a number needs no thread
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, _, _, address in found:
        made = socket.socket(family, kind)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            problem = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise problem


async def listen(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets, one for each of the host's addresses."""
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}
    listening: list[socket.socket] = []
    try:
        for family, _, _, _, address in await loop.getaddrinfo(host or None, port, **options):
            made = socket.create_server(address[:2], family=family, backlog=ACCEPT_BACKLOG)
            made.setblocking(False)
            listening.append(made)
    except OSError:
        for made in listening:
            made.close()
        raise
    return listening


class SocketServer:
    """Accepts connections until it is closed."""

    def __init__(
        self, listening: Sequence[socket.socket], on_accepted: Callable[[socket.socket], None]
    ) -> None:
        """Pass every connection to `on_accepted`."""
        self._loop = asyncio.get_running_loop()
        self._on_accepted = on_accepted
        self._pause_timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._listening = listening
        for each in listening:
            self._resume(each)

    def close(self) -> None:
        """Stop accepting, and close the listening sockets."""
        self.stop()
        for each in self._listening:
            each.close()

    def stop(self) -> None:
        """Stop accepting; connections wait in the kernel until others accept them."""
        for each in self._listening:
            self._loop.remove_reader(each)
        for pause in self._pause_timers.values():
            pause.cancel()

    def _accept(self, listening: socket.socket) -> None:
        try:
            connected, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # closed before it was accepted
        except OSError:
            self._loop.remove_reader(listening)  # otherwise it would be retried without pause
            self._pause_timers[listening] = self._loop.call_later(
                ACCEPT_PAUSE_S, self._resume, listening
            )
        else:
            self._on_accepted(connected)

    def _resume(self, listening: socket.socket) -> None:
        self._pause_timers.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)
