"""Basic types of MQTT: versions, packet types, reason codes.

Sections and rules in square brackets, here and in the other modules, are those of the MQTT 5
standard unless 3.1.1 is named.
"""

from enum import Enum, IntEnum

PACKET_IDS_MAX = 65_535
"""The largest packet id; ids have two bytes, and 0 is invalid."""

PACKET_BYTES_MAX = 268_435_460
"""Bytes of the largest packet of MQTT: five bytes of header and the body."""

REFUSAL_CODE_MIN = 0x80
"""The smallest reason code of a refusal [2.4]."""


class Version(IntEnum):
    """The protocol level in CONNECT."""

    V311 = 4
    V5 = 5


class Side(Enum):
    """The sender of a packet: broker and client may send different packets and properties."""

    BROKER = "broker"
    CLIENT = "client"


class PacketType(IntEnum):
    """The packet types, as in the upper four bits of the first byte."""

    WILL = 0  # no packet: the part of a CONNECT that has its own properties
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Reason(IntEnum):
    """The reason codes of MQTT 5 [2.4]. Names of one number differ by packet."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


_CONNACK_RETURN_CODES = {
    1: "unacceptable protocol version",
    2: "client identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


def describe_reason(code: int) -> str:
    """Return a reason code as text: `0x87 not authorized`."""
    try:
        return f"0x{code:02x} {Reason(code).name.lower().replace('_', ' ')}"
    except ValueError:
        return f"0x{code:02x} (not defined by MQTT)"


def describe_connack_code(code: int) -> str:
    """Return a CONNACK code of MQTT 5 or 3.1.1 as text."""
    text = _CONNACK_RETURN_CODES.get(code)
    return f"0x{code:02x} {text}" if text else describe_reason(code)
