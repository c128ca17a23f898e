"""The properties of MQTT 5 [2.2.2]: their types, the packets that allow them, and their encoding.

Properties of a PUBLISH stay encoded: `split_publish_properties` checks them once, extracts the
subscription identifiers, which concern only this connection, and leaves the rest in order, ready to
be published again. Those of other packets are decoded into pairs of property and value.

Brokers pass on values that the standard forbids, as their clients sent them. A connection that
ended at such a publication would get it again, for ever; so the property is left out of it.
"""

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import TypeVar

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.fields import (
    FieldCursor,
    write_binary,
    write_integer,
    write_text,
    write_variable_integer,
)
from hansa.mqtt.types import PacketType, Reason

PROPERTIES_MAX = 1_024
"""Properties of one packet other than PUBLISH: decoded, each takes many times its five bytes."""

_Default = TypeVar("_Default")


class Property(IntEnum):
    """All properties by identifier [2.2.2.2]."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


PropertyValue = int | str | bytes | tuple[str, str]
Properties = tuple[tuple[Property, PropertyValue], ...]


class _ValueType(Enum):
    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4
    VARIABLE = "variable"
    TEXT = "text"
    BINARY = "binary"
    PAIR = "pair"


_P, _K = Property, PacketType

_FORWARDED = (
    _P.PAYLOAD_FORMAT_INDICATOR,
    _P.MESSAGE_EXPIRY_INTERVAL,
    _P.CONTENT_TYPE,
    _P.RESPONSE_TOPIC,
    _P.CORRELATION_DATA,
    _P.USER_PROPERTY,
)
_RESPONSE_PROPERTIES = frozenset((_P.REASON_STRING, _P.USER_PROPERTY))

# The packets that allow each property [table 2-4].
_ALLOWED: dict[PacketType, frozenset[Property]] = {
    _K.WILL: frozenset((*_FORWARDED, _P.WILL_DELAY_INTERVAL)),
    _K.CONNECT: frozenset(
        (
            _P.SESSION_EXPIRY_INTERVAL,
            _P.AUTHENTICATION_METHOD,
            _P.AUTHENTICATION_DATA,
            _P.REQUEST_PROBLEM_INFORMATION,
            _P.REQUEST_RESPONSE_INFORMATION,
            _P.RECEIVE_MAXIMUM,
            _P.TOPIC_ALIAS_MAXIMUM,
            _P.USER_PROPERTY,
            _P.MAXIMUM_PACKET_SIZE,
        )
    ),
    _K.CONNACK: frozenset(
        (
            *_RESPONSE_PROPERTIES,
            _P.SESSION_EXPIRY_INTERVAL,
            _P.ASSIGNED_CLIENT_IDENTIFIER,
            _P.SERVER_KEEP_ALIVE,
            _P.AUTHENTICATION_METHOD,
            _P.AUTHENTICATION_DATA,
            _P.RESPONSE_INFORMATION,
            _P.SERVER_REFERENCE,
            _P.RECEIVE_MAXIMUM,
            _P.TOPIC_ALIAS_MAXIMUM,
            _P.MAXIMUM_QOS,
            _P.RETAIN_AVAILABLE,
            _P.MAXIMUM_PACKET_SIZE,
            _P.WILDCARD_SUBSCRIPTION_AVAILABLE,
            _P.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
            _P.SHARED_SUBSCRIPTION_AVAILABLE,
        )
    ),
    _K.PUBLISH: frozenset((*_FORWARDED, _P.SUBSCRIPTION_IDENTIFIER, _P.TOPIC_ALIAS)),
    _K.PUBACK: _RESPONSE_PROPERTIES,
    _K.PUBREC: _RESPONSE_PROPERTIES,
    _K.PUBREL: _RESPONSE_PROPERTIES,
    _K.PUBCOMP: _RESPONSE_PROPERTIES,
    _K.SUBSCRIBE: frozenset((_P.SUBSCRIPTION_IDENTIFIER, _P.USER_PROPERTY)),
    _K.SUBACK: _RESPONSE_PROPERTIES,
    _K.UNSUBSCRIBE: frozenset((_P.USER_PROPERTY,)),
    _K.UNSUBACK: _RESPONSE_PROPERTIES,
    _K.DISCONNECT: frozenset(
        (*_RESPONSE_PROPERTIES, _P.SESSION_EXPIRY_INTERVAL, _P.SERVER_REFERENCE)
    ),
    _K.AUTH: frozenset((*_RESPONSE_PROPERTIES, _P.AUTHENTICATION_METHOD, _P.AUTHENTICATION_DATA)),
}

_VALUE_TYPES: dict[Property, _ValueType] = {
    _P.PAYLOAD_FORMAT_INDICATOR: _ValueType.BYTE,
    _P.MESSAGE_EXPIRY_INTERVAL: _ValueType.FOUR_BYTES,
    _P.CONTENT_TYPE: _ValueType.TEXT,
    _P.RESPONSE_TOPIC: _ValueType.TEXT,
    _P.CORRELATION_DATA: _ValueType.BINARY,
    _P.SUBSCRIPTION_IDENTIFIER: _ValueType.VARIABLE,
    _P.SESSION_EXPIRY_INTERVAL: _ValueType.FOUR_BYTES,
    _P.ASSIGNED_CLIENT_IDENTIFIER: _ValueType.TEXT,
    _P.SERVER_KEEP_ALIVE: _ValueType.TWO_BYTES,
    _P.AUTHENTICATION_METHOD: _ValueType.TEXT,
    _P.AUTHENTICATION_DATA: _ValueType.BINARY,
    _P.REQUEST_PROBLEM_INFORMATION: _ValueType.BYTE,
    _P.WILL_DELAY_INTERVAL: _ValueType.FOUR_BYTES,
    _P.REQUEST_RESPONSE_INFORMATION: _ValueType.BYTE,
    _P.RESPONSE_INFORMATION: _ValueType.TEXT,
    _P.SERVER_REFERENCE: _ValueType.TEXT,
    _P.REASON_STRING: _ValueType.TEXT,
    _P.RECEIVE_MAXIMUM: _ValueType.TWO_BYTES,
    _P.TOPIC_ALIAS_MAXIMUM: _ValueType.TWO_BYTES,
    _P.TOPIC_ALIAS: _ValueType.TWO_BYTES,
    _P.MAXIMUM_QOS: _ValueType.BYTE,
    _P.RETAIN_AVAILABLE: _ValueType.BYTE,
    _P.USER_PROPERTY: _ValueType.PAIR,
    _P.MAXIMUM_PACKET_SIZE: _ValueType.FOUR_BYTES,
    _P.WILDCARD_SUBSCRIPTION_AVAILABLE: _ValueType.BYTE,
    _P.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _ValueType.BYTE,
    _P.SHARED_SUBSCRIPTION_AVAILABLE: _ValueType.BYTE,
}

_NONZERO = frozenset(
    (_P.RECEIVE_MAXIMUM, _P.MAXIMUM_PACKET_SIZE, _P.TOPIC_ALIAS, _P.SUBSCRIPTION_IDENTIFIER)
)

_VALUE_READERS: dict[_ValueType, Callable[[FieldCursor], PropertyValue]] = {
    _ValueType.BYTE: FieldCursor.read_byte,
    _ValueType.TWO_BYTES: lambda cursor: cursor.read_integer(2),
    _ValueType.FOUR_BYTES: lambda cursor: cursor.read_integer(4),
    _ValueType.VARIABLE: FieldCursor.read_variable_integer,
    _ValueType.TEXT: FieldCursor.read_text,
    _ValueType.BINARY: FieldCursor.read_binary,
    _ValueType.PAIR: lambda cursor: (cursor.read_text(), cursor.read_text()),
}

# Everything about a property by its number; the lookup of an enumeration is slow.
_BY_IDENTIFIER = {int(name): (name, _VALUE_READERS[form]) for name, form in _VALUE_TYPES.items()}


def find_property(
    properties: Properties, property_id: Property, default: _Default
) -> PropertyValue | _Default:
    """Return the value of a property that occurs at most once, or the default."""
    for name, value in properties:
        if name is property_id:
            return value
    return default


# ---------------------------------------------------------------- decoding


def read_properties(cursor: FieldCursor, owner: PacketType) -> Properties:
    """Read the properties of a packet other than PUBLISH, with their length."""
    length = cursor.read_variable_integer()
    if length > cursor.remaining:
        raise cursor.make_error(f"{length} bytes of properties declared, {cursor.remaining} left")
    end = cursor.position + length
    found: list[tuple[Property, PropertyValue]] = []
    seen: set[Property] = set()
    while cursor.position < end:
        if len(found) == PROPERTIES_MAX:
            raise cursor.make_error(f"more than {PROPERTIES_MAX} properties")
        found.append(_read_valid_property(cursor, owner, seen))
    if cursor.position > end:
        raise cursor.make_error(
            f"the last property crosses the end of {length} bytes of properties"
        )
    if _P.AUTHENTICATION_DATA in seen and _P.AUTHENTICATION_METHOD not in seen:
        raise cursor.make_error("authentication data without a method", Reason.PROTOCOL_ERROR)
    return tuple(found)


def _read_valid_property(
    cursor: FieldCursor, packet_type: PacketType, seen: set[Property]
) -> tuple[Property, PropertyValue]:
    name, value = _read_property(cursor, packet_type, seen)
    if not _is_valid(name, value):
        raise cursor.make_error(f"{_display_name(name)} is {value!r}", Reason.PROTOCOL_ERROR)
    return name, value


def _read_property(
    cursor: FieldCursor, packet_type: PacketType, seen: set[Property]
) -> tuple[Property, PropertyValue]:
    """Read a property whose value may be one that the standard forbids."""
    number = cursor.read_byte()  # a variable integer, but all defined ones fit in one byte
    try:
        name, read_value = _BY_IDENTIFIER[number]
    except KeyError:
        raise cursor.make_error(f"unknown property 0x{number:02x}") from None
    if name not in _ALLOWED[packet_type]:
        raise cursor.make_error(f"{_display_name(name)} is not allowed here")
    if name in seen and not _may_repeat(name, packet_type):
        raise cursor.make_error(f"{_display_name(name)} occurs twice", Reason.PROTOCOL_ERROR)
    seen.add(name)
    return name, read_value(cursor)


def _is_valid(name: Property, value: PropertyValue) -> bool:
    """Whether the standard allows the value."""
    if isinstance(value, int):
        # All one-byte properties are booleans [3.1.2.11, 3.2.2.3, 3.3.2.3].
        is_boolean = _VALUE_TYPES[name] is _ValueType.BYTE
        return value in (0, 1) if is_boolean else value != 0 or name not in _NONZERO
    if name is _P.RESPONSE_TOPIC and isinstance(value, str):  # [MQTT-3.3.2-14], [MQTT-4.7.3-1]
        return bool(value) and "+" not in value and "#" not in value
    return True


def _display_name(name: Property) -> str:
    return name.name.lower().replace("_", " ")


def _may_repeat(name: Property, packet_type: PacketType) -> bool:
    if name is _P.SUBSCRIPTION_IDENTIFIER:  # in a PUBLISH one per subscription [3.3.2.3.8]
        return packet_type is _K.PUBLISH
    return name is _P.USER_PROPERTY


def split_publish_properties(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """Check a PUBLISH's properties; return the subscription identifiers, and all others encoded.

    A response topic that is no topic name, and a payload format that is not defined, are left out:
    brokers pass them on. A topic alias is an error: this client allows none [MQTT-3.1.2-26].
    """
    cursor = FieldCursor(raw, 0, len(raw), "PUBLISH properties")
    identifiers: list[int] = []
    forwarded_runs: list[bytes] = []
    seen: set[Property] = set()
    start = 0  # of a run of properties to keep
    while cursor.remaining:
        at = cursor.position
        name, value = _read_property(cursor, _K.PUBLISH, seen)
        if name is _P.TOPIC_ALIAS:
            raise cursor.make_error(
                "a topic alias, although none is allowed", Reason.TOPIC_ALIAS_INVALID
            )
        is_valid = _is_valid(name, value)
        if is_valid and name is not _P.SUBSCRIPTION_IDENTIFIER:
            continue
        forwarded_runs.append(raw[start:at])
        start = cursor.position
        if name is _P.SUBSCRIPTION_IDENTIFIER:
            assert isinstance(value, int)
            if not is_valid:
                raise cursor.make_error("subscription identifier is 0", Reason.PROTOCOL_ERROR)
            identifiers.append(value)
    return tuple(identifiers), b"".join((*forwarded_runs, raw[start:])) if start else raw


def decode_properties(raw: bytes) -> Properties:
    """Return a PUBLISH's properties as pairs."""
    cursor = FieldCursor(raw, 0, len(raw), "PUBLISH properties")
    found: list[tuple[Property, PropertyValue]] = []
    seen: set[Property] = set()
    while cursor.remaining:
        found.append(_read_valid_property(cursor, _K.PUBLISH, seen))
    return tuple(found)


def message_expiry(raw: bytes) -> int | None:
    """Return the message expiry interval of a PUBLISH in seconds, or None. Malformed properties
    have none; they are refused when they are written."""
    if _P.MESSAGE_EXPIRY_INTERVAL not in raw:  # the usual case, and cheap to check
        return None
    try:
        value = find_property(decode_properties(raw), _P.MESSAGE_EXPIRY_INTERVAL, None)
    except BrokerMisbehaved:
        return None
    assert value is None or isinstance(value, int)
    return value


def with_reduced_expiry(raw: bytes, waited_s: int) -> bytes:
    """Return a PUBLISH's properties after `waited_s` seconds of waiting; the expiry never falls
    below 0."""
    left = message_expiry(raw) if waited_s > 0 else None
    if left is None:
        return raw
    return encode_properties(
        ((_P.MESSAGE_EXPIRY_INTERVAL, max(0, left - waited_s)),)
    ) + without_expiry(raw)


def without_expiry(raw: bytes) -> bytes:
    """Return a PUBLISH's properties without its expiry: the part that does not change while it
    waits."""
    if message_expiry(raw) is None:
        return raw
    return encode_properties(
        tuple(each for each in decode_properties(raw) if each[0] is not _P.MESSAGE_EXPIRY_INTERVAL)
    )


# ---------------------------------------------------------------- encoding


def write_properties(properties: Properties, packet_type: PacketType) -> bytes:
    """Return properties with their length; raise ValueError if a broker would refuse them."""
    raw = encode_properties(properties)
    data = write_variable_integer(len(raw)) + raw
    try:
        read_properties(FieldCursor(data, 0, len(data), packet_type.name), packet_type)
    except BrokerMisbehaved as error:
        raise ValueError(str(error)) from None
    return data


def encode_properties(properties: Properties) -> bytes:
    """Return properties without their length, as in `PublishPacket.properties`."""
    return b"".join(
        bytes((name,)) + _write_value(_VALUE_TYPES[name], value) for name, value in properties
    )


def _write_value(value_type: _ValueType, value: PropertyValue) -> bytes:
    match value_type, value:
        case _ValueType.VARIABLE, int():
            return write_variable_integer(value)
        case _ValueType.TEXT, str():
            return write_text(value)
        case _ValueType.BINARY, bytes():
            return write_binary(value)
        case _ValueType.PAIR, (str(name), str(text)):
            return write_text(name) + write_text(text)
        case _ValueType.BYTE | _ValueType.TWO_BYTES | _ValueType.FOUR_BYTES, int():
            return write_integer(value, value_type.value)
    raise ValueError(f"{value!r} is not a {value_type.name.lower()}")
