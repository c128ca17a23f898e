"""Frames and bytes sent over all links, by frame type."""

from zlib import crc32

import msgspec

from hansa.protocol.model import Publication
from hansa.protocol.wire import codec
from hansa.protocol.wire.frames import AnyFrame, SequencedFrame

_encoder = msgspec.msgpack.Encoder()
_FORMAT_BYTES = 1
"""Bytes that the codec puts before a control frame."""


class TrafficCounter:
    __slots__ = (
        "_bytes",
        "_last_checksum",
        "_frames",
        "_last_frame",
        "_last_size",
        "_encodes_frames",
    )

    def __init__(self, wire_bytes: bool) -> None:
        """With `wire_bytes`, frames are really encoded and checked."""
        self._encodes_frames = wire_bytes
        self._frames: dict[type, int] = {}
        self._bytes: dict[type, int] = {}
        # A flood sends one frame over many links in a row: measure it once.
        self._last_frame: object = None
        self._last_size = 0
        self._last_checksum = 0

    def count_frame(self, frame: AnyFrame | Publication) -> tuple[int, int]:
        """Count a frame; return its size and a checksum of its bytes."""
        if frame is not self._last_frame:
            data = self._encode(frame)
            self._last_frame = frame
            self._last_size = len(data) if self._encodes_frames else len(data) + _FORMAT_BYTES
            self._last_checksum = crc32(data)
        kind = type(frame.frame) if type(frame) is SequencedFrame else type(frame)
        self._frames[kind] = self._frames.get(kind, 0) + 1
        self._bytes[kind] = self._bytes.get(kind, 0) + self._last_size
        return self._last_size, self._last_checksum

    def _encode(self, frame: AnyFrame | Publication) -> bytes:
        """Return bytes of the right size; the codec checks every rule and takes longer."""
        if self._encodes_frames:
            return codec.encode(frame)
        if type(frame) is Publication:
            return codec.encode_publication(frame)[_FORMAT_BYTES:]
        return _encoder.encode(frame)

    def control_frames(self) -> dict[str, int]:
        """Return the number of control frames by type."""
        return _by_name(self._frames)

    def control_bytes(self) -> dict[str, int]:
        """Return the bytes of control frames by type."""
        return _by_name(self._bytes)

    @property
    def data_frames(self) -> int:
        """Copies of publications sent."""
        return self._frames.get(Publication, 0)

    @property
    def data_bytes(self) -> int:
        """Bytes of copies of publications."""
        return self._bytes.get(Publication, 0)


def _by_name(counts: dict[type, int]) -> dict[str, int]:
    found = {kind.__name__: count for kind, count in counts.items() if kind is not Publication}
    return dict(sorted(found.items()))
