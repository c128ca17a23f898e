"""The HTTP endpoints of one agent: listens, and answers until it is closed."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hansa.agent.admin.endpoints import AgentEndpoints
from hansa.agent.admin.server import serve
from hansa.agent.admin.summary import StatusSources
from hansa.agent.broker.connection import NamedConnectionFactory
from hansa.agent.handshakes import TlsServer
from hansa.agent.links.link import Address
from hansa.agent.security import admin_protection
from hansa.agent.settings import AgentSettings
from hansa.agent.storage.state_directory import JOURNAL_DIRECTORY
from hansa.agent.telemetry.endpoints import LogEndpoints
from hansa.protocol.effects import QueryReceived, QueryResponseReceived


class AdminService:
    def __init__(
        self,
        settings: AgentSettings,
        state: Path,
        parts: StatusSources,
        make_connection: NamedConnectionFactory | None,
    ) -> None:
        """`make_connection` makes clients of the broker; None with the embedded broker."""
        self.address = Address(settings.admin.host, settings.admin.port)
        """With the actual port once it listens."""
        self._settings = settings
        self._state = state
        self._audit = parts.event_log.audit
        self._on_refused = parts.event_log.log_request_refused
        self._endpoints = AgentEndpoints(parts, make_connection, settings.admin.answers_observers)
        self._server: asyncio.Server | TlsServer | None = None

    async def listen(self, request_stop: Callable[[], None]) -> None:
        """Start to answer requests; raise OSError or UnicodeError if the address cannot be used.
        `request_stop` stops the agent."""
        admin = self._settings.admin
        logs = LogEndpoints(
            self._state / JOURNAL_DIRECTORY,
            {
                "telemetry": self._settings.telemetry.path(self._state),
                "audit": self._audit.path,
            },
        )
        protection = admin_protection(admin, self._on_refused)
        self._endpoints.connection_counters = protection.counters
        self._server = await serve(
            *(admin.host, admin.port, self._endpoints.routes(), logs.handle_request),
            protection,
            handlers=self._endpoints.handlers(request_stop),
        )
        self.address = Address(admin.host, self._server.sockets[0].getsockname()[1])

    async def publish_state(self) -> None:
        """Publish the state as retained topics until cancelled, if a prefix is set."""
        if prefix := self._settings.broker.state_topics:
            await self._endpoints.publish_state(prefix)

    def close(self) -> None:
        """Accept no more requests and end all streams."""
        if self._server is not None:
            self._server.close()
        self._endpoints.close_streams()

    def perform_query(self, effect: QueryReceived | QueryResponseReceived) -> None:
        """Answer a question of another agent, or take the answer to our question."""
        self._endpoints.federation.perform(effect)

    def all_counters(self) -> Counter[str]:
        """Return the sum of the counters of all parts."""
        return self._endpoints.all_counters()
