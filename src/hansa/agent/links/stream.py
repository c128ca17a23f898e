"""A link on a stream of bytes: a length before each frame, one write per batch, a window.

The transport carries the bytes: a socket or a broker.

A slow neighbour affects only itself: bytes that it has not handled yet count against its window.
When the window is full, publications are dropped and reported, and bulk responses wait: receivers
behind a slow link may request more together than it carries. When other control frames exceed the
window, too, the link is closed.

A length with its highest bit set is a *window ack*: the other bits are the bytes that the other
side has handled since its last one. So the window covers everything between the two agents,
including the buffers of both kernels, and publications are dropped before they are old. A window
ack is sent after WINDOW_ACK_BYTES, or after WINDOW_ACK_DELAY_S if fewer bytes were handled. Window
acks are not acknowledged and do not count against the window: two idle agents would otherwise
acknowledge each other's acks endlessly.

A length with its second bit set is that of a *fragment* of a large frame (`fragments`). The next
fragment is written when all bytes have been sent, or when as many bytes as a fragment have passed
it; so large frames fill an idle link and get half of a busy one.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from hansa.agent.error_text import explain_socket_error
from hansa.agent.links.admission import HELLO_BYTES, REFUSED_BYTES, TOO_MANY_BYTES, Admission
from hansa.agent.links.fragments import (
    FRAGMENT_BYTES,
    LENGTH_PREFIX_BYTES,
    FragmentQueue,
    StreamReassembly,
)
from hansa.agent.links.link import Address, LinkListener
from hansa.agent.sockets import ByteTransport
from hansa.errors import InvalidCertificate, InvalidFrame
from hansa.identity.certificates import NodeCertificate
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION

LENGTH = struct.Struct(">I")
LENGTH_BYTES: Final = 4
FIRST_READ_BYTES = 1 << 14
"""Bytes of the first reads, until a read fills them: most links are idle."""

READ_BYTES: Final = 1 << 18
"""Bytes of one read; a longer frame makes the buffer grow to its size."""

WINDOW_ACK_BIT: Final = 1 << 31
"""The bit that marks a window ack."""

FRAGMENT_BIT: Final = 1 << 30
"""The bit that marks a fragment."""

WINDOW_FULL = "the neighbour's window is full"
"""Why publications are dropped."""

WINDOW_ACK_BYTES: Final = 1 << 16
"""Handled bytes after which a window ack is sent."""

WINDOW_ACK_DELAY_S = 0.2
"""Longest time in seconds that handled bytes wait for their window ack."""

WINDOW_BYTES = 16 << 20
"""Bytes in flight to a neighbour before its publications are dropped. Window divided by round
trip is the highest rate: 160 MB/s at 100 ms. More allows longer bursts, and delays publications
more."""

EXCESS_BYTES_MAX = 16 << 20
"""Bytes of control frames beyond the window before the link is closed."""

CLOSE_GRACE_S = 1.0
"""Seconds that the last bytes have to leave when a link is closed."""


class LinkLimits(NamedTuple):
    """Bounds of a link."""

    window_bytes: int = WINDOW_BYTES
    frame_bytes: int = CONTROL_BYTES_MAX
    """Of the largest frame that arrives in fragments."""


DEFAULT_LIMITS = LinkLimits()


class StreamLink:
    """One connection."""

    is_ordered = True

    def __init__(
        self,
        id_: LinkId,
        listener: LinkListener,
        limits: LinkLimits,
        remote: str,
        dialled_address: Address | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.id = id_
        self.dialled_address = dialled_address
        self.bytes_in = 0
        self.bytes_out = 0
        self.frames_out = 0
        self.drop_reasons: Counter[str] = Counter()
        self.remote = remote
        self.closed = asyncio.Event()
        self.is_admitted = False
        self.expected_node: NodeId | None = None
        self.certificate: NodeCertificate | None = None
        self._unadmitted_bytes_max = HELLO_BYTES  # bytes that may arrive before it is admitted
        self._admission = admission or Admission()
        self._listener = listener
        self._window_bytes = limits.window_bytes
        self._fragment_queue = FragmentQueue(limits.window_bytes)
        self._bytes_since_fragment = 0  # bytes since the last fragment
        self._reassembly = StreamReassembly(limits.frame_bytes)
        self._outstanding_bytes = 0  # bytes sent, except acks, that no ack covers yet
        self._unacknowledged_bytes = 0  # bytes handled here, not acknowledged yet
        self._ack_timer: asyncio.TimerHandle | None = None
        self._transport: ByteTransport | None = None
        # All that an unadmitted connection costs.
        self._buffer = memoryview(bytearray(HELLO_BYTES))
        self._read_bytes = FIRST_READ_BYTES
        self._filled_bytes = 0
        self.close_reason = ""
        self._opened = asyncio.Event()

    # ------------------------------------------------------------ called by the loop

    def await_authentication(self, transport: ByteTransport) -> None:
        """Remember the transport so that `close` works while the peer is being authenticated."""
        self._transport = transport

    def authenticate(self, certificate: NodeCertificate) -> None:
        """Note who the peer is; raise InvalidCertificate if it must be another node."""
        if self.expected_node not in (None, certificate.node):
            raise InvalidCertificate(
                f"it is that of {certificate.node:016x}, the topic says {self.expected_node:016x}"
            )
        self.certificate, self.expected_node = certificate, certificate.node

    def connection_made(self, transport: ByteTransport) -> None:
        self._transport = transport
        self._opened.set()
        self._listener.link_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return room for the next bytes, never none: TLS asks until all that has arrived is
        read, also while the link is being closed."""
        if self._filled_bytes and not self.close_reason:
            return self._buffer[self._filled_bytes :]
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Split received bytes into frames."""
        self.bytes_in += nbytes
        self._filled_bytes += nbytes
        if self.is_admitted and self._filled_bytes == len(self._buffer):
            self._read_bytes = READ_BYTES  # the buffer was too small
        if self.close_reason:
            self._filled_bytes = 0  # being closed: ignore the rest
            return
        try:
            received = bytes(self._buffer[: self._filled_bytes])
            frames, used, handled, acknowledged = split_frames(received, self._reassembly)
            if acknowledged:
                self._receive_window_ack(acknowledged)
                self._send_fragments()
        except InvalidFrame as error:
            self._listener.peer_misbehaved(self, str(error))
            self.close(f"invalid bytes from the other side: {error}")
            self._filled_bytes = 0
            return
        self._filled_bytes -= used
        self._buffer[: self._filled_bytes] = received[used:]
        if self.is_admitted:
            self._resize_buffer(self._read_bytes)
        if frames:
            self._listener.frames_received(self, frames)
        if not self.is_admitted and not self.close_reason:
            self._limit_unadmitted()
        self._unacknowledged_bytes += handled
        if self._unacknowledged_bytes >= WINDOW_ACK_BYTES:
            self._send_window_ack()
        elif self._ack_timer is None and self._unacknowledged_bytes:
            loop = asyncio.get_running_loop()
            self._ack_timer = loop.call_later(WINDOW_ACK_DELAY_S, self._on_ack_timer)

    def pause_writing(self) -> None:
        """Bytes wait: `outstanding_bytes` bounds them."""

    def resume_writing(self) -> None:
        """Continue with fragments: everything was sent."""
        self._send_fragments()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end, with the reason if known."""
        self.closed.set()
        self._buffer = memoryview(b"")
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self.close_reason = self.close_reason or (
            explain_socket_error(exc) if exc else "closed by the other side"
        )
        if self._opened.is_set():
            self._listener.link_closed(self, self.close_reason)
        self._opened.set()  # for those who wait

    def _limit_unadmitted(self) -> None:
        """Close the connection if it has sent, or announces, more than it may before admission."""
        announced = 0
        if self._filled_bytes >= LENGTH_BYTES:
            announced = int.from_bytes(self._buffer[:LENGTH_BYTES], "big") & ~FRAGMENT_BIT
        if self.bytes_in >= self._unadmitted_bytes_max or announced > self._unadmitted_bytes_max:
            self._admission.count_refused(TOO_MANY_BYTES)
            self.close(TOO_MANY_BYTES)
        else:
            self._resize_buffer(HELLO_BYTES)

    def _resize_buffer(self, needed: int) -> None:
        """Grow the buffer for a frame larger than it, and shrink it afterwards."""
        if self._filled_bytes >= LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big") & ~FRAGMENT_BIT
            needed = max(needed, LENGTH_BYTES + length)
        if needed != len(self._buffer):
            resized = memoryview(bytearray(needed))
            resized[: self._filled_bytes] = self._buffer[: self._filled_bytes]
            self._buffer = resized

    # ------------------------------------------------------------ called by the agent

    @property
    def outstanding_bytes(self) -> int:
        """Bytes of frames that were sent and are not covered by a window ack."""
        return self._outstanding_bytes

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Write frames with one call; publications only while the window is not full."""
        if self._transport is None or self._transport.is_closing():
            return
        is_full = self.outstanding_bytes > self._window_bytes
        if is_full:
            frames = self._without_publications(frames)
        if is_full or self._fragment_queue or any(len(frame) > FRAGMENT_BYTES for frame in frames):
            frames, refused = self._fragment_queue.enqueue(frames, holds_bulk=is_full)
            self._report_dropped(refused)
        self.frames_out += len(frames)
        parts: list[bytes | bytearray] = []
        for frame in frames:
            parts.append(len(frame).to_bytes(LENGTH_BYTES, "big"))
            parts.append(frame)
        data = b"".join(parts)
        if data:
            self._write(data)
        if self._fragment_queue:
            self._bytes_since_fragment += len(data)
            if self._bytes_since_fragment >= FRAGMENT_BYTES:
                self._send_fragment()
            self._send_fragments()
        if self.outstanding_bytes > self._window_bytes + EXCESS_BYTES_MAX:
            self.close(f"the neighbour does not read: {self.outstanding_bytes} bytes wait")

    async def wait_until_open(self) -> None:
        """Wait until the link is open; raise ConnectionError if the peer was not authenticated."""
        await self._opened.wait()
        if self.closed.is_set():
            raise ConnectionError(self.close_reason)

    def admit(self) -> None:
        """Lift the limits of admission: the hellos are accepted."""
        self.is_admitted = True
        self._resize_buffer(self._read_bytes)

    def allow_last_frames(self) -> None:
        """Accept the last frames of a refused neighbour: the node closes the link soon."""
        self._unadmitted_bytes_max = self.bytes_in + REFUSED_BYTES

    def pause(self, seconds: float) -> None:
        """Do not read for so long; the other side's window fills up."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(seconds, transport.resume_reading)

    def close(self, reason: str) -> None:
        """Close when all bytes are sent, or after CLOSE_GRACE_S."""
        if self._transport is None or self.close_reason:
            return
        self.close_reason = reason
        self._transport.close()
        asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)

    def _without_publications(
        self, frames: Sequence[bytes | bytearray]
    ) -> Sequence[bytes | bytearray]:
        control = [frame for frame in frames if frame[0] != PUBLICATION]
        self._report_dropped(len(frames) - len(control))
        return control

    def _report_dropped(self, count: int) -> None:
        if count:
            self.drop_reasons[WINDOW_FULL] += count
            self._listener.publications_dropped(self, count, WINDOW_FULL)

    def _send_fragments(self) -> None:
        """Write waiting fragments while they are sent at once; half of the window is for small
        frames."""
        transport = self._transport
        while (
            self._fragment_queue
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
            and self.outstanding_bytes <= self._window_bytes // 2
        ):
            self._send_fragment()

    def _send_fragment(self) -> None:
        self._bytes_since_fragment = 0
        data, is_piece, is_whole = self._fragment_queue.pop_chunk()
        self.frames_out += is_whole
        self._write(LENGTH.pack(len(data) | FRAGMENT_BIT * is_piece) + data)

    def _receive_window_ack(self, count: int) -> None:
        if count > self.outstanding_bytes:
            raise InvalidFrame(
                f"a window ack for {count} bytes, {self.outstanding_bytes} are in flight"
            )
        self._outstanding_bytes -= count

    def _send_window_ack(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            data = LENGTH.pack(WINDOW_ACK_BIT | self._unacknowledged_bytes)
            self._unacknowledged_bytes = 0
            self.bytes_out += len(data)
            self._transport.write(data)

    def _on_ack_timer(self) -> None:
        self._ack_timer = None
        if self._unacknowledged_bytes:
            self._send_window_ack()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self.bytes_out += len(data)
        self._outstanding_bytes += len(data)
        self._transport.write(data)


def split_frames(data: bytes, reassembly: StreamReassembly) -> tuple[list[bytes], int, int, int]:
    """Return the whole frames at the start of these bytes, the bytes used, how many of these need
    an ack (all but window acks), and how many sent bytes the window acks among them cover."""
    frames: list[bytes] = []
    at = acknowledged_bytes = ack_count = 0
    filled = len(data)
    while filled - at >= LENGTH_BYTES:
        start = at + LENGTH_BYTES
        length = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
        if 0 < length <= CONTROL_BYTES_MAX:
            if filled - start < length:
                break
            at = start + length
            frames.append(data[start:at])
        elif length > WINDOW_ACK_BIT:
            acknowledged_bytes += length - WINDOW_ACK_BIT
            ack_count += 1
            at = start
        elif FRAGMENT_BIT < length <= FRAGMENT_BIT + LENGTH_PREFIX_BYTES + FRAGMENT_BYTES:
            if filled - start < length - FRAGMENT_BIT:
                break
            at = start + length - FRAGMENT_BIT
            frame = reassembly.add(data[start:at])
            if frame is not None:
                frames.append(frame)
        else:
            raise InvalidFrame(f"a frame of {length} bytes, the limit is {CONTROL_BYTES_MAX}")
    return frames, at, at - LENGTH_BYTES * ack_count, acknowledged_bytes
