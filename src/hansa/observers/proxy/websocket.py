"""Finds the MQTT bytes in one direction of a WebSocket connection [RFC 6455].

The direction begins with an HTTP request or response. Then come frames; those with data carry a
stream of MQTT packets, which need not end where frames do. Nothing is kept but the beginning of a
header. A connection that is no WebSocket, or uses an extension such as compression, raises
InvalidStream; after that the decoder must not be used again.
"""

from hansa.observers.proxy.scanner import PACKET_BYTES_MAX, InvalidStream, first_packet_bytes

HEAD_BYTES_MAX = 1 << 14
"""Largest HTTP head in bytes."""

_HEAD_END = b"\r\n\r\n"
_HEAD_STARTS = (b"GET ", b"HTTP/1.1 101")
_FRAME_BYTES_MAX = 1 << 28
"""Largest frame: that of an MQTT packet. The format allows more."""
_CONTROL, _CLOSE, _RESERVED_BITS = 0x8, 0x8, 0x70
_CONTINUATION, _BINARY, _PING, _PONG = 0x0, 0x2, 0x9, 0xA
_OPCODES = frozenset((_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG))


class WebSocketDecoder:
    """One direction of one connection."""

    __slots__ = ("_held", "_is_data", "_is_in_head", "_left", "_mask")

    def __init__(self) -> None:
        self._is_in_head = True
        self._held = b""  # the beginning of the HTTP head, or of a frame's header
        self._left = 0  # bytes of the current frame that have not arrived
        self._is_data = False
        self._mask = b""  # for the next bytes of the frame; empty if it is not masked

    @property
    def is_between_frames(self) -> bool:
        """Whether everything fed so far ends with a frame, or with the HTTP head."""
        return not self._is_in_head and not self._held and not self._left

    def feed(self, data: bytes) -> bytes:
        """Return the MQTT bytes in these bytes."""
        found: list[bytes] = []
        at = 0
        while at < len(data):
            payload, at = self.feed_frame(data, at)
            found.append(payload)
        return b"".join(found)

    def feed_frame(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Read from this place to the end of a frame at most; return its MQTT bytes, and where to
        continue."""
        if self._is_in_head:
            return b"", self._read_head(data, at)
        if not self._left:
            begin = self._read_header(data, at)
            if begin is None:
                return b"", len(data)
            at = begin
        payload = data[at : at + self._left]
        self._left -= len(payload)
        return self._unmask(payload) if self._is_data else b"", at + len(payload)

    def _read_head(self, data: bytes, at: int) -> int:
        held = len(self._held)
        head = self._held + data[at : at + HEAD_BYTES_MAX]
        if not any(head[: len(start)] == start[: len(head)] for start in _HEAD_STARTS):
            raise InvalidStream("no WebSocket connection")
        end = head.find(_HEAD_END)
        if end < 0:
            if len(head) >= HEAD_BYTES_MAX:
                raise InvalidStream(f"an HTTP head of more than {HEAD_BYTES_MAX} bytes")
            self._held = head
            return len(data)
        self._is_in_head = False
        self._held = b""
        return at + end + len(_HEAD_END) - held

    def _read_header(self, data: bytes, at: int) -> int | None:
        """Read the header of a frame; return where its payload begins, or None if the header is
        not complete."""
        held = len(self._held)
        header = self._held + data[at : at + 14]
        self._held = b""
        if len(header) < 2:
            self._held = header
            return None
        first, length = header[0], header[1] & 0x7F
        if first & _RESERVED_BITS or first & 0xF not in _OPCODES:
            raise InvalidStream("a WebSocket frame with an extension, such as compression, or text")
        size = 2
        if length > 125:
            size += 2 if length == 126 else 8
            length = int.from_bytes(header[2:size], "big")
        mask_at = size
        size += 4 if header[1] & 0x80 else 0
        if len(header) < size:
            self._held = header
            return None
        if length > _FRAME_BYTES_MAX:
            raise InvalidStream(f"a WebSocket frame of {length} bytes")
        self._is_data = not (first & _CONTROL)
        self._left = length
        self._mask = header[mask_at:size]
        return at + size - held

    def _unmask(self, payload: bytes) -> bytes:
        mask, size = self._mask, len(payload)
        if not mask or not size:
            return payload
        turn = size % 4
        self._mask = mask[turn:] + mask[:turn]
        pattern = (mask * (size // 4 + 1))[:size]
        unmasked = int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")
        return unmasked.to_bytes(size, "big")


class ConnectGate:
    """Finds the end of the CONNECT at the beginning of a client's bytes: what follows it waits
    until the broker has answered."""

    def __init__(self, is_websocket: bool) -> None:
        self._decoder = WebSocketDecoder() if is_websocket else None
        self._packet = b""

    def find_end(self, data: bytes) -> tuple[int, bool]:
        """Return how many of these bytes, which follow those of the last call, can be forwarded,
        and whether they complete the CONNECT.

        Without WebSocket none can before it is complete. With WebSocket every byte up to the frame
        that completes it can: the broker must answer the HTTP request first. Raise InvalidStream
        if the bytes cannot be followed."""
        if self._decoder is None:
            size = _connect_bytes(data)
            return (size, True) if size else (0, False)
        at = 0
        while at < len(data):
            payload, at = self._decoder.feed_frame(data, at)
            self._packet += payload
            if _connect_bytes(self._packet) and self._decoder.is_between_frames:
                return at, True
        return at, False


def _connect_bytes(data: bytes) -> int:
    """Return the length of the packet at the start; 0 if it is not complete."""
    size = first_packet_bytes(data)
    if size is not None and size > PACKET_BYTES_MAX:
        raise InvalidStream(f"CONNECT of {size} bytes, the limit is {PACKET_BYTES_MAX}")
    return size if size is not None and len(data) >= size else 0
