"""What can happen to a session, and what it can be told to do: the whole of its input."""

from collections.abc import Sequence
from dataclasses import dataclass

from hansa.mqtt import packets

# ---------------------------------------------------------------- what happened


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection to the broker stands."""


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes arrived, cut anywhere."""

    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is gone, by whomever."""

    reason: str = "connection closed"


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The deadline that the session named has come, or may have."""


# ---------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish these, in this order. At QoS 1 and 2 the packet id is the caller's: 1 to 64999, not
    under way, and no more of them than the session's `quota`."""

    batch: Sequence[packets.Publish]


@dataclass(frozen=True, slots=True)
class Answer:
    """Send these steps of handshakes: PubAck, PubRec and PubComp for what the broker published,
    PubRel for what we published. MQTT wants each kind in the order of the publications."""

    batch: Sequence[packets.Handshake]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Ask for publications. An identifier is for all filters of one order [3.8.2.1.2]."""

    subscriptions: tuple[packets.Subscription, ...]
    identifier: int | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Ask for no more of them."""

    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a sign of life now, whether or not one is due."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Leave. The broker then publishes no will, unless the reason says so."""

    reason: int = 0
    session_expiry: int | None = None
    """Seconds that the broker keeps the session, if not as agreed; MQTT 5 only. 0 ends it now."""


Order = Publish | Answer | Subscribe | Unsubscribe | Ping | Disconnect
Input = Opened | Received | Closed | TimerFired | Order
