"""What can happen to a session, and what it can be told to do: the whole of its input.

One is made for every read of the socket, so they are structs: frozen dataclasses cost five times as
much to make.
"""

from collections.abc import Sequence

import msgspec

from hansa.mqtt import packets

# ---------------------------------------------------------------- what happened


class Opened(msgspec.Struct, frozen=True):
    """The connection to the broker stands."""


class Received(msgspec.Struct, frozen=True):
    """Bytes arrived, cut anywhere."""

    data: bytes | bytearray | memoryview


class Closed(msgspec.Struct, frozen=True):
    """The connection is gone, by whomever."""

    reason: str = "connection closed"


class TimerFired(msgspec.Struct, frozen=True):
    """The deadline that the session named has come, or may have."""


# ---------------------------------------------------------------- orders


class Publish(msgspec.Struct, frozen=True):
    """Publish these, in this order. At QoS 1 and 2 the packet id is the caller's: 1 to 64999, not
    under way, and no more of them than the session's `quota`."""

    batch: Sequence[packets.PublishPacket | packets.PlainPublish]


class Answer(msgspec.Struct, frozen=True):
    """Send these steps of handshakes: PubAck, PubRec and PubComp for what the broker published,
    PubRel for what we published. MQTT wants each kind in the order of the publications."""

    batch: Sequence[packets.AnyHandshakePacket]


class Subscribe(msgspec.Struct, frozen=True):
    """Ask for publications. An identifier is for all filters of one order [3.8.2.1.2]."""

    subscriptions: tuple[packets.Subscription, ...]
    identifier: int | None = None


class Unsubscribe(msgspec.Struct, frozen=True):
    """Ask for no more of them."""

    filters: tuple[str, ...]


class Ping(msgspec.Struct, frozen=True):
    """Ask for a sign of life now, whether or not one is due."""


class Disconnect(msgspec.Struct, frozen=True):
    """Leave. The broker then publishes no will, unless the reason says so."""

    reason: int = 0
    session_expiry: int | None = None
    """Seconds that the broker keeps the session, if not as agreed; MQTT 5 only. 0 ends it now."""


Command = Publish | Answer | Subscribe | Unsubscribe | Ping | Disconnect
Input = Opened | Received | Closed | TimerFired | Command
