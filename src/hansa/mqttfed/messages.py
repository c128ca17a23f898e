"""The messages of `mqtt-fed`: MQTT topics with a prefix, payloads of little-endian integers.

    federator/core_ann/<topic>    u32 core, u32 number, u32 distance, u32 sender
    federator/memb_ann/<topic>    u32 core, u32 number, u32 sender
    federator/routing/<topic>     u32 origin, u32 number, u32 sender, u64 length, payload
    federator/beacon/<topic>      empty: a client of this broker subscribes to the topic
    federated/<topic>             publications of clients, unchanged

Bytes after a message are ignored, as `mqtt-fed` does.
"""

import struct
from dataclasses import dataclass

from hansa.errors import InvalidFrame

CORE_ANNOUNCEMENT_PREFIX = "federator/core_ann/"
MEMBERSHIP_PREFIX = "federator/memb_ann/"
ROUTING_PREFIX = "federator/routing/"
BEACON_PREFIX = "federator/beacon/"
FEDERATED_PREFIX = "federated/"
PREFIXES = (
    CORE_ANNOUNCEMENT_PREFIX,
    MEMBERSHIP_PREFIX,
    ROUTING_PREFIX,
    BEACON_PREFIX,
    FEDERATED_PREFIX,
)

_CORE_ANNOUNCEMENT_FORMAT = struct.Struct("<4I")
_MEMBERSHIP_FORMAT = struct.Struct("<3I")
_ROUTED_FORMAT = struct.Struct("<3IQ")

ID_MAX = 0xFFFF_FFFF
SEQUENCE_MODULUS = 1 << 32


@dataclass(frozen=True, slots=True)
class CoreAnnouncementMessage:
    """The core of the topic, and its distance from the sender."""

    core: int
    sequence: int
    distance: int
    sender: int


@dataclass(frozen=True, slots=True)
class MembershipMessage:
    """The sender is in the mesh, as our child."""

    core: int
    sequence: int
    sender: int


@dataclass(frozen=True, slots=True)
class RoutedMessage:
    """A publication in transit between brokers."""

    origin: int
    sequence: int
    sender: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class BeaconMessage:
    """A client of this broker subscribes to the topic, for three beacon intervals."""


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A publication of a client of this broker."""

    payload: bytes


FedMessage = (
    CoreAnnouncementMessage | MembershipMessage | RoutedMessage | BeaconMessage | ClientMessage
)


def decode_message(name: str, payload: bytes) -> tuple[str, FedMessage]:
    """Return the federated topic and the message; raise InvalidFrame if it is malformed."""
    prefix = next((each for each in PREFIXES if name.startswith(each)), None)
    if prefix is None:
        raise InvalidFrame(f"{name[:100]!r} is not a topic of mqtt-fed")
    topic = name.removeprefix(prefix)
    if not topic:
        raise InvalidFrame(f"{name!r} contains no topic")
    try:
        return topic, _decode_payload(prefix, payload)
    except struct.error as error:
        raise InvalidFrame(f"{len(payload)} bytes are too few for {prefix}") from error


def _decode_payload(prefix: str, payload: bytes) -> FedMessage:
    if prefix == CORE_ANNOUNCEMENT_PREFIX:
        return CoreAnnouncementMessage(*_CORE_ANNOUNCEMENT_FORMAT.unpack_from(payload))
    if prefix == MEMBERSHIP_PREFIX:
        return MembershipMessage(*_MEMBERSHIP_FORMAT.unpack_from(payload))
    if prefix == BEACON_PREFIX:
        return BeaconMessage()
    if prefix == FEDERATED_PREFIX:
        return ClientMessage(payload)
    origin, sequence, sender, length = _ROUTED_FORMAT.unpack_from(payload)
    rest = payload[_ROUTED_FORMAT.size :]
    if length > len(rest):
        raise InvalidFrame(f"{length} bytes of payload announced, {len(rest)} are there")
    return RoutedMessage(origin, sequence, sender, rest[:length])


def encode_message(
    topic: str, message: CoreAnnouncementMessage | MembershipMessage | RoutedMessage
) -> tuple[str, bytes]:
    """Return topic and payload of the publication that carries a message."""
    match message:
        case CoreAnnouncementMessage(core, number, distance, sender):
            return CORE_ANNOUNCEMENT_PREFIX + topic, _CORE_ANNOUNCEMENT_FORMAT.pack(
                core, number, distance, sender
            )
        case MembershipMessage(core, number, sender):
            return MEMBERSHIP_PREFIX + topic, _MEMBERSHIP_FORMAT.pack(core, number, sender)
        case RoutedMessage(origin, number, sender, payload):
            return ROUTING_PREFIX + topic, _ROUTED_FORMAT.pack(
                origin, number, sender, len(payload)
            ) + payload
