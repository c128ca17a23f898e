"""The server of the proxy: accepts clients and connects each of them to the broker.

Keep-alive, authentication and limits stay between client and broker. TLS of clients ends here,
except for names that are passed through: their connections go to the broker's own TLS port, and
the proxy cannot read what they subscribe to.

A server without a file of sessions is the fallback while the agent cannot start: it forwards
everything unread (`fallback.py`).

Connections without a complete TLS handshake, and those without a complete CONNECT, have
`unfinished_max` places each. They give way to new connections, also when open files run out.
"""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, replace
from functools import partial

from hansa.agent import sockets, tasks
from hansa.agent.alarms import Alarms
from hansa.agent.broker.proxy.connection import (
    BrokerSide,
    InspectedClient,
    OpaqueClient,
    ProxyConnection,
    ProxyState,
)
from hansa.agent.broker.proxy.handover import Handover
from hansa.agent.broker.proxy.listening import PortUnavailable
from hansa.agent.broker.proxy.open_files import OpenFileLimit
from hansa.agent.broker.proxy.proxy_protocol import make_header
from hansa.agent.broker.proxy.tls import ServerCertificate, peek_server_name
from hansa.agent.broker.settings import ProxySettings
from hansa.agent.handshakes import Handshakes
from hansa.agent.links.link import Address
from hansa.agent.settings import AgentSettings
from hansa.agent.storage.proxy_sessions import SessionFile
from hansa.observers.proxy.observer import ProxyObserver

log = logging.getLogger("hansa.agent")

CONNECT_TIMEOUT_S = 10.0
"""Seconds until a broker that does not answer counts as unreachable, and the client's connection
ends."""

CHECK_INTERVAL_S = 10.0
"""Seconds between two looks at the files of the certificate, and two attempts to save sessions."""

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


NEED_RESTART = ("host", "port", "websocket_port", "broker_websocket_port")
"""Settings of open ports."""

CERTIFICATE_SETTINGS = ("tls_certificate", "tls_key")


class ProxyServer(ProxyState):
    """Listens for clients and connects each of them to the broker."""

    def __init__(
        self,
        settings: ProxySettings,
        broker: Address,
        broker_tls: ssl.SSLContext | None,
        alarms: Alarms,
        file: SessionFile | None,
        handover: Handover | None = None,
    ) -> None:
        """`broker` is the address of the agent itself there; without a file the proxy does not read
        what clients send."""
        self._settings = settings
        self._broker = broker
        self._broker_tls = broker_tls
        self._alarms = alarms
        self._handover = handover or Handover()
        opaque_filters = settings.passthrough_filters if settings.passthrough_names else None
        observer = ProxyObserver(file is None or file.may_have_earlier_sessions, opaque_filters)
        for client_id, session in file.sessions.items() if file is not None else ():
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

    @property
    def is_listening(self) -> bool:
        """Whether an address is bound."""
        return bool(self._listeners)

    async def listen(self) -> None:
        """Bind the addresses, or raise UsageError; clients are served from `run` on. A fallback
        that served them so far ends. After PortUnavailable the other port is bound, and another
        call tries again."""
        settings = self._settings
        if self._certificate is None:
            self._certificate = self._load_certificate(settings)
        self._open_files.raise_to_most()
        unavailable: PortUnavailable | None = None
        try:
            await self._bind(settings.port, self._upstream(settings), is_websocket=False)
        except PortUnavailable as error:
            unavailable = error
        if settings.broker_websocket_port:
            broker = Address(self._broker.host, settings.broker_websocket_port)
            await self._bind(settings.websocket_port, broker, is_websocket=True)
        if unavailable is not None:
            raise unavailable
        if self.file is not None:
            if self._handover.end_fallback():
                self.file.note_missed_changes()
            await self.save(())

    def _upstream(self, settings: ProxySettings) -> Address:
        return Address(self._broker.host, settings.broker_port or self._broker.port)

    def _load_certificate(self, settings: ProxySettings) -> ServerCertificate | None:
        if not settings.tls_certificate:
            return None
        return ServerCertificate(settings, self._alarms.setter("proxy certificate"))

    async def _bind(self, port: int, broker: Address, is_websocket: bool) -> None:
        if any(each.is_websocket is is_websocket for each in self._listeners):
            return  # by an earlier call
        host = self._settings.host
        listening = await self._handover.listening.open(host, port)
        address = Address(host, listening[0].getsockname()[1])
        self._listeners.append(_Listener(address, broker, is_websocket, listening))

    def accept_clients(self) -> None:
        """Serve clients from now on, at all bound addresses."""
        new = [each for each in self._listeners if each.server is None]
        for each in new:
            what = "WebSocket clients" if each.is_websocket else "clients"
            log.info("proxy for %s at %s", what, each.address)
            each.server = sockets.SocketServer(each.listening, partial(self._accept, each))
        if new:
            self._handover.listening.report_unused()

    async def run(self) -> None:
        """Serve clients; use changed certificates, and save sessions again if that failed."""
        self.accept_clients()
        while True:
            if self._certificate is not None:
                self._certificate.check()
            if self.file is not None:
                if not self.file.is_saved:
                    await self.save(())
                self.note_file_state(self.file)
            await asyncio.sleep(CHECK_INTERVAL_S)

    def reload(self, settings: AgentSettings, changed: frozenset[str]) -> frozenset[str]:
        """Use changed settings for new connections; open ones stay."""
        proxy, old = settings.proxy, self._settings
        if any(getattr(proxy, name) != getattr(old, name) for name in CERTIFICATE_SETTINGS):
            self._certificate = self._load_certificate(proxy)
        if not proxy.tls_certificate:
            self._alarms.set("proxy certificate", "")
        self._settings = replace(proxy, **{name: getattr(old, name) for name in NEED_RESTART})
        self._listeners[0].broker = self._upstream(proxy)
        self.without_connect.most = proxy.unfinished_max
        self._handshakes.set_most(proxy.unfinished_max)
        self.observer.set_opaque_filters(
            proxy.passthrough_filters if proxy.passthrough_names else None
        )
        if self.file is not None:
            self.file.declare(proxy.no_earlier_sessions)
        tasks.start_task(self.save(()))
        fixed = {f"[proxy] {name}" for name in NEED_RESTART}
        return frozenset(name for name in changed - fixed if name.startswith("[proxy] "))

    def stop(self) -> None:
        """Stop listening, and close all connections; clients reconnect when the proxy is back."""
        self.stop_accepting()
        self._handover.listening.close()

    def stop_accepting(self) -> None:
        """Close all connections; new ones wait until someone else accepts them."""
        for each in self._listeners:
            if each.server is not None:
                each.server.stop()
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
        if self.file is None:
            self._handover.on_client_missed()
        if not self._has_room():
            self._open_files.report_full()
            client.close()
        elif self._certificate is None:
            side = self._make_side(self._accepted_count, listener)
            sockets.SocketTransport(client, side)
            tasks.start_task(self._connect(side, listener.broker, self._broker_tls))
        else:
            number, context = self._accepted_count, self._certificate.context
            self._handshakes.start(client, self._accept_tls(client, number, listener, context))

    def _make_side(self, number: int, listener: _Listener) -> ProxyConnection:
        if self.file is None:
            return OpaqueClient(self, number)
        return InspectedClient(self, number, listener.is_websocket)

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
                is_passed = await self._is_passed_through(client)
                if is_passed:
                    side = OpaqueClient(self, number)
                    sockets.SocketTransport(client, side)
                else:
                    side = self._make_side(number, listener)
                    loop = asyncio.get_running_loop()
                    await loop.connect_accepted_socket(lambda: side, client, ssl=context)
        except OSError:  # SSLError and TimeoutError are such errors
            self.counters[NO_TLS] += 1
            client.close()
            return
        if is_passed:
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

    def _header_for(self, client: sockets.ByteTransport) -> bytes:
        """Return what the broker must get before the bytes of a client."""
        if not self._settings.proxy_protocol:
            return b""
        connected = client.get_extra_info("socket")
        peer, own = connected.getpeername()[:2], connected.getsockname()[:2]
        return make_header(self._settings.proxy_protocol, peer, own)
