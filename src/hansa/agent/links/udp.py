"""Links over UDP, as in Machado 2023: for control and for publications that fit a datagram.

Datagrams are lost and overtake each other; the node numbers control frames on such a link and sends
them again (`protocol/channel`), and a lost publication is the ends' to repair. A publication that
fits no datagram is dropped, and told: a neighbour that wants such ones needs a link over TCP.

Every datagram is a kind (1 byte), a session (16 bytes) and what the kind needs:

    dialler               listener
    OPEN a 0      ──▶                    a: 8 bytes by chance; as long as the answer, so that a
                  ◀──  OFFER a b         forged sender gets no more than was sent in its name
    CONFIRM a b   ──▶                    b proves that the dialler is where it says: only now does
                  ◀──  ACCEPT a b        the listener remember anything
    DATA, PIECE   ◀─▶  DATA, PIECE       frames, see `datagrams`
    CLOSE a b     ◀─▶  CLOSE a b         with the reason; without one for a session not known here
"""

import asyncio
import hashlib
import random
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hansa.agent.error_text import explain
from hansa.agent.links.admission import NO_ROOM, Admission
from hansa.agent.links.datagrams import (
    ACCEPT,
    CLOSE,
    CONFIRM,
    DATA,
    DATAGRAM_BYTES_MAX,
    HEADER_BYTES,
    OFFER,
    OPEN,
    PIECE,
)
from hansa.agent.links.dialler import Dialler, Failed
from hansa.agent.links.link import LINKS_MAX, Address, Listener
from hansa.agent.links.udp_link import UdpLink, Way
from hansa.protocol.model import LinkId

TOKEN_BYTES = 8

ASK_AGAIN_S = 0.1
"""Seconds until an unanswered OPEN or CONFIRM is sent again."""

COOKIE_LIFE_S = 10.0
"""Seconds, at least, that an offer can be confirmed."""

READ_COUNT = 64
"""Datagrams that are read in one go."""

BUFFER_BYTES = 4 << 20
"""What sockets ask the kernel to buffer; it may give less."""

SocketAddress = tuple[Any, ...]
_T = TypeVar("_T")


class UdpLinks:
    """Listens for neighbours and dials those that are configured, for as long as it runs."""

    def __init__(
        self,
        listener: Listener,
        chance: random.Random,
        ids: Iterator[int],
        admission: Admission | None = None,
    ) -> None:
        """Prepare; `ids` and `admission` are shared with links of other kinds."""
        self._admission = admission or Admission()
        self.counters: Counter[str] = Counter()
        self._listener = listener
        self._ids = ids
        self.dialler = Dialler(self._connect, chance)
        self._secret = secrets.token_bytes(32)
        self._accepting = True
        self._socket: socket.socket | None = None
        self._sessions: dict[tuple[bytes, SocketAddress], UdpLink] = {}

    async def listen(self, address: Address) -> Address:
        """Listen; return the address with the port that was taken if 0 was asked for."""
        loop = asyncio.get_running_loop()
        family, *_, where = (
            await loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )
        )[0]
        self._socket = _open(family)
        self._socket.bind(where)
        loop.add_reader(self._socket, self._serve)
        return Address(address.host, self._socket.getsockname()[1])

    def dial(self, address: Address, failed: Failed) -> None:
        """Keep a link to a neighbour; `failed` is told of every attempt in vain."""
        self.dialler.dial(address, failed)

    async def stop(self) -> None:
        """Dial no more, take no more links. Those that stand are closed by their owner."""
        await self.dialler.stop()
        self._accepting = False
        self._close_if_unused()

    # ------------------------------------------------------------ listening

    def _serve(self) -> None:
        assert self._socket is not None
        batches: dict[UdpLink, list[bytes]] = {}
        for datagram, sender in _read(self._socket.recvfrom):
            link = self._sessions.get((datagram[1:HEADER_BYTES], sender))
            if link is not None and datagram[:1] in (DATA, PIECE, CLOSE):
                batches.setdefault(link, []).append(datagram)
            elif len(datagram) >= HEADER_BYTES:
                self._answer(datagram[:1], datagram[1:HEADER_BYTES], sender)
            else:
                self.counters["datagrams that mean nothing"] += 1
        for link, datagrams in batches.items():
            link.receive(datagrams)

    def _answer(self, kind: bytes, session: bytes, sender: SocketAddress) -> None:
        """Answer somebody without a session, with as many bytes as came or fewer."""
        if kind == OPEN and self._accepting:
            token = session[:TOKEN_BYTES]
            self._reply(OFFER + token + self._cookies(token, sender)[0], sender)
        elif kind == CONFIRM and self._may_accept(session, sender):
            self._reply(ACCEPT + session, sender)
            if (session, sender) not in self._sessions:
                self._accept(session, sender)
        elif kind in (CONFIRM, DATA, PIECE):
            self._reply(CLOSE + session, sender)
        elif kind != CLOSE:
            self.counters["datagrams that mean nothing"] += 1

    def _may_accept(self, session: bytes, sender: SocketAddress) -> bool:
        if (session, sender) in self._sessions:
            return True
        if not self._accepting:
            return False
        if len(self._sessions) >= LINKS_MAX:
            self._admission.count(NO_ROOM)
            return False
        token, cookie = session[:TOKEN_BYTES], session[TOKEN_BYTES:]
        return any(secrets.compare_digest(cookie, c) for c in self._cookies(token, sender))

    def _cookies(self, token: bytes, sender: SocketAddress) -> list[bytes]:
        """Return the cookie of now, and the one of a while ago."""
        now = int(asyncio.get_running_loop().time() / COOKIE_LIFE_S)
        said = token + repr(sender).encode()
        return [
            hashlib.blake2b(
                said + when.to_bytes(8, "big"), key=self._secret, digest_size=TOKEN_BYTES
            ).digest()
            for when in (now, now - 1)
        ]

    def _accept(self, session: bytes, sender: SocketAddress) -> None:
        port = self._socket
        assert port is not None

        def end() -> None:
            del self._sessions[session, sender]
            self._close_if_unused()

        way = Way(str(Address(*sender[:2])), None, lambda data: port.sendto(data, sender), end)
        link = self._sessions[session, sender] = self._new_link(session, way)
        self._listener.link_opened(link)
        self._admission.watch(link)

    def _close_if_unused(self) -> None:
        if self._socket is not None and not self._accepting and not self._sessions:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _reply(self, datagram: bytes, sender: SocketAddress) -> None:
        assert self._socket is not None
        try:
            self._socket.sendto(datagram, sender)
        except OSError:
            self.counters["answers that did not leave"] += 1

    # ------------------------------------------------------------ dialling

    async def _connect(self, address: Address) -> UdpLink:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
        problem: OSError | None = None
        for family, *_, where in found:
            port = _open(family)
            try:
                port.connect(where)
                session = await _introduce(port)
            except OSError as error:
                port.close()
                problem = error
            except BaseException:
                port.close()
                raise
            else:
                return self._join(port, session, address)
        raise problem or OSError("no address")

    def _join(self, port: socket.socket, session: bytes, address: Address) -> UdpLink:
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(port)
            port.close()

        link = self._new_link(session, Way(str(address), address, port.send, end))
        loop.add_reader(port, _receive, port, link, session)
        self._listener.link_opened(link)
        return link

    def _new_link(self, session: bytes, way: Way) -> UdpLink:
        return UdpLink(LinkId(next(self._ids)), self._listener, session, way, self._admission)


async def _introduce(port: socket.socket) -> bytes:
    """Ask until a session is agreed; return it. How long is the caller's business."""
    loop = asyncio.get_running_loop()
    token = secrets.token_bytes(TOKEN_BYTES)
    kind, session = OPEN, token + bytes(TOKEN_BYTES)
    readable = asyncio.Event()
    loop.add_reader(port, readable.set)  # sock_recv does not survive a timeout on every loop
    try:
        while True:
            port.send(kind + session)
            said, theirs = await _answer_of(port, readable)
            if kind == OPEN and said == OFFER and theirs[:TOKEN_BYTES] == token:
                kind, session = CONFIRM, theirs
            elif kind == CONFIRM and theirs == session and said in (ACCEPT, DATA, PIECE):
                return session  # frames that overtook the ACCEPT are sent again
            elif kind == CONFIRM and theirs == session and said == CLOSE:
                raise ConnectionRefusedError("turned away")
    finally:
        loop.remove_reader(port)


async def _answer_of(port: socket.socket, readable: asyncio.Event) -> tuple[bytes, bytes]:
    """Wait for an answer; return its kind and session, both empty if it is time to ask again."""
    readable.clear()
    try:
        async with asyncio.timeout(ASK_AGAIN_S):
            await readable.wait()
        answer = port.recv(DATAGRAM_BYTES_MAX)
    except (TimeoutError, BlockingIOError):
        return b"", b""
    return answer[:1], answer[1:HEADER_BYTES]


def _receive(port: socket.socket, link: UdpLink, session: bytes) -> None:
    """Read what came for a link that was dialled."""
    try:
        datagrams = [*_read(port.recv)]
    except OSError as error:
        link.close(explain(error))
        return
    link.receive([each for each in datagrams if each[1:HEADER_BYTES] == session])


def _read(read: Callable[[int], _T]) -> Iterator[_T]:
    """Yield what is there, up to a bound: others want their turn."""
    for _ in range(READ_COUNT):
        try:
            yield read(DATAGRAM_BYTES_MAX + 1)
        except BlockingIOError:
            return


def _open(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return made
