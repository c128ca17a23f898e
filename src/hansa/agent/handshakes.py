"""A server of HTTPS that bounds its unfinished TLS handshakes.

The servers of asyncio and uvloop report a connection only when its handshake is complete. Before
that, connections that send nothing take a file descriptor and memory each, without a limit on
their number. This one has at most HANDSHAKES_MAX unfinished handshakes, for HANDSHAKE_TIMEOUT_S
each. A further connection closes the oldest.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from hansa.agent.sockets import SocketServer

log = logging.getLogger("hansa.agent")

HANDSHAKES_MAX = 64
"""Handshakes that are not complete, at the same time, per server."""

HANDSHAKE_TIMEOUT_S = 5.0

SHUTDOWN_TIMEOUT_S = 5.0
"""Seconds that a client may take to close its side after the answer."""

REPORT_INTERVAL_S = 60.0
"""Seconds between two log lines about closed handshakes."""

EVICTED = "HTTPS connections closed: too many unfinished TLS handshakes"
FAILED = "HTTPS connections closed: no TLS handshake"


class TlsServer:
    """Accepts connections with TLS until it is closed."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        counters: Counter[str],
    ) -> None:
        """`make_protocol` makes the protocol of a connection; `counters` gets the number of
        connections that were closed before, by reason."""
        self.sockets = sockets
        self._make_protocol = make_protocol
        self._context = context
        self._counters = counters
        self._unfinished: dict[asyncio.Task[None], socket.socket] = {}
        """The oldest first."""
        self._reported_at: float | None = None
        self._server = SocketServer(sockets, self._accept)

    def close(self) -> None:
        """Accept no more connections, and close those without a complete handshake."""
        self._server.close()
        for task in list(self._unfinished):
            self._end(task)

    async def wait_closed(self) -> None:
        """Wait for the handshakes that `close` has ended."""
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    def _accept(self, client: socket.socket) -> None:
        if len(self._unfinished) >= HANDSHAKES_MAX:
            self._counters[EVICTED] += 1
            oldest = next(iter(self._unfinished))
            self._end(oldest)
            del self._unfinished[oldest]
            self._report()
        client.setblocking(False)
        task = asyncio.create_task(self._secure(client))
        self._unfinished[task] = client
        task.add_done_callback(partial(self._on_done, client))

    def _on_done(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._unfinished.pop(task, None)
        if task.cancelled():  # maybe before it began
            client.close()

    def _end(self, task: asyncio.Task[None]) -> None:
        client = self._unfinished[task]
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # the transport closes it a little later
        task.cancel()

    async def _secure(self, client: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                client,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except OSError:  # SSLError and TimeoutError are such errors
            self._counters[FAILED] += 1
            client.close()

    def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._reported_at is None or now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            count = self._counters[EVICTED]
            log.warning("too many unfinished TLS handshakes at an HTTPS port closed=%d", count)
