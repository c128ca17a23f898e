"""Encodes packets, for one direction of one connection.

It never sends what a correct receiver refuses: `encode` decodes its own output as the receiver
would, and raises ValueError if that fails. `encode_publications` checks the rules itself because
publications are many; it caches encoded topics and joins a batch for one system call.
"""

import struct
from collections.abc import Iterable
from typing import Final

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import body_decoder, body_encoder, packets, properties
from hansa.mqtt.fields import (
    FieldCursor,
    has_refusable_characters,
    write_packet_id,
    write_text,
    write_variable_integer,
)
from hansa.mqtt.packet_reader import (
    CACHED_BLOCK_BYTES_MAX,
    CACHED_BLOCKS_MAX,
    CACHED_TOPIC_BYTES_MAX,
    CACHED_TOPICS_MAX,
    PacketReader,
    first_byte,
)
from hansa.mqtt.packets import PlainPublish, PublishPacket
from hansa.mqtt.properties import Property
from hansa.mqtt.types import PACKET_BYTES_MAX, PACKET_IDS_MAX, Side, Version

_PUBLISH: Final = 0x30
_ONE_BYTE_MAX: Final = 127  # the largest length in one byte
_SHORT_HEADERS: Final = tuple(bytes((_PUBLISH, length)) for length in range(_ONE_BYTE_MAX + 1))
_QOS_MAX = 2
_SHORT_HANDSHAKE_FORMAT = struct.Struct(">HH")
_HOP_BY_HOP = (Property.SUBSCRIPTION_IDENTIFIER, Property.TOPIC_ALIAS)
_SHORT_HANDSHAKE_HEADERS = {
    answer: first_byte(kind) << 8 | 2 for kind, answer in body_decoder.HANDSHAKE_PACKETS.items()
}


class PacketTooLarge(ValueError):
    """The packet is well formed, but exceeds the receiver's maximum packet size."""


class PacketWriter:
    __slots__ = (
        "_blocks",
        "_bytes_max",
        "_no_properties",
        "_sender",
        "_short_body_max",
        "_topics",
        "_version",
    )

    def __init__(
        self, version: Version, bytes_max: int = PACKET_BYTES_MAX, sender: Side = Side.CLIENT
    ) -> None:
        """`bytes_max` is the largest packet that the receiver accepts."""
        self._version = version
        self._sender = sender
        self._no_properties = b"\0" if version is Version.V5 else b""  # empty properties
        self._blocks: dict[bytes, bytes] = {}  # properties, and the same with their length
        self._topics: dict[str, bytes] = {}  # encoded topics, each followed by empty properties
        self.set_packet_bytes_max(bytes_max)

    def set_packet_bytes_max(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._short_body_max = min(_ONE_BYTE_MAX, bytes_max - 2)

    def encode(self, packet: PublishPacket | packets.Packet) -> bytes:
        """Return the bytes of a packet; raise ValueError if the receiver would refuse them."""
        if isinstance(packet, PublishPacket):
            return b"".join(self._encode_publish(packet))
        kind, body = body_encoder.encode_body(packet, self._version)
        data = b"".join((bytes((first_byte(kind),)), write_variable_integer(len(body)), body))
        self._require_size(len(data))
        decoded: list[packets.AnyPacket] = []
        try:
            PacketReader(self._version, sender=self._sender).feed(data, decoded)
        except BrokerMisbehaved as error:
            raise ValueError(str(error)) from None
        if decoded != [packet]:
            raise ValueError(f"{kind.name}: does not survive encoding")
        return data

    def encode_handshake_packets(self, batch: Iterable[packets.AnyHandshakePacket]) -> bytes:
        """Return the bytes of handshake packets; most have no reason and need only their packet
        id."""
        chunks: list[bytes] = []
        for answer in batch:
            packet_id = answer.packet_id
            if answer.reason or answer.properties or not 0 < packet_id <= PACKET_IDS_MAX:
                chunks.append(self.encode(answer))
            else:
                chunks.append(
                    _SHORT_HANDSHAKE_FORMAT.pack(_SHORT_HANDSHAKE_HEADERS[type(answer)], packet_id)
                )
        return b"".join(chunks)

    def _require_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise PacketTooLarge(f"a packet of {size} bytes, the limit is {self._bytes_max}")

    # ------------------------------------------------------------ publications: the fast path

    def encode_publications(
        self, batch: Iterable[PublishPacket | PlainPublish]
    ) -> tuple[bytes, list[tuple[PublishPacket, str]]]:
        """Return the bytes of a batch, and the publications that the receiver would refuse. Their
        reasons are a small fixed set, so that they can be counted."""
        chunks: list[bytes] = []
        refused: list[tuple[PublishPacket, str]] = []
        topics, short_max = self._topics, self._short_body_max
        for publish in batch:
            if isinstance(publish, tuple):
                text, payload = publish
                has_options = False
            else:
                text, payload = publish.topic, publish.payload
                flags = publish.qos or publish.retain or publish.dup
                has_options = bool(flags or publish.properties or publish.subscription_ids)
            topic = topics.get(text)
            if topic and not has_options:
                length = len(topic) + len(payload)
                if length <= short_max:
                    chunks += (_SHORT_HEADERS[length], topic, payload)
                    continue
            whole = PublishPacket(text, payload) if isinstance(publish, tuple) else publish
            try:
                chunks += self._encode_publish(whole)
            except PacketTooLarge:
                refused.append((whole, "larger than the broker takes"))
            except ValueError as error:
                refused.append((whole, str(error)))
        return b"".join(chunks), refused

    def _encode_publish(self, publish: PublishPacket) -> tuple[bytes, ...]:
        qos, payload = publish.qos, publish.payload
        if not 0 <= qos <= _QOS_MAX or (publish.dup and not qos):  # [MQTT-3.3.1-2], [MQTT-3.3.1-4]
            raise ValueError("no QoS, or sent again without one")
        topic = self._topics.get(publish.topic) or self._encode_topic(publish.topic)
        before_payload = self._no_properties
        if publish.properties or publish.subscription_ids:
            before_payload = self._encode_properties(publish)
        if qos:
            before_payload = write_packet_id(publish.packet_id) + before_payload
        if self._no_properties:
            topic = topic[:-1]
        length = len(topic) + len(before_payload) + len(payload)
        first = _PUBLISH | publish.dup << 3 | qos << 1 | publish.retain
        if length <= self._short_body_max:
            return bytes((first, length)), topic, before_payload, payload
        head = bytes((first,)) + write_variable_integer(length)
        self._require_size(len(head) + length)
        return head, topic, before_payload, payload

    def _encode_topic(self, text: str) -> bytes:
        """Check and cache a topic."""
        topic = write_text(text)
        try:
            FieldCursor(topic, 0, len(topic), "PUBLISH").read_topic()
        except BrokerMisbehaved:
            raise ValueError("no topic name") from None
        self._require_acceptable(text)
        topic += self._no_properties
        if len(topic) <= CACHED_TOPIC_BYTES_MAX:
            if len(self._topics) >= CACHED_TOPICS_MAX:
                self._topics.clear()
            self._topics[text] = topic
        return topic

    def _require_acceptable(self, text: str) -> None:
        if self._sender is Side.CLIENT and has_refusable_characters(text):
            raise ValueError("a text that a broker may refuse")

    def _encode_properties(self, publish: PublishPacket) -> bytes:
        """Return the properties with their length.

        3.1.1 has none: they are left out, as a broker does for its 3.1.1 subscribers.
        """
        if self._version is Version.V311:
            return b""
        raw = publish.properties
        block = self._blocks.get(raw) or self._encode_property_block(raw)
        if not publish.subscription_ids:
            return block
        if self._sender is Side.CLIENT:  # [MQTT-3.3.4-6]
            raise ValueError("PUBLISH: a subscription identifier, which only a broker sends")
        identifiers = (
            (Property.SUBSCRIPTION_IDENTIFIER, each) for each in publish.subscription_ids
        )
        raw = properties.encode_properties(tuple(identifiers)) + raw
        return write_variable_integer(len(raw)) + raw

    def _encode_property_block(self, raw: bytes) -> bytes:
        """Check and cache properties."""
        try:
            found = properties.decode_properties(raw)
        except BrokerMisbehaved:
            raise ValueError("malformed properties") from None
        for name, value in found:
            if name in _HOP_BY_HOP:
                raise ValueError("malformed properties")
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, str):
                    self._require_acceptable(each)
        block = write_variable_integer(len(raw)) + raw
        if len(raw) <= CACHED_BLOCK_BYTES_MAX:
            if len(self._blocks) >= CACHED_BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[raw] = block
        return block
