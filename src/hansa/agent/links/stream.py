"""A link on a stream of bytes: a length before each frame, one write per batch, a window.

What carries the stream, a socket or a broker, is the transport's business.

Of frames this knows only their type. A neighbour that does not read costs itself only: what it has
not handled yet is counted against its window; when that is full, its publications are dropped and
told, and it is given up when even control frames pile up.

What follows a length with its highest bit set is no frame: the other bits are a *receipt*, the
bytes that the other side has handled since its last one. So the window spans everything between the
two agents, buffers of both kernels included, and what is dropped is dropped before it is old. A
receipt leaves after RECEIPT_BYTES, and after RECEIPT_DELAY_S if fewer bytes were handled. Receipts
themselves are not confirmed and do not count against the window: two idle agents would otherwise
confirm each other's receipts for ever.

What follows a length with its second bit set is a *piece* of a large frame (`pieces`). The next one
is written when what was written before has left, or when as much as a piece has passed it; so large
frames fill the link when it is idle, and have half of it when it is not.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import NamedTuple, cast

from hansa.agent.error_text import explain
from hansa.agent.links.admission import HELLO_BYTES, REFUSED_BYTES, TOO_MANY_BYTES, Admission
from hansa.agent.links.fragments import PIECE_BYTES, TOTAL_BYTES, Assembly, Bulk
from hansa.agent.links.link import Address, Listener
from hansa.errors import InvalidFrame
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION

LENGTH = struct.Struct(">I")
LENGTH_BYTES = LENGTH.size
FIRST_READ_BYTES = 1 << 14
"""Bytes that one read takes at most until a read was as long as that: most links are idle."""

READ_BYTES = 1 << 18
"""Bytes that one read takes at most; a frame that is longer makes the buffer grow to its size."""

RECEIPT = 1 << 31
"""The bit that makes a length a receipt."""

PIECE = 1 << 30
"""The bit that makes it the length of a piece."""

RECEIPT_BYTES = 1 << 16
"""Bytes that are handled until a receipt is given."""

RECEIPT_DELAY_S = 0.2
"""Longest time in seconds that handled bytes wait for their receipt."""

WINDOW_BYTES = 16 << 20
"""Bytes that may be under way to a neighbour before its publications are dropped. Window by round
trip is the highest rate: 160 MB/s at 100 ms. More takes longer bursts, and makes what arrives
older."""

STUCK_BYTES_MAX = 16 << 20
"""Bytes beyond the window, control frames all of them, until the link is given up."""

CLOSE_GRACE_S = 1.0
"""Seconds that the last bytes have to leave when a link is closed."""


class LinkLimits(NamedTuple):
    """What may be on a link."""

    window_bytes: int = WINDOW_BYTES
    frame_bytes: int = CONTROL_BYTES_MAX
    """Of the largest frame that comes in pieces."""


USUAL = LinkLimits()


class StreamLink(asyncio.BufferedProtocol):
    """One connection."""

    ordered = True

    def __init__(
        self,
        id_: LinkId,
        listener: Listener,
        limits: LinkLimits,
        remote: str,
        dialled: Address | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Prepare for a connection that is about to stand."""
        self.id = id_
        self.dialled = dialled
        self.bytes_in = 0
        self.bytes_out = 0
        self.frames_out = 0
        self.dropped = 0
        self.remote = remote
        self.closed = asyncio.Event()
        self.admitted = False
        self.named: NodeId | None = None
        self._allowance = HELLO_BYTES  # bytes that may come before it is admitted
        self._admission = admission or Admission()
        self._listener = listener
        self._window_bytes = limits.window_bytes
        self._bulk = Bulk(limits.window_bytes)
        self._passed = 0  # bytes since the last piece
        self._assembly = Assembly(limits.frame_bytes)
        self._outstanding = 0  # bytes sent, except receipts, that no receipt covers yet
        self._owed = 0  # bytes handled here that no receipt covers yet
        self._receipt_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(HELLO_BYTES)  # a stranger costs no more than that
        self._read_bytes = FIRST_READ_BYTES
        self._filled = 0
        self._reason = ""

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the listener."""
        self._transport = cast(asyncio.Transport, transport)
        self._listener.link_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Cut what arrived into frames."""
        self.bytes_in += nbytes
        self._filled += nbytes
        if self.admitted and self._filled == len(self._buffer):
            self._read_bytes = READ_BYTES  # there is more than it holds
        if self._reason:
            self._filled = 0  # it is being closed: what still comes means nothing
            return
        try:
            frames, used, handled, receipted = split(self._buffer, self._filled, self._assembly)
            if receipted:
                self._take_receipt(receipted)
                self._send_pieces()
        except InvalidFrame as error:
            self.close(f"this is no neighbour of ours: {error}")
            self._filled = 0
            return
        rest = self._filled - used
        self._buffer[:rest] = self._buffer[used : self._filled]
        self._filled = rest
        if self.admitted:
            self._make_room(self._read_bytes)
        if frames:
            self._listener.frames_received(self, frames)
        if not self.admitted and not self._reason:
            self._limit_stranger()
        self._owed += handled
        if self._owed >= RECEIPT_BYTES:
            self._give_receipt()
        elif self._receipt_timer is None and self._owed:
            loop = asyncio.get_running_loop()
            self._receipt_timer = loop.call_later(RECEIPT_DELAY_S, self._give_late_receipt)

    def resume_writing(self) -> None:
        """What was written has left."""
        self._send_pieces()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell why, as far as it is known."""
        self.closed.set()
        self._buffer = bytearray()
        if self._receipt_timer is not None:
            self._receipt_timer.cancel()
        reason = self._reason or (explain(exc) if exc else "closed by the other side")
        self._listener.link_closed(self, reason)

    def _limit_stranger(self) -> None:
        """Close the connection if it has sent, or announces, more than its allowance."""
        announced = 0
        if self._filled >= LENGTH_BYTES:
            announced = int.from_bytes(self._buffer[:LENGTH_BYTES], "big") & ~PIECE
        if self.bytes_in >= self._allowance or announced > self._allowance:
            self._admission.count(TOO_MANY_BYTES)
            self.close(TOO_MANY_BYTES)
        else:
            self._make_room(HELLO_BYTES)

    def _make_room(self, needed: int) -> None:
        """A frame larger than the buffer needs a larger one, for as long as it takes."""
        if self._filled >= LENGTH_BYTES:
            length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if length < PIECE:
                needed = max(needed, LENGTH_BYTES + length)
        if needed != len(self._buffer):
            larger = bytearray(needed)
            larger[: self._filled] = self._buffer[: self._filled]
            self._buffer = larger

    # ------------------------------------------------------------ called by the agent

    @property
    def outstanding(self) -> int:
        """Bytes of frames that were sent and not confirmed by the neighbour yet."""
        return self._outstanding

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Write frames with one call; publications only while the window is not full."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.outstanding > self._window_bytes:
            frames = self._without_publications(frames)
        if self._bulk or any(len(frame) > PIECE_BYTES for frame in frames):
            frames, refused = self._bulk.sift(frames)
            self._note_dropped(refused)
        self.frames_out += len(frames)
        pack = LENGTH.pack
        data = b"".join([part for frame in frames for part in (pack(len(frame)), frame)])
        if data:
            self._write(data)
        if self._bulk:
            self._passed += len(data)
            if self._passed >= PIECE_BYTES:
                self._send_piece()
            self._send_pieces()
        if self.outstanding > self._window_bytes + STUCK_BYTES_MAX:
            self.close(f"the neighbour does not read: {self.outstanding} bytes wait")

    def admit(self) -> None:
        """Lift the limits for strangers: the hellos agreed."""
        self.admitted = True
        self._make_room(self._read_bytes)

    def refuse(self) -> None:
        """Let the last frames of a refused neighbour in: the node closes the link soon."""
        self._allowance = self.bytes_in + REFUSED_BYTES

    def close(self, reason: str) -> None:
        """Close once what was written has left; who does not read is not waited for."""
        if self._transport is None or self._reason:
            return
        self._reason = reason
        self._transport.close()
        asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)

    def _without_publications(
        self, frames: Sequence[bytes | bytearray]
    ) -> Sequence[bytes | bytearray]:
        control = [frame for frame in frames if frame[0] != PUBLICATION]
        self._note_dropped(len(frames) - len(control))
        return control

    def _note_dropped(self, count: int) -> None:
        if count:
            self.dropped += count
            self._listener.publications_dropped(self, count, "the neighbour's window is full")

    def _send_pieces(self) -> None:
        """Write what waits, as long as it leaves at once; half of the window is for the others."""
        transport = self._transport
        while (
            self._bulk
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
            and self.outstanding <= self._window_bytes // 2
        ):
            self._send_piece()

    def _send_piece(self) -> None:
        self._passed = 0
        data, is_piece, is_whole = self._bulk.next()
        self.frames_out += is_whole
        self._write(LENGTH.pack(len(data) | PIECE * is_piece) + data)

    def _take_receipt(self, count: int) -> None:
        if count > self.outstanding:
            raise InvalidFrame(f"a receipt for {count} bytes, {self.outstanding} were under way")
        self._outstanding -= count

    def _give_receipt(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            data = LENGTH.pack(RECEIPT | self._owed)
            self._owed = 0
            self.bytes_out += len(data)
            self._transport.write(data)

    def _give_late_receipt(self) -> None:
        self._receipt_timer = None
        if self._owed:
            self._give_receipt()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self.bytes_out += len(data)
        self._outstanding += len(data)
        self._transport.write(data)


def split(buffer: bytearray, filled: int, assembly: Assembly) -> tuple[list[bytes], int, int, int]:
    """Return the whole frames at the start of a buffer, how many bytes were used, how many of these
    are to be confirmed (all but receipts), and how many of ours the receipts among them cover."""
    frames: list[bytes] = []
    at = receipted = receipts = 0
    data = bytes(memoryview(buffer)[:filled])  # slices of bytes are faster than those of a view
    while filled - at >= LENGTH_BYTES:
        start = at + LENGTH_BYTES
        (length,) = LENGTH.unpack_from(data, at)
        if 0 < length <= CONTROL_BYTES_MAX:
            if filled - start < length:
                break
            at = start + length
            frames.append(data[start:at])
        elif length > RECEIPT:
            receipted += length - RECEIPT
            receipts += 1
            at = start
        elif PIECE < length <= PIECE + TOTAL_BYTES + PIECE_BYTES:
            if filled - start < length - PIECE:
                break
            at = start + length - PIECE
            frame = assembly.add(data[start:at])
            if frame is not None:
                frames.append(frame)
        else:
            raise InvalidFrame(f"a frame of {length} bytes, the limit is {CONTROL_BYTES_MAX}")
    return frames, at, at - LENGTH_BYTES * receipts, receipted
