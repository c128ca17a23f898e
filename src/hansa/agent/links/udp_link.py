"""One link over UDP: frames to datagrams and back, paced for the receiver's buffer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.agent.error_text import explain_socket_error
from hansa.agent.links.admission import HELLO_BYTES, REFUSED_BYTES, TOO_MANY_BYTES, Admission
from hansa.agent.links.datagrams import (
    BODY_BYTES_MAX,
    CLOSE,
    DATA,
    FRAGMENT,
    FRAGMENT_BYTES,
    HEADER_BYTES,
    SMALL_BYTES_MAX,
    DatagramReassembly,
    frame_digest,
    pack_frames,
    split_frame,
    unpack_frames,
)
from hansa.agent.links.link import Address, LinkListener
from hansa.errors import InvalidFrame
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.codec import PUBLICATION

BURST_FRAGMENTS = 32
BURST_INTERVAL_S = 0.002
"""Seconds between two bursts of fragments: a receiver's buffer is small."""

QUEUED_BYTES_MAX = 8 << 20
"""Bytes of large frames that wait. More are not sent; the node repeats them."""


@dataclass(frozen=True, slots=True)
class DatagramEndpoint:
    """The socket of a link."""

    remote: str
    dialled_address: Address | None
    send: Callable[[bytes], object]
    """Sends a datagram or raises OSError."""
    on_closed: Callable[[], None]
    """Called when the link has ended."""


class UdpLink:
    """One session with a neighbour."""

    is_ordered = False

    def __init__(
        self,
        id_: LinkId,
        listener: LinkListener,
        session: bytes,
        endpoint: DatagramEndpoint,
        admission: Admission,
    ) -> None:
        self.id = id_
        self.dialled_address = endpoint.dialled_address
        self.remote = endpoint.remote
        self.bytes_in = 0
        self.bytes_out = 0
        self.frames_out = 0
        self.dropped_publications = 0
        self.closed = asyncio.Event()
        self.is_admitted = False
        self.expected_node: NodeId | None = None
        self._unadmitted_bytes_max = HELLO_BYTES  # bytes that may arrive before it is admitted
        self._admission = admission
        self._session = session
        self._listener = listener
        self._endpoint = endpoint
        self._reassembly = DatagramReassembly()
        self._fragments_by_digest: dict[
            bytes, list[bytes]
        ] = {}  # large frames by digest: fragments, the first one last
        self._burst_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ receiving

    def receive(self, datagrams: Sequence[bytes]) -> None:
        """Process datagrams of this session."""
        frames: list[bytes] = []
        try:
            for datagram in datagrams:
                self.bytes_in += len(datagram)
                kind, body = datagram[:1], datagram[HEADER_BYTES:]
                if kind == DATA:
                    frames += unpack_frames(body)
                elif kind == FRAGMENT and (frame := self._reassembly.add(body)):
                    frames.append(frame)
                elif kind == CLOSE:
                    close_text = body.decode(errors="replace")
                    self._close(f"closed by the other side: {close_text}".removesuffix(": "))
        except InvalidFrame as error:
            self.close(f"this is no neighbour of ours: {error}")
            return
        if frames and not self.closed.is_set():
            self._listener.frames_received(self, frames)
        if (
            not self.is_admitted
            and self.bytes_in > self._unadmitted_bytes_max
            and not self.closed.is_set()
        ):
            self._admission.count_refused(TOO_MANY_BYTES)
            self.close(TOO_MANY_BYTES)

    # ------------------------------------------------------------ called by the agent

    @property
    def outstanding_bytes(self) -> int:
        """Bytes that wait; bytes sent are unknown to a datagram link."""
        return FRAGMENT_BYTES * sum(map(len, self._fragments_by_digest.values()))

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Send small frames at once and large control frames in fragments."""
        self.frames_out += len(frames)
        small = [frame for frame in frames if len(frame) <= SMALL_BYTES_MAX]
        for body, publications in pack_frames(small):
            if not self._transmit(DATA, body) and publications:
                self._report_dropped(publications, "no room for a datagram")
        if len(small) < len(frames):
            self._send_large([frame for frame in frames if len(frame) > SMALL_BYTES_MAX])

    def admit(self) -> None:
        """Lift the limits of admission: the hellos are accepted."""
        self.is_admitted = True

    def allow_last_frames(self) -> None:
        """Accept the last frames of a refused neighbour: the node closes the link soon."""
        self._unadmitted_bytes_max = self.bytes_in + REFUSED_BYTES

    def close(self, reason: str) -> None:
        """Send CLOSE with the reason, and end."""
        if not self.closed.is_set():
            self._transmit(CLOSE, reason.encode()[:BODY_BYTES_MAX])
            self._close(reason)

    # ------------------------------------------------------------ sending

    def _send_large(self, frames: Sequence[bytes | bytearray]) -> None:
        control = [bytes(frame) for frame in frames if frame[0] != PUBLICATION]
        if len(control) < len(frames):
            self._report_dropped(len(frames) - len(control), "too large for a datagram link")
        for frame in control:
            name = frame_digest(frame)
            if name not in self._fragments_by_digest and self.outstanding_bytes <= QUEUED_BYTES_MAX:
                self._fragments_by_digest[name] = split_frame(frame)[::-1]
        if self._burst_timer is None:
            self._send_burst()

    def _send_burst(self) -> None:
        """Send a burst of fragments and schedule the next one."""
        for _ in range(BURST_FRAGMENTS):
            if not self._fragments_by_digest:
                self._burst_timer = None
                return
            name, pieces = next(iter(self._fragments_by_digest.items()))
            self._transmit(FRAGMENT, pieces.pop())
            if not pieces:
                self._fragments_by_digest.pop(name, None)  # absent if the link has just ended
        self._burst_timer = asyncio.get_running_loop().call_later(
            BURST_INTERVAL_S, self._send_burst
        )

    def _transmit(self, kind: bytes, body: bytes) -> bool:
        """Send a datagram; return whether it was sent. If nobody listens, end the link."""
        if self.closed.is_set():
            return False
        try:
            self._endpoint.send(kind + self._session + body)
        except ConnectionRefusedError as error:
            self._close(explain_socket_error(error))
            return False
        except OSError:
            return False
        self.bytes_out += HEADER_BYTES + len(body)
        return True

    def _report_dropped(self, count: int, reason: str) -> None:
        self.dropped_publications += count
        self._listener.publications_dropped(self, count, reason)

    def _close(self, reason: str) -> None:
        """End; the listener is called later, as for a stream, not within the current call."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._fragments_by_digest.clear()
        if self._burst_timer is not None:
            self._burst_timer.cancel()
        self._endpoint.on_closed()
        asyncio.get_running_loop().call_soon(self._listener.link_closed, self, reason)
