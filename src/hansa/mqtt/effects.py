"""What a session wants done, and what it has to tell: the whole of its output, in order.

*Orders* must be performed by the shell. The rest is *news*. The life of every connection ends with
exactly one of ConnectRefused, Disconnected and ProtocolViolation, and with Close.
"""

from collections.abc import Sequence

import msgspec

from hansa.mqtt import packets
from hansa.mqtt.limits import BrokerLimits

# ---------------------------------------------------------------- orders


class Write(msgspec.Struct, frozen=True):
    """Send these bytes."""

    data: bytes


class Close(msgspec.Struct, frozen=True):
    """Close the connection once what was written before has left."""


# ---------------------------------------------------------------- the life of the connection


class Connected(msgspec.Struct, frozen=True):
    """The broker has accepted us."""

    session_present: bool
    """Whether it still knew us. If not, subscriptions and all handshakes of before are gone."""
    broker_limits: BrokerLimits


class ConnectRefused(msgspec.Struct, frozen=True):
    """The broker has not accepted us."""

    reason: int | None
    """The code of its CONNACK; None if there was none."""
    text: str
    version_refused: bool
    """Whether an older version (or 3.1.1 without the bridge bit) is worth a try. Some brokers close
    the connection without a word instead of saying so, or leave it open; that counts too."""
    timed_out: bool = False
    """Whether the connection stood and no answer came."""


class Disconnected(msgspec.Struct, frozen=True):
    """The connection has ended, or has to: nobody answers."""

    reason: int | None
    """The code of a DISCONNECT; None if there was none."""
    text: str
    by_broker: bool
    """Whether the broker said so. If it did not and we did not, nobody knows what arrived."""


class ProtocolViolation(msgspec.Struct, frozen=True):
    """The broker did what MQTT forbids, or exceeded what was agreed."""

    reason: int
    text: str


# ---------------------------------------------------------------- traffic


class PublishReceived(msgspec.Struct, frozen=True):
    """Publications, in the order they came. Those of QoS 1 and 2 wait for our answers."""

    batch: Sequence[packets.PublishPacket]


class ReceiveMaximumExceeded(msgspec.Struct, frozen=True):
    """The broker has more publications under way to us than we allowed; told once a connection.

    MQTT calls it an error, but Mosquitto 2.0 does it whenever it resumes a session with a backlog,
    and to leave would only make it resume again. What must be remembered of publications without
    an answer is therefore bounded by the packet ids, not by the receive maximum.
    """

    maximum: int


class OversizedPublishReceived(msgspec.Struct, frozen=True):
    """A publication was too large to be read. At QoS 1 and 2 it still waits for our answer."""

    publication: packets.OversizedPublish


class HandshakePacketsReceived(msgspec.Struct, frozen=True):
    """Steps of handshakes, of one kind and in the order they came: PubAck, PubRec and PubComp for
    what we published, PubRel for what the broker published."""

    batch: Sequence[packets.AnyHandshakePacket]


class PublishNotSent(msgspec.Struct, frozen=True):
    """These cannot be published at this broker, now or at all. No byte of them has left."""

    batch: Sequence[packets.PublishPacket | packets.PlainPublish]
    reason: str
    connection_ended: bool = False
    """Whether that is because the session has ended: nothing is wrong with these."""


class Subscribed(msgspec.Struct, frozen=True):
    """An answer to Subscribe, one code per filter: the granted QoS, or a refusal from 0x80 on."""

    subscriptions: tuple[packets.Subscription, ...]
    reasons: bytes
    identifier: int | None = None
    text: str = ""


class Unsubscribed(msgspec.Struct, frozen=True):
    """An answer to Unsubscribe, one code per filter."""

    filters: tuple[str, ...]
    reasons: bytes
    text: str = ""


class PingRespReceived(msgspec.Struct, frozen=True):
    """The answer to our PINGREQ."""

    round_trip: float
    """Seconds."""


class InputIgnored(msgspec.Struct, frozen=True):
    """Something senseless but harmless was left aside."""

    reason: str


ConnectionEnd = ConnectRefused | Disconnected | ProtocolViolation
Effect = (
    Write
    | Close
    | Connected
    | ConnectionEnd
    | PublishReceived
    | ReceiveMaximumExceeded
    | OversizedPublishReceived
    | HandshakePacketsReceived
    | PublishNotSent
    | Subscribed
    | Unsubscribed
    | PingRespReceived
    | InputIgnored
)
