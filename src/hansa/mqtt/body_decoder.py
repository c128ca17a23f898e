"""The bodies of all packets except PUBLISH, decoded with every check of the standard.

`decode_body` gets the bytes of one complete packet. It does not know who may send which packet, or
when. Malformed bodies raise BrokerMisbehaved.
"""

from collections.abc import Callable

from hansa.mqtt import packets, properties
from hansa.mqtt.fields import FieldCursor
from hansa.mqtt.types import REFUSAL_CODE_MIN, PacketType, Reason, Version

_PROTOCOL_LEVELS = {
    (b"MQTT", 4): (Version.V311, False),
    (b"MQTT", 0x84): (Version.V311, True),
    (b"MQTT", 5): (Version.V5, False),
}
_SHARE = "$share/"

# Success codes that each packet may carry. Any code from 0x80 on counts as a refusal.
_SUCCESS_CODES: dict[PacketType, frozenset[int]] = {
    PacketType.CONNACK: frozenset((Reason.SUCCESS,)),
    PacketType.PUBACK: frozenset((Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS)),
    PacketType.PUBREC: frozenset((Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS)),
    PacketType.PUBREL: frozenset((Reason.SUCCESS,)),
    PacketType.PUBCOMP: frozenset((Reason.SUCCESS,)),
    PacketType.SUBACK: frozenset((Reason.SUCCESS, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2)),
    PacketType.UNSUBACK: frozenset((Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)),
    PacketType.DISCONNECT: frozenset((Reason.SUCCESS, Reason.DISCONNECT_WITH_WILL)),
    PacketType.AUTH: frozenset(
        (Reason.SUCCESS, Reason.CONTINUE_AUTHENTICATION, Reason.REAUTHENTICATE)
    ),
}


def decode_body(
    packet_type: PacketType, data: bytes, start: int, end: int, version: Version
) -> packets.AnyPacket:
    """Return the packet whose body is `data[start:end]`; raise BrokerMisbehaved if it is
    malformed."""
    cursor = FieldCursor(data, start, end, packet_type.name)
    packet = _BODY_READERS[packet_type](cursor, packet_type, version)
    cursor.require_end()
    return packet


def _read_reason(cursor: FieldCursor, kind: PacketType) -> int:
    reason = cursor.read_byte()
    if reason < REFUSAL_CODE_MIN and reason not in _SUCCESS_CODES[kind]:
        raise cursor.make_error(f"reason code 0x{reason:02x}", Reason.PROTOCOL_ERROR)
    return reason


def _read_properties(
    cursor: FieldCursor, kind: PacketType, version: Version
) -> properties.Properties:
    return properties.read_properties(cursor, kind) if version is Version.V5 else ()


# ---------------------------------------------------------------- CONNECT and CONNACK


def _read_connect(cursor: FieldCursor, kind: PacketType, _: Version) -> packets.ConnectPacket:
    name, level = cursor.read_binary(), cursor.read_byte()
    if (name, level) not in _PROTOCOL_LEVELS:
        problem = f"protocol {name[:16]!r} level {level}"
        raise cursor.make_error(problem, Reason.UNSUPPORTED_PROTOCOL_VERSION)
    version, bridge = _PROTOCOL_LEVELS[name, level]
    flags = cursor.read_byte()
    keep_alive = cursor.read_integer(2)
    if flags & 1:  # [MQTT-3.1.2-3]
        raise cursor.make_error(f"reserved bit set in flags 0x{flags:02x}")
    if version is Version.V311 and flags & 0xC0 == 0x40:  # [3.1.1 MQTT-3.1.2-22]
        raise cursor.make_error("a password without a user name")
    connect_properties = _read_properties(cursor, kind, version)
    return packets.ConnectPacket(
        client_id=cursor.read_text(),
        version=version,
        clean_start=bool(flags & 2),
        keep_alive=keep_alive,
        will=_read_will(cursor, flags, version),
        username=cursor.read_text() if flags & 0x80 else None,
        password=cursor.read_binary() if flags & 0x40 else None,
        bridge=bridge,
        properties=connect_properties,
    )


def _read_will(cursor: FieldCursor, flags: int, version: Version) -> packets.Will | None:
    qos, retain = flags >> 3 & 3, bool(flags & 0x20)
    if qos > 2 or (not flags & 4 and (qos or retain)):  # [MQTT-3.1.2-11] to [MQTT-3.1.2-13]
        raise cursor.make_error(f"flags of the will 0x{flags & 0x3C:02x}")
    if not flags & 4:
        return None
    will_properties = _read_properties(cursor, PacketType.WILL, version)
    return packets.Will(cursor.read_topic(), cursor.read_binary(), qos, retain, will_properties)


def _read_connack(cursor: FieldCursor, kind: PacketType, version: Version) -> packets.ConnAckPacket:
    flags, reason = cursor.read_byte(), cursor.read_byte()
    if flags > 1 or (flags and reason):  # [MQTT-3.2.2-1], [MQTT-3.2.2-6]
        raise cursor.make_error(f"flags 0x{flags:02x} with code 0x{reason:02x}")
    connack_properties: properties.Properties = ()
    # A broker that does not support our version refuses in the format of its own version. MQTT 5
    # has at least the length of the properties; 3.1.1 does not.
    if cursor.remaining if reason else version is Version.V5:
        connack_properties = properties.read_properties(cursor, kind)
        if 0 < reason < REFUSAL_CODE_MIN:
            raise cursor.make_error(f"reason code 0x{reason:02x}", Reason.PROTOCOL_ERROR)
    return packets.ConnAckPacket(bool(flags), reason, connack_properties)


def _read_disconnect(
    cursor: FieldCursor, kind: PacketType, version: Version
) -> packets.DisconnectPacket:
    if version is Version.V311 or not cursor.remaining:
        return packets.DisconnectPacket()
    reason = _read_reason(cursor, kind)
    return packets.DisconnectPacket(
        reason, properties.read_properties(cursor, kind) if cursor.remaining else ()
    )


def _read_auth(cursor: FieldCursor, kind: PacketType, _: Version) -> packets.AuthPacket:
    if not cursor.remaining:
        return packets.AuthPacket()
    return packets.AuthPacket(_read_reason(cursor, kind), properties.read_properties(cursor, kind))


# ---------------------------------------------------------------- handshakes


HANDSHAKE_PACKETS: dict[PacketType, type[packets.AnyHandshakePacket]] = {
    PacketType.PUBACK: packets.PubAckPacket,
    PacketType.PUBREC: packets.PubRecPacket,
    PacketType.PUBREL: packets.PubRelPacket,
    PacketType.PUBCOMP: packets.PubCompPacket,
}


def _read_handshake_packet(
    cursor: FieldCursor, kind: PacketType, version: Version
) -> packets.AnyPacket:
    packet_id = cursor.read_packet_id()
    if version is Version.V311 or not cursor.remaining:
        return HANDSHAKE_PACKETS[kind](packet_id)
    reason = _read_reason(cursor, kind)
    return HANDSHAKE_PACKETS[kind](
        packet_id, reason, properties.read_properties(cursor, kind) if cursor.remaining else ()
    )


# ---------------------------------------------------------------- subscriptions


def _read_subscribe(
    cursor: FieldCursor, kind: PacketType, version: Version
) -> packets.SubscribePacket:
    packet_id = cursor.read_packet_id()
    packet_properties = _read_properties(cursor, kind, version)
    subscriptions = [_read_subscription(cursor, version)]  # at least one [MQTT-3.8.3-2]
    while cursor.remaining:
        subscriptions.append(_read_subscription(cursor, version))
    return packets.SubscribePacket(packet_id, tuple(subscriptions), packet_properties)


def _read_subscription(cursor: FieldCursor, version: Version) -> packets.Subscription:
    topic_filter = _read_filter(cursor)
    options = cursor.read_byte()
    qos, no_local, retain_handling = options & 3, bool(options & 4), options >> 4 & 3
    reserved = options & (0xC0 if version is Version.V5 else 0xFC)
    if reserved or qos > 2 or retain_handling > 2:  # [MQTT-3.8.3-5], [3.1.1 MQTT-3-8.3-4]
        raise cursor.make_error(f"options 0x{options:02x} of {topic_filter[:60]!r}")
    if no_local and topic_filter.startswith(_SHARE):  # [MQTT-3.8.3-4]
        raise cursor.make_error(f"no local with {topic_filter[:60]!r}", Reason.PROTOCOL_ERROR)
    return packets.Subscription(topic_filter, qos, no_local, bool(options & 8), retain_handling)


def _read_filter(cursor: FieldCursor) -> str:
    topic_filter = cursor.read_text()
    if not topic_filter:  # [MQTT-4.7.3-1]
        raise cursor.make_error("an empty topic filter")
    return topic_filter


def _read_suback(cursor: FieldCursor, kind: PacketType, version: Version) -> packets.SubAckPacket:
    packet_id = cursor.read_packet_id()
    packet_properties = _read_properties(cursor, kind, version)
    return packets.SubAckPacket(packet_id, _read_reasons(cursor, kind), packet_properties)


def _read_reasons(cursor: FieldCursor, kind: PacketType) -> bytes:
    if not cursor.remaining:
        raise cursor.make_error("no reason codes, expected one per filter")
    reasons = cursor.read_rest()
    for reason in sorted(set(reasons)):
        if reason < REFUSAL_CODE_MIN and reason not in _SUCCESS_CODES[kind]:
            raise cursor.make_error(f"reason code 0x{reason:02x}", Reason.PROTOCOL_ERROR)
    return reasons


def _read_unsubscribe(
    cursor: FieldCursor, kind: PacketType, version: Version
) -> packets.UnsubscribePacket:
    packet_id = cursor.read_packet_id()
    packet_properties = _read_properties(cursor, kind, version)
    filters = [_read_filter(cursor)]  # at least one [MQTT-3.10.3-2]
    while cursor.remaining:
        filters.append(_read_filter(cursor))
    return packets.UnsubscribePacket(packet_id, tuple(filters), packet_properties)


def _read_unsuback(
    cursor: FieldCursor, kind: PacketType, version: Version
) -> packets.UnsubAckPacket:
    packet_id = cursor.read_packet_id()
    if version is Version.V311:
        return packets.UnsubAckPacket(packet_id)
    packet_properties = properties.read_properties(cursor, kind)
    return packets.UnsubAckPacket(packet_id, _read_reasons(cursor, kind), packet_properties)


# ---------------------------------------------------------------- decoders by packet type

_PING_REQ, _PING_RESP = packets.PingReqPacket(), packets.PingRespPacket()

_BODY_READERS: dict[PacketType, Callable[[FieldCursor, PacketType, Version], packets.AnyPacket]] = {
    PacketType.CONNECT: _read_connect,
    PacketType.CONNACK: _read_connack,
    PacketType.PUBACK: _read_handshake_packet,
    PacketType.PUBREC: _read_handshake_packet,
    PacketType.PUBREL: _read_handshake_packet,
    PacketType.PUBCOMP: _read_handshake_packet,
    PacketType.SUBSCRIBE: _read_subscribe,
    PacketType.SUBACK: _read_suback,
    PacketType.UNSUBSCRIBE: _read_unsubscribe,
    PacketType.UNSUBACK: _read_unsuback,
    PacketType.PINGREQ: lambda *_: _PING_REQ,
    PacketType.PINGRESP: lambda *_: _PING_RESP,
    PacketType.DISCONNECT: _read_disconnect,
    PacketType.AUTH: _read_auth,
}
