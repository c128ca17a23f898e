"""MQTT packets as values. `packet_reader` and `packet_writer` convert them from and to bytes.

`PublishPacket` is by far the most frequent: it is flat, exempt from garbage collection, and keeps
its properties encoded. The other packets have decoded properties.
"""

import msgspec

from hansa.mqtt.properties import Properties
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version


class Packet(msgspec.Struct, frozen=True):
    """The base of all packets except PUBLISH."""


class PublishPacket(msgspec.Struct, frozen=True, gc=False):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    """From 1 at QoS 1 and 2; 0 at QoS 0."""
    subscription_ids: tuple[int, ...] = ()
    """The identifiers of the subscriptions that match; only a broker sends them."""
    properties: bytes = b""
    """All other properties as they arrived, without their length; validated, ready to be forwarded.
    """


PlainPublish = tuple[str, bytes]
"""Topic and payload: a publication of QoS 0 that is not retained and has no properties. Only for
sending, where a tuple costs half as much as a `PublishPacket`."""


class OversizedPublish(msgspec.Struct, frozen=True):
    """The remains of a publication above the agreed size: its payload was discarded unread.

    In MQTT 5 a broker must not send one. In 3.1.1 it cannot know the limit and would send it again
    after every reconnection, so it is acknowledged and counted as lost.
    """

    topic: str
    qos: int
    dup: bool
    packet_id: int
    packet_bytes: int
    """Bytes of the whole packet."""


class Will(msgspec.Struct, frozen=True):
    """The publication that the broker makes if the client disappears without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = ()


class ConnectPacket(Packet, frozen=True):
    client_id: str
    version: Version = Version.V5
    clean_start: bool = True
    keep_alive: int = 0
    """Seconds; 0 turns it off."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    bridge: bool = False
    """3.1.1 only, not in the standard: the top bit of the protocol level, which tells Mosquitto and
    some other brokers that the client is a bridge and must not get its own publications."""
    properties: Properties = ()

    def __repr__(self) -> str:
        """Leave out the password, which must not appear in logs."""
        return f"ConnectPacket({self.client_id!r}, version={self.version!r})"


class ConnAckPacket(Packet, frozen=True):
    session_present: bool = False
    reason: int = 0
    """A reason code of MQTT 5, or a return code of 3.1.1; 0 is success in both."""
    properties: Properties = ()


class HandshakePacket(Packet, frozen=True):
    """The fields of PUBACK, PUBREC, PUBREL and PUBCOMP."""

    packet_id: int
    reason: int = 0
    properties: Properties = ()

    @property
    def is_refused(self) -> bool:
        """Whether this ends the handshake with a refusal."""
        return self.reason >= REFUSAL_CODE_MIN


class PubAckPacket(HandshakePacket, frozen=True):
    """The receiver has a QoS 1 publication."""


class PubRecPacket(HandshakePacket, frozen=True):
    """The receiver has a QoS 2 publication and its id."""


class PubRelPacket(HandshakePacket, frozen=True):
    """The sender will never resend the publication and releases it."""


class PubCompPacket(HandshakePacket, frozen=True):
    """The receiver has released the publication and forgets the id."""


AnyHandshakePacket = PubAckPacket | PubRecPacket | PubRelPacket | PubCompPacket
"""The packets of the QoS 1 and 2 handshakes, in order."""


class Subscription(msgspec.Struct, frozen=True):
    """One filter of a SUBSCRIBE. 3.1.1 has only the first two fields."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    """Whether to exclude the client's own publications."""
    retain_as_published: bool = False
    """Whether live publications keep their retain flag."""
    retain_handling: int = 0
    """When to send retained messages: 0 always, 1 if the subscription is new, 2 never."""


class SubscribePacket(Packet, frozen=True):
    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = ()


class SubAckPacket(Packet, frozen=True):
    packet_id: int
    reasons: bytes
    """One code per filter, in order: the granted QoS, or a refusal."""
    properties: Properties = ()


class UnsubscribePacket(Packet, frozen=True):
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = ()


class UnsubAckPacket(Packet, frozen=True):
    packet_id: int
    reasons: bytes = b""
    """One code per filter, in order; empty in 3.1.1, where it cannot fail."""
    properties: Properties = ()


class PingReqPacket(Packet, frozen=True):
    """The client is alive and asks whether the broker is."""


class PingRespPacket(Packet, frozen=True):
    """The broker's answer to a PINGREQ."""


class DisconnectPacket(Packet, frozen=True):
    """In MQTT 5 either side may send it, in 3.1.1 only the client."""

    reason: int = 0
    properties: Properties = ()


class AuthPacket(Packet, frozen=True):
    """A step of an extended authentication; MQTT 5 only."""

    reason: int = 0
    properties: Properties = ()


AnyPacket = (
    PublishPacket
    | OversizedPublish
    | PubAckPacket
    | PubRecPacket
    | PubRelPacket
    | PubCompPacket
    | ConnectPacket
    | ConnAckPacket
    | SubscribePacket
    | SubAckPacket
    | UnsubscribePacket
    | UnsubAckPacket
    | PingReqPacket
    | PingRespPacket
    | DisconnectPacket
    | AuthPacket
)


def packet_name(packet_class: type) -> str:
    """Return the name of a packet as the standard writes it: `PUBACK`."""
    return packet_class.__name__.removesuffix("Packet").removeprefix("Oversized").upper()
