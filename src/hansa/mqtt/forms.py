"""How each packet but PUBLISH is written: the mirror of `bodies`.

Only the form is kept here; whether it makes sense, `writer` finds out by reading it back.
"""

from hansa.mqtt import packets
from hansa.mqtt.fields import write_binary, write_integer, write_packet_id, write_text
from hansa.mqtt.properties import Properties
from hansa.mqtt.properties import write as write_properties
from hansa.mqtt.types import Kind, Version

_KINDS: dict[type, Kind] = {
    packets.Connect: Kind.CONNECT,
    packets.ConnAck: Kind.CONNACK,
    packets.PubAck: Kind.PUBACK,
    packets.PubRec: Kind.PUBREC,
    packets.PubRel: Kind.PUBREL,
    packets.PubComp: Kind.PUBCOMP,
    packets.Subscribe: Kind.SUBSCRIBE,
    packets.SubAck: Kind.SUBACK,
    packets.Unsubscribe: Kind.UNSUBSCRIBE,
    packets.UnsubAck: Kind.UNSUBACK,
    packets.PingReq: Kind.PINGREQ,
    packets.PingResp: Kind.PINGRESP,
    packets.Disconnect: Kind.DISCONNECT,
    packets.Auth: Kind.AUTH,
}

_BRIDGE = 0x80


def write(packet: packets.Packet, version: Version) -> tuple[Kind, bytes]:
    """Return what kind of packet this is, and its body; raise ValueError if it has no bytes."""
    kind = _KINDS[type(packet)]
    match packet:
        case packets.Connect():
            return kind, _connect(packet)
        case packets.ConnAck(present, reason, stated):
            head = bytes((present,)) + write_integer(reason, 1)
            return kind, head + _properties(stated, kind, version)
        case packets.Answer(packet_id, reason, stated):
            return kind, write_packet_id(packet_id) + _outcome(reason, stated, kind, version)
        case packets.Disconnect(reason, stated) | packets.Auth(reason, stated):
            return kind, _outcome(reason, stated, kind, version)
        case packets.Subscribe(packet_id, subscriptions, stated):
            rest = b"".join(_subscription(each, version) for each in subscriptions)
        case packets.Unsubscribe(packet_id, filters, stated):
            rest = b"".join(map(write_text, filters))
        case packets.SubAck(packet_id, rest, stated) | packets.UnsubAck(packet_id, rest, stated):
            pass
        case _:
            return kind, b""
    return kind, write_packet_id(packet_id) + _properties(stated, kind, version) + rest


def _properties(stated: Properties, kind: Kind, version: Version) -> bytes:
    if version is Version.V5:
        return write_properties(stated, kind)
    if stated:
        raise ValueError(f"{kind.name}: properties, which 3.1.1 does not have")
    return b""


def _outcome(reason: int, stated: Properties, kind: Kind, version: Version) -> bytes:
    """Reason code and properties, both left out when they say nothing."""
    if not reason and not stated:
        return b""
    if version is Version.V311:
        raise ValueError(f"{kind.name}: a reason or properties, which 3.1.1 does not have")
    if not stated and kind is not Kind.AUTH:  # AUTH may leave out both or none [3.15.2.1]
        return write_integer(reason, 1)
    return write_integer(reason, 1) + write_properties(stated, kind)


def _connect(connect: packets.Connect) -> bytes:
    version, will = connect.version, connect.will
    flags = (
        connect.clean_start << 1
        | (will is not None) << 2
        | (connect.password is not None) << 6
        | (connect.username is not None) << 7
    )
    pieces = [_properties(connect.properties, Kind.CONNECT, version), write_text(connect.client_id)]
    if will is not None:
        flags |= will.qos << 3 | will.retain << 5
        pieces.append(_properties(will.properties, Kind.WILL, version))
        pieces += (write_text(will.topic), write_binary(will.payload))
    if connect.username is not None:
        pieces.append(write_text(connect.username))
    if connect.password is not None:
        pieces.append(write_binary(connect.password))
    level = version | (_BRIDGE if connect.bridge else 0)
    head = (write_text("MQTT"), bytes((level,)), write_integer(flags, 1))
    return b"".join((*head, write_integer(connect.keep_alive, 2), *pieces))


def _subscription(subscription: packets.Subscription, version: Version) -> bytes:
    options = (
        subscription.qos
        | subscription.no_local << 2
        | subscription.retain_as_published << 3
        | subscription.retain_handling << 4
    )
    return write_text(subscription.topic_filter) + write_integer(options, 1)
