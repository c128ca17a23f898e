"""Every packet compared with bytes written by hand from the figures of the standard."""

from dataclasses import dataclass

import pytest

from hansa.mqtt import packets
from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.packets import (
    AuthPacket,
    ConnAckPacket,
    ConnectPacket,
    DisconnectPacket,
    PingReqPacket,
    PingRespPacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
    SubAckPacket,
    SubscribePacket,
    Subscription,
    UnsubAckPacket,
    UnsubscribePacket,
    Will,
)
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import encode_properties
from hansa.mqtt.types import Side, Version

V4, V5 = Version.V311, Version.V5
BROKER, CLIENT = Side.BROKER, Side.CLIENT


@dataclass
class Golden:
    """A packet and its bytes; blanks in the hexadecimal separate the fields."""

    sender: Side
    version: Version
    packet: PublishPacket | packets.Packet
    text: str

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.text)


WILL = Will("w", b"x", qos=1, retain=True)
LATE_WILL = Will("w", b"x", qos=2, properties=((P.WILL_DELAY_INTERVAL, 5),))
PROMISES = (
    (P.SESSION_EXPIRY_INTERVAL, 10),
    (P.RECEIVE_MAXIMUM, 100),
    (P.MAXIMUM_PACKET_SIZE, 1_048_576),
)
BRIDGING = Subscription("a", 2, no_local=True, retain_as_published=True, retain_handling=2)
TYPED = encode_properties(((P.CONTENT_TYPE, "t"),))

GOLDEN = [
    # CONNECT: protocol, level, flags, keep alive, [properties], client id, will, user, password
    Golden(
        CLIENT,
        V4,
        ConnectPacket("a", V4, keep_alive=60),
        "10 0d 0004 4d515454 04 02 003c 0001 61",
    ),
    Golden(
        CLIENT,
        V4,
        ConnectPacket("c", V4, False, 10, username="u", password=b"p", will=WILL),
        "10 19 0004 4d515454 04 ec 000a 0001 63 0001 77 0001 78 0001 75 0001 70",
    ),
    Golden(
        CLIENT,
        V4,
        ConnectPacket("a", V4, False, bridge=True),
        "10 0d 0004 4d515454 84 00 0000 0001 61",
    ),
    Golden(
        CLIENT,
        V5,
        ConnectPacket("a", keep_alive=60, properties=PROMISES),
        "10 1b 0004 4d515454 05 02 003c 0d 11 0000000a 21 0064 27 00100000 0001 61",
    ),
    Golden(
        CLIENT,
        V5,
        ConnectPacket("c", clean_start=False, will=LATE_WILL, password=b"p"),
        "10 1d 0004 4d515454 05 54 0000 00 0001 63 05 18 00000005 0001 77 0001 78 0001 70",
    ),
    # CONNACK: flags, code, [properties]
    Golden(BROKER, V4, ConnAckPacket(session_present=True), "20 02 01 00"),
    Golden(BROKER, V4, ConnAckPacket(reason=5), "20 02 00 05"),
    Golden(BROKER, V5, ConnAckPacket(), "20 03 00 00 00"),
    Golden(
        BROKER,
        V5,
        ConnAckPacket(session_present=True, properties=((P.RECEIVE_MAXIMUM, 20),)),
        "20 06 01 00 03 21 0014",
    ),
    Golden(
        BROKER,
        V5,
        ConnAckPacket(reason=0x87, properties=((P.REASON_STRING, "no"),)),
        "20 08 00 87 05 1f 0002 6e6f",
    ),
    # PUBLISH: topic, [packet id], [properties], payload
    Golden(BROKER, V4, PublishPacket("a/b", b"hi"), "30 07 0003 612f62 6869"),
    Golden(BROKER, V4, PublishPacket("a", b"", retain=True), "31 03 0001 61"),
    Golden(
        CLIENT,
        V4,
        PublishPacket("a/b", b"hi", qos=1, retain=True, dup=True, packet_id=10),
        "3b 09 0003 612f62 000a 6869",
    ),
    Golden(BROKER, V5, PublishPacket("a/b", b"hi"), "30 08 0003 612f62 00 6869"),
    Golden(
        CLIENT,
        V5,
        PublishPacket("a/b", b"hi", qos=1, packet_id=65_535, properties=TYPED),
        "32 0e 0003 612f62 ffff 04 03 0001 74 6869",
    ),
    Golden(
        BROKER,
        V5,
        PublishPacket("a/b", b"hi", qos=2, packet_id=7, subscription_ids=(1,), properties=TYPED),
        "34 10 0003 612f62 0007 06 0b 01 03 0001 74 6869",
    ),
    Golden(BROKER, V4, PublishPacket("a", bytes(125)), "30 8001 0001 61" + "00" * 125),
    # The handshakes: packet id, [reason, [properties]]
    Golden(BROKER, V4, PubAckPacket(10), "40 02 000a"),
    Golden(CLIENT, V4, PubRecPacket(10), "50 02 000a"),
    Golden(CLIENT, V4, PubRelPacket(10), "62 02 000a"),
    Golden(BROKER, V4, PubCompPacket(10), "70 02 000a"),
    Golden(BROKER, V5, PubAckPacket(10), "40 02 000a"),
    Golden(BROKER, V5, PubAckPacket(10, 0x10), "40 03 000a 10"),
    Golden(
        BROKER,
        V5,
        PubRecPacket(10, 0x87, ((P.REASON_STRING, "x"),)),
        "50 08 000a 87 04 1f 0001 78",
    ),
    Golden(CLIENT, V5, PubRelPacket(1, 0x92), "62 03 0001 92"),
    Golden(BROKER, V5, PubCompPacket(1, 0x92), "70 03 0001 92"),
    # SUBSCRIBE: packet id, [properties], then filters with options
    Golden(
        CLIENT,
        V4,
        SubscribePacket(65_000, (Subscription("a/+", 1), Subscription("b"))),
        "82 0c fde8 0003 612f2b 01 0001 62 00",
    ),
    Golden(
        CLIENT,
        V5,
        SubscribePacket(65_000, (BRIDGING,), ((P.SUBSCRIPTION_IDENTIFIER, 300),)),
        "82 0a fde8 03 0b ac02 0001 61 2e",
    ),
    # SUBACK: packet id, [properties], a code per filter
    Golden(BROKER, V4, SubAckPacket(65_000, b"\x01\x80"), "90 04 fde8 01 80"),
    Golden(BROKER, V5, SubAckPacket(65_000, b"\x02\x87"), "90 05 fde8 00 02 87"),
    # UNSUBSCRIBE: packet id, [properties], filters
    Golden(CLIENT, V4, UnsubscribePacket(65_000, ("a",)), "a2 05 fde8 0001 61"),
    Golden(CLIENT, V5, UnsubscribePacket(65_000, ("a", "b")), "a2 09 fde8 00 0001 61 0001 62"),
    # UNSUBACK: packet id, and in MQTT 5 properties and a code per filter
    Golden(BROKER, V4, UnsubAckPacket(65_000), "b0 02 fde8"),
    Golden(BROKER, V5, UnsubAckPacket(65_000, b"\x11"), "b0 04 fde8 00 11"),
    Golden(CLIENT, V4, PingReqPacket(), "c0 00"),
    Golden(BROKER, V5, PingRespPacket(), "d0 00"),
    # DISCONNECT and AUTH: [reason, [properties]]
    Golden(CLIENT, V4, DisconnectPacket(), "e0 00"),
    Golden(CLIENT, V5, DisconnectPacket(), "e0 00"),
    Golden(BROKER, V5, DisconnectPacket(0x8E), "e0 01 8e"),
    Golden(
        CLIENT,
        V5,
        DisconnectPacket(0, ((P.SESSION_EXPIRY_INTERVAL, 0),)),
        "e0 07 00 05 11 00000000",
    ),
    Golden(BROKER, V5, AuthPacket(0x18), "f0 02 18 00"),
    Golden(
        BROKER,
        V5,
        AuthPacket(0x18, ((P.AUTHENTICATION_METHOD, "me"), (P.AUTHENTICATION_DATA, b"\x00"))),
        "f0 0b 18 09 15 0002 6d65 16 0001 00",
    ),
]

ids = [f"{each.version.name}-{type(each.packet).__name__}-{each.text[:5]}" for each in GOLDEN]


@pytest.mark.parametrize("golden", GOLDEN, ids=ids)
def test_packet_is_encoded_as_in_the_standard(golden):
    assert PacketWriter(golden.version, sender=golden.sender).encode(golden.packet) == golden.data


@pytest.mark.parametrize("golden", GOLDEN, ids=ids)
def test_packet_is_decoded_as_in_the_standard(golden):
    found: list[packets.AnyPacket] = []
    PacketReader(golden.version, sender=golden.sender).feed(golden.data, found)
    assert found == [golden.packet]


def test_every_packet_type_has_an_example():
    kinds = {type(each.packet) for each in GOLDEN}
    assert kinds == set(packets.AnyPacket.__args__) - {packets.OversizedPublish}
