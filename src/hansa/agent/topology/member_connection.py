"""Connections to a manager with certificates of the federation in place of a token.

    agent                                      manager
    dials; TLS 1.3 server            ◀──▶      TLS 1.3 client: both show certificates
    HTTP request                     ──▶       takes the node's id from its certificate

As on links, the side that dials is the TLS server, so that strangers who connect to the manager see
neither its certificate nor the federation's name (decision 0042).
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from hansa.agent import sockets
from hansa.errors import InvalidCertificate
from hansa.identity.certificates import parse_chain
from hansa.identity.tls import LinkContexts, explain_handshake_error, peer_chain

SCHEME = "hansa"
"""Of the address of a manager that takes certificates."""

PORT = 10_503
"""Port of a manager for nodes."""

HANDSHAKE_TIMEOUT_S = 5.0

REFUSED = (
    "closed during the handshake: the manager refuses the certificate of this node, and its log"
    " says why; or it takes no certificates at this port"
)
"""asyncio closes a connection without the alert that names the reason."""

Contexts = Callable[[], LinkContexts | None]
"""Returns the present certificate of this node, None without one."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[str, int, int], Awaitable[Streams]]
"""Opens a connection to host and port, with the largest line."""


def connect_as_member(contexts: Contexts) -> Connect:
    """Return what opens connections as this node."""

    async def connect(host: str, port: int, line_bytes_max: int) -> Streams:
        present = contexts()
        if present is None:
            raise ConnectionError(
                f"this node has no certificate, which {SCHEME}:// needs: enrol it with hansa join,"
                " or use http:// and a token"
            )
        return await _connect(host, port, line_bytes_max, present)

    return connect


async def _connect(host: str, port: int, line_bytes_max: int, contexts: LinkContexts) -> Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(line_bytes_max, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    raw = await sockets.connect(host, port)
    try:
        # Despite its name, it makes any connected socket the server side of TLS.
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            raw,
            ssl=contexts.dialling,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        )
    except OSError as error:
        raw.close()
        if isinstance(error, ConnectionResetError):
            raise ConnectionError(REFUSED) from error
        if isinstance(error, ssl.SSLError):
            raise ConnectionError(explain_handshake_error(error)) from error
        raise
    connection = transport.get_extra_info("ssl_object")
    try:
        contexts.credentials.check_manager(parse_chain(peer_chain(connection)))
    except InvalidCertificate as error:
        transport.abort()
        raise ConnectionError(f"the manager's certificate is refused: {error}") from error
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
