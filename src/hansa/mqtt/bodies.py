"""What is inside each packet but PUBLISH, read with every rule that the standard has for it.

`read` gets the bytes of one whole packet. Who may send it, and when, is not known here.
"""

from collections.abc import Callable

from hansa.mqtt import packets, properties
from hansa.mqtt.fields import Cursor
from hansa.mqtt.types import REFUSED, Kind, Reason, Version

_PROTOCOLS = {
    (b"MQTT", 4): (Version.V311, False),
    (b"MQTT", 0x84): (Version.V311, True),
    (b"MQTT", 5): (Version.V5, False),
}
_SHARE = "$share/"

# What each packet may say besides a refusal; of those, any code is taken for a no.
_CONSENTS: dict[Kind, frozenset[int]] = {
    Kind.CONNACK: frozenset((Reason.SUCCESS,)),
    Kind.PUBACK: frozenset((Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS)),
    Kind.PUBREC: frozenset((Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS)),
    Kind.PUBREL: frozenset((Reason.SUCCESS,)),
    Kind.PUBCOMP: frozenset((Reason.SUCCESS,)),
    Kind.SUBACK: frozenset((Reason.SUCCESS, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2)),
    Kind.UNSUBACK: frozenset((Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)),
    Kind.DISCONNECT: frozenset((Reason.SUCCESS, Reason.DISCONNECT_WITH_WILL)),
    Kind.AUTH: frozenset((Reason.SUCCESS, Reason.CONTINUE_AUTHENTICATION, Reason.REAUTHENTICATE)),
}


def read(kind: Kind, data: bytes, start: int, end: int, version: Version) -> packets.Any:
    """Return the packet whose body lies between `start` and `end`; raise BrokerMisbehaved."""
    cursor = Cursor(data, start, end, kind.name)
    packet = _READERS[kind](cursor, kind, version)
    cursor.finish()
    return packet


def _reason(cursor: Cursor, kind: Kind) -> int:
    reason = cursor.byte()
    if reason < REFUSED and reason not in _CONSENTS[kind]:
        raise cursor.fault(f"reason code 0x{reason:02x}", Reason.PROTOCOL_ERROR)
    return reason


def _properties(cursor: Cursor, kind: Kind, version: Version) -> properties.Properties:
    return properties.read(cursor, kind) if version is Version.V5 else ()


# ---------------------------------------------------------------- connecting


def _connect(cursor: Cursor, kind: Kind, _: Version) -> packets.Connect:
    name, level = cursor.binary(), cursor.byte()
    if (name, level) not in _PROTOCOLS:
        problem = f"protocol {name[:16]!r} level {level}"
        raise cursor.fault(problem, Reason.UNSUPPORTED_PROTOCOL_VERSION)
    version, bridge = _PROTOCOLS[name, level]
    flags = cursor.byte()
    keep_alive = cursor.integer(2)
    if flags & 1:  # [MQTT-3.1.2-3]
        raise cursor.fault(f"reserved bit set in flags 0x{flags:02x}")
    if version is Version.V311 and flags & 0xC0 == 0x40:  # [3.1.1 MQTT-3.1.2-22]
        raise cursor.fault("a password without a user name")
    stated = _properties(cursor, kind, version)
    return packets.Connect(
        client_id=cursor.text(),
        version=version,
        clean_start=bool(flags & 2),
        keep_alive=keep_alive,
        will=_will(cursor, flags, version),
        username=cursor.text() if flags & 0x80 else None,
        password=cursor.binary() if flags & 0x40 else None,
        bridge=bridge,
        properties=stated,
    )


def _will(cursor: Cursor, flags: int, version: Version) -> packets.Will | None:
    qos, retain = flags >> 3 & 3, bool(flags & 0x20)
    if qos > 2 or (not flags & 4 and (qos or retain)):  # [MQTT-3.1.2-11] to [MQTT-3.1.2-13]
        raise cursor.fault(f"flags of the will 0x{flags & 0x3C:02x}")
    if not flags & 4:
        return None
    stated = _properties(cursor, Kind.WILL, version)
    return packets.Will(cursor.topic(), cursor.binary(), qos, retain, stated)


def _connack(cursor: Cursor, kind: Kind, version: Version) -> packets.ConnAck:
    flags, reason = cursor.byte(), cursor.byte()
    if flags > 1 or (flags and reason):  # [MQTT-3.2.2-1], [MQTT-3.2.2-6]
        raise cursor.fault(f"flags 0x{flags:02x} with code 0x{reason:02x}")
    stated: properties.Properties = ()
    # A broker that does not know our version refuses in the form of its own: MQTT 5 has at least
    # a length of properties, 3.1.1 has not.
    if cursor.left if reason else version is Version.V5:
        stated = properties.read(cursor, kind)
        if 0 < reason < REFUSED:
            raise cursor.fault(f"reason code 0x{reason:02x}", Reason.PROTOCOL_ERROR)
    return packets.ConnAck(bool(flags), reason, stated)


def _disconnect(cursor: Cursor, kind: Kind, version: Version) -> packets.Disconnect:
    if version is Version.V311 or not cursor.left:
        return packets.Disconnect()
    reason = _reason(cursor, kind)
    return packets.Disconnect(reason, properties.read(cursor, kind) if cursor.left else ())


def _auth(cursor: Cursor, kind: Kind, _: Version) -> packets.Auth:
    if not cursor.left:
        return packets.Auth()
    return packets.Auth(_reason(cursor, kind), properties.read(cursor, kind))


# ---------------------------------------------------------------- handshakes


ANSWERS: dict[Kind, type[packets.Handshake]] = {
    Kind.PUBACK: packets.PubAck,
    Kind.PUBREC: packets.PubRec,
    Kind.PUBREL: packets.PubRel,
    Kind.PUBCOMP: packets.PubComp,
}


def _answer(cursor: Cursor, kind: Kind, version: Version) -> packets.Any:
    packet_id = cursor.packet_id()
    if version is Version.V311 or not cursor.left:
        return ANSWERS[kind](packet_id)
    reason = _reason(cursor, kind)
    return ANSWERS[kind](packet_id, reason, properties.read(cursor, kind) if cursor.left else ())


# ---------------------------------------------------------------- subscribing


def _subscribe(cursor: Cursor, kind: Kind, version: Version) -> packets.Subscribe:
    packet_id = cursor.packet_id()
    stated = _properties(cursor, kind, version)
    wanted = [_subscription(cursor, version)]  # at least one [MQTT-3.8.3-2]
    while cursor.left:
        wanted.append(_subscription(cursor, version))
    return packets.Subscribe(packet_id, tuple(wanted), stated)


def _subscription(cursor: Cursor, version: Version) -> packets.Subscription:
    topic_filter = _filter(cursor)
    options = cursor.byte()
    qos, no_local, handling = options & 3, bool(options & 4), options >> 4 & 3
    reserved = options & (0xC0 if version is Version.V5 else 0xFC)
    if reserved or qos > 2 or handling > 2:  # [MQTT-3.8.3-5], [3.1.1 MQTT-3-8.3-4]
        raise cursor.fault(f"options 0x{options:02x} of {topic_filter[:60]!r}")
    if no_local and topic_filter.startswith(_SHARE):  # [MQTT-3.8.3-4]
        raise cursor.fault(f"no local with {topic_filter[:60]!r}", Reason.PROTOCOL_ERROR)
    return packets.Subscription(topic_filter, qos, no_local, bool(options & 8), handling)


def _filter(cursor: Cursor) -> str:
    topic_filter = cursor.text()
    if not topic_filter:  # [MQTT-4.7.3-1]
        raise cursor.fault("an empty topic filter")
    return topic_filter


def _suback(cursor: Cursor, kind: Kind, version: Version) -> packets.SubAck:
    packet_id = cursor.packet_id()
    stated = _properties(cursor, kind, version)
    return packets.SubAck(packet_id, _reasons(cursor, kind), stated)


def _reasons(cursor: Cursor, kind: Kind) -> bytes:
    if not cursor.left:
        raise cursor.fault("no reason codes, there is one for each filter")
    reasons = cursor.rest()
    for reason in sorted(set(reasons)):
        if reason < REFUSED and reason not in _CONSENTS[kind]:
            raise cursor.fault(f"reason code 0x{reason:02x}", Reason.PROTOCOL_ERROR)
    return reasons


def _unsubscribe(cursor: Cursor, kind: Kind, version: Version) -> packets.Unsubscribe:
    packet_id = cursor.packet_id()
    stated = _properties(cursor, kind, version)
    filters = [_filter(cursor)]  # at least one [MQTT-3.10.3-2]
    while cursor.left:
        filters.append(_filter(cursor))
    return packets.Unsubscribe(packet_id, tuple(filters), stated)


def _unsuback(cursor: Cursor, kind: Kind, version: Version) -> packets.UnsubAck:
    packet_id = cursor.packet_id()
    if version is Version.V311:
        return packets.UnsubAck(packet_id)
    stated = properties.read(cursor, kind)
    return packets.UnsubAck(packet_id, _reasons(cursor, kind), stated)


# ---------------------------------------------------------------- the table

_PING_REQ, _PING_RESP = packets.PingReq(), packets.PingResp()

_READERS: dict[Kind, Callable[[Cursor, Kind, Version], packets.Any]] = {
    Kind.CONNECT: _connect,
    Kind.CONNACK: _connack,
    Kind.PUBACK: _answer,
    Kind.PUBREC: _answer,
    Kind.PUBREL: _answer,
    Kind.PUBCOMP: _answer,
    Kind.SUBSCRIBE: _subscribe,
    Kind.SUBACK: _suback,
    Kind.UNSUBSCRIBE: _unsubscribe,
    Kind.UNSUBACK: _unsuback,
    Kind.PINGREQ: lambda *_: _PING_REQ,
    Kind.PINGRESP: lambda *_: _PING_RESP,
    Kind.DISCONNECT: _disconnect,
    Kind.AUTH: _auth,
}
