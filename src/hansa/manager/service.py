"""Assembles and runs the manager: store, registry, HTTP server, periodic ticks."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from hansa.agent.exposure import HostRule, is_loopback
from hansa.errors import UsageError
from hansa.manager.access import AccessControl, RateLimiter, check_exposure
from hansa.manager.api import clock, make_app
from hansa.manager.connections import ManagerServer, make_protocol_class
from hansa.manager.federators import FederatorClients
from hansa.manager.member_server import NODE_PORT, listen_for_nodes
from hansa.manager.members import Members
from hansa.manager.middleware import RequestGuard
from hansa.manager.registry import FederationRegistry
from hansa.manager.rows import HistoryRow
from hansa.manager.settings import settings_from_environment
from hansa.manager.store import ManagerStore, StoreUnavailable, open_store
from hansa.manager.streams import EventStreams

log = logging.getLogger("hansa.manager")

TICK_S = 0.5
SHUTDOWN_GRACE_S = 2
"""Seconds for running requests when the manager stops."""


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free port."""
    database: str = "sqlite:///hansa-manager.db"
    rate: float = 100.0
    """Requests per second of one client, with a burst of twice as many."""
    tls_certificate: str = ""
    """File with the certificate for HTTPS, and its chain; plain HTTP without one."""
    tls_key: str = ""
    """File with its private key, if it is not in the same file."""
    state: Path | None = None
    """Directory with the manager's certificate of the federation. With it agents join by their
    certificates, at a port of their own."""
    node_host: str = "0.0.0.0"
    node_port: int = NODE_PORT
    """0: a free port."""


class ManagerService:
    def __init__(
        self, options: ManagerOptions, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Open the database; raise UsageError if the options are invalid."""
        self._options = options
        self.store: ManagerStore = open_store(options.database)
        self.access = AccessControl(
            self.store,
            environment.get("HANSA_MANAGER_TOKEN", ""),
            is_exposed=not is_loopback(options.host),
        )
        check_exposure(options.host, self.access)
        self.members = None if options.state is None else Members(options.state)
        self._streams = EventStreams(self.store)
        self.federation = FederationRegistry(self.store, self._on_history)
        self._federators = FederatorClients(
            self.federation,
            clock,
            environment.get("HANSA_MANAGER_BROKER_USERNAME"),
            environment.get("HANSA_MANAGER_BROKER_PASSWORD"),
            _trusted_brokers(environment),
        )
        if given := settings_from_environment(environment):
            self.federation.change_settings(given, clock())
        app = make_app(
            self.store,
            self.federation,
            self.access,
            self._streams,
            self._federators,
            self.members,
        )
        config = uvicorn.Config(
            RequestGuard(
                app,  # type: ignore[arg-type]
                RateLimiter(options.rate),
                self.store,
                self.access,
                HostRule(options.host),
                self.members,
            ),
            http=make_protocol_class(),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
            lifespan="off",
            ssl_certfile=options.tls_certificate or None,
            ssl_keyfile=options.tls_key or None,
        )
        _load_tls(config, options.tls_certificate)
        self._server = ManagerServer(config)

    def _on_history(self, rows: list[HistoryRow]) -> None:
        self._streams.on_history(rows)
        self._federators.on_links_changed()

    async def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        listening = self.bind()
        self.bind_for_nodes()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self.serve(listening)

    def bind(self) -> socket.socket:
        """Listen, and lock the database; raise UsageError if either is in use."""
        family = socket.AF_INET6 if ":" in self._options.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((self._options.host.strip("[]"), self._options.port))
            made.listen()  # from now on connections wait until `serve` runs
        except OSError as error:
            made.close()
            place = f"{self._options.host}:{self._options.port}"
            raise UsageError(
                f"cannot listen on {place}: {error.strerror or error}; choose another port with"
                " --port (8080 is also the default of an agent's [admin] port)"
            ) from error
        try:
            self.store.acquire_lock()
        except UsageError:
            made.close()
            raise
        return made

    def bind_for_nodes(self) -> int:
        """Listen for nodes, if the manager has a certificate; return the port."""
        if (members := self.members) is None:
            return 0
        made = listen_for_nodes(self._options.node_host, self._options.node_port)
        kind = members.make_protocol_class()
        self._server.make_node_server = lambda server: members.make_server(
            [made], lambda: server.make_protocol(kind)
        )
        found: int = made.getsockname()[1]
        log.info(
            "agents join with certificates host=%s port=%d federation=%s",
            self._options.node_host, found, members.federation,
        )  # fmt: skip
        return found

    async def serve(self, listening: socket.socket) -> None:
        """Serve on a socket until `stop` is called."""
        host, port = listening.getsockname()[:2]
        scheme = "https" if self._options.tls_certificate else "http"
        place = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        if scheme == "http" and not is_loopback(self._options.host):
            log.warning("tokens cross the network in clear: use --tls-certificate")
        log.info("manager up api=%s/api/v1 docs=%s/docs", place, place)
        background_tasks = [
            asyncio.create_task(self._tick_forever()),
            asyncio.create_task(self._federators.run()),
        ]
        if self.members is not None:
            background_tasks.append(asyncio.create_task(self.members.run()))
        for task in background_tasks:  # if one fails, the manager must end
            task.add_done_callback(lambda _: self.stop())
        try:
            await self._server.serve(sockets=[listening])
        finally:
            for task in background_tasks:
                task.cancel()
            await asyncio.gather(*background_tasks, return_exceptions=True)
            self.store.close()
            log.info("manager stops")
        for task in background_tasks:
            if not task.cancelled():
                task.result()

    def stop(self) -> None:
        self._streams.close_all()
        self._server.should_exit = True

    async def _tick_forever(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.federation.tick, clock())
            except StoreUnavailable as error:
                log.error("the database does not answer reason=%r", str(error))
            await asyncio.sleep(TICK_S)


def _load_tls(config: uvicorn.Config, certificate: str) -> None:
    """Load the certificate now, to report an unusable one in one line."""
    try:
        config.load()
    except OSError as error:
        raise UsageError(
            f"--tls-certificate: cannot use {certificate} with its key: {error}"
        ) from error


def _trusted_brokers(environment: Mapping[str, str]) -> list[str]:
    """Return the brokers to which the manager sends its user name and password."""
    given = environment.get("HANSA_MANAGER_BROKERS", "")
    found = [text for each in given.split(",") if (text := each.strip())]
    if environment.get("HANSA_MANAGER_BROKER_USERNAME") and not found:
        raise UsageError(
            "HANSA_MANAGER_BROKER_USERNAME requires HANSA_MANAGER_BROKERS, the brokers that get it,"
            " as host:port,host:port: the address of a node that joins is not trusted"
        )
    return found
