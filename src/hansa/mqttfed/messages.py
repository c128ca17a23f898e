"""The messages of `mqtt-fed`: MQTT topics with a prefix, payloads of little-endian integers.

    federator/core_ann/<topic>    u32 core, u32 number, u32 distance, u32 sender
    federator/memb_ann/<topic>    u32 core, u32 number, u32 sender
    federator/routing/<topic>     u32 origin, u32 number, u32 sender, u64 length, payload
    federator/beacon/<topic>      nothing: somebody at this broker wants the topic
    federated/<topic>             what clients publish and receive, as it is

Bytes after a message are left aside, as `mqtt-fed` does.
"""

import struct
from dataclasses import dataclass

from hansa.errors import InvalidFrame

CORE_ANN = "federator/core_ann/"
MEMB_ANN = "federator/memb_ann/"
ROUTING = "federator/routing/"
BEACON = "federator/beacon/"
FEDERATED = "federated/"
PREFIXES = (CORE_ANN, MEMB_ANN, ROUTING, BEACON, FEDERATED)

_CORE_ANN = struct.Struct("<4I")
_MEMB_ANN = struct.Struct("<3I")
_ROUTED = struct.Struct("<3IQ")

ID_MAX = 0xFFFF_FFFF
NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class CoreAnnouncement:
    """Who is core of the topic, and how far that is from the sender."""

    core: int
    number: int
    distance: int
    sender: int


@dataclass(frozen=True, slots=True)
class Membership:
    """The sender is in the mesh, as our child."""

    core: int
    number: int
    sender: int


@dataclass(frozen=True, slots=True)
class Routed:
    """A publication on its way between brokers."""

    origin: int
    number: int
    sender: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Beacon:
    """Somebody at this broker wants the topic, for three beacon intervals."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a client of this broker published."""

    payload: bytes


Message = CoreAnnouncement | Membership | Routed | Beacon | Published


def read(name: str, payload: bytes) -> tuple[str, Message]:
    """Return the federated topic and what is said of it; raise InvalidFrame if that is nothing."""
    prefix = next((each for each in PREFIXES if name.startswith(each)), None)
    if prefix is None:
        raise InvalidFrame(f"{name[:100]!r} is no topic of mqtt-fed")
    topic = name.removeprefix(prefix)
    if not topic:
        raise InvalidFrame(f"{name!r} names no topic")
    try:
        return topic, _read(prefix, payload)
    except struct.error as error:
        raise InvalidFrame(f"{len(payload)} bytes are too few for {prefix}") from error


def _read(prefix: str, payload: bytes) -> Message:
    if prefix == CORE_ANN:
        return CoreAnnouncement(*_CORE_ANN.unpack_from(payload))
    if prefix == MEMB_ANN:
        return Membership(*_MEMB_ANN.unpack_from(payload))
    if prefix == BEACON:
        return Beacon()
    if prefix == FEDERATED:
        return Published(payload)
    origin, number, sender, length = _ROUTED.unpack_from(payload)
    rest = payload[_ROUTED.size :]
    if length > len(rest):
        raise InvalidFrame(f"{length} bytes of payload announced, {len(rest)} are there")
    return Routed(origin, number, sender, rest[:length])


def write(topic: str, message: CoreAnnouncement | Membership | Routed) -> tuple[str, bytes]:
    """Return topic and payload of the publication that says this."""
    match message:
        case CoreAnnouncement(core, number, distance, sender):
            return CORE_ANN + topic, _CORE_ANN.pack(core, number, distance, sender)
        case Membership(core, number, sender):
            return MEMB_ANN + topic, _MEMB_ANN.pack(core, number, sender)
        case Routed(origin, number, sender, payload):
            return ROUTING + topic, _ROUTED.pack(origin, number, sender, len(payload)) + payload
