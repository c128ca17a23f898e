"""One link over UDP: frames to datagrams and back, at a pace that a receiver's buffer takes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.agent.error_text import explain
from hansa.agent.links.admission import HELLO_BYTES, REFUSED_BYTES, TOO_MANY_BYTES, Admission
from hansa.agent.links.datagrams import (
    BODY_BYTES_MAX,
    CLOSE,
    DATA,
    HEADER_BYTES,
    PIECE,
    PIECE_BYTES,
    SMALL_BYTES_MAX,
    Assembly,
    cut,
    digest,
    pack,
    unpack,
)
from hansa.agent.links.link import Address, Listener
from hansa.errors import InvalidFrame
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.codec import PUBLICATION

PACE_COUNT = 32
PACE_S = 0.002
"""So many pieces leave at once, and then so many seconds pass: a receiver's buffer is small."""

QUEUED_BYTES_MAX = 8 << 20
"""Bytes of large frames that wait to leave. What comes on top is not sent; the node repeats it."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a link's datagrams leave."""

    remote: str
    dialled: Address | None
    send: Callable[[bytes], object]
    """Sends a datagram or raises OSError."""
    end: Callable[[], None]
    """Called when the link has ended: no more is received for it."""


class UdpLink:
    """One session with a neighbour."""

    ordered = False

    def __init__(
        self, id_: LinkId, listener: Listener, session: bytes, way: Way, admission: Admission
    ) -> None:
        """Prepare for a session that both sides have agreed on."""
        self.id = id_
        self.dialled = way.dialled
        self.remote = way.remote
        self.bytes_in = 0
        self.bytes_out = 0
        self.frames_out = 0
        self.dropped = 0
        self.closed = asyncio.Event()
        self.admitted = False
        self.named: NodeId | None = None
        self._allowance = HELLO_BYTES  # bytes that may come before it is admitted
        self._admission = admission
        self._session = session
        self._listener = listener
        self._way = way
        self._assembly = Assembly()
        self._queue: dict[bytes, list[bytes]] = {}  # large frames by digest: pieces, the first last
        self._pacing: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ what arrives

    def receive(self, datagrams: Sequence[bytes]) -> None:
        """Take datagrams of this session."""
        frames: list[bytes] = []
        try:
            for datagram in datagrams:
                self.bytes_in += len(datagram)
                kind, body = datagram[:1], datagram[HEADER_BYTES:]
                if kind == DATA:
                    frames += unpack(body)
                elif kind == PIECE and (frame := self._assembly.add(body)):
                    frames.append(frame)
                elif kind == CLOSE:
                    said = body.decode(errors="replace")
                    self._end(f"closed by the other side: {said}".removesuffix(": "))
        except InvalidFrame as error:
            self.close(f"this is no neighbour of ours: {error}")
            return
        if frames and not self.closed.is_set():
            self._listener.frames_received(self, frames)
        if not self.admitted and self.bytes_in > self._allowance and not self.closed.is_set():
            self._admission.count(TOO_MANY_BYTES)
            self.close(TOO_MANY_BYTES)

    # ------------------------------------------------------------ called by the agent

    @property
    def outstanding(self) -> int:
        """Bytes that wait to leave; of those that left, a datagram link knows nothing."""
        return PIECE_BYTES * sum(map(len, self._queue.values()))

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Send small frames at once and large control frames in pieces."""
        self.frames_out += len(frames)
        small = [frame for frame in frames if len(frame) <= SMALL_BYTES_MAX]
        for body, publications in pack(small):
            if not self._transmit(DATA, body) and publications:
                self._drop(publications, "no room for a datagram")
        if len(small) < len(frames):
            self._send_large([frame for frame in frames if len(frame) > SMALL_BYTES_MAX])

    def admit(self) -> None:
        """Lift the limits for strangers: the hellos agreed."""
        self.admitted = True

    def refuse(self) -> None:
        """Let the last frames of a refused neighbour in: the node closes the link soon."""
        self._allowance = self.bytes_in + REFUSED_BYTES

    def close(self, reason: str) -> None:
        """Tell the other side why, and end."""
        if not self.closed.is_set():
            self._transmit(CLOSE, reason.encode()[:BODY_BYTES_MAX])
            self._end(reason)

    # ------------------------------------------------------------ how it is sent

    def _send_large(self, frames: Sequence[bytes | bytearray]) -> None:
        control = [bytes(frame) for frame in frames if frame[0] != PUBLICATION]
        if len(control) < len(frames):
            self._drop(len(frames) - len(control), "too large for a datagram link")
        for frame in control:
            name = digest(frame)
            if name not in self._queue and self.outstanding <= QUEUED_BYTES_MAX:
                self._queue[name] = cut(frame)[::-1]
        if self._pacing is None:
            self._send_pieces()

    def _send_pieces(self) -> None:
        """Send some pieces, and come back for more."""
        for _ in range(PACE_COUNT):
            if not self._queue:
                self._pacing = None
                return
            name, pieces = next(iter(self._queue.items()))
            self._transmit(PIECE, pieces.pop())
            if not pieces:
                self._queue.pop(name, None)  # it is gone if the link has just ended
        self._pacing = asyncio.get_running_loop().call_later(PACE_S, self._send_pieces)

    def _transmit(self, kind: bytes, body: bytes) -> bool:
        """Send a datagram; whether it left. That nobody is there ends the link."""
        if self.closed.is_set():
            return False
        try:
            self._way.send(kind + self._session + body)
        except ConnectionRefusedError as error:
            self._end(explain(error))
            return False
        except OSError:
            return False
        self.bytes_out += HEADER_BYTES + len(body)
        return True

    def _drop(self, count: int, reason: str) -> None:
        self.dropped += count
        self._listener.publications_dropped(self, count, reason)

    def _end(self, reason: str) -> None:
        """End; told a moment later, as a stream's end is, not in the midst of whatever it met."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._queue.clear()
        if self._pacing is not None:
            self._pacing.cancel()
        self._way.end()
        asyncio.get_running_loop().call_soon(self._listener.link_closed, self, reason)
