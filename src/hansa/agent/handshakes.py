"""A server of HTTPS that bounds its unfinished TLS handshakes.

The servers of asyncio and uvloop report a connection only when its handshake is complete. Before
that, connections that send nothing take a file descriptor and memory each, without a limit on
their number. This one has at most HANDSHAKES_MAX unfinished handshakes, for HANDSHAKE_TIMEOUT_S
each. A further connection closes the oldest of the host that has most.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hansa.agent import tasks
from hansa.agent.sockets import SocketServer
from hansa.agent.unfinished import UnfinishedConnections

HANDSHAKES_MAX = 64
"""Handshakes that are not complete, at the same time, per server."""

HANDSHAKE_TIMEOUT_S = 5.0

SHUTDOWN_TIMEOUT_S = 5.0
"""Seconds that a client may take to close its side after the answer."""

EVICTED = "HTTPS connections closed: too many unfinished TLS handshakes"
FAILED = "HTTPS connections closed: no TLS handshake"


class Handshakes:
    """Runs a limited number of handshakes, each as a task."""

    def __init__(self, most: int, counters: Counter[str], counter: str) -> None:
        """`counters` gets the number of handshakes that were ended for newer ones."""
        self._unfinished = UnfinishedConnections(most, counters, counter)
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._unfinished)

    def set_most(self, most: int) -> None:
        """Change the number of places."""
        self._unfinished.most = most

    def start(self, client: socket.socket, handshake: Coroutine[Any, Any, None]) -> None:
        """Run a handshake, which closes the socket if it fails."""
        client.setblocking(False)
        task = tasks.start_task(handshake)
        self._tasks.add(task)
        self._unfinished.add(task, client, partial(self._end, task, client))
        task.add_done_callback(partial(self._on_done, client))

    def end_one(self) -> bool:
        """End a handshake; return whether there was one."""
        return self._unfinished.end_one()

    def end_all(self) -> None:
        """End all handshakes."""
        self._unfinished.end_all()

    async def wait_ended(self) -> None:
        """Wait until handshakes that were ended have closed their sockets."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None], client: socket.socket) -> None:
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # the transport closes it a little later
        task.cancel()

    def _on_done(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._unfinished.remove(task)
        if task.cancelled():  # maybe before it began
            client.close()


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
        self._handshakes = Handshakes(HANDSHAKES_MAX, counters, EVICTED)
        self._server = SocketServer(sockets, self._accept)

    def close(self) -> None:
        """Accept no more connections, and close those without a complete handshake."""
        self._server.close()
        self._handshakes.end_all()

    async def wait_closed(self) -> None:
        """Wait for the handshakes that `close` has ended."""
        await self._handshakes.wait_ended()

    def _accept(self, client: socket.socket) -> None:
        self._handshakes.start(client, self._secure(client))

    async def _secure(self, client: socket.socket) -> None:
        try:
            await self._open(client)
        except OSError:  # SSLError and TimeoutError are such errors
            self._counters[FAILED] += 1
            client.close()

    async def _open(self, client: socket.socket) -> None:
        """Complete the handshake, and give the connection its protocol."""
        await asyncio.get_running_loop().connect_accepted_socket(
            self._make_protocol,
            client,
            ssl=self._context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
