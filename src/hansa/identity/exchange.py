"""One request and one reply over TLS: what enrolment and renewal have in common.

An issuer serves each connection in a thread, because it signs with blocking file access and has
few clients. The number of connections, their time and the size of messages are bounded. A new
connection beyond CONNECTIONS_MAX ends the oldest one that has not proved its right to be served.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from hansa.errors import InvalidCertificate, UsageError

MESSAGE_BYTES_MAX = 1 << 20
"""Of a reply: a revocation list has some 40 bytes per node."""

REQUEST_BYTES_MAX = 4_096

EXCHANGE_TIMEOUT_S = 5.0
"""Seconds for the TLS handshake, and as many for the message of the other side."""

CONNECTIONS_MAX = 64
"""Connections to an issuer at the same time."""

POLL_S = 0.1
"""Seconds after which an issuer notices that it is over."""

GRACE_S = 0.5
"""Seconds that other connections get when it is over."""

_LENGTH_BYTES = 4


class IssuerReply(msgspec.Struct, frozen=True, array_like=True):
    """The signed files, or why there are none."""

    problem: str = ""
    bundle: bytes = b""


@dataclass(eq=False, slots=True)
class Exchange:
    """One connection to an issuer."""

    connected: socket.socket
    remote: str
    is_proved: bool = False
    """Whether the other side has proved that it may be served."""
    is_cut: bool = False

    def start_tls(self, context: ssl.SSLContext, is_server: bool) -> ssl.SSLSocket:
        """Return the connection after the handshake."""
        # `wrap_socket` takes the descriptor from the plain socket: from here on `cut` needs this.
        connection = context.wrap_socket(
            self.connected, server_side=is_server, do_handshake_on_connect=False
        )
        self.connected = connection
        if self.is_cut:
            raise ConnectionError("closed for a newer connection")
        connection.do_handshake()
        return connection

    def cut(self) -> None:
        """End a connection that its thread uses."""
        self.is_cut = True
        with suppress(OSError):
            # That of SSLSocket changes what the thread uses.
            socket.socket.shutdown(self.connected, socket.SHUT_RDWR)


class ExchangeServer:
    """A listening socket whose connections are served in threads."""

    def __init__(self, host: str, port: int) -> None:
        """Listen; raise UsageError if that is impossible."""
        try:
            self._listening = socket.create_server((host, port))
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
        self.port: int = self._listening.getsockname()[1]
        self.evicted = 0
        """Connections that were ended for newer ones."""

    def close(self) -> None:
        self._listening.close()

    def serve(self, handle: Callable[[Exchange], None], is_over: Callable[[], bool]) -> None:
        """Call `handle` for each connection, in its thread, until `is_over`."""
        self._listening.settimeout(POLL_S)
        threads: dict[Exchange, threading.Thread] = {}
        try:
            while not is_over():
                try:
                    connected, (remote, *_) = self._listening.accept()
                except TimeoutError:
                    continue
                threads = {each: thread for each, thread in threads.items() if thread.is_alive()}
                if len(threads) >= CONNECTIONS_MAX:
                    self._evict_one(threads)
                exchange = Exchange(connected, remote)
                threads[exchange] = threading.Thread(target=_serve_one, args=(exchange, handle))
                threads[exchange].start()
        finally:
            _finish(threads)

    def _evict_one(self, threads: Mapping[Exchange, threading.Thread]) -> None:
        self.evicted += 1
        unproved = (each for each in threads if not each.is_proved)
        victim = next(unproved, next(iter(threads)))
        victim.cut()
        threads[victim].join(GRACE_S)


def _serve_one(exchange: Exchange, handle: Callable[[Exchange], None]) -> None:
    exchange.connected.settimeout(EXCHANGE_TIMEOUT_S)
    try:
        handle(exchange)
    finally:
        exchange.connected.close()


def _finish(threads: Mapping[Exchange, threading.Thread]) -> None:
    """End all connections; refusals in flight are still reported."""
    grace = time.monotonic() + GRACE_S
    for thread in threads.values():
        thread.join(max(0.0, grace - time.monotonic()))
    for exchange, thread in threads.items():
        exchange.cut()
        thread.join()


def send_message(connection: ssl.SSLSocket, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    connection.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def receive_message(connection: ssl.SSLSocket, most: int) -> bytes:
    """Receive one message within EXCHANGE_TIMEOUT_S, however slowly it is sent."""
    deadline = time.monotonic() + EXCHANGE_TIMEOUT_S
    data, expected = b"", _LENGTH_BYTES
    while len(data) < expected:
        if time.monotonic() > deadline:
            raise TimeoutError("the message takes too long")
        piece = connection.recv(expected - len(data))
        if not piece:
            raise ConnectionError("closed by the other side")
        data += piece
        if len(data) == _LENGTH_BYTES and expected == _LENGTH_BYTES:
            length = int.from_bytes(data, "big")
            if length > most:
                raise InvalidCertificate(f"a message of {length} bytes, the limit is {most}")
            expected += length
    return data[_LENGTH_BYTES:]
