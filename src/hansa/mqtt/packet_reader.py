"""Decodes received bytes into packets, in batches.

`PacketReader` takes chunks as they come from the socket, split at any position. It raises
BrokerMisbehaved for everything that a correct sender does not send, and nothing else. Its buffer is
bounded by the agreed maximum packet size, which is checked on the header, before the body is
buffered.

The loop itself decodes PUBLISH, and topics are cached: they repeat, and a lookup of their bytes is
faster than decoding and checking them again.
"""

from typing import Final, NoReturn, TypeAlias

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import body_decoder, packets, properties
from hansa.mqtt.fields import FIELD_BYTES_MAX, FieldCursor
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import PACKET_BYTES_MAX, PacketType, Reason, Side, Version

PACKET_BYTES_LIMIT_MIN = 256
"""No agreed packet size may be below this: packets this small are read without a check."""

CACHED_TOPICS_MAX = 8_192
CACHED_TOPIC_BYTES_MAX = 256
"""Number of cached topics, and bytes of the longest; about 5 MB at most."""

CACHED_BLOCKS_MAX = 4_096
CACHED_BLOCK_BYTES_MAX = 64
"""Number of cached property blocks of publications, and bytes of the longest; 2 MB at most."""

_PropertyBlock: TypeAlias = tuple[tuple[int, ...], bytes]
"""The subscription identifiers of a publication, and its other properties."""

_HEADER_BYTES_MAX = 5
_HEAD_BYTES_MAX = _HEADER_BYTES_MAX + 2 + FIELD_BYTES_MAX + 2  # header, topic, packet id
_PUBLISH: Final = 0x30
_PLAIN: Final = 0x30  # QoS 0 and not retained

# The lower four bits of a PUBLISH: QoS, retain, dup. QoS 3 and a DUP of QoS 0 are invalid.
_FLAGS = {
    bits: (bits >> 1 & 3, bool(bits & 1), bool(bits & 8))
    for bits in range(16)
    if bits & 6 != 6 and bits & 14 != 8
}

_SENT_BY_BOTH = {
    PacketType.PUBLISH,
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
}
_SENT_BY = {
    Side.CLIENT: _SENT_BY_BOTH
    | {
        PacketType.CONNECT,
        PacketType.SUBSCRIBE,
        PacketType.UNSUBSCRIBE,
        PacketType.PINGREQ,
        PacketType.DISCONNECT,
    },
    Side.BROKER: _SENT_BY_BOTH
    | {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP},
}
_ADDED_BY_V5 = {PacketType.DISCONNECT, PacketType.AUTH}
_FLAGGED_TYPES = {
    PacketType.PUBREL,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
}  # the standard fixes their lower four bits to 2


def first_byte(kind: PacketType) -> int:
    """Return the first byte of a packet type other than PUBLISH [table 2-2]."""
    return kind << 4 | (2 if kind in _FLAGGED_TYPES else 0)


# Handshake packets without a reason are as frequent as QoS 1 and 2 publications; their body has two
# bytes.
_SHORT_HANDSHAKE_PACKETS = {
    first_byte(kind): answer for kind, answer in body_decoder.HANDSHAKE_PACKETS.items()
}


class PacketReader:
    __slots__ = (
        "_blocks",
        "_bytes_max",
        "_bytes_needed",
        "_types_by_first_byte",
        "_oversized",
        "_incomplete",
        "_sender",
        "_bytes_to_skip",
        "_topics",
        "version",
    )

    def __init__(
        self, version: Version, bytes_max: int = PACKET_BYTES_MAX, sender: Side = Side.BROKER
    ) -> None:
        """Start a connection; `bytes_max` limits a whole packet.

        A client's bytes start with a CONNECT, whose version applies from then on.
        """
        if bytes_max < PACKET_BYTES_LIMIT_MIN:
            raise ValueError(
                f"packets of {bytes_max} bytes, at least {PACKET_BYTES_LIMIT_MIN} must fit"
            )
        self._bytes_max = bytes_max
        self._sender = sender
        self._incomplete = bytearray()  # the beginning of a packet
        self._bytes_needed = 0  # bytes of it that are needed for the next step
        self._oversized = False
        self._bytes_to_skip = 0  # bytes of an oversized publication still to discard
        self._topics: dict[bytes, str] = {}
        self._blocks: dict[bytes, _PropertyBlock] = {}
        self._set_version(version)

    def _set_version(self, version: Version) -> None:
        kinds = _SENT_BY[self._sender] | (_ADDED_BY_V5 if version is Version.V5 else set())
        self.version = version
        self._types_by_first_byte = {
            first_byte(kind): kind for kind in sorted(kinds - {PacketType.PUBLISH})
        }

    def feed(self, chunk: bytes | bytearray | memoryview, output: list[packets.AnyPacket]) -> None:
        """Append the packets that are now complete.

        If it raises BrokerMisbehaved, the packets before the fault have been appended, and the
        reader must not be used any further.
        """
        if self._bytes_to_skip:
            skipped = min(self._bytes_to_skip, len(chunk))
            self._bytes_to_skip -= skipped
            chunk = memoryview(chunk)[skipped:]
        rest = self._incomplete
        if rest:
            rest += chunk
            if len(rest) < self._bytes_needed:
                return
            data = bytes(rest)  # slices of bytes are faster than those of other buffers
            rest.clear()
        else:
            data = bytes(chunk)
        at = self._read_packets(data, 0, output)
        while self._oversized:
            at, oversized = self._skip_oversized(data, at)
            output.append(oversized)
            at = self._read_packets(data, at, output)
        if at < len(data):
            rest += memoryview(data)[at:]

    # ------------------------------------------------------------ the loop

    def _read_packets(self, data: bytes, at: int, output: list[packets.AnyPacket]) -> int:
        """Append all complete packets from `at` on; return where the first incomplete one
        begins."""
        size, version_5 = len(data), self.version is Version.V5
        topics, seen, append = self._topics, self._blocks, output.append
        while at + 1 < size:
            first, length, body = data[at], data[at + 1], at + 2
            if length > 127:
                length, body = self._long_length(data, at)
            end = body + length
            if end > size:
                self._wait_for_rest(data, at)
                return at
            if first & 0xF0 != _PUBLISH:
                append(self._read_other(first, data, body, end))
                version_5 = self.version is Version.V5
                at = end
                continue
            try:
                start = body + 2 + (data[body] << 8 | data[body + 1])
                topic = topics.get(data[body + 2 : start])
                if topic is None:
                    topic = self._read_topic(data, body, end)
                if first == _PLAIN and not (version_5 and data[start]):
                    start += version_5
                    publish = PublishPacket(topic, data[start:end])
                elif first == _PLAIN and (block := seen.get(data[start : start + 1 + data[start]])):
                    start += 1 + data[start]
                    publish = PublishPacket(
                        topic, data[start:end], 0, False, False, 0, block[0], block[1]
                    )
                else:
                    start, publish = self._read_publish(topic, first, data, start, end)
            except IndexError:
                start = size + 1
            if start > end:
                raise BrokerMisbehaved(f"PUBLISH: {end - body} bytes do not hold its fields")
            append(publish)
            at = end
        self._bytes_needed = 0
        return at

    def _read_publish(
        self, topic: str, first: int, data: bytes, at: int, end: int
    ) -> tuple[int, PublishPacket]:
        """Read a PUBLISH with flags or properties from after its topic; return where its payload
        begins.

        The caller detects fields that cross the end by comparing that position with the end.
        """
        qos, retain, dup = _FLAGS.get(first & 15) or self._refuse_flags(first)
        packet_id = 0
        if qos:
            packet_id = data[at] << 8 | data[at + 1]
            at += 2
            if not packet_id:
                raise BrokerMisbehaved("PUBLISH: packet id 0", Reason.PROTOCOL_ERROR)
        if self.version is Version.V311:
            return at, PublishPacket(topic, data[at:end], qos, retain, dup, packet_id)
        start = at + 1 + data[at]
        block = self._blocks.get(data[at:start])
        if block is None:
            start, block = self._read_properties(data, at, end)
        payload = data[start:end]
        return start, PublishPacket(topic, payload, qos, retain, dup, packet_id, block[0], block[1])

    def _read_properties(self, data: bytes, at: int, end: int) -> tuple[int, _PropertyBlock]:
        """Read and cache a PUBLISH's properties; return also the position after them."""
        cursor = FieldCursor(data, at, end, "PUBLISH")
        raw = cursor.read_bytes(cursor.read_variable_integer())
        block = properties.split_publish_properties(raw)
        if block[0] and self._sender is Side.CLIENT:  # [MQTT-3.3.4-6]
            raise cursor.make_error("a subscription identifier", Reason.PROTOCOL_ERROR)
        if len(raw) <= CACHED_BLOCK_BYTES_MAX:
            if len(self._blocks) >= CACHED_BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[data[at : cursor.position]] = block
        return cursor.position, block

    def _refuse_flags(self, first: int) -> NoReturn:
        raise BrokerMisbehaved(f"PUBLISH: flags {first & 15:04b}")

    def _read_topic(self, data: bytes, body: int, end: int) -> str:
        cursor = FieldCursor(data, body, end, "PUBLISH")
        topic = cursor.read_topic()
        if cursor.position - body <= CACHED_TOPIC_BYTES_MAX:
            if len(self._topics) >= CACHED_TOPICS_MAX:
                self._topics.clear()  # topics in use return at once
            self._topics[data[body + 2 : cursor.position]] = topic
        return topic

    def _read_other(self, first: int, data: bytes, body: int, end: int) -> packets.AnyPacket:
        if end - body == 2 and first in _SHORT_HANDSHAKE_PACKETS:
            packet_id = data[body] << 8 | data[body + 1]
            if packet_id:
                return _SHORT_HANDSHAKE_PACKETS[first](packet_id)
        kind = self._packet_type(first)
        packet = body_decoder.decode_body(kind, data, body, end, self.version)
        if type(packet) is packets.ConnectPacket:
            self._set_version(packet.version)
        return packet

    def _packet_type(self, first: int) -> PacketType:
        kind = self._types_by_first_byte.get(first)
        if kind is None:
            where = f"no {self._sender.value} sends in {self.version.name}"
            raise BrokerMisbehaved(f"header 0x{first:02x}: a packet that {where}")
        return kind

    # ------------------------------------------------------------ lengths

    def _long_length(self, data: bytes, at: int) -> tuple[int, int]:
        """Return a length of more than one byte and where the body begins.

        If the header is incomplete or the packet too large to be read, the returned length is
        larger than any buffer.
        """
        header = self._read_header(data, at)
        if header is None or header[1] - at + header[0] > self._bytes_max:
            return len(data), at + 2
        return header

    def _read_header(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return the length and where the body begins; None if the header is incomplete."""
        length = 0
        for index, byte in enumerate(data[at + 1 : at + _HEADER_BYTES_MAX]):
            length |= (byte & 127) << 7 * index
            if byte < 128:
                if index and not byte and self.version is Version.V5:  # [MQTT-1.5.5-1]
                    raise BrokerMisbehaved(f"header: length {length} in more bytes than it needs")
                return length, at + 2 + index
        if len(data) - at >= _HEADER_BYTES_MAX:
            raise BrokerMisbehaved("header: a length of more than 4 bytes")
        return None

    def _wait_for_rest(self, data: bytes, at: int) -> None:
        """Handle an incomplete or oversized packet at `at` by what its header says."""
        self._bytes_needed = 0
        first = data[at]
        if first & 0xF0 != _PUBLISH:
            self._packet_type(first)
        header = self._read_header(data, at)
        if header is None:
            return
        length, body = header
        self._bytes_needed = body - at + length
        if self._bytes_needed <= self._bytes_max:
            return
        if first & 0xF0 != _PUBLISH or self.version is Version.V5:
            problem = (
                f"header 0x{first:02x}: {self._bytes_needed} bytes, the limit is {self._bytes_max}"
            )
            raise BrokerMisbehaved(problem, Reason.PACKET_TOO_LARGE)
        self._bytes_needed = min(self._bytes_needed, _HEAD_BYTES_MAX)
        self._oversized = len(data) - at >= self._bytes_needed

    def _skip_oversized(self, data: bytes, at: int) -> tuple[int, packets.OversizedPublish]:
        """Read the fields before the payload of an oversized publication, and discard the
        payload."""
        self._oversized = False
        header = self._read_header(data, at)
        assert header is not None
        length, body = header
        end = body + length
        cursor = FieldCursor(data, body, end, "PUBLISH")
        topic = cursor.read_topic()
        qos, _, dup = _FLAGS.get(data[at] & 15) or self._refuse_flags(data[at])
        packet_id = cursor.read_packet_id() if qos else 0
        self._bytes_to_skip = max(0, end - len(data))
        return min(end, len(data)), packets.OversizedPublish(topic, qos, dup, packet_id, end - at)
