"""The ports on which clients of the proxy connect: opened here, or already open.

A service manager can keep a port open over restarts of the agent (systemd: a socket unit). New
connections then wait in the kernel until the agent accepts them, instead of being refused. Such
sockets are passed as file descriptors from 3 on, with their number in LISTEN_FDS and the id of the
process in LISTEN_PID.
"""

import logging
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

from hansa.agent import sockets
from hansa.agent.error_text import listen_error_text
from hansa.agent.links.link import Address
from hansa.errors import UsageError

log = logging.getLogger("hansa.agent")

FIRST_DESCRIPTOR = 3


class PortUnavailable(UsageError):
    """A port cannot be opened at this moment: another process has it, or its address is not there
    yet."""


class ListeningSockets:
    """Listening sockets by port. They stay open while the process runs, so that the part of the
    agent that accepts connections can change."""

    def __init__(self) -> None:
        self._passed: dict[int, list[socket.socket]] = {}
        """Sockets of the service manager."""
        self._used: set[int] = set()
        self._opened: dict[tuple[str, int], list[socket.socket]] = {}

    @classmethod
    def from_service_manager(
        cls, environment: MutableMapping[str, str] = os.environ
    ) -> "ListeningSockets":
        """Take over the sockets that were passed to this process; children do not get them."""
        made = cls()
        count = environment.pop("LISTEN_FDS", "")
        is_for_us = environment.pop("LISTEN_PID", "") == str(os.getpid())
        environment.pop("LISTEN_FDNAMES", None)
        if is_for_us and count.isdigit():
            for descriptor in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count)):
                os.set_inheritable(descriptor, False)
                made.add_passed(socket.socket(fileno=descriptor))
        return made

    def add_passed(self, listening: socket.socket) -> None:
        """Use a socket that is open already for its port."""
        listening.setblocking(False)
        if listening.type != socket.SOCK_STREAM or listening.family == socket.AF_UNIX:
            log.warning("a socket of the service manager is not used: it is not TCP")
            return
        self._passed.setdefault(listening.getsockname()[1], []).append(listening)

    async def open(self, host: str, port: int) -> list[socket.socket]:
        """Return the sockets of a port; raise PortUnavailable if it cannot be opened now, another
        UsageError if it never can be. If it was passed, `host` is that of the service manager."""
        if port in self._passed:
            self._used.add(port)
            return self._passed[port]
        if (host, port) not in self._opened:
            try:
                self._opened[host, port] = await sockets.listen(host, port)
            except (OSError, UnicodeError) as error:
                text = listen_error_text(Address(host, port), "proxy", error)
                is_final = isinstance(error, (PermissionError, UnicodeError))
                raise (UsageError if is_final else PortUnavailable)(text) from error
        return self._opened[host, port]

    def report_unused(self) -> None:
        """Log sockets that this proxy does not serve: clients that connect there get no answer."""
        for port in sorted(self._passed.keys() - self._used):
            log.error(
                "the service manager listens on port %d, which is not [proxy] port: clients there"
                " are not served; use one port in both places",
                port,
            )

    def close(self) -> None:
        """Close all sockets that were opened here."""
        for listening in self._opened.values():
            for each in listening:
                with suppress(OSError):
                    each.close()
        self._opened.clear()
