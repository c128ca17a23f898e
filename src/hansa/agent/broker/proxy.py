"""The proxy that clients connect to instead of the broker (`[broker] observer = "proxy"`).

It forwards bytes in both directions as they come and lets a `ConnectionInspector` read along. Each
side is read only as fast as the other side takes it, so the proxy holds at most some 64 KiB per
direction and client. Keep-alive, authentication and limits stay between client and broker.

The filters of persistent sessions are on disk before the client sees the SUBACK that grants them:
otherwise a crash in between would leave a session at the broker with a filter that the next run
does not know. If they cannot be saved, an alarm is raised and the client is served all the same.
"""

import asyncio
import itertools
import socket
import ssl
import struct
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

CONNECT_TIMEOUT_S = 10.0
"""Seconds until a broker that does not answer counts as unreachable, and the client's connection
ends."""

ACCEPT_BACKLOG = 1_024
"""Connections that wait to be accepted."""

_V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


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
            self.observer.load_session(client_id, session.filters, session.doubt)
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda output: None
        """Is called when subscriptions or deadlines of the observer have changed."""
        self.counters: Counter[str] = Counter()
        self.address = Address(settings.host, settings.port)
        self._clients: dict[int, _ClientSide] = {}
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Bind the address, or raise OSError; clients are served from `start` on."""
        await self._file.save(())
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._make_client_side,
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
        for client in list(self._clients.values()):
            client.abort()

    def status(self) -> dict[str, object]:
        """Return what `/status` shows."""
        return {"address": str(self.address), "clients": self.observer.connected_count}

    def _make_client_side(self) -> "_ClientSide":
        number = next(self._numbers)
        self._clients[number] = _ClientSide(self, number)
        return self._clients[number]

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

    def proxy_header(self, client: asyncio.Transport) -> bytes:
        """Return the PROXY protocol header for a client, if configured."""
        peer, own = client.get_extra_info("peername"), client.get_extra_info("sockname")
        if not self._settings.proxy_protocol or not peer or not own:
            return b""
        return proxy_header(self._settings.proxy_protocol, peer[:2], own[:2])

    def on_closed(self, number: int, output: ObserverOutput) -> None:
        """A client connection has ended."""
        self._clients.pop(number, None)
        self.on_observer_output(output)
        self._save_soon()

    def _save_soon(self) -> None:
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

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.pause_reading()

    def resume_writing(self) -> None:
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


class _ClientSide(_Side):
    """The connection of a client to the proxy."""

    def __init__(self, server: ProxyServer, number: int) -> None:
        self._server = server
        self._number = number
        self.inspector = ConnectionInspector(server.observer, number)
        self._early = b""  # arrived before the connection to the broker was open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        tasks.start_task(self._server.connect(self))

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            if not self._early:
                self.pause_reading()
            self._early += data
            return
        self.peer.transport.write(data)
        output = self.inspector.receive_from_client(data, asyncio.get_running_loop().time())
        if output is not NO_CHANGE:
            self._server.on_observer_output(output)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self.peer.transport.close()
        now = asyncio.get_running_loop().time()
        self._server.on_closed(self._number, self.inspector.close(now))

    def on_broker_connected(self, broker: "_BrokerSide") -> None:
        """Forward to the broker from now on."""
        self.peer = broker
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
            self.resume_reading()

    def abort(self) -> None:
        """Close both connections now."""
        self.transport.abort()


class _BrokerSide(_Side):
    """The connection of the proxy to the broker, on behalf of one client."""

    def __init__(self, server: ProxyServer, client: _ClientSide) -> None:
        self._server = server
        self._client = client
        self._held: list[bytes] = []  # arrived while sessions are being saved

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        client = self._client
        if client.transport.is_closing():  # it did not wait
            self.transport.abort()
            return
        self.peer = client
        if header := self._server.proxy_header(client.transport):
            self.transport.write(header)
        client.on_broker_connected(self)

    def data_received(self, data: bytes) -> None:
        server = self._server
        now = asyncio.get_running_loop().time()
        output = self._client.inspector.receive_from_broker(data, now)
        if output is not NO_CHANGE:
            server.on_observer_output(output)
        if self._held:
            self._held.append(data)
        elif changes := server.take_changes():
            self._held.append(data)
            self.pause_reading()
            tasks.start_task(self._forward_when_saved(changes))
        else:
            self._client.transport.write(data)

    async def _forward_when_saved(self, changes: Sequence[SessionChange]) -> None:
        while changes:
            await self._server.save(changes)
            changes = self._server.take_changes()
        held, self._held = self._held, []
        if not self._client.transport.is_closing():
            self._client.transport.write(b"".join(held))
        self.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None:
            self._client.transport.close()


def _tls_context(settings: ProxySettings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None)
    except OSError as error:  # SSLError is one
        raise UsageError(f"[proxy] tls_certificate, tls_key: {error}") from error
    return context


def proxy_header(version: str, source: tuple[str, int], target: tuple[str, int]) -> bytes:
    """Return the header of the PROXY protocol, v1 or v2, for a client's connection."""
    is_v6 = ":" in source[0]
    if version == "v1":
        name = "TCP6" if is_v6 else "TCP4"
        return f"PROXY {name} {source[0]} {target[0]} {source[1]} {target[1]}\r\n".encode()
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    addresses = b"".join(socket.inet_pton(family, host) for host, _ in (source, target))
    body = addresses + struct.pack("!HH", source[1], target[1])
    kind = 0x21 if is_v6 else 0x11  # IPv6 or IPv4, stream
    return _V2_SIGNATURE + struct.pack("!BBH", 0x21, kind, len(body)) + body
