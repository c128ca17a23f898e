"""Packets as bytes, for one direction of one connection.

Nothing leaves that a correct receiver refuses: what `encode` writes is read back as the other side
would read it, and ValueError is raised if that fails. Publications are many, so `publish` keeps the
rules itself, remembers topics as they are written, and joins a whole batch for one system call.
"""

import struct
from collections.abc import Iterable

from hansa.errors import BrokerMisbehaved
from hansa.mqtt import bodies, forms, packets, properties
from hansa.mqtt.fields import (
    Cursor,
    may_be_refused,
    write_packet_id,
    write_text,
    write_variable,
)
from hansa.mqtt.packets import Plain, Publish
from hansa.mqtt.properties import Property
from hansa.mqtt.reader import (
    BLOCK_BYTES_MAX,
    BLOCKS_MAX,
    TOPIC_BYTES_MAX,
    TOPICS_MAX,
    Reader,
    opening,
)
from hansa.mqtt.types import PACKET_BYTES_MAX, PACKET_IDS_MAX, Kind, Side, Version

_PUBLISH = int(Kind.PUBLISH) << 4
_ONE_BYTE_MAX = 127  # the largest length that one byte says
_HEADS = tuple(bytes((_PUBLISH, length)) for length in range(_ONE_BYTE_MAX + 1))
_QOS_MAX = 2
_BARE_ANSWER = struct.Struct(">HH")
_HOP_BY_HOP = (Property.SUBSCRIPTION_IDENTIFIER, Property.TOPIC_ALIAS)
_OPENINGS = {answer: opening(kind) << 8 | 2 for kind, answer in bodies.ANSWERS.items()}


class TooLarge(ValueError):
    """The packet is well formed, but this receiver takes none of this size."""


class Writer:
    """One direction of one connection."""

    __slots__ = ("_blocks", "_bytes_max", "_empty", "_sender", "_short_max", "_topics", "_version")

    def __init__(
        self, version: Version, bytes_max: int = PACKET_BYTES_MAX, sender: Side = Side.CLIENT
    ) -> None:
        """Start; `bytes_max` is the largest packet that the other side takes."""
        self._version = version
        self._sender = sender
        self._empty = b"\0" if version is Version.V5 else b""  # the properties, when there are none
        self._blocks: dict[bytes, bytes] = {}  # properties, and the same behind their length
        self._topics: dict[str, bytes] = {}  # written, and followed by no properties
        self.limit(bytes_max)

    def limit(self, bytes_max: int) -> None:
        """From now on the other side takes packets up to this size."""
        self._bytes_max = bytes_max
        self._short_max = min(_ONE_BYTE_MAX, bytes_max - 2)

    def encode(self, packet: Publish | packets.Packet) -> bytes:
        """Return the bytes of a packet; raise ValueError if the other side would refuse them."""
        if isinstance(packet, Publish):
            return b"".join(self._pieces(packet))
        kind, body = forms.write(packet, self._version)
        data = b"".join((bytes((opening(kind),)), write_variable(len(body)), body))
        self._require_size(len(data))
        found: list[packets.Any] = []
        try:
            Reader(self._version, sender=self._sender).feed(data, found)
        except BrokerMisbehaved as error:
            raise ValueError(str(error)) from None
        if found != [packet]:
            raise ValueError(f"{kind.name}: its bytes would say something else")
        return data

    def answer(self, batch: Iterable[packets.Handshake]) -> bytes:
        """Return the bytes of acknowledgements; most have no reason and are as good as constant."""
        pieces: list[bytes] = []
        for answer in batch:
            packet_id = answer.packet_id
            if answer.reason or answer.properties or not 0 < packet_id <= PACKET_IDS_MAX:
                pieces.append(self.encode(answer))
            else:
                pieces.append(_BARE_ANSWER.pack(_OPENINGS[type(answer)], packet_id))
        return b"".join(pieces)

    def _require_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise TooLarge(f"a packet of {size} bytes, the limit is {self._bytes_max}")

    # ------------------------------------------------------------ publications: the fast path

    def publish(self, batch: Iterable[Publish | Plain]) -> tuple[bytes, list[tuple[Publish, str]]]:
        """Return the bytes of a batch, and those that the other side would refuse, with reasons.
        These are few and fixed, whatever is in a publication: they are counted by."""
        pieces: list[bytes] = []
        refused: list[tuple[Publish, str]] = []
        topics, short_max = self._topics, self._short_max
        for publish in batch:
            if isinstance(publish, tuple):
                text, payload = publish
                special = False
            else:
                text, payload = publish.topic, publish.payload
                flags = publish.qos or publish.retain or publish.dup
                special = bool(flags or publish.properties or publish.subscriptions)
            topic = topics.get(text)
            if topic and not special:
                length = len(topic) + len(payload)
                if length <= short_max:
                    pieces += (_HEADS[length], topic, payload)
                    continue
            whole = Publish(text, payload) if isinstance(publish, tuple) else publish
            try:
                pieces += self._pieces(whole)
            except TooLarge:
                refused.append((whole, "larger than the broker takes"))
            except ValueError as error:
                refused.append((whole, str(error)))
        return b"".join(pieces), refused

    def _pieces(self, publish: Publish) -> tuple[bytes, ...]:
        qos, payload = publish.qos, publish.payload
        if not 0 <= qos <= _QOS_MAX or (publish.dup and not qos):  # [MQTT-3.3.1-2], [MQTT-3.3.1-4]
            raise ValueError("no QoS, or sent again without one")
        topic = self._topics.get(publish.topic) or self._new_topic(publish.topic)
        middle = self._empty
        if publish.properties or publish.subscriptions:
            middle = self._properties(publish)
        if qos:
            middle = write_packet_id(publish.packet_id) + middle
        if self._empty:
            topic = topic[:-1]
        length = len(topic) + len(middle) + len(payload)
        first = _PUBLISH | publish.dup << 3 | qos << 1 | publish.retain
        if length <= self._short_max:
            return bytes((first, length)), topic, middle, payload
        head = bytes((first,)) + write_variable(length)
        self._require_size(len(head) + length)
        return head, topic, middle, payload

    def _new_topic(self, text: str) -> bytes:
        """Check a topic and remember it."""
        topic = write_text(text)
        try:
            Cursor(topic, 0, len(topic), "PUBLISH").topic()
        except BrokerMisbehaved:
            raise ValueError("no topic name") from None
        self._require_welcome(text)
        topic += self._empty
        if len(topic) <= TOPIC_BYTES_MAX:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            self._topics[text] = topic
        return topic

    def _require_welcome(self, text: str) -> None:
        if self._sender is Side.CLIENT and may_be_refused(text):
            raise ValueError("a text that a broker may refuse")

    def _properties(self, publish: Publish) -> bytes:
        """Return the properties behind their length.

        3.1.1 has none: they are left out, as a broker does for its subscribers of that version.
        """
        if self._version is Version.V311:
            return b""
        raw = publish.properties
        block = self._blocks.get(raw) or self._new_block(raw)
        if not publish.subscriptions:
            return block
        if self._sender is Side.CLIENT:  # [MQTT-3.3.4-6]
            raise ValueError("PUBLISH: a subscription identifier, which only a broker sends")
        identifiers = ((Property.SUBSCRIPTION_IDENTIFIER, each) for each in publish.subscriptions)
        raw = properties.encode(tuple(identifiers)) + raw
        return write_variable(len(raw)) + raw

    def _new_block(self, raw: bytes) -> bytes:
        """Check properties and remember them."""
        try:
            found = properties.decode(raw)
        except BrokerMisbehaved:
            raise ValueError("malformed properties") from None
        for name, value in found:
            if name in _HOP_BY_HOP:
                raise ValueError("malformed properties")
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, str):
                    self._require_welcome(each)
        block = write_variable(len(raw)) + raw
        if len(raw) <= BLOCK_BYTES_MAX:
            if len(self._blocks) >= BLOCKS_MAX:
                self._blocks.clear()
            self._blocks[raw] = block
        return block
