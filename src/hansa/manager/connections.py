"""Connections of the manager: one that sends or reads nothing is closed.

uvicorn waits forever for the rest of a request and for a client to read. So a few thousand idle
connections would take all file descriptors, and with them keep every agent out.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from hansa.agent.handshakes import TlsServer

REQUEST_TIMEOUT_S = 10.0
"""Seconds for the head of a request, and as many for its body."""

READ_TIMEOUT_S = 60.0
"""Seconds in which a client must read some of what was sent."""

WAITING_MAX = 256
"""Connections without a whole head of a request; a further one closes the oldest."""


class BoundedConnection(H11Protocol):
    """One connection."""

    waiting: ClassVar[dict[H11Protocol, asyncio.TimerHandle]]
    """Connections of the same server without a whole head of a request, the oldest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write_timer: asyncio.TimerHandle | None = None
        if len(self.waiting) >= WAITING_MAX:
            next(iter(self.waiting)).transport.abort()
        self._start_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        self._stop_write_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        # Before the first request, uvicorn's cycle is None, which its type does not say.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._end_waiting()

    def on_response_complete(self) -> None:
        self._start_waiting()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _start_waiting(self) -> None:
        self._end_waiting()
        self.waiting[self] = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.abort)

    def _end_waiting(self) -> None:
        if timer := self.waiting.pop(self, None):
            timer.cancel()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def make_protocol_class() -> type[H11Protocol]:
    """Return the protocol of one server's connections."""

    class OfOneServer(BoundedConnection):
        waiting: ClassVar[dict[H11Protocol, asyncio.TimerHandle]] = {}

    return OfOneServer


class ManagerServer(uvicorn.Server):
    """A server that leaves signals to its owner, and bounds unfinished TLS handshakes."""

    make_node_server: Callable[["ManagerServer"], TlsServer] | None = None
    """Makes the server of the port for nodes, if there is one."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; uvicorn itself does not limit the number of unfinished handshakes."""
        context = self.config.ssl
        if context is None or sockets is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            for each in sockets:
                each.setblocking(False)
            kind = self.config.http_protocol_class
            made = TlsServer(sockets, lambda: self.make_protocol(kind), context, Counter())
            self.servers.append(made)  # type: ignore[arg-type]  # uvicorn only closes it
        if self.make_node_server is not None:
            self.servers.append(self.make_node_server(self))  # type: ignore[arg-type]

    def make_protocol(self, kind: type[asyncio.Protocol]) -> asyncio.Protocol:
        return kind(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: ManagerService handles them."""
        yield
