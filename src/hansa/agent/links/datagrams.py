"""Frames in datagrams: small frames share one, large frames are split into fragments.

Pure: no sockets, no time. A fragment names its frame by a digest of the bytes, so the fragments of
a frame that is sent again complete those of the first attempt: with one datagram in ten lost, a
frame of a thousand fragments needs four attempts.

    DATA      { length (2), frame } …
    FRAGMENT  digest of the frame (8), index (2), count (2), fragment
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator

from hansa.errors import InvalidFrame
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION

OPEN, OFFER, CONFIRM, ACCEPT, DATA, FRAGMENT, CLOSE, HANDSHAKE = (
    bytes((0xA0 + kind,)) for kind in range(8)
)
"""The first byte of a datagram; `udp` says what each means."""

DATAGRAM_BYTES_MAX = 1_200
"""Bytes that every path carries without IP fragmentation, as QUIC assumes (RFC 9000, 14)."""

HEADER_BYTES = 17
"""Kind and session, which `udp` prepends."""

SEAL_BYTES = 24
"""Number and tag, which `sealed_datagrams` adds. Room for them is kept in clear datagrams, too."""

BODY_BYTES_MAX = DATAGRAM_BYTES_MAX - HEADER_BYTES - SEAL_BYTES
_LENGTH = struct.Struct(">H")
_FRAGMENT_HEADER = struct.Struct(">8sHH")

SMALL_BYTES_MAX = BODY_BYTES_MAX - _LENGTH.size
"""Bytes of the largest frame that fits a datagram."""

FRAGMENT_BYTES = BODY_BYTES_MAX - _FRAGMENT_HEADER.size
FRAGMENTS_MAX = -(-CONTROL_BYTES_MAX // FRAGMENT_BYTES)

FRAGMENTS_HELD_MAX = 2 * FRAGMENTS_MAX
"""Fragments of incomplete frames that a link holds; beyond that it drops those of the oldest
frame."""


def pack_frames(frames: Iterable[bytes | bytearray]) -> Iterator[tuple[bytes, int]]:
    """Join small frames in as few bodies as possible, each with its number of publications."""
    parts: list[bytes | bytearray] = []
    size = publications = 0
    for frame in frames:
        needed = _LENGTH.size + len(frame)
        if size + needed > BODY_BYTES_MAX:
            yield b"".join(parts), publications
            parts, size, publications = [], 0, 0
        parts += (_LENGTH.pack(len(frame)), frame)
        size += needed
        publications += frame[0] == PUBLICATION
    if parts:
        yield b"".join(parts), publications


def unpack_frames(body: bytes) -> list[bytes]:
    frames: list[bytes] = []
    at, end = 0, len(body)
    while at < end:
        start = at + _LENGTH.size
        length = int.from_bytes(body[at:start], "big")
        at = start + length
        if not length or at > end:
            raise InvalidFrame(f"a frame of {length} bytes in a datagram with {end - start} more")
        frames.append(body[start:at])
    return frames


def frame_digest(frame: bytes) -> bytes:
    """Return the digest that names a frame in its fragments."""
    return hashlib.blake2b(frame, digest_size=8).digest()


def split_frame(frame: bytes) -> list[bytes]:
    """Return the fragments of a frame."""
    count, name = -(-len(frame) // FRAGMENT_BYTES), frame_digest(frame)
    return [
        _FRAGMENT_HEADER.pack(name, index, count)
        + frame[index * FRAGMENT_BYTES : (index + 1) * FRAGMENT_BYTES]
        for index in range(count)
    ]


class DatagramReassembly:
    """Incomplete frames of one link."""

    def __init__(self) -> None:
        self._frames: dict[tuple[bytes, int], dict[int, bytes]] = {}
        self._fragment_count = 0

    def __len__(self) -> int:
        """Return the number of fragments held."""
        return self._fragment_count

    def add(self, body: bytes) -> bytes | None:
        """Add a fragment; return its frame when complete."""
        if len(body) <= _FRAGMENT_HEADER.size:
            raise InvalidFrame(f"a fragment of {len(body)} bytes")
        name, index, count = _FRAGMENT_HEADER.unpack_from(body)
        if not index < count <= FRAGMENTS_MAX:
            raise InvalidFrame(f"fragment {index} of {count}, the limit is {FRAGMENTS_MAX}")
        fragments = self._frames.setdefault((name, count), {})
        self._fragment_count += index not in fragments
        fragments[index] = body[_FRAGMENT_HEADER.size :]
        if len(fragments) == count:
            return self._finish(name, count)
        if self._fragment_count > FRAGMENTS_HELD_MAX:
            self._fragment_count -= len(self._frames.pop(next(iter(self._frames))))
        return None

    def _finish(self, name: bytes, count: int) -> bytes:
        fragments = self._frames.pop((name, count))
        self._fragment_count -= count
        frame = b"".join(fragments[index] for index in range(count))
        if frame_digest(frame) != name:
            raise InvalidFrame(f"{count} fragments that make no frame")
        return frame
