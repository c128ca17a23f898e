"""Large frames on a stream: they leave in pieces, between which small frames pass.

One large frame is on its way at a time, the others wait for it; so a piece needs no name. Who must
not overtake what waits, waits behind it: frames of one *strand* (`protocol.wire.codec`) keep their
order. Control frames are never cut, and wait for nobody.
"""

from collections import Counter, deque
from collections.abc import Sequence

from hansa.errors import InvalidFrame
from hansa.protocol.wire.codec import BULK_RESPONSE, PUBLICATION, ordering_key

LENGTH_PREFIX_BYTES = 4
"""The first piece of a frame begins with the frame's length."""

FRAGMENT_BYTES = (1 << 16) - 2 * LENGTH_PREFIX_BYTES
"""Bytes of a frame in one piece, and of the largest frame that is not cut: with both lengths that
is as much as one publication of a link through a broker takes."""


class FragmentQueue:
    """What waits to leave piece by piece."""

    def __init__(self, bytes_max: int) -> None:
        """Let so many bytes of large publications wait, and one more; as many of small ones behind
        them; and of answers, which were asked for, twice as many."""
        self._bytes_max = {PUBLICATION: bytes_max, BULK_RESPONSE: 2 * bytes_max}
        self._queue: deque[bytes | bytearray] = deque()
        self._ordering_keys: Counter[bytes] = Counter()
        self._first_sent_bytes = 0  # bytes of the first one
        self._small_bytes = 0  # bytes of small ones
        self.queued_bytes = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        """Whether something waits."""
        return bool(self._queue)

    def enqueue(self, frames: Sequence[bytes | bytearray]) -> tuple[list[bytes | bytearray], int]:
        """Take what is large, and what must not overtake that; return what may leave at once, and
        how many there is no room for."""
        direct: list[bytes | bytearray] = []
        refused = 0
        for frame in frames:
            if not self._must_wait(frame):
                direct.append(frame)
            elif self._queued_like(frame) > self._bytes_max[frame[0]]:
                refused += 1
            else:
                self._queue.append(frame)
                self._ordering_keys[ordering_key(frame)] += 1
                self.queued_bytes += len(frame)
                self._small_bytes += len(frame) if len(frame) <= FRAGMENT_BYTES else 0
        return direct, refused

    def _queued_like(self, frame: bytes | bytearray) -> int:
        return (
            self._small_bytes
            if len(frame) <= FRAGMENT_BYTES
            else self.queued_bytes - self._small_bytes
        )

    def _must_wait(self, frame: bytes | bytearray) -> bool:
        return frame[0] in self._bytes_max and (
            len(frame) > FRAGMENT_BYTES
            or (bool(self._queue) and ordering_key(frame) in self._ordering_keys)
        )

    def pop_chunk(self) -> tuple[bytes, bool, bool]:
        """Return the next bytes to leave, whether they are a piece and not a whole frame, and
        whether their frame is whole with them."""
        frame = self._queue[0]
        if len(frame) <= FRAGMENT_BYTES:
            self._small_bytes -= len(frame)
            self._remove_first()
            return bytes(frame), False, True
        total = b"" if self._first_sent_bytes else len(frame).to_bytes(LENGTH_PREFIX_BYTES, "big")
        fragment = b"".join(
            (
                total,
                memoryview(frame)[self._first_sent_bytes : self._first_sent_bytes + FRAGMENT_BYTES],
            )
        )
        self._first_sent_bytes += FRAGMENT_BYTES
        if self._first_sent_bytes < len(frame):
            self.queued_bytes -= FRAGMENT_BYTES
            return fragment, True, False
        self._remove_first()
        return fragment, True, True

    def _remove_first(self) -> None:
        frame = self._queue.popleft()
        self.queued_bytes -= len(frame) - max(0, self._first_sent_bytes - FRAGMENT_BYTES)
        self._first_sent_bytes = 0
        name = ordering_key(frame)
        self._ordering_keys[name] -= 1
        if not self._ordering_keys[name]:
            del self._ordering_keys[name]


class StreamReassembly:
    """The large frame that is arriving."""

    def __init__(self, frame_bytes_max: int) -> None:
        """Expect frames of at most so many bytes. Memory is taken for what has come, not for what
        is announced."""
        self._frame_bytes_max = frame_bytes_max
        self._fragments: list[bytes] = []
        self._missing_bytes = 0

    def add(self, fragment: bytes) -> bytes | None:
        """Take the next piece; return its frame once that is whole. Raises InvalidFrame."""
        if not self._missing_bytes:
            total = int.from_bytes(fragment[:LENGTH_PREFIX_BYTES], "big")
            if not FRAGMENT_BYTES < total <= self._frame_bytes_max:
                limit = self._frame_bytes_max
                raise InvalidFrame(f"a frame of {total} bytes in pieces, the limit is {limit}")
            self._missing_bytes, fragment = total, fragment[LENGTH_PREFIX_BYTES:]
        if not 0 < len(fragment) <= self._missing_bytes:
            raise InvalidFrame(
                f"a piece of {len(fragment)} bytes, {self._missing_bytes} were missing"
            )
        self._fragments.append(fragment)
        self._missing_bytes -= len(fragment)
        if self._missing_bytes:
            return None
        frame = b"".join(self._fragments)
        self._fragments.clear()
        return frame
