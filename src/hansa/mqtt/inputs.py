"""The input of a connection: events of the transport and commands of the caller.

One is made for every read of the socket, so they are structs: a frozen dataclass costs five times
as much to create.
"""

from collections.abc import Sequence

import msgspec

from hansa.mqtt import packets

# ---------------------------------------------------------------- events


class Opened(msgspec.Struct, frozen=True):
    """The transport to the broker is open."""


class Received(msgspec.Struct, frozen=True):
    """Bytes arrived, split at any position."""

    data: bytes | bytearray | memoryview


class Closed(msgspec.Struct, frozen=True):
    """The transport was closed by either side."""

    reason: str = "connection closed"


class TimerFired(msgspec.Struct, frozen=True):
    """The deadline of the connection has passed, or may have."""


# ---------------------------------------------------------------- commands


class Publish(msgspec.Struct, frozen=True):
    """Publish these in order. At QoS 1 and 2 the caller chooses the packet ids: from 1 to 64999,
    not in flight, and at most `quota` of them."""

    batch: Sequence[packets.PublishPacket | packets.PlainPublish]


class SendHandshakePackets(msgspec.Struct, frozen=True):
    """Send these handshake packets: PUBACK, PUBREC and PUBCOMP for publications of the broker,
    PUBREL for ours. MQTT requires each type in the order of the publications."""

    batch: Sequence[packets.AnyHandshakePacket]


class Subscribe(msgspec.Struct, frozen=True):
    """Subscribe. One identifier covers all filters of the command [3.8.2.1.2]."""

    subscriptions: tuple[packets.Subscription, ...]
    identifier: int | None = None


class Unsubscribe(msgspec.Struct, frozen=True):
    filters: tuple[str, ...]


class Ping(msgspec.Struct, frozen=True):
    """Send a PINGREQ now, whether or not one is due."""


class Disconnect(msgspec.Struct, frozen=True):
    """Disconnect. The broker then publishes no will, unless the reason requests it."""

    reason: int = 0
    session_expiry: int | None = None
    """Seconds that the broker keeps the session, if not as agreed; MQTT 5 only. 0 ends it now."""


Command = Publish | SendHandshakePackets | Subscribe | Unsubscribe | Ping | Disconnect
Input = Opened | Received | Closed | TimerFired | Command
