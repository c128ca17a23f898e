"""The data types of MQTT [1.5] and their bytes: integers, variable integers, text, binary.

`Cursor` reads them from what a broker sent and raises BrokerMisbehaved; the functions write them
and raise ValueError, because what cannot be written is our own mistake.
"""

import re

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.types import PACKET_IDS_MAX, Reason

VARIABLE_MAX = 268_435_455
"""The largest variable byte integer: four bytes of seven bits [1.5.5]."""

FIELD_BYTES_MAX = 65_535
"""Bytes of a text or of binary data: what two bytes of length can say [1.5.4, 1.5.6]."""

_LAST_TWO = "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17))
_REFUSABLE = re.compile(f"[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef{_LAST_TWO}]")


def may_be_refused(text: str) -> bool:
    """Whether a receiver may end the connection over a text: it has control characters or what
    Unicode calls non-characters [1.5.4]. Mosquitto does, others do not."""
    return _REFUSABLE.search(text) is not None


class Cursor:
    """A place in some bytes, up to an end that no field may cross."""

    __slots__ = ("_data", "_end", "_place", "at")

    def __init__(self, data: bytes, at: int, end: int, place: str) -> None:
        """Start at `at`; `place` begins every complaint."""
        self._data = data
        self._end = end
        self._place = place
        self.at = at

    @property
    def left(self) -> int:
        """Bytes up to the end."""
        return self._end - self.at

    def fault(self, message: str, reason: Reason = Reason.MALFORMED_PACKET) -> BrokerMisbehaved:
        """Return the error to raise here."""
        return BrokerMisbehaved(f"{self._place}: {message}", reason)

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        start = self.at
        if count > self._end - start:
            raise self.fault(f"{count} bytes needed, {self._end - start} left")
        self.at = start + count
        return self._data[start : self.at]

    def rest(self) -> bytes:
        """Read all that is left."""
        return self.take(self.left)

    def byte(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def integer(self, size: int) -> int:
        """Read an integer of so many bytes."""
        return int.from_bytes(self.take(size), "big")

    def packet_id(self) -> int:
        """Read a packet id, which is never 0 [MQTT-2.2.1-3]."""
        packet_id = self.integer(2)
        if not packet_id:
            raise self.fault("packet id 0", Reason.PROTOCOL_ERROR)
        return packet_id

    def variable(self) -> int:
        """Read a variable byte integer: at most four bytes, and none too many [MQTT-1.5.5-1]."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if shift and not byte:
                    raise self.fault(f"variable integer {value} in more bytes than it needs")
                return value
        raise self.fault("a variable integer of more than 4 bytes")

    def binary(self) -> bytes:
        """Read binary data."""
        return self.take(self.integer(2))

    def text(self) -> str:
        """Read a text: strict UTF-8 without the null character [MQTT-1.5.4-1, -2]."""
        try:
            text = self.binary().decode()
        except UnicodeDecodeError as error:
            raise self.fault(f"text is not UTF-8, {error.reason} at byte {error.start}") from None
        if "\0" in text:
            raise self.fault("text contains the null character")
        return text

    def topic(self) -> str:
        """Read the name of a topic: a text that is not empty and has no wildcard."""
        topic = self.text()
        if not topic or "+" in topic or "#" in topic:  # [MQTT-3.3.2-2], [MQTT-4.7.3-1]
            raise self.fault(f"{topic[:60]!r} is no topic name", Reason.TOPIC_NAME_INVALID)
        return topic

    def finish(self) -> None:
        """Require that nothing is left."""
        if self.at != self._end:
            raise self.fault(f"{self.left} bytes too many")


def write_integer(value: int, size: int) -> bytes:
    """Return an integer in so many bytes."""
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise ValueError(f"{value} does not fit {size} bytes") from None


def write_packet_id(packet_id: int) -> bytes:
    """Return a packet id in two bytes."""
    if not 0 < packet_id <= PACKET_IDS_MAX:
        raise ValueError(f"packet id {packet_id}, they go from 1 to {PACKET_IDS_MAX}")
    return packet_id.to_bytes(2, "big")


def write_variable(value: int) -> bytes:
    """Return a variable byte integer."""
    if not 0 <= value <= VARIABLE_MAX:
        raise ValueError(f"{value}, a variable integer goes from 0 to {VARIABLE_MAX}")
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_binary(data: bytes) -> bytes:
    """Return binary data behind its length."""
    if len(data) > FIELD_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes, the limit of a field is {FIELD_BYTES_MAX}")
    return len(data).to_bytes(2, "big") + data


def write_text(text: str) -> bytes:
    """Return a text behind its length."""
    try:
        return write_binary(text.encode())
    except UnicodeEncodeError:
        raise ValueError("a text with half a surrogate pair has no UTF-8") from None
