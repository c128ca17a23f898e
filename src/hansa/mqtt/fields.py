"""The data types of MQTT [1.5]: integers, variable byte integers, UTF-8 strings and binary data.

`FieldCursor` reads them from received bytes and raises BrokerMisbehaved. The functions write them
and raise ValueError, because a value that cannot be written is our own mistake.
"""

import re

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.types import PACKET_IDS_MAX, Reason

VARIABLE_INTEGER_MAX = 268_435_455
"""The largest variable byte integer: four bytes of seven bits [1.5.5]."""

FIELD_BYTES_MAX = 65_535
"""The longest string or binary field: its length has two bytes [1.5.4, 1.5.6]."""

_PLANE_NONCHARACTERS = "".join(
    chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17)
)
_REFUSABLE_CHARACTERS = re.compile(f"[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef{_PLANE_NONCHARACTERS}]")


def has_refusable_characters(text: str) -> bool:
    """Whether a receiver may close the connection because of this text: it contains control
    characters or Unicode non-characters [1.5.4]. Mosquitto does, other brokers do not."""
    return _REFUSABLE_CHARACTERS.search(text) is not None


class FieldCursor:
    """A read position in a buffer, with an end that no field may cross."""

    __slots__ = ("_data", "_end", "_context", "position")

    def __init__(self, data: bytes, position: int, end: int, context: str) -> None:
        """Start at `at`; `context` begins every error message."""
        self._data = data
        self._end = end
        self._context = context
        self.position = position

    @property
    def remaining(self) -> int:
        return self._end - self.position

    def make_error(
        self, message: str, reason: Reason = Reason.MALFORMED_PACKET
    ) -> BrokerMisbehaved:
        return BrokerMisbehaved(f"{self._context}: {message}", reason)

    def read_bytes(self, count: int) -> bytes:
        start = self.position
        if count > self._end - start:
            raise self.make_error(f"{count} bytes needed, {self._end - start} left")
        self.position = start + count
        return self._data[start : self.position]

    def read_rest(self) -> bytes:
        return self.read_bytes(self.remaining)

    def read_byte(self) -> int:
        return self.read_bytes(1)[0]

    def read_integer(self, size: int) -> int:
        return int.from_bytes(self.read_bytes(size), "big")

    def read_packet_id(self) -> int:
        """Read a packet id, which must not be 0 [MQTT-2.2.1-3]."""
        packet_id = self.read_integer(2)
        if not packet_id:
            raise self.make_error("packet id 0", Reason.PROTOCOL_ERROR)
        return packet_id

    def read_variable_integer(self) -> int:
        """Read a variable byte integer: at most four bytes, and no more than it needs
        [MQTT-1.5.5-1]."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if shift and not byte:
                    raise self.make_error(f"variable integer {value} in more bytes than it needs")
                return value
        raise self.make_error("a variable integer of more than 4 bytes")

    def read_binary(self) -> bytes:
        return self.read_bytes(self.read_integer(2))

    def read_text(self) -> str:
        """Read a UTF-8 string; the null character is forbidden [MQTT-1.5.4-1, -2]."""
        try:
            text = self.read_binary().decode()
        except UnicodeDecodeError as error:
            raise self.make_error(
                f"text is not UTF-8, {error.reason} at byte {error.start}"
            ) from None
        if "\0" in text:
            raise self.make_error("text contains the null character")
        return text

    def read_topic(self) -> str:
        """Read a topic name: not empty and without wildcards."""
        topic = self.read_text()
        if not topic or "+" in topic or "#" in topic:  # [MQTT-3.3.2-2], [MQTT-4.7.3-1]
            raise self.make_error(f"{topic[:60]!r} is not a topic name", Reason.TOPIC_NAME_INVALID)
        return topic

    def require_end(self) -> None:
        """Require that all bytes were read."""
        if self.position != self._end:
            raise self.make_error(f"{self.remaining} bytes too many")


def write_integer(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise ValueError(f"{value} does not fit {size} bytes") from None


def write_packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id <= PACKET_IDS_MAX:
        raise ValueError(f"packet id {packet_id}, not 1 to {PACKET_IDS_MAX}")
    return packet_id.to_bytes(2, "big")


def write_variable_integer(value: int) -> bytes:
    if not 0 <= value <= VARIABLE_INTEGER_MAX:
        raise ValueError(f"variable integer {value}, not 0 to {VARIABLE_INTEGER_MAX}")
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_binary(data: bytes) -> bytes:
    """Encode binary data with its length."""
    if len(data) > FIELD_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes, the limit of a field is {FIELD_BYTES_MAX}")
    return len(data).to_bytes(2, "big") + data


def write_text(text: str) -> bytes:
    """Encode a UTF-8 string with its length."""
    try:
        return write_binary(text.encode())
    except UnicodeEncodeError:
        raise ValueError("text with an unpaired surrogate has no UTF-8") from None
