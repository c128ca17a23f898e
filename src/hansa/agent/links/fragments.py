"""Large frames on a stream: sent in fragments, between which small frames pass.

One large frame is in progress at a time and the others wait, so a fragment needs no name. Frames
with equal ordering keys (`protocol.wire.codec`) keep their order: small ones wait behind a large
one. Control frames other than bulk responses are never split and never wait.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from hansa.errors import InvalidFrame
from hansa.protocol.wire.codec import BULK_RESPONSE, PUBLICATION, ordering_key

LENGTH_PREFIX_BYTES: Final = 4
"""The first fragment begins with the length of its frame."""

FRAGMENT_BYTES: Final = (1 << 16) - 2 * LENGTH_PREFIX_BYTES
"""Bytes of a fragment, and of the largest frame that is not split: with both lengths as much as
one publication of a link through a broker carries."""


class FragmentQueue:
    """Frames that wait to be sent in fragments."""

    def __init__(self, bytes_max: int) -> None:
        """Allow so many bytes of large publications, plus one publication; as many bytes of
        small ones behind them; and twice as many of repair responses, which were requested."""
        self._bytes_max = {PUBLICATION: bytes_max, BULK_RESPONSE: 2 * bytes_max}
        self._queue: deque[bytes | bytearray] = deque()
        self._ordering_keys: Counter[bytes] = Counter()
        self._first_sent_bytes = 0  # bytes of the first frame
        self._small_bytes = 0  # bytes of small frames
        self.queued_bytes = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        """Whether frames wait."""
        return bool(self._queue)

    def enqueue(
        self, frames: Sequence[bytes | bytearray], holds_bulk: bool = False
    ) -> tuple[list[bytes | bytearray], int]:
        """Queue large frames and those that must not overtake them, and with `holds_bulk` all bulk
        responses; return the frames to send at once and the number dropped for lack of room."""
        direct: list[bytes | bytearray] = []
        refused = 0
        for frame in frames:
            is_held = holds_bulk and frame[0] == BULK_RESPONSE
            if not is_held and not self._must_wait(frame):
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
        """Return the next bytes to send, whether they are a fragment and not a whole frame, and
        whether they complete their frame."""
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
        """Accept frames of at most so many bytes. Memory is allocated for bytes received, not
        announced."""
        self._frame_bytes_max = frame_bytes_max
        self._fragments: list[bytes] = []
        self._missing_bytes = 0

    def add(self, fragment: bytes) -> bytes | None:
        """Add a fragment; return the frame when complete. Raises InvalidFrame."""
        if not self._missing_bytes:
            total = int.from_bytes(fragment[:LENGTH_PREFIX_BYTES], "big")
            if not FRAGMENT_BYTES < total <= self._frame_bytes_max:
                limit = self._frame_bytes_max
                raise InvalidFrame(f"a frame of {total} bytes in pieces, the limit is {limit}")
            self._missing_bytes, fragment = total, fragment[LENGTH_PREFIX_BYTES:]
        if not 0 < len(fragment) <= self._missing_bytes:
            raise InvalidFrame(
                f"a fragment of {len(fragment)} bytes, {self._missing_bytes} were missing"
            )
        self._fragments.append(fragment)
        self._missing_bytes -= len(fragment)
        if self._missing_bytes:
            return None
        frame = b"".join(self._fragments)
        self._fragments.clear()
        return frame
