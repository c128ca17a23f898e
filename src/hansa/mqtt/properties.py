"""The properties of MQTT 5 [2.2.2]: which there are, where they may stand, what they may hold.

Properties of a PUBLISH stay bytes: `split` checks them once, takes out what concerns this
connection only (subscription identifiers), and leaves the rest in the order it came, ready to be
published again. All other packets are few, so theirs are pairs of a property and its value.
"""

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import TypeVar

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.fields import (
    Cursor,
    write_binary,
    write_integer,
    write_text,
    write_variable,
)
from hansa.mqtt.types import Kind, Reason

PROPERTIES_MAX = 1_024
"""Properties of one packet that is not a PUBLISH: each costs many times its five bytes."""

_Default = TypeVar("_Default")


class Property(IntEnum):
    """All properties, by their identifiers [2.2.2.2]."""

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


Value = int | str | bytes | tuple[str, str]
Properties = tuple[tuple[Property, Value], ...]


class _Form(Enum):
    """How a value is written."""

    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 4
    VARIABLE = "variable"
    TEXT = "text"
    TOPIC = "topic"
    BINARY = "binary"
    PAIR = "pair"


_P, _K = Property, Kind

_SENT_ON = (
    _P.PAYLOAD_FORMAT_INDICATOR,
    _P.MESSAGE_EXPIRY_INTERVAL,
    _P.CONTENT_TYPE,
    _P.RESPONSE_TOPIC,
    _P.CORRELATION_DATA,
    _P.USER_PROPERTY,
)
_ANSWERED = frozenset((_P.REASON_STRING, _P.USER_PROPERTY))

# Where which properties may stand [table 2-4].
_ALLOWED: dict[Kind, frozenset[Property]] = {
    _K.WILL: frozenset((*_SENT_ON, _P.WILL_DELAY_INTERVAL)),
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
            *_ANSWERED,
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
    _K.PUBLISH: frozenset((*_SENT_ON, _P.SUBSCRIPTION_IDENTIFIER, _P.TOPIC_ALIAS)),
    _K.PUBACK: _ANSWERED,
    _K.PUBREC: _ANSWERED,
    _K.PUBREL: _ANSWERED,
    _K.PUBCOMP: _ANSWERED,
    _K.SUBSCRIBE: frozenset((_P.SUBSCRIPTION_IDENTIFIER, _P.USER_PROPERTY)),
    _K.SUBACK: _ANSWERED,
    _K.UNSUBSCRIBE: frozenset((_P.USER_PROPERTY,)),
    _K.UNSUBACK: _ANSWERED,
    _K.DISCONNECT: frozenset((*_ANSWERED, _P.SESSION_EXPIRY_INTERVAL, _P.SERVER_REFERENCE)),
    _K.AUTH: frozenset((*_ANSWERED, _P.AUTHENTICATION_METHOD, _P.AUTHENTICATION_DATA)),
}

_FORMS: dict[Property, _Form] = {
    _P.PAYLOAD_FORMAT_INDICATOR: _Form.BYTE,
    _P.MESSAGE_EXPIRY_INTERVAL: _Form.FOUR_BYTES,
    _P.CONTENT_TYPE: _Form.TEXT,
    _P.RESPONSE_TOPIC: _Form.TOPIC,
    _P.CORRELATION_DATA: _Form.BINARY,
    _P.SUBSCRIPTION_IDENTIFIER: _Form.VARIABLE,
    _P.SESSION_EXPIRY_INTERVAL: _Form.FOUR_BYTES,
    _P.ASSIGNED_CLIENT_IDENTIFIER: _Form.TEXT,
    _P.SERVER_KEEP_ALIVE: _Form.TWO_BYTES,
    _P.AUTHENTICATION_METHOD: _Form.TEXT,
    _P.AUTHENTICATION_DATA: _Form.BINARY,
    _P.REQUEST_PROBLEM_INFORMATION: _Form.BYTE,
    _P.WILL_DELAY_INTERVAL: _Form.FOUR_BYTES,
    _P.REQUEST_RESPONSE_INFORMATION: _Form.BYTE,
    _P.RESPONSE_INFORMATION: _Form.TEXT,
    _P.SERVER_REFERENCE: _Form.TEXT,
    _P.REASON_STRING: _Form.TEXT,
    _P.RECEIVE_MAXIMUM: _Form.TWO_BYTES,
    _P.TOPIC_ALIAS_MAXIMUM: _Form.TWO_BYTES,
    _P.TOPIC_ALIAS: _Form.TWO_BYTES,
    _P.MAXIMUM_QOS: _Form.BYTE,
    _P.RETAIN_AVAILABLE: _Form.BYTE,
    _P.USER_PROPERTY: _Form.PAIR,
    _P.MAXIMUM_PACKET_SIZE: _Form.FOUR_BYTES,
    _P.WILDCARD_SUBSCRIPTION_AVAILABLE: _Form.BYTE,
    _P.SUBSCRIPTION_IDENTIFIER_AVAILABLE: _Form.BYTE,
    _P.SHARED_SUBSCRIPTION_AVAILABLE: _Form.BYTE,
}

_NOT_ZERO = frozenset(
    (_P.RECEIVE_MAXIMUM, _P.MAXIMUM_PACKET_SIZE, _P.TOPIC_ALIAS, _P.SUBSCRIPTION_IDENTIFIER)
)

_READERS: dict[_Form, Callable[[Cursor], Value]] = {
    _Form.BYTE: Cursor.byte,
    _Form.TWO_BYTES: lambda cursor: cursor.integer(2),
    _Form.FOUR_BYTES: lambda cursor: cursor.integer(4),
    _Form.VARIABLE: Cursor.variable,
    _Form.TEXT: Cursor.text,
    _Form.TOPIC: Cursor.topic,
    _Form.BINARY: Cursor.binary,
    _Form.PAIR: lambda cursor: (cursor.text(), cursor.text()),
}

# Everything about a property by its number: an enumeration's own look-up is slow.
_BY_NUMBER = {int(name): (name, form, _READERS[form]) for name, form in _FORMS.items()}


def find(properties: Properties, wanted: Property, default: _Default) -> Value | _Default:
    """Return the value of a property that is there at most once, or the default."""
    for name, value in properties:
        if name is wanted:
            return value
    return default


# ---------------------------------------------------------------- reading


def read(cursor: Cursor, owner: Kind) -> Properties:
    """Read the properties of a packet that is not a PUBLISH, their length first."""
    length = cursor.variable()
    if length > cursor.left:
        raise cursor.fault(f"{length} bytes of properties promised, {cursor.left} left")
    end = cursor.at + length
    found: list[tuple[Property, Value]] = []
    seen: set[Property] = set()
    while cursor.at < end:
        if len(found) == PROPERTIES_MAX:
            raise cursor.fault(f"more than {PROPERTIES_MAX} properties")
        found.append(_read_one(cursor, owner, seen))
    if cursor.at > end:
        raise cursor.fault(f"the last property crosses the end of {length} bytes of properties")
    if _P.AUTHENTICATION_DATA in seen and _P.AUTHENTICATION_METHOD not in seen:
        raise cursor.fault("authentication data without a method", Reason.PROTOCOL_ERROR)
    return tuple(found)


def _read_one(cursor: Cursor, owner: Kind, seen: set[Property]) -> tuple[Property, Value]:
    number = cursor.byte()  # a variable integer, but all that are defined fit one byte
    try:
        name, form, read_value = _BY_NUMBER[number]
    except KeyError:
        raise cursor.fault(f"property 0x{number:02x}, which does not exist") from None
    if name not in _ALLOWED[owner]:
        raise cursor.fault(f"{_word(name)} does not belong here")
    if name in seen and not _repeats(name, owner):
        raise cursor.fault(f"{_word(name)} is there twice", Reason.PROTOCOL_ERROR)
    seen.add(name)
    value = read_value(cursor)
    # All properties of one byte are a choice of two [3.1.2.11, 3.2.2.3, 3.3.2.3].
    if (form is _Form.BYTE and value not in (0, 1)) or (value == 0 and name in _NOT_ZERO):
        raise cursor.fault(f"{_word(name)} is {value!r}", Reason.PROTOCOL_ERROR)
    return name, value


def _word(name: Property) -> str:
    return name.name.lower().replace("_", " ")


def _repeats(name: Property, owner: Kind) -> bool:
    if name is _P.SUBSCRIPTION_IDENTIFIER:  # in a PUBLISH one per subscription [3.3.2.3.8]
        return owner is _K.PUBLISH
    return name is _P.USER_PROPERTY


def split(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """Check a PUBLISH's properties; return the subscription identifiers, and all others as bytes.

    A topic alias is refused: this client announces none, so none may be sent [MQTT-3.1.2-26].
    """
    cursor = Cursor(raw, 0, len(raw), "PUBLISH properties")
    identifiers: list[int] = []
    others: list[bytes] = []
    seen: set[Property] = set()
    start = 0  # of a run of properties that travel on
    while cursor.left:
        at = cursor.at
        name, value = _read_one(cursor, _K.PUBLISH, seen)
        if name is _P.TOPIC_ALIAS:
            raise cursor.fault("a topic alias, none was agreed", Reason.TOPIC_ALIAS_INVALID)
        if name is _P.SUBSCRIPTION_IDENTIFIER:
            assert isinstance(value, int)
            identifiers.append(value)
            others.append(raw[start:at])
            start = cursor.at
    return tuple(identifiers), b"".join((*others, raw[start:])) if identifiers else raw


def decode(raw: bytes) -> Properties:
    """Return a PUBLISH's properties as pairs."""
    cursor = Cursor(raw, 0, len(raw), "PUBLISH properties")
    found: list[tuple[Property, Value]] = []
    seen: set[Property] = set()
    while cursor.left:
        found.append(_read_one(cursor, _K.PUBLISH, seen))
    return tuple(found)


def expiry(raw: bytes) -> int | None:
    """Return after how many seconds a PUBLISH is of no use any more, None if it never is. What
    cannot be read has no expiry: it is refused when it is written."""
    if _P.MESSAGE_EXPIRY_INTERVAL not in raw:  # the usual case, and cheap to know
        return None
    try:
        value = find(decode(raw), _P.MESSAGE_EXPIRY_INTERVAL, None)
    except BrokerMisbehaved:
        return None
    assert value is None or isinstance(value, int)
    return value


def aged(raw: bytes, seconds: int) -> bytes:
    """Return a PUBLISH's properties after it has waited so long; its expiry ends at 0."""
    left = expiry(raw) if seconds > 0 else None
    if left is None:
        return raw
    return encode(((_P.MESSAGE_EXPIRY_INTERVAL, max(0, left - seconds)),)) + ageless(raw)


def ageless(raw: bytes) -> bytes:
    """Return a PUBLISH's properties without its expiry: what does not change while it waits."""
    if expiry(raw) is None:
        return raw
    return encode(tuple(each for each in decode(raw) if each[0] is not _P.MESSAGE_EXPIRY_INTERVAL))


# ---------------------------------------------------------------- writing


def write(properties: Properties, owner: Kind) -> bytes:
    """Return properties behind their length; raise ValueError if no broker would take them."""
    raw = encode(properties)
    data = write_variable(len(raw)) + raw
    try:
        read(Cursor(data, 0, len(data), owner.name), owner)
    except BrokerMisbehaved as error:
        raise ValueError(str(error)) from None
    return data


def encode(properties: Properties) -> bytes:
    """Return properties without their length, as `Publish` has them."""
    return b"".join(
        bytes((name,)) + _write_value(_FORMS[name], value) for name, value in properties
    )


def _write_value(form: _Form, value: Value) -> bytes:
    match form, value:
        case _Form.VARIABLE, int():
            return write_variable(value)
        case _Form.TEXT | _Form.TOPIC, str():
            return write_text(value)
        case _Form.BINARY, bytes():
            return write_binary(value)
        case _Form.PAIR, (str(name), str(text)):
            return write_text(name) + write_text(text)
        case _Form.BYTE | _Form.TWO_BYTES | _Form.FOUR_BYTES, int():
            return write_integer(value, form.value)
    raise ValueError(f"{value!r} is no {form.name.lower()}")
