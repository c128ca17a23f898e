"""Finds MQTT packets in a stream of bytes; returns whole those of some types, skips the others.

Most bytes belong to publications, which do not matter here: their bodies are neither copied nor
kept. A stream that is not MQTT, or a packet that matters and is too large, raises InvalidStream;
after that the scanner must not be used again.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from hansa.mqtt.types import PacketType

PACKET_BYTES_MAX = 1 << 18
"""Largest packet that is kept, in bytes: a SUBSCRIBE of this size has about 5,000 filters."""

_LENGTH_BYTES_MAX = 4


class InvalidStream(Exception):
    """These bytes cannot be followed; the message says why."""


class FrameDecoder(Protocol):
    """Takes a stream of packets out of the frames that carry it."""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of packets in these bytes; raise InvalidStream."""


class PacketScanner:
    """One direction of one connection."""

    __slots__ = ("_decoder", "_held", "_skip", "_types", "has_begun")

    def __init__(self, packet_types: frozenset[int], decoder: FrameDecoder | None = None) -> None:
        """`packet_types` are those that matter; `decoder` takes the stream out of frames."""
        self._types = packet_types
        self._decoder = decoder
        self.has_begun = False
        """Whether any byte of a packet has arrived."""
        self._held = b""  # the beginning of a header, or of a packet that matters
        self._skip = 0  # bytes of a packet that does not matter and has not arrived yet

    def feed(self, data: bytes) -> Iterable[tuple[PacketType, bytes]]:
        """Return type and body of each packet that matters and is now complete. The result must be
        read before the next call."""
        if self._decoder is not None:
            data = self._decoder.feed(data)
        if not data:
            return ()
        self.has_begun = True
        return self._scan(data)

    def skips(self, buffer: memoryview, count: int) -> bool:
        """Whether the first `count` bytes of a buffer, not in frames, are one packet that does not
        matter: then they need not be fed. This is the usual case, and much faster."""
        if count < 2 or self._skip or self._held or buffer[0] >> 4 in self._types:
            return False
        length = buffer[1]
        if length < 128:
            return length == count - 2
        high = buffer[2]
        return high < 128 and length - 128 + (high << 7) == count - 3

    def _scan(self, data: bytes) -> Iterator[tuple[PacketType, bytes]]:
        at = min(self._skip, len(data))
        self._skip -= at
        if self._held:
            data, at = self._held + data[at:], 0
            self._held = b""
        size = len(data)
        while size - at >= 2:
            first, length, body = data[at], data[at + 1], at + 2
            if length > 127:
                header = _long_header(data, at)
                if header is None:
                    break
                length, body = header
            end = body + length
            if first >> 4 not in self._types:
                if end > size:
                    self._skip = end - size
                    return
                at = end
                continue
            if length > PACKET_BYTES_MAX:
                kind = PacketType(first >> 4).name
                raise InvalidStream(f"{kind} of {length} bytes, the limit is {PACKET_BYTES_MAX}")
            if end > size:
                break
            yield PacketType(first >> 4), data[body:end]
            at = end
        self._held = data[at:]


def _long_header(data: bytes, at: int) -> tuple[int, int] | None:
    """Return the length and where the body begins; None if the header is not complete."""
    length = 0
    for index, byte in enumerate(data[at + 1 : at + 1 + _LENGTH_BYTES_MAX]):
        length |= (byte & 127) << 7 * index
        if byte < 128:
            return length, at + 2 + index
    if len(data) - at > _LENGTH_BYTES_MAX:
        raise InvalidStream("a packet length of more than 4 bytes: this is not MQTT")
    return None


def first_packet_bytes(data: bytes) -> int | None:
    """Return the length of the packet at the start of some bytes; None if it is not known yet."""
    if len(data) < 2:
        return None
    header = (data[1], 2) if data[1] < 128 else _long_header(data, 0)
    return None if header is None else header[0] + header[1]
