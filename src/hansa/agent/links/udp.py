"""Links over UDP, as in Machado 2023: for control frames and for publications that fit a datagram.

Datagrams are lost and reordered. The node numbers control frames on such a link and sends them
again (`protocol.links.ordering`); lost publications of QoS 1 and 2 are repaired end to end. A
publication that fits no datagram is dropped and reported: use TCP for those.

Every datagram is a kind (1 byte), a session (16 bytes) and what the kind needs:

    dialler                  listener
    OPEN a 0         ──▶                    a: 8 random bytes; padded to the length of the answer,
                     ◀──  OFFER a b         so that spoofed requests are not amplified
    CONFIRM a b      ──▶                    b proves the dialler's address: only now does
                     ◀──  ACCEPT a b        the listener keep state
    HANDSHAKE        ◀─▶  HANDSHAKE         with certificates, see `sealed_datagrams`
    DATA, FRAGMENT   ◀─▶  DATA, FRAGMENT    frames, see `datagrams`
    CLOSE a b        ◀─▶  CLOSE a b         with the reason; without one for an unknown session
"""

import asyncio
import hashlib
import random
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hansa.agent.error_text import explain_socket_error
from hansa.agent.links.admission import NO_ROOM, Admission
from hansa.agent.links.datagrams import (
    ACCEPT,
    CLOSE,
    CONFIRM,
    DATA,
    DATAGRAM_BYTES_MAX,
    FRAGMENT,
    HANDSHAKE,
    HEADER_BYTES,
    OFFER,
    OPEN,
)
from hansa.agent.links.dialler import Dialler
from hansa.agent.links.link import LINKS_MAX, Address, LinkListener
from hansa.agent.links.udp_link import DatagramEndpoint, UdpLink
from hansa.agent.links.udp_session import HANDSHAKE_RETRY_S
from hansa.protocol.model import LinkId

TOKEN_BYTES = 8

COOKIE_VALID_S = 10.0
"""Least number of seconds for which an offer can be confirmed."""

DATAGRAMS_PER_READ = 64
"""Datagrams per read event."""

BUFFER_BYTES = 4 << 20
"""Socket buffer requested of the kernel; it may give less."""

SocketAddress = tuple[Any, ...]
_T = TypeVar("_T")


class UdpLinks:
    """Listens for neighbours and dials."""

    def __init__(
        self,
        listener: LinkListener,
        rng: random.Random,
        ids: Iterator[int],
        admission: Admission | None = None,
    ) -> None:
        """`ids` and `admission` are shared with other transports."""
        self._admission = admission or Admission()
        self.counters: Counter[str] = Counter()
        self._listener = listener
        self._ids = ids
        self.dialler = Dialler(self._connect, rng)
        self._secret = secrets.token_bytes(32)
        self._is_accepting = True
        self._socket: socket.socket | None = None
        self._sessions: dict[tuple[bytes, SocketAddress], UdpLink] = {}

    async def listen(self, address: Address) -> Address:
        """Listen; return the address with the actual port."""
        loop = asyncio.get_running_loop()
        family, *_, where = (
            await loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
        )[0]
        self._socket = _open_socket(family)
        self._socket.bind(where)
        loop.add_reader(self._socket, self._read_datagrams)
        return Address(address.host, self._socket.getsockname()[1])

    async def stop(self) -> None:
        """Stop dialling and accepting. Owners close open links."""
        await self.dialler.stop()
        self._is_accepting = False
        self._close_if_unused()

    # ------------------------------------------------------------ listening

    def _read_datagrams(self) -> None:
        assert self._socket is not None
        batches: dict[UdpLink, list[bytes]] = {}
        for datagram, sender in _read_available(self._socket.recvfrom):
            link = self._sessions.get((datagram[1:HEADER_BYTES], sender))
            if link is not None and datagram[:1] in (DATA, FRAGMENT, CLOSE, HANDSHAKE):
                batches.setdefault(link, []).append(datagram)
            elif len(datagram) >= HEADER_BYTES:
                self._answer_unknown(datagram[:1], datagram[1:HEADER_BYTES], sender)
            else:
                self.counters["invalid datagrams"] += 1
        for link, datagrams in batches.items():
            link.receive(datagrams)

    def _answer_unknown(self, kind: bytes, session: bytes, sender: SocketAddress) -> None:
        """Answer a datagram without a session, with no more bytes than it had."""
        if kind == OPEN and self._is_accepting:
            token = session[:TOKEN_BYTES]
            self._reply(OFFER + token + self._cookies(token, sender)[0], sender)
        elif kind == CONFIRM and self._may_accept(session, sender):
            self._reply(ACCEPT + session, sender)
            if (session, sender) not in self._sessions:
                self._accept(session, sender)
        elif kind in (CONFIRM, DATA, FRAGMENT, HANDSHAKE):
            self._reply(CLOSE + session, sender)
        elif kind != CLOSE:
            self.counters["invalid datagrams"] += 1

    def _may_accept(self, session: bytes, sender: SocketAddress) -> bool:
        if (session, sender) in self._sessions:
            return True
        if not self._is_accepting:
            return False
        if len(self._sessions) >= LINKS_MAX:
            self._admission.count_refused(NO_ROOM)
            return False
        token, cookie = session[:TOKEN_BYTES], session[TOKEN_BYTES:]
        return any(secrets.compare_digest(cookie, c) for c in self._cookies(token, sender))

    def _cookies(self, token: bytes, sender: SocketAddress) -> list[bytes]:
        """Return the current cookie and the previous one."""
        now = int(asyncio.get_running_loop().time() / COOKIE_VALID_S)
        content = token + repr(sender).encode()
        return [
            hashlib.blake2b(
                content + when.to_bytes(8, "big"), key=self._secret, digest_size=TOKEN_BYTES
            ).digest()
            for when in (now, now - 1)
        ]

    def _accept(self, session: bytes, sender: SocketAddress) -> None:
        listening_socket = self._socket
        assert listening_socket is not None

        def end() -> None:
            del self._sessions[session, sender]
            self._close_if_unused()

        endpoint = DatagramEndpoint(
            str(Address(*sender[:2])), None, lambda data: listening_socket.sendto(data, sender), end
        )
        link = self._sessions[session, sender] = self._new_link(session, endpoint)
        link.start()
        self._admission.watch(link)

    def _close_if_unused(self) -> None:
        if self._socket is not None and not self._is_accepting and not self._sessions:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _reply(self, datagram: bytes, sender: SocketAddress) -> None:
        assert self._socket is not None
        try:
            self._socket.sendto(datagram, sender)
        except OSError:
            self.counters["datagram answers not sent"] += 1

    # ------------------------------------------------------------ dialling

    async def _connect(self, address: Address) -> UdpLink:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        problem: OSError | None = None
        for family, *_, where in found:
            udp_socket = _open_socket(family)
            try:
                udp_socket.connect(where)
                session = await _open_session(udp_socket)
            except OSError as error:
                udp_socket.close()
                problem = error
            except BaseException:
                udp_socket.close()
                raise
            else:
                return await self._open_dialled(udp_socket, session, address)
        raise problem or OSError("no address")

    async def _open_dialled(
        self, udp_socket: socket.socket, session: bytes, address: Address
    ) -> UdpLink:
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(udp_socket)
            udp_socket.close()

        link = self._new_link(
            session, DatagramEndpoint(str(address), address, udp_socket.send, end)
        )
        loop.add_reader(udp_socket, _receive_dialled, udp_socket, link, session)
        link.start()
        try:
            await link.wait_until_open()
        except asyncio.CancelledError:
            link.close("cancelled")
            raise
        return link

    def _new_link(self, session: bytes, endpoint: DatagramEndpoint) -> UdpLink:
        return UdpLink(LinkId(next(self._ids)), self._listener, session, endpoint, self._admission)


async def _open_session(udp_socket: socket.socket) -> bytes:
    """Request a session until it is agreed; return it. The caller sets the timeout."""
    loop = asyncio.get_running_loop()
    token = secrets.token_bytes(TOKEN_BYTES)
    kind, session = OPEN, token + bytes(TOKEN_BYTES)
    readable = asyncio.Event()
    loop.add_reader(udp_socket, readable.set)  # sock_recv does not survive a timeout on every loop
    try:
        while True:
            udp_socket.send(kind + session)
            answer_kind, answer_session = await _wait_answer(udp_socket, readable)
            if kind == OPEN and answer_kind == OFFER and answer_session[:TOKEN_BYTES] == token:
                kind, session = CONFIRM, answer_session
            elif (
                kind == CONFIRM
                and answer_session == session
                and answer_kind in (ACCEPT, DATA, FRAGMENT, HANDSHAKE)
            ):
                return session  # frames that overtook ACCEPT are sent again
            elif kind == CONFIRM and answer_session == session and answer_kind == CLOSE:
                raise ConnectionRefusedError("refused by the other side")
    finally:
        loop.remove_reader(udp_socket)


async def _wait_answer(udp_socket: socket.socket, readable: asyncio.Event) -> tuple[bytes, bytes]:
    """Wait for an answer; return its kind and session, both empty when it is time to retry."""
    readable.clear()
    try:
        async with asyncio.timeout(HANDSHAKE_RETRY_S):
            await readable.wait()
        answer = udp_socket.recv(DATAGRAM_BYTES_MAX)
    except (TimeoutError, BlockingIOError):
        return b"", b""
    return answer[:1], answer[1:HEADER_BYTES]


def _receive_dialled(udp_socket: socket.socket, link: UdpLink, session: bytes) -> None:
    """Read datagrams of a dialled link."""
    try:
        datagrams = [*_read_available(udp_socket.recv)]
    except OSError as error:
        link.close(explain_socket_error(error))
        return
    link.receive([each for each in datagrams if each[1:HEADER_BYTES] == session])


def _read_available(read: Callable[[int], _T]) -> Iterator[_T]:
    """Yield available datagrams, up to a bound, for fairness."""
    for _ in range(DATAGRAMS_PER_READ):
        try:
            yield read(DATAGRAM_BYTES_MAX + 1)
        except BlockingIOError:
            return


def _open_socket(family: int) -> socket.socket:
    udp_socket = socket.socket(family, socket.SOCK_DGRAM)
    udp_socket.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        udp_socket.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return udp_socket
