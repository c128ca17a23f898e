"""The proxy that clients connect to instead of the broker (`[broker] observer = "proxy"`).

It forwards bytes in both directions and lets a `ConnectionInspector` read along. Each side is read
only as fast as the other side takes it, so the proxy holds a bounded amount per client
(`PACKET_BYTES_MAX`, `PENDING_BYTES_MAX`). Keep-alive, authentication and limits stay between client
and broker.

The filters of a persistent session are on disk before the broker sees the SUBSCRIBE that asks for
them: a crash in between would otherwise leave a session at the broker with a filter that the next
run does not know. For the same reason nothing but the CONNECT is forwarded before the broker has
answered it. If filters cannot be saved, an alarm is raised and the client is served all the same.
"""

import asyncio
import itertools
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from hansa.agent import tasks
from hansa.agent.alarms import SetAlarm
from hansa.agent.links.link import Address
from hansa.agent.settings import ProxySettings
from hansa.agent.storage.proxy_sessions import SESSIONS_FILE, SessionFile
from hansa.errors import UsageError
from hansa.observers.base import NO_CHANGE, ObserverOutput
from hansa.observers.proxy.inspector import ConnectionInspector
from hansa.observers.proxy.observer import ProxyObserver, SessionChange
from hansa.observers.proxy.scanner import (
    PACKET_BYTES_MAX,
    InvalidStream,
    first_packet_bytes,
)

CONNECT_TIMEOUT_S = 10.0
"""Seconds until a broker that does not answer counts as unreachable, and the client's connection
ends."""

EARLY_BYTES_MAX = 1 << 16
"""Bytes of a client that wait for the broker's answer to its CONNECT; with more it is not read."""

STALLED_S = 60.0
"""Seconds after which a client or a broker that does not read is disconnected."""

CLOSE_GRACE_S = 5.0
"""Seconds that the last bytes have to leave when a connection is closed."""

ACCEPT_BACKLOG = 1_024
"""Connections that wait to be accepted."""


class ProxyServer:
    """Listens for clients and connects each of them to the broker."""

    def __init__(
        self,
        settings: ProxySettings,
        broker: Address,
        broker_tls: ssl.SSLContext | None,
        state_path: Path,
        set_alarm: SetAlarm,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._broker_tls = broker_tls
        self._tls = _tls_context(settings)
        self._file = SessionFile(
            state_path / SESSIONS_FILE, settings.no_earlier_sessions, set_alarm
        )
        self.observer = ProxyObserver(self._file.may_have_earlier_sessions)
        for client_id, session in self._file.sessions.items():
            self.observer.load_session(client_id, session.filters, session.expiry_s, session.doubt)
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda output: None
        """Is called when subscriptions or deadlines of the observer have changed."""
        self.counters: Counter[str] = Counter()
        self.address = Address(settings.host, settings.port)
        self.clients: dict[int, _ClientSide] = {}
        """Open connections of clients, by number."""
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Bind the address, or raise OSError; clients are served from `start` on."""
        await self._file.save(())
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _ClientSide(self, next(self._numbers)),
            *(self.address.host, self.address.port),
            ssl=self._tls,
            backlog=ACCEPT_BACKLOG,
            start_serving=False,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.address = Address(self.address.host, port)

    async def start(self) -> None:
        """Serve clients."""
        assert self._server is not None
        await self._server.start_serving()

    def stop(self) -> None:
        """Stop listening, and close all connections; clients reconnect when the proxy is back."""
        if self._server is not None:
            self._server.close()
        for client in list(self.clients.values()):
            client.abort()

    def status(self) -> dict[str, object]:
        """Return what `/status` shows."""
        return {"address": str(self.address), "clients": self.observer.connected_count}

    async def connect(self, client: "_ClientSide") -> None:
        """Connect a client to the broker; if that fails, end its connection."""
        self.counters["proxy connections"] += 1
        loop, tls = asyncio.get_running_loop(), self._broker_tls
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(
                    lambda: _BrokerSide(self, client), self._broker.host, self._broker.port, ssl=tls
                )
        except OSError:  # TimeoutError is one
            self.counters["proxy connections ended: broker unreachable"] += 1
            client.abort()

    def on_closed(self, number: int, output: ObserverOutput) -> None:
        """A client connection has ended."""
        self.clients.pop(number, None)
        self.on_observer_output(output)
        self.save_soon()

    def save_soon(self) -> None:
        """Save what has changed, without waiting for it."""
        if changes := self.take_changes():
            tasks.start_task(self._file.save(changes))

    def take_changes(self) -> list[SessionChange]:
        """Return the changes of persistent sessions since the last call."""
        changes, self.observer.changes = self.observer.changes, []
        return changes

    async def save(self, changes: Sequence[SessionChange]) -> None:
        """Return when changed sessions are on disk, or an alarm has been raised."""
        await self._file.save(changes)


class _Side(asyncio.Protocol):
    """One of the two connections of a client. `peer` is the other one, once it is open."""

    transport: asyncio.Transport
    peer: "_Side | None" = None
    _pause_count = 0  # reasons not to read: the other side is slow, sessions are being saved
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        self._stalled = asyncio.get_running_loop().call_later(STALLED_S, self.abort)
        if self.peer is not None:
            self.peer.pause_reading()

    def resume_writing(self) -> None:
        self._cancel_stalled()
        if self.peer is not None:
            self.peer.resume_reading()

    def pause_reading(self) -> None:
        self._pause_count += 1
        if self._pause_count == 1 and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._pause_count -= 1
        if self._pause_count == 0 and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Close when what was written has left, or after a while."""
        self.transport.close()
        asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self.transport.abort)

    def abort(self) -> None:
        """Close both connections now."""
        self.transport.abort()
        if self.peer is not None:
            self.peer.transport.abort()

    def _cancel_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class _ClientSide(_Side):
    """The connection of a client to the proxy."""

    def __init__(self, server: ProxyServer, number: int) -> None:
        self._server = server
        self._number = number
        self.inspector = ConnectionInspector(server.observer, number)
        self._early = b""  # arrived before the broker answered
        self._is_paused_early = False
        self._is_connect_sent = False
        self._is_answered = False
        self._unsaved: list[bytes] = []  # wait until sessions are saved

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server.clients[self._number] = self
        tasks.start_task(self._server.connect(self))

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            self._forward(data)
            return
        self._early += data
        if len(self._early) > EARLY_BYTES_MAX and not self._is_paused_early:
            self._is_paused_early = True
            self.pause_reading()
        self._forward_connect()

    def on_broker_connected(self, broker: "_BrokerSide") -> None:
        """Forward the CONNECT, if it is there."""
        self.peer = broker
        self._forward_connect()

    def on_broker_answered(self) -> None:
        """Forward everything from now on."""
        if self._is_answered:
            return
        self._is_answered = True
        if self._early:
            self._forward(self._early)
        self._early = b""
        self._resume_early()

    def _forward_connect(self) -> None:
        if self.peer is None or self._is_connect_sent:
            return
        try:
            size = first_packet_bytes(self._early)
        except InvalidStream:
            size = len(self._early)
        if size is None or len(self._early) < min(size, PACKET_BYTES_MAX):
            self._resume_early()  # the packet is longer than that
            return
        self._is_connect_sent = True
        connect, self._early = self._early[:size], self._early[size:]
        self._forward(connect)

    def _resume_early(self) -> None:
        if self._is_paused_early:
            self._is_paused_early = False
            self.resume_reading()

    def _forward(self, data: bytes) -> None:
        assert self.peer is not None
        output = self.inspector.receive_from_client(data, asyncio.get_running_loop().time())
        if output is not NO_CHANGE:
            self._server.on_observer_output(output)
        if self._unsaved:
            self._unsaved.append(data)
        elif changes := self._server.take_changes():
            self._unsaved.append(data)
            self.pause_reading()
            tasks.start_task(self._forward_when_saved(changes))
        else:
            self.peer.write(data)

    async def _forward_when_saved(self, changes: Sequence[SessionChange]) -> None:
        while changes:
            await self._server.save(changes)
            changes = self._server.take_changes()
        unsaved, self._unsaved = self._unsaved, []
        if self.peer is not None:
            self.peer.write(b"".join(unsaved))
        self.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_stalled()
        if self.peer is not None:
            self.peer.close()
        now = asyncio.get_running_loop().time()
        self._server.on_closed(self._number, self.inspector.close(now))


class _BrokerSide(_Side):
    """The connection of the proxy to the broker, on behalf of one client."""

    def __init__(self, server: ProxyServer, client: _ClientSide) -> None:
        self._server = server
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._client.transport.is_closing():  # it did not wait
            self.transport.abort()
            return
        self.peer = self._client
        self._client.on_broker_connected(self)

    def data_received(self, data: bytes) -> None:
        now = asyncio.get_running_loop().time()
        output = self._client.inspector.receive_from_broker(data, now)
        if output is not NO_CHANGE:
            self._server.on_observer_output(output)
        self._server.save_soon()
        self._client.write(data)
        self._client.on_broker_answered()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_stalled()
        if self.peer is not None:
            self._client.close()


def _tls_context(settings: ProxySettings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None)
    except OSError as error:  # SSLError is one
        raise UsageError(f"[proxy] tls_certificate, tls_key: {error}") from error
    return context
