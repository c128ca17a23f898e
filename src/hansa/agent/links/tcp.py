"""Links over TCP: one connection each."""

import random
import socket
from collections.abc import Iterator

from hansa.agent import sockets
from hansa.agent.links.admission import NO_ROOM, Admission
from hansa.agent.links.dialler import Dialler
from hansa.agent.links.link import LINKS_MAX, Address, LinkListener
from hansa.agent.links.stream import DEFAULT_LIMITS, LinkLimits, StreamLink
from hansa.agent.links.tls import secure_protocol
from hansa.agent.sockets import SocketTransport
from hansa.protocol.model import LinkId

UNSENT_BYTES = 1 << 17
"""Bytes that the kernel buffers before it reports the socket as full (Linux and macOS): urgent
frames wait behind them."""

_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class TcpLinks:
    """Listens for neighbours and dials."""

    def __init__(
        self,
        listener: LinkListener,
        rng: random.Random,
        ids: Iterator[int],
        limits: LinkLimits = DEFAULT_LIMITS,
        admission: Admission | None = None,
    ) -> None:
        """`ids` and `admission` are shared with other transports."""
        self._admission = admission or Admission()
        self._listener = listener
        self._ids = ids
        self._limits = limits
        self.dialler = Dialler(self._connect, rng)
        self._accepted_links: set[StreamLink] = set()
        self._server: sockets.SocketServer | None = None

    async def listen(self, address: Address) -> Address:
        """Listen; return the address with the actual port."""
        listening = await sockets.listen(address.host, address.port)
        self._server = sockets.SocketServer(listening, self._accept)
        return Address(address.host, listening[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and dialling. Owners close open links."""
        await self.dialler.stop()
        if self._server is not None:
            self._server.close()

    def _accept(self, client_socket: socket.socket) -> None:
        self._accepted_links = {link for link in self._accepted_links if not link.closed.is_set()}
        if len(self._accepted_links) >= LINKS_MAX:
            self._admission.count_refused(NO_ROOM)
            client_socket.close()
            return
        try:
            remote = str(Address(*client_socket.getpeername()[:2]))
        except OSError:  # closed before it was accepted
            client_socket.close()
            return
        link = self._new_link(remote)
        self._accepted_links.add(link)
        SocketTransport(_prepare(client_socket), secure_protocol(link, self._admission))
        self._admission.watch(link)

    def _new_link(self, remote: str, dialled_address: Address | None = None) -> StreamLink:
        id_ = LinkId(next(self._ids))
        return StreamLink(
            id_, self._listener, self._limits, remote, dialled_address, self._admission
        )

    async def _connect(self, address: Address) -> StreamLink:
        link = self._new_link(str(address), address)
        connected = _prepare(await sockets.connect(address.host, address.port))
        transport = SocketTransport(connected, secure_protocol(link, self._admission))
        try:
            await link.wait_until_open()
        except BaseException:
            transport.abort()
            raise
        return link


def _prepare(connected_socket: socket.socket) -> socket.socket:
    if _NOTSENT_LOWAT is not None:
        connected_socket.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_BYTES)
    return connected_socket
