"""One link over UDP: frames to datagrams and back, paced for the receiver's buffer.

With certificates the link opens when `sealed_datagrams` has authenticated the peer, and then only
sealed datagrams count. Until then a stranger has a place among the pending connections and no more.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
from hansa.agent.links.udp_session import SecureSession, SessionOwner
from hansa.errors import InvalidFrame
from hansa.identity.certificates import NodeCertificate
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.codec import PUBLICATION

BURST_FRAGMENTS = 32
BURST_INTERVAL_S = 0.002
"""Seconds between two bursts of fragments: a receiver's buffer is small."""

NOT_SEALED = "datagrams that the neighbour did not seal, or that were opened before"

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
    certificate: NodeCertificate | None = None

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
        self.drop_reasons: Counter[str] = Counter()
        self.closed = asyncio.Event()
        self.is_admitted = False
        self.expected_node: NodeId | None = None
        self._unadmitted_bytes_max = HELLO_BYTES  # bytes that may arrive before it is admitted
        self._admission = admission
        self._session = session
        self._listener = listener
        self._endpoint = endpoint
        self._reassembly = DatagramReassembly()
        self._fragments_by_digest: dict[bytes, list[bytes]] = {}
        """Unsent fragments of large frames, the first one last."""
        self._burst_timer: asyncio.TimerHandle | None = None
        self._is_open = asyncio.Event()
        self._close_reason = ""
        self._secure: SecureSession | None = None
        if (security := admission.security) is not None:
            count_refused = partial(admission.count_refused, NOT_SEALED)
            owner = SessionOwner(self._send_datagram, self._open, self.close, count_refused)
            is_dialled = endpoint.dialled_address is not None
            self._secure = SecureSession(security, session, is_dialled, owner)

    # ------------------------------------------------------------ opening

    def start(self) -> None:
        """Open the link; with certificates, as soon as the peer is authenticated."""
        if self._secure is None:
            self._open(None)
        else:
            self._secure.start()

    async def wait_until_open(self) -> None:
        """Wait until the link is open; raise ConnectionError if the peer was not authenticated."""
        await self._is_open.wait()
        if self.closed.is_set():
            raise ConnectionError(self._close_reason)

    def _open(self, certificate: NodeCertificate | None) -> None:
        if self.closed.is_set():
            return
        if certificate is not None:
            self.certificate, self.expected_node = certificate, certificate.node
        self._is_open.set()
        self._listener.link_opened(self)

    # ------------------------------------------------------------ receiving

    def receive(self, datagrams: Sequence[bytes]) -> None:
        """Process datagrams of this session."""
        if self._secure is not None:
            datagrams = self._secure.open(datagrams)
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
            self._listener.peer_misbehaved(self, str(error))
            self.close(f"invalid bytes from the other side: {error}")
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
            if not self.transmit(DATA, body) and publications:
                self._report_dropped(publications, "no room for a datagram")
        if len(small) < len(frames):
            self._send_large([frame for frame in frames if len(frame) > SMALL_BYTES_MAX])

    def admit(self) -> None:
        """Lift the limits of admission: the hellos are accepted."""
        self.is_admitted = True

    def allow_last_frames(self) -> None:
        """Accept the last frames of a refused neighbour: the node closes the link soon."""
        self._unadmitted_bytes_max = self.bytes_in + REFUSED_BYTES

    def pause(self, seconds: float) -> None:
        """Do nothing: the guard drops what arrives."""

    def close(self, reason: str) -> None:
        """Send CLOSE with the reason, and end."""
        if not self.closed.is_set():
            is_known = self._is_open.is_set()  # a stranger learns no reason
            self.transmit(CLOSE, reason.encode()[:BODY_BYTES_MAX] if is_known else b"")
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
            digest, fragments = next(iter(self._fragments_by_digest.items()))
            self.transmit(FRAGMENT, fragments.pop())
            if not fragments:
                self._fragments_by_digest.pop(digest, None)  # absent if the link has just ended
        self._burst_timer = asyncio.get_running_loop().call_later(
            BURST_INTERVAL_S, self._send_burst
        )

    def transmit(self, kind: bytes, body: bytes) -> bool:
        """Send a datagram, sealed if there are keys; return whether it was sent."""
        header = kind + self._session
        if self._secure is not None:
            body = self._secure.seal(header, body)
        return self._send_datagram(header + body)

    def _send_datagram(self, datagram: bytes) -> bool:
        """Send a datagram; return whether it was sent. End the link if no process listens."""
        if self.closed.is_set():
            return False
        try:
            self._endpoint.send(datagram)
        except ConnectionRefusedError as error:
            self._close(explain_socket_error(error))
            return False
        except OSError:
            return False
        self.bytes_out += len(datagram)
        return True

    def _report_dropped(self, count: int, reason: str) -> None:
        self.drop_reasons[reason] += count
        self._listener.publications_dropped(self, count, reason)

    def _close(self, reason: str) -> None:
        """End; the listener is called later, as for a stream, not within the current call."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._close_reason = reason
        self._fragments_by_digest.clear()
        if self._burst_timer is not None:
            self._burst_timer.cancel()
        if self._secure is not None:
            self._secure.stop()
        self._endpoint.on_closed()
        if self._is_open.is_set():
            asyncio.get_running_loop().call_soon(self._listener.link_closed, self, reason)
            return
        self._is_open.set()  # for those who wait
        if self.dialled_address is None:
            self._admission.refuse_unauthenticated(self.remote, reason)
        else:  # the dialler logs it
            self._admission.on_dialled_refused(self.remote, reason)
