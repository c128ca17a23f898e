"""The server of the proxy: accepts clients and connects each of them to the broker.

Keep-alive, authentication and limits stay between client and broker. TLS of clients ends here,
except for names that are passed through: their connections go to the broker's own TLS port, and
the proxy cannot read what they subscribe to.

Connections without a complete TLS handshake, and those without a complete CONNECT, have
`unfinished_max` places each. They give way to new connections, also when open files run out.
"""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hansa.agent import sockets, tasks
from hansa.agent.alarms import Alarms
from hansa.agent.broker.proxy.connection import (
    BrokerSide,
    InspectedClient,
    OpaqueClient,
    ProxyConnection,
    ProxyState,
)
from hansa.agent.broker.proxy.open_files import OpenFileLimit
from hansa.agent.broker.proxy.proxy_protocol import make_header
from hansa.agent.broker.proxy.tls import ServerCertificate, peek_server_name
from hansa.agent.broker.settings import ProxySettings
from hansa.agent.error_text import listen_error_text
from hansa.agent.handshakes import Handshakes
from hansa.agent.links.link import Address
from hansa.agent.storage.proxy_sessions import SESSIONS_FILE, SessionFile
from hansa.errors import UsageError
from hansa.observers.proxy.observer import ProxyObserver

log = logging.getLogger("hansa.agent")

CONNECT_TIMEOUT_S = 10.0
"""Seconds until a broker that does not answer counts as unreachable, and the client's connection
ends."""

UNREACHABLE = "proxy cannot reach broker"
NO_TLS = "proxy connections ended: no TLS"
UNFINISHED = "proxy connections ended: too many unfinished TLS handshakes"


@dataclass(slots=True)
class _Listener:
    """An address that clients connect to."""

    address: Address
    broker: Address
    """Where their bytes go."""
    is_websocket: bool
    listening: list[socket.socket]
    server: sockets.SocketServer | None = None


class ProxyServer(ProxyState):
    """Listens for clients and connects each of them to the broker."""

    def __init__(
        self,
        settings: ProxySettings,
        broker: Address,
        broker_tls: ssl.SSLContext | None,
        state_path: Path,
        alarms: Alarms,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._broker_tls = broker_tls
        self._alarms = alarms
        file = SessionFile(
            state_path / SESSIONS_FILE,
            settings.no_earlier_sessions,
            alarms.setter("proxy sessions not saved"),
        )
        observer = ProxyObserver(
            file.may_have_earlier_sessions,
            settings.passthrough_filters if settings.passthrough_names else None,
        )
        for client_id, session in file.sessions.items():
            observer.load_session(client_id, session.filters, session.expiry_s, session.doubt)
        super().__init__(observer, file, settings.unfinished_max)
        self._open_files = OpenFileLimit(alarms, self.counters)
        self._certificate: ServerCertificate | None = None
        self._listeners: list[_Listener] = []
        self._accepted_count = 0
        self._handshakes = Handshakes(settings.unfinished_max, self.counters, UNFINISHED)

    @property
    def address(self) -> Address:
        """Return where clients connect."""
        return self._listeners[0].address

    async def listen(self) -> None:
        """Bind the addresses, or raise UsageError; clients are served from `run` on."""
        settings = self._settings
        if settings.tls_certificate:
            self._certificate = ServerCertificate(
                settings, self._alarms.setter("proxy certificate")
            )
        await self.save(())
        self._open_files.raise_to_most()
        await self._bind(settings.port, self._broker, is_websocket=False)
        if settings.broker_websocket_port:
            broker = Address(self._broker.host, settings.broker_websocket_port)
            await self._bind(settings.websocket_port, broker, is_websocket=True)

    async def _bind(self, port: int, broker: Address, is_websocket: bool) -> None:
        address = Address(self._settings.host, port)
        try:
            listening = await sockets.listen(address.host, address.port)
        except (OSError, UnicodeError) as error:
            raise UsageError(listen_error_text(address, "proxy", error)) from error
        address = Address(address.host, listening[0].getsockname()[1])
        self._listeners.append(_Listener(address, broker, is_websocket, listening))

    async def run(self) -> None:
        """Serve clients."""
        for each in self._listeners:
            what = "WebSocket clients" if each.is_websocket else "clients"
            log.info("proxy for %s at %s", what, each.address)
            each.server = sockets.SocketServer(each.listening, partial(self._accept, each))
        if self._certificate is not None:
            await self._certificate.run()
        await asyncio.Event().wait()

    def stop(self) -> None:
        """Stop listening, and close all connections; clients reconnect when the proxy is back."""
        for each in self._listeners:
            if each.server is not None:
                each.server.close()
            for listening in each.listening:
                listening.close()
        self._handshakes.end_all()
        for client in list(self.clients.values()):
            client.abort()

    def status(self) -> dict[str, object]:
        """Return what `/status` shows."""
        found: dict[str, object] = {
            "address": str(self.address),
            "clients": self.observer.connected_count,
        }
        if len(self._listeners) > 1:
            found["websocket_address"] = str(self._listeners[1].address)
        return {"proxy": found}

    # ------------------------------------------------------------ one client

    def _accept(self, listener: _Listener, client: socket.socket) -> None:
        self.counters["proxy connections"] += 1
        self._accepted_count += 1
        if not self._has_room():
            self._open_files.report_full()
            client.close()
        elif self._certificate is None:
            side = InspectedClient(self, self._accepted_count, listener.is_websocket)
            sockets.SocketTransport(client, side)
            tasks.start_task(self._connect(side, listener.broker, self._broker_tls))
        else:
            number, context = self._accepted_count, self._certificate.context
            self._handshakes.start(client, self._accept_tls(client, number, listener, context))

    def _has_room(self) -> bool:
        """Whether one more client fits, maybe in place of one that has not proved anything."""
        count = len(self.clients) + len(self._handshakes) + 1
        if self._open_files.has_room(count):
            return True
        if len(self._handshakes) > len(self.without_connect):
            return self._handshakes.end_one()
        return self.without_connect.end_one()

    async def _accept_tls(
        self, client: socket.socket, number: int, listener: _Listener, context: ssl.SSLContext
    ) -> None:
        """Agree on TLS with a client, or find out that it is to be passed through."""
        side: ProxyConnection
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                if await self._is_passed_through(client):
                    side = OpaqueClient(self, number)
                    sockets.SocketTransport(client, side)
                else:
                    side = InspectedClient(self, number, listener.is_websocket)
                    loop = asyncio.get_running_loop()
                    await loop.connect_accepted_socket(lambda: side, client, ssl=context)
        except OSError:  # SSLError and TimeoutError are such errors
            self.counters[NO_TLS] += 1
            client.close()
            return
        if isinstance(side, OpaqueClient):
            broker = Address(self._broker.host, self._settings.passthrough_port)
            tasks.start_task(self._connect(side, broker, None))
        else:
            tasks.start_task(self._connect(side, listener.broker, self._broker_tls))

    async def _is_passed_through(self, client: socket.socket) -> bool:
        names = self._settings.passthrough_names
        return bool(names) and (await peek_server_name(client)).lower() in names

    async def _connect(
        self, client: ProxyConnection, broker: Address, tls: ssl.SSLContext | None
    ) -> None:
        """Connect a client to the broker; if that fails, end its connection."""
        try:
            side = BrokerSide(self, client, self._header_for(client.transport))
        except OSError:  # the client has gone
            client.abort()
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if tls is None:
                    sockets.SocketTransport(await sockets.connect(broker.host, broker.port), side)
                else:
                    loop = asyncio.get_running_loop()
                    await loop.create_connection(lambda: side, broker.host, broker.port, ssl=tls)
        except OSError as error:
            self.counters["proxy connections ended: broker unreachable"] += 1
            problem = error.strerror or str(error) or f"no answer in {CONNECT_TIMEOUT_S:.0f} s"
            self._alarms.set(UNREACHABLE, f"{broker}: {problem}; clients cannot connect")
            client.abort()
        else:
            self._alarms.set(UNREACHABLE, "")

    def _header_for(self, client: asyncio.BaseTransport) -> bytes:
        """Return what the broker must get before the bytes of a client."""
        if not self._settings.proxy_protocol:
            return b""
        connected = client.get_extra_info("socket")
        peer, own = connected.getpeername()[:2], connected.getsockname()[:2]
        return make_header(self._settings.proxy_protocol, peer, own)
