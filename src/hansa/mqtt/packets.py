"""The packets of MQTT as values. Their bytes are in `reader` and `writer`.

`Publish` is the one that comes by the hundred thousand: it is flat, the garbage collector does not
track it, and its properties stay bytes. All others are few, and have their properties decoded.
"""

import msgspec

from hansa.mqtt.properties import Properties
from hansa.mqtt.types import REFUSAL_CODE_MIN, Version


class Packet(msgspec.Struct, frozen=True):
    """What all packets but PUBLISH share: they are values."""


class PublishPacket(msgspec.Struct, frozen=True, gc=False):
    """A publication, in either direction."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    """From 1 at QoS 1 and 2; 0 at QoS 0."""
    subscription_ids: tuple[int, ...] = ()
    """The identifiers of the subscriptions that this copy answers; only a broker sends them."""
    properties: bytes = b""
    """All other properties as they arrived, without their length: valid, and free to travel on."""


PlainPublish = tuple[str, bytes]
"""Topic and payload: all of a publication of QoS 0 that is not retained and has no properties. Only
for sending, where a tuple is half the cost of a `Publish`."""


class OversizedPublish(msgspec.Struct, frozen=True):
    """What is left of a publication above the agreed size: its payload was thrown away unread.

    In MQTT 5 a broker must not send one. In 3.1.1 it cannot know, and would send it again after
    every reconnection, so it has to be taken, acknowledged and counted as lost.
    """

    topic: str
    qos: int
    dup: bool
    packet_id: int
    packet_bytes: int
    """Bytes of the whole packet."""


class Will(msgspec.Struct, frozen=True):
    """What the broker publishes for a client that is gone without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = ()


class ConnectPacket(Packet, frozen=True):
    """The first packet of a client."""

    client_id: str
    version: Version = Version.V5
    clean_start: bool = True
    keep_alive: int = 0
    """Seconds; 0 turns it off."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    bridge: bool = False
    """3.1.1 only, outside the standard: the top bit of the protocol level, by which Mosquitto and
    some others know a bridge and do not send it its own publications."""
    properties: Properties = ()

    def __repr__(self) -> str:
        """Say who connects; a password has no business in a log."""
        return f"ConnectPacket({self.client_id!r}, version={self.version!r})"


class ConnAckPacket(Packet, frozen=True):
    """The broker's answer to a CONNECT."""

    session_present: bool = False
    reason: int = 0
    """A reason code of MQTT 5, or a return code of 3.1.1; 0 is yes in both."""
    properties: Properties = ()


class HandshakePacket(Packet, frozen=True):
    """What the four packets of a handshake share."""

    packet_id: int
    reason: int = 0
    properties: Properties = ()

    @property
    def is_refused(self) -> bool:
        """Whether this ends the handshake with a no."""
        return self.reason >= REFUSAL_CODE_MIN


class PubAckPacket(HandshakePacket, frozen=True):
    """The receiver has a QoS 1 publication."""


class PubRecPacket(HandshakePacket, frozen=True):
    """The receiver has a QoS 2 publication and its id."""


class PubRelPacket(HandshakePacket, frozen=True):
    """The sender has noted that, will never send it again, and releases the publication."""


class PubCompPacket(HandshakePacket, frozen=True):
    """The receiver has released the publication and forgets the id."""


AnyHandshakePacket = PubAckPacket | PubRecPacket | PubRelPacket | PubCompPacket
"""The packets of the QoS 1 and 2 handshakes, in the order in which they go."""


class Subscription(msgspec.Struct, frozen=True):
    """One filter of a SUBSCRIBE. 3.1.1 knows only the first two fields."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    """Whether to leave out what this client publishes itself."""
    retain_as_published: bool = False
    """Whether live publications keep the retain flag that they were published with."""
    retain_handling: int = 0
    """Send stored values: 0 always, 1 if the subscription is new, 2 never."""


class SubscribePacket(Packet, frozen=True):
    """A client asks for publications."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = ()


class SubAckPacket(Packet, frozen=True):
    """The broker's answer to a SUBSCRIBE."""

    packet_id: int
    reasons: bytes
    """One code per filter, in order: the granted QoS, or a refusal."""
    properties: Properties = ()


class UnsubscribePacket(Packet, frozen=True):
    """A client no longer wants publications."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = ()


class UnsubAckPacket(Packet, frozen=True):
    """The broker's answer to an UNSUBSCRIBE."""

    packet_id: int
    reasons: bytes = b""
    """One code per filter, in order; none at all in 3.1.1, where it cannot fail."""
    properties: Properties = ()


class PingReqPacket(Packet, frozen=True):
    """The client asks for a sign of life, and gives one."""


class PingRespPacket(Packet, frozen=True):
    """The broker's answer to a PINGREQ."""


class DisconnectPacket(Packet, frozen=True):
    """The last packet of whoever closes the connection; a broker sends it in MQTT 5 only."""

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
