"""The bodies of all packets except PUBLISH, encoded: the mirror of `body_decoder`.

This module only lays out fields. `packet_writer` validates the result by decoding it again.
"""

from hansa.mqtt import packets
from hansa.mqtt.fields import write_binary, write_integer, write_packet_id, write_text
from hansa.mqtt.properties import Properties
from hansa.mqtt.properties import write_properties as write_properties
from hansa.mqtt.types import PacketType, Version

_PACKET_TYPES: dict[type, PacketType] = {
    packets.ConnectPacket: PacketType.CONNECT,
    packets.ConnAckPacket: PacketType.CONNACK,
    packets.PubAckPacket: PacketType.PUBACK,
    packets.PubRecPacket: PacketType.PUBREC,
    packets.PubRelPacket: PacketType.PUBREL,
    packets.PubCompPacket: PacketType.PUBCOMP,
    packets.SubscribePacket: PacketType.SUBSCRIBE,
    packets.SubAckPacket: PacketType.SUBACK,
    packets.UnsubscribePacket: PacketType.UNSUBSCRIBE,
    packets.UnsubAckPacket: PacketType.UNSUBACK,
    packets.PingReqPacket: PacketType.PINGREQ,
    packets.PingRespPacket: PacketType.PINGRESP,
    packets.DisconnectPacket: PacketType.DISCONNECT,
    packets.AuthPacket: PacketType.AUTH,
}

_BRIDGE_BIT = 0x80


def encode_body(packet: packets.Packet, version: Version) -> tuple[PacketType, bytes]:
    """Return the packet type and the body; raise ValueError if the packet cannot be encoded."""
    packet_type = _PACKET_TYPES[type(packet)]
    match packet:
        case packets.ConnectPacket():
            return packet_type, _encode_connect(packet)
        case packets.ConnAckPacket(present, reason, stated):
            head = bytes((present,)) + write_integer(reason, 1)
            return packet_type, head + _encode_properties(stated, packet_type, version)
        case packets.HandshakePacket(packet_id, reason, stated):
            return packet_type, write_packet_id(packet_id) + _encode_reason(
                reason, stated, packet_type, version
            )
        case packets.DisconnectPacket(reason, stated) | packets.AuthPacket(reason, stated):
            return packet_type, _encode_reason(reason, stated, packet_type, version)
        case packets.SubscribePacket(packet_id, subscriptions, stated):
            rest = b"".join(_encode_subscription(each, version) for each in subscriptions)
        case packets.UnsubscribePacket(packet_id, filters, stated):
            rest = b"".join(map(write_text, filters))
        case packets.SubAckPacket(packet_id, rest, stated) | packets.UnsubAckPacket(
            packet_id, rest, stated
        ):
            pass
        case _:
            return packet_type, b""
    return packet_type, write_packet_id(packet_id) + _encode_properties(
        stated, packet_type, version
    ) + rest


def _encode_properties(packet_properties: Properties, kind: PacketType, version: Version) -> bytes:
    if version is Version.V5:
        return write_properties(packet_properties, kind)
    if packet_properties:
        raise ValueError(f"{kind.name}: properties, which 3.1.1 does not have")
    return b""


def _encode_reason(
    reason: int, packet_properties: Properties, kind: PacketType, version: Version
) -> bytes:
    """Encode reason code and properties; both are left out if they are empty."""
    if not reason and not packet_properties:
        return b""
    if version is Version.V311:
        raise ValueError(f"{kind.name}: a reason or properties, which 3.1.1 does not have")
    if not packet_properties and kind is not PacketType.AUTH:  # AUTH has both or neither [3.15.2.1]
        return write_integer(reason, 1)
    return write_integer(reason, 1) + write_properties(packet_properties, kind)


def _encode_connect(connect: packets.ConnectPacket) -> bytes:
    version, will = connect.version, connect.will
    flags = (
        connect.clean_start << 1
        | (will is not None) << 2
        | (connect.password is not None) << 6
        | (connect.username is not None) << 7
    )
    pieces = [
        _encode_properties(connect.properties, PacketType.CONNECT, version),
        write_text(connect.client_id),
    ]
    if will is not None:
        flags |= will.qos << 3 | will.retain << 5
        pieces.append(_encode_properties(will.properties, PacketType.WILL, version))
        pieces += (write_text(will.topic), write_binary(will.payload))
    if connect.username is not None:
        pieces.append(write_text(connect.username))
    if connect.password is not None:
        pieces.append(write_binary(connect.password))
    level = version | (_BRIDGE_BIT if connect.bridge else 0)
    head = (write_text("MQTT"), bytes((level,)), write_integer(flags, 1))
    return b"".join((*head, write_integer(connect.keep_alive, 2), *pieces))


def _encode_subscription(subscription: packets.Subscription, version: Version) -> bytes:
    options = (
        subscription.qos
        | subscription.no_local << 2
        | subscription.retain_as_published << 3
        | subscription.retain_handling << 4
    )
    return write_text(subscription.topic_filter) + write_integer(options, 1)
