"""Nothing leaves that a correct receiver refuses, one by one or in a batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mqtt import strategies

from hansa.mqtt import packets, reader
from hansa.mqtt.packets import (
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Will,
)
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import encode
from hansa.mqtt.types import Side, Version
from hansa.mqtt.writer import TooLarge, Writer

V4, V5 = Version.V311, Version.V5
both_versions = pytest.mark.parametrize("version", Version)


@both_versions
@settings(max_examples=40)
@given(data=st.data())
def test_batch_is_the_same_bytes_as_one_by_one(version, data):
    batch = data.draw(st.lists(strategies.publishes(version, Side.CLIENT), max_size=6))
    writer = Writer(version)
    expected = b"".join(Writer(version).encode(publish) for publish in batch)
    assert writer.publish(batch) == (expected, [])
    assert writer.publish(batch) == (expected, [])  # with everything remembered


@both_versions
@pytest.mark.parametrize("payload", [b"", b"x", bytes(124), bytes(125), bytes(300)], ids=len)
def test_a_plain_publication_is_the_same_bytes_as_a_whole_one(version, payload):
    writer = Writer(version)
    expected = writer.encode(Publish("a", payload))
    assert Writer(version).publish([("a", payload)] * 2) == (2 * expected, [])
    assert writer.publish([("#", payload)])[1][0][0] == Publish("#", payload)


def test_answers_in_a_batch_are_the_same_bytes_as_one_by_one():
    batch: list[packets.Handshake] = [
        PubAck(1),
        PubRec(2, 0x97),
        PubRel(3),
        PubComp(65_535),
        PubRec(4, 0x10),
    ]
    writer = Writer(V5)
    assert writer.answer(batch) == b"".join(map(writer.encode, batch))


@pytest.mark.parametrize("packet_id", [0, 65_536, -1])
def test_answer_needs_a_packet_id(packet_id):
    with pytest.raises(ValueError, match=f"packet id {packet_id}"):
        Writer(V5).answer([PubAck(packet_id)])


def user(name: str, value: str) -> bytes:
    return encode(((P.USER_PROPERTY, (name, value)),))


BAD = {
    "qos 3": Publish("a", b"", qos=3, packet_id=1),
    "negative qos": Publish("a", b"", qos=-1, packet_id=1),
    "dup at qos 0": Publish("a", b"", dup=True),
    "no packet id": Publish("a", b"", qos=1),
    "wildcard": Publish("a/#", b""),
    "empty topic": Publish("", b""),
    "null in topic": Publish("a\0", b""),
    "half a surrogate": Publish("\ud800", b""),
    "topic too long": Publish("a" * 65_536, b""),
    "unknown property": Publish("a", b"", properties=b"\x7f"),
    "half a property": Publish("a", b"", properties=b"\x02\x00"),
    "topic alias": Publish("a", b"", properties=bytes.fromhex("230001")),
    "newline in topic": Publish("a\nb", b""),
    "control character in topic": Publish("a\x9f", b""),
    "non-character in topic": Publish("a\ufdd0", b""),
    "non-character of a far plane": Publish("a\U0010ffff", b""),
    "newline in a user property": Publish("a", b"", properties=user("k", "one\ntwo")),
    "newline in the name of one": Publish("a", b"", properties=user("\n", "")),
    "newline in the content type": Publish("a", b"", properties=encode(((P.CONTENT_TYPE, "\n"),))),
    "hidden identifier": Publish("a", b"", properties=bytes.fromhex("0b01")),
    "identifier": Publish("a", b"", subscriptions=(1,)),
    "too large": Publish("a", bytes(1_000)),
    "large, at qos 1": Publish("a", bytes(1_000), qos=1, packet_id=1),
}


@pytest.mark.parametrize("case", BAD)
def test_publication_that_would_be_refused_is_left_out_of_its_batch(case):
    good = Publish("a", b"x")
    writer = Writer(V5, bytes_max=1_000)
    data, refused = writer.publish([good, BAD[case], good])
    assert data == 2 * writer.encode(good)
    assert [publish for publish, _ in refused] == [BAD[case]]
    with pytest.raises(ValueError):
        writer.encode(BAD[case])


def test_short_publication_may_be_too_large():
    writer = Writer(V4)
    small, large = Publish("a", bytes(15)), Publish("a", bytes(16))
    writer.limit(20)
    data, refused = writer.publish([small, large, small, large])
    assert data == 2 * writer.encode(small)
    assert refused == 2 * [(large, "larger than the broker takes")]


def test_text_that_is_only_unusual_is_sent():
    odd = Publish("\xa0\ufdcf\ufdf0\ufeff\ufffd\U0001f600", b"", properties=user("~", "\xa0"))
    data, refused = Writer(V5).publish([odd])
    assert (data, refused) == (Writer(V5).encode(odd), [])


def test_correlation_data_is_no_text():
    raw = encode(((P.CORRELATION_DATA, b"\n\x00"),))
    assert Writer(V5).publish([Publish("a", b"", properties=raw)])[1] == []


def test_properties_are_left_out_in_311():
    raw = encode(((P.CONTENT_TYPE, "x"),))
    assert Writer(V4).encode(Publish("a", b"x", properties=raw)) == bytes.fromhex("30040001 61 78")


@pytest.mark.parametrize(
    ("version", "packet"),
    [
        (V4, packets.PubAck(1, 0x87)),
        (V4, packets.Disconnect(4)),
        (V4, packets.Auth()),
        (V4, Subscribe(1, (Subscription("a", no_local=True),))),
        (V4, Subscribe(1, (Subscription("a"),), ((P.SUBSCRIPTION_IDENTIFIER, 1),))),
        (V4, Connect("a", V4, password=b"x")),
        (V5, Connect("a", V5, bridge=True)),
        (V5, Connect("a", V5, keep_alive=65_536)),
        (V5, Connect("a", V5, will=Will("a/+", b""))),
        (V5, Connect("a", V5, will=Will("a", b"", qos=3))),
        (V5, Connect("a", V5, will=Will("a", b"", qos=8))),
        (V5, Connect("a", V5, properties=((P.SERVER_KEEP_ALIVE, 1),))),
        (V5, Subscribe(1, ())),
        (V5, Subscribe(0, (Subscription("a"),))),
        (V5, Subscribe(1, (Subscription("", 1),))),
        (V5, Subscribe(1, (Subscription("a", 3),))),
        (V5, Subscribe(1, (Subscription("a", 4),))),  # would be read as no local
        (V5, Subscribe(1, (Subscription("a", retain_handling=3),))),
        (V5, Subscribe(1, (Subscription("$share/g/a", no_local=True),))),
        (V5, packets.ConnAck()),
        (V5, packets.PubAck(1, 0x11)),
    ],
)
def test_packet_that_would_be_refused_or_misread_is_not_written(version, packet):
    with pytest.raises(ValueError):
        Writer(version).encode(packet)


def test_too_large_is_told_apart():
    with pytest.raises(TooLarge, match="a packet of 107 bytes, the limit is 100"):
        Writer(V4, bytes_max=100).encode(packets.Unsubscribe(1, ("a" * 101,)))


def test_forgetting_changes_nothing(monkeypatch):
    monkeypatch.setattr("hansa.mqtt.writer.TOPICS_MAX", 3)
    monkeypatch.setattr("hansa.mqtt.writer.BLOCKS_MAX", 3)
    raws = [encode(((P.CONTENT_TYPE, str(n)),)) for n in range(5)]
    batch = [Publish(f"t/{n % 7}", b"x", properties=raws[n % 5]) for n in range(70)]
    found: list[packets.Any] = []
    data, refused = Writer(V5).publish(batch)
    reader.Reader(V5, sender=Side.CLIENT).feed(data, found)
    assert (found, refused) == (batch, [])


def test_long_topics_and_properties_are_written_too():
    raw = encode(((P.CONTENT_TYPE, "x" * 100),))
    publish = Publish("a" * 300, b"x", properties=raw)
    found: list[packets.Any] = []
    reader.Reader(V5, sender=Side.CLIENT).feed(Writer(V5).encode(publish), found)
    assert found == [publish]


def test_password_is_not_shown():
    connect = Connect("me", username="user", password=b"secret")
    assert repr(connect) == "Connect('me', version=<Version.V5: 5>)"
