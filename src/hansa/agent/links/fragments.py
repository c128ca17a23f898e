"""Large frames on a stream: they leave in pieces, between which small frames pass.

One large frame is on its way at a time, the others wait for it; so a piece needs no name. Who must
not overtake what waits, waits behind it: frames of one *strand* (`protocol.wire.codec`) keep their
order. Control frames are never cut, and wait for nobody.
"""

from collections import Counter, deque
from collections.abc import Sequence

from hansa.errors import InvalidFrame
from hansa.protocol.wire.codec import ANSWER, PUBLICATION, strand

TOTAL_BYTES = 4
"""The first piece of a frame begins with the frame's length."""

PIECE_BYTES = (1 << 16) - 2 * TOTAL_BYTES
"""Bytes of a frame in one piece, and of the largest frame that is not cut: with both lengths that
is as much as one publication of a link through a broker takes."""


class Bulk:
    """What waits to leave piece by piece."""

    def __init__(self, bytes_max: int) -> None:
        """Let so many bytes of large publications wait, and one more; as many of small ones behind
        them; and of answers, which were asked for, twice as many."""
        self._room = {PUBLICATION: bytes_max, ANSWER: 2 * bytes_max}
        self._queue: deque[bytes | bytearray] = deque()
        self._strands: Counter[bytes] = Counter()
        self._sent = 0  # bytes of the first one
        self._small = 0  # bytes of small ones
        self.bytes = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._queue)

    def sift(self, frames: Sequence[bytes | bytearray]) -> tuple[list[bytes | bytearray], int]:
        """Take what is large, and what must not overtake that; return what may leave at once, and
        how many there is no room for."""
        direct: list[bytes | bytearray] = []
        refused = 0
        for frame in frames:
            if not self._has_to_wait(frame):
                direct.append(frame)
            elif self._waiting_like(frame) > self._room[frame[0]]:
                refused += 1
            else:
                self._queue.append(frame)
                self._strands[strand(frame)] += 1
                self.bytes += len(frame)
                self._small += len(frame) if len(frame) <= PIECE_BYTES else 0
        return direct, refused

    def _waiting_like(self, frame: bytes | bytearray) -> int:
        return self._small if len(frame) <= PIECE_BYTES else self.bytes - self._small

    def _has_to_wait(self, frame: bytes | bytearray) -> bool:
        return frame[0] in self._room and (
            len(frame) > PIECE_BYTES or (bool(self._queue) and strand(frame) in self._strands)
        )

    def next(self) -> tuple[bytes, bool, bool]:
        """Return the next bytes to leave, whether they are a piece and not a whole frame, and
        whether their frame is whole with them."""
        frame = self._queue[0]
        if len(frame) <= PIECE_BYTES:
            self._small -= len(frame)
            self._pass()
            return bytes(frame), False, True
        total = b"" if self._sent else len(frame).to_bytes(TOTAL_BYTES, "big")
        piece = b"".join((total, memoryview(frame)[self._sent : self._sent + PIECE_BYTES]))
        self._sent += PIECE_BYTES
        if self._sent < len(frame):
            self.bytes -= PIECE_BYTES
            return piece, True, False
        self._pass()
        return piece, True, True

    def _pass(self) -> None:
        frame = self._queue.popleft()
        self.bytes -= len(frame) - max(0, self._sent - PIECE_BYTES)
        self._sent = 0
        name = strand(frame)
        self._strands[name] -= 1
        if not self._strands[name]:
            del self._strands[name]


class Assembly:
    """The large frame that is arriving."""

    def __init__(self, frame_bytes_max: int) -> None:
        """Expect frames of at most so many bytes. Memory is taken for what has come, not for what
        is announced."""
        self._frame_bytes_max = frame_bytes_max
        self._pieces: list[bytes] = []
        self._missing = 0

    def add(self, piece: bytes) -> bytes | None:
        """Take the next piece; return its frame once that is whole. Raises InvalidFrame."""
        if not self._missing:
            total = int.from_bytes(piece[:TOTAL_BYTES], "big")
            if not PIECE_BYTES < total <= self._frame_bytes_max:
                limit = self._frame_bytes_max
                raise InvalidFrame(f"a frame of {total} bytes in pieces, the limit is {limit}")
            self._missing, piece = total, piece[TOTAL_BYTES:]
        if not 0 < len(piece) <= self._missing:
            raise InvalidFrame(f"a piece of {len(piece)} bytes, {self._missing} were missing")
        self._pieces.append(piece)
        self._missing -= len(piece)
        if self._missing:
            return None
        frame = b"".join(self._pieces)
        self._pieces.clear()
        return frame
