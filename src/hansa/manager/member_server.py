"""Accepts TLS connections of agents, whose side is the TLS server (decision 0042)."""

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable

from hansa.agent.handshakes import HANDSHAKE_TIMEOUT_S, SHUTDOWN_TIMEOUT_S, TlsServer
from hansa.agent.links.security import LinkSecurity
from hansa.agent.topology.member_connection import PORT
from hansa.errors import UsageError
from hansa.identity.tls import explain_handshake_error
from hansa.manager.access import RateLimiter

log = logging.getLogger("hansa.manager")

NODE_PORT = PORT

REFUSALS_LOGGED_PER_S = 0.5
"""Refused handshakes of one address that are logged."""


def listen_for_nodes(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise UsageError if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port"
            " with --node-port"
        ) from error
    made.setblocking(False)
    return made


class MemberServer(TlsServer):
    """Accepts connections of nodes."""

    def __init__(
        self,
        sockets: list[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        security: LinkSecurity,
    ) -> None:
        self._security = security
        self._log_limiter = RateLimiter(REFUSALS_LOGGED_PER_S)
        super().__init__(sockets, make_protocol, security.contexts.accepting, Counter())

    async def _open(self, client: socket.socket) -> None:
        (remote, *_) = client.getpeername()
        try:
            await asyncio.get_running_loop().create_connection(
                self._make_protocol,
                sock=client,
                ssl=self._security.contexts.accepting,
                server_hostname="",
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except ssl.SSLError as error:
            if self._log_limiter.admit(remote, time.monotonic()):
                reason = explain_handshake_error(error)
                log.warning("node refused remote=%s reason=%s", remote, reason)
            raise
