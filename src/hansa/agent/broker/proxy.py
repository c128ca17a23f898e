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
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from hansa.agent import tasks
from hansa.agent.alarms import SetAlarm
from hansa.agent.links.link import Address
from hansa.agent.settings import ProxySettings
from hansa.errors import UsageError
from hansa.journal.disk import sync_directory, sync_file
from hansa.observers.base import NO_CHANGE, ObserverOutput
from hansa.observers.proxy.inspector import ConnectionInspector
from hansa.observers.proxy.observer import (
    ADDED,
    DOUBTED,
    ENDED,
    OPENED,
    REMOVED,
    ProxyObserver,
    SessionChange,
)

SESSIONS_FILE = "proxy-sessions"

CONNECT_TIMEOUT_S = 10.0
"""Seconds until a broker that does not answer counts as unreachable, and the client's connection
ends."""

ACCEPT_BACKLOG = 1_024
"""Connections that wait to be accepted."""

LINES_SPARE = 1_000
"""Lines beyond twice the number of sessions and filters before the file is rewritten."""

_V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


class _Header(msgspec.Struct):
    """The first line: whether clients may have left sessions at the broker before the proxy ran."""

    may_have_earlier_sessions: bool


@dataclass(slots=True)
class SavedSession:
    """What the file holds of one client."""

    filters: dict[str, None] = field(default_factory=dict)
    doubt: str = ""


class SessionFile:
    """The persistent sessions of the proxy's clients: a header, then a line per `SessionChange`.

    Changes that arrive while others are being written share the next write and sync.
    """

    def __init__(self, path: Path, no_earlier_sessions: bool, set_alarm: SetAlarm) -> None:
        self._path = path
        self._set_alarm = set_alarm
        self._lock = asyncio.Lock()
        self._unwritten: list[SessionChange] = []
        self._line_count = 0
        self._needs_rewrite = True
        self._header = _Header(may_have_earlier_sessions=True)
        self.sessions: dict[str, SavedSession] = {}
        self._load()
        if no_earlier_sessions:
            self._header.may_have_earlier_sessions = False

    @property
    def may_have_earlier_sessions(self) -> bool:
        """Whether clients may have left sessions at the broker before the proxy first ran."""
        return self._header.may_have_earlier_sessions

    def _load(self) -> None:
        try:
            lines = self._path.read_bytes().split(b"\n")[:-1]  # a torn last line is not confirmed
            if lines:
                self._header = msgspec.json.decode(lines.pop(0), type=_Header)
            decoder = msgspec.json.Decoder(SessionChange)
            for line in lines:
                self._apply(decoder.decode(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"cannot read {self._path}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{self._path} is damaged ({error}); remove the file to start without the sessions"
                " that it holds"
            ) from error

    def _apply(self, change: SessionChange) -> None:
        client_id, action, items = change
        self._line_count += 1
        if action == ENDED:
            self.sessions.pop(client_id, None)
            return
        if action == OPENED:
            self.sessions[client_id] = SavedSession()
        session = self.sessions.setdefault(client_id, SavedSession())
        if action == ADDED:
            session.filters.update(dict.fromkeys(items))
        elif action == REMOVED:
            for item in items:
                session.filters.pop(item, None)
        elif action == DOUBTED:
            session.doubt = items[0]

    async def save(self, changes: Iterable[SessionChange]) -> None:
        """Return when these changes are on disk, or an alarm has been raised."""
        self._unwritten += changes
        async with self._lock:
            written, self._unwritten = self._unwritten, []
            if not written and not self._needs_rewrite:
                return  # another call has written them
            for change in written:
                self._apply(change)
            filter_count = sum(len(session.filters) for session in self.sessions.values())
            if self._line_count > 2 * (len(self.sessions) + filter_count) + LINES_SPARE:
                self._needs_rewrite = True
            rewrite = self._needs_rewrite
            content = self._whole() if rewrite else written
            data = b"".join(msgspec.json.encode(item) + b"\n" for item in content)
            self._needs_rewrite = True  # until it is written: the end of the file may be torn
            try:
                await asyncio.to_thread(self._replace if rewrite else self._append, data)
            except OSError as error:
                self._set_alarm(f"sessions of proxy clients cannot be saved: {error.strerror}")
                return
            self._needs_rewrite = False
            self._line_count = len(content) if rewrite else self._line_count
            self._set_alarm("")

    def _whole(self) -> list[_Header | SessionChange]:
        content: list[_Header | SessionChange] = [self._header]
        for client_id, session in self.sessions.items():
            content.append((client_id, OPENED, []))
            if session.filters:
                content.append((client_id, ADDED, list(session.filters)))
            if session.doubt:
                content.append((client_id, DOUBTED, [session.doubt]))
        return content

    def _append(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())

    def _replace(self, data: bytes) -> None:
        part = self._path.with_name(f"{self._path.name}.part")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        part.replace(self._path)
        sync_directory(self._path.parent)


class ProxyServer:
    """Listens for clients and connects each of them to the broker."""

    def __init__(
        self,
        settings: ProxySettings,
        broker: Address,
        broker_tls: ssl.SSLContext | None,
        path: Path,
        set_alarm: SetAlarm,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._broker_tls = broker_tls
        self._tls = _tls_context(settings)
        self._file = SessionFile(path, settings.no_earlier_sessions, set_alarm)
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
