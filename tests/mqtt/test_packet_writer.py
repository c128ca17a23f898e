"""Nothing is encoded that a correct receiver refuses, alone or in a batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mqtt import strategies

from hansa.mqtt import packet_reader, packets
from hansa.mqtt.packet_writer import PacketTooLarge, PacketWriter
from hansa.mqtt.packets import (
    ConnectPacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
    SubscribePacket,
    Subscription,
    Will,
)
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import encode_properties
from hansa.mqtt.types import Side, Version

V4, V5 = Version.V311, Version.V5
both_versions = pytest.mark.parametrize("version", Version)


@both_versions
@settings(max_examples=40)
@given(data=st.data())
def test_batch_equals_single_publications(version, data):
    batch = data.draw(st.lists(strategies.publishes(version, Side.CLIENT), max_size=6))
    writer = PacketWriter(version)
    expected = b"".join(PacketWriter(version).encode(publish) for publish in batch)
    assert writer.encode_publications(batch) == (expected, [])
    assert writer.encode_publications(batch) == (expected, [])  # with everything remembered


@both_versions
@pytest.mark.parametrize("payload", [b"", b"x", bytes(124), bytes(125), bytes(300)], ids=len)
def test_plain_publish_equals_publish_packet(version, payload):
    writer = PacketWriter(version)
    expected = writer.encode(PublishPacket("a", payload))
    assert PacketWriter(version).encode_publications([("a", payload)] * 2) == (2 * expected, [])
    assert writer.encode_publications([("#", payload)])[1][0][0] == PublishPacket("#", payload)


def test_batch_of_handshake_packets_equals_single_ones():
    batch: list[packets.AnyHandshakePacket] = [
        PubAckPacket(1),
        PubRecPacket(2, 0x97),
        PubRelPacket(3),
        PubCompPacket(65_535),
        PubRecPacket(4, 0x10),
    ]
    writer = PacketWriter(V5)
    assert writer.encode_handshake_packets(batch) == b"".join(map(writer.encode, batch))


@pytest.mark.parametrize("packet_id", [0, 65_536, -1])
def test_handshake_packet_needs_a_packet_id(packet_id):
    with pytest.raises(ValueError, match=f"packet id {packet_id}"):
        PacketWriter(V5).encode_handshake_packets([PubAckPacket(packet_id)])


def user(name: str, value: str) -> bytes:
    return encode_properties(((P.USER_PROPERTY, (name, value)),))


BAD = {
    "qos 3": PublishPacket("a", b"", qos=3, packet_id=1),
    "negative qos": PublishPacket("a", b"", qos=-1, packet_id=1),
    "dup at qos 0": PublishPacket("a", b"", dup=True),
    "no packet id": PublishPacket("a", b"", qos=1),
    "wildcard": PublishPacket("a/#", b""),
    "empty topic": PublishPacket("", b""),
    "null in topic": PublishPacket("a\0", b""),
    "half a surrogate": PublishPacket("\ud800", b""),
    "topic too long": PublishPacket("a" * 65_536, b""),
    "unknown property": PublishPacket("a", b"", properties=b"\x7f"),
    "half a property": PublishPacket("a", b"", properties=b"\x02\x00"),
    "topic alias": PublishPacket("a", b"", properties=bytes.fromhex("230001")),
    "newline in topic": PublishPacket("a\nb", b""),
    "control character in topic": PublishPacket("a\x9f", b""),
    "non-character in topic": PublishPacket("a\ufdd0", b""),
    "non-character of a far plane": PublishPacket("a\U0010ffff", b""),
    "newline in a user property": PublishPacket("a", b"", properties=user("k", "one\ntwo")),
    "newline in the name of one": PublishPacket("a", b"", properties=user("\n", "")),
    "newline in the content type": PublishPacket(
        "a", b"", properties=encode_properties(((P.CONTENT_TYPE, "\n"),))
    ),
    "hidden identifier": PublishPacket("a", b"", properties=bytes.fromhex("0b01")),
    "identifier": PublishPacket("a", b"", subscription_ids=(1,)),
    "too large": PublishPacket("a", bytes(1_000)),
    "large, at qos 1": PublishPacket("a", bytes(1_000), qos=1, packet_id=1),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_publication_is_left_out_of_its_batch(case):
    good = PublishPacket("a", b"x")
    writer = PacketWriter(V5, bytes_max=1_000)
    data, refused = writer.encode_publications([good, BAD[case], good])
    assert data == 2 * writer.encode(good)
    assert [publish for publish, _ in refused] == [BAD[case]]
    with pytest.raises(ValueError):
        writer.encode(BAD[case])


def test_short_publication_may_be_too_large():
    writer = PacketWriter(V4)
    small, large = PublishPacket("a", bytes(15)), PublishPacket("a", bytes(16))
    writer.set_packet_bytes_max(20)
    data, refused = writer.encode_publications([small, large, small, large])
    assert data == 2 * writer.encode(small)
    assert refused == 2 * [(large, "larger than the broker takes")]


def test_unusual_text_is_sent():
    odd = PublishPacket("\xa0\ufdcf\ufdf0\ufeff\ufffd\U0001f600", b"", properties=user("~", "\xa0"))
    data, refused = PacketWriter(V5).encode_publications([odd])
    assert (data, refused) == (PacketWriter(V5).encode(odd), [])


def test_correlation_data_is_binary():
    raw = encode_properties(((P.CORRELATION_DATA, b"\n\x00"),))
    assert PacketWriter(V5).encode_publications([PublishPacket("a", b"", properties=raw)])[1] == []


def test_properties_are_left_out_in_311():
    raw = encode_properties(((P.CONTENT_TYPE, "x"),))
    assert PacketWriter(V4).encode(PublishPacket("a", b"x", properties=raw)) == bytes.fromhex(
        "30040001 61 78"
    )


@pytest.mark.parametrize(
    ("version", "packet"),
    [
        (V4, packets.PubAckPacket(1, 0x87)),
        (V4, packets.DisconnectPacket(4)),
        (V4, packets.AuthPacket()),
        (V4, SubscribePacket(1, (Subscription("a", no_local=True),))),
        (V4, SubscribePacket(1, (Subscription("a"),), ((P.SUBSCRIPTION_IDENTIFIER, 1),))),
        (V4, ConnectPacket("a", V4, password=b"x")),
        (V5, ConnectPacket("a", V5, bridge=True)),
        (V5, ConnectPacket("a", V5, keep_alive=65_536)),
        (V5, ConnectPacket("a", V5, will=Will("a/+", b""))),
        (V5, ConnectPacket("a", V5, will=Will("a", b"", qos=3))),
        (V5, ConnectPacket("a", V5, will=Will("a", b"", qos=8))),
        (V5, ConnectPacket("a", V5, properties=((P.SERVER_KEEP_ALIVE, 1),))),
        (V5, SubscribePacket(1, ())),
        (V5, SubscribePacket(0, (Subscription("a"),))),
        (V5, SubscribePacket(1, (Subscription("", 1),))),
        (V5, SubscribePacket(1, (Subscription("a", 3),))),
        (V5, SubscribePacket(1, (Subscription("a", 4),))),  # would be read as no local
        (V5, SubscribePacket(1, (Subscription("a", retain_handling=3),))),
        (V5, SubscribePacket(1, (Subscription("$share/g/a", no_local=True),))),
        (V5, packets.ConnAckPacket()),
        (V5, packets.PubAckPacket(1, 0x11)),
    ],
)
def test_invalid_packet_is_not_encoded(version, packet):
    with pytest.raises(ValueError):
        PacketWriter(version).encode(packet)


def test_packet_too_large_has_its_own_error():
    with pytest.raises(PacketTooLarge, match="a packet of 107 bytes, the limit is 100"):
        PacketWriter(V4, bytes_max=100).encode(packets.UnsubscribePacket(1, ("a" * 101,)))


def test_cache_eviction_changes_nothing(monkeypatch):
    monkeypatch.setattr("hansa.mqtt.packet_writer.CACHED_TOPICS_MAX", 3)
    monkeypatch.setattr("hansa.mqtt.packet_writer.CACHED_BLOCKS_MAX", 3)
    raws = [encode_properties(((P.CONTENT_TYPE, str(n)),)) for n in range(5)]
    batch = [PublishPacket(f"t/{n % 7}", b"x", properties=raws[n % 5]) for n in range(70)]
    found: list[packets.AnyPacket] = []
    data, refused = PacketWriter(V5).encode_publications(batch)
    packet_reader.PacketReader(V5, sender=Side.CLIENT).feed(data, found)
    assert (found, refused) == (batch, [])


def test_long_topics_and_properties_are_encoded():
    raw = encode_properties(((P.CONTENT_TYPE, "x" * 100),))
    publish = PublishPacket("a" * 300, b"x", properties=raw)
    found: list[packets.AnyPacket] = []
    packet_reader.PacketReader(V5, sender=Side.CLIENT).feed(PacketWriter(V5).encode(publish), found)
    assert found == [publish]


def test_password_is_not_in_repr():
    connect = ConnectPacket("me", username="user", password=b"secret")
    assert repr(connect) == "ConnectPacket('me', version=<Version.V5: 5>)"
