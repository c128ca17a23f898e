"""The output of a connection: commands to perform and notifications, in order.

The shell performs Write and Close. Every connection ends with exactly one of ConnectRefused,
Disconnected and ProtocolViolation, followed by Close.
"""

from collections.abc import Sequence

import msgspec

from hansa.mqtt import packets
from hansa.mqtt.limits import BrokerLimits

# ---------------------------------------------------------------- commands


class Write(msgspec.Struct, frozen=True):
    """Send these bytes."""

    data: bytes


class Close(msgspec.Struct, frozen=True):
    """Close the transport after everything written before was sent."""


# ---------------------------------------------------------------- start and end of the connection


class Connected(msgspec.Struct, frozen=True):
    """The broker accepted the connection."""

    session_present: bool
    """Whether the broker resumed a session. If not, subscriptions and handshakes are gone."""
    broker_limits: BrokerLimits


class ConnectRefused(msgspec.Struct, frozen=True):
    """The broker did not accept the connection."""

    reason: int | None
    """The reason code of the CONNACK; None without a CONNACK."""
    text: str
    version_refused: bool
    """Whether another protocol version (or 3.1.1 without the bridge bit) is worth a try. Also set
    if the broker closed the connection, or sent nothing, instead of naming the reason."""
    timed_out: bool = False
    """Whether the transport was open and no CONNACK came in time."""


class Disconnected(msgspec.Struct, frozen=True):
    """The connection has ended, or must end because the broker does not respond."""

    reason: int | None
    """The reason code of a DISCONNECT; None without a DISCONNECT."""
    text: str
    by_broker: bool
    """Whether the broker sent a DISCONNECT. If neither side did, it is unknown what arrived."""


class ProtocolViolation(msgspec.Struct, frozen=True):
    """The broker violated MQTT or exceeded an agreed limit."""

    reason: int
    text: str


# ---------------------------------------------------------------- traffic


class PublishReceived(msgspec.Struct, frozen=True):
    """Publications in the order of arrival. Those of QoS 1 and 2 await acknowledgement."""

    batch: Sequence[packets.PublishPacket]


class ReceiveMaximumExceeded(msgspec.Struct, frozen=True):
    """The broker has more publications in flight to us than the receive maximum allows; reported
    once per connection.

    MQTT calls it an error, but Mosquitto 2.0 does it whenever it resumes a session with a backlog,
    and disconnecting would only make it resume again. The state for unacknowledged publications is
    therefore bounded by the number of packet ids, not by the receive maximum.
    """

    maximum: int


class OversizedPublishReceived(msgspec.Struct, frozen=True):
    """A publication was too large to be read. At QoS 1 and 2 it still awaits acknowledgement."""

    publication: packets.OversizedPublish


class HandshakePacketsReceived(msgspec.Struct, frozen=True):
    """Handshake packets of one type, in the order of arrival: PUBACK, PUBREC and PUBCOMP for our
    publications, PUBREL for those of the broker."""

    batch: Sequence[packets.AnyHandshakePacket]


class PublishNotSent(msgspec.Struct, frozen=True):
    """This broker cannot take these publications, now or ever. No byte of them was sent."""

    batch: Sequence[packets.PublishPacket | packets.PlainPublish]
    reason: str
    connection_ended: bool = False
    """Whether the only reason is that the connection has ended."""


class Subscribed(msgspec.Struct, frozen=True):
    """The result of Subscribe, one code per filter: the granted QoS, or a refusal from 0x80 on."""

    subscriptions: tuple[packets.Subscription, ...]
    reasons: bytes
    identifier: int | None = None
    text: str = ""


class Unsubscribed(msgspec.Struct, frozen=True):
    """The result of Unsubscribe, one code per filter."""

    filters: tuple[str, ...]
    reasons: bytes
    text: str = ""


class PingRespReceived(msgspec.Struct, frozen=True):
    """The broker answered our PINGREQ."""

    round_trip: float
    """Seconds."""


class InputIgnored(msgspec.Struct, frozen=True):
    """A meaningless but harmless input was ignored."""

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
