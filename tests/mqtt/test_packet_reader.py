"""Bytes in any chunks give the same packets, and malformed input only BrokerMisbehaved."""

import tracemalloc
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.mqtt import strategies

from hansa.errors import BrokerMisbehaved, HansaError
from hansa.mqtt import packet_reader, packets
from hansa.mqtt.packet_reader import PACKET_BYTES_LIMIT_MIN, PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.packets import OversizedPublish, PubAckPacket, PublishPacket
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import encode_properties
from hansa.mqtt.types import Side, Version

V4, V5 = Version.V311, Version.V5
both_versions = pytest.mark.parametrize("version", Version)


def read(data: bytes, version: Version = V5, sender: Side = Side.BROKER, **options: int):
    found: list[packets.AnyPacket] = []
    PacketReader(version, sender=sender, **options).feed(data, found)
    return found


def refused(text: str, version: Version = V5, sender: Side = Side.BROKER) -> tuple[str, int]:
    with pytest.raises(BrokerMisbehaved) as raised:
        read(bytes.fromhex(text), version, sender)
    return str(raised.value), raised.value.reason


# ---------------------------------------------------------------- what is written is read


@cache
def streams(version: Version, sender: Side):
    one = strategies.client_packets if sender is Side.CLIENT else strategies.broker_packets
    return st.lists(one(version), max_size=5)


@both_versions
@pytest.mark.parametrize("sender", Side)
@given(data=st.data())
def test_packets_survive_any_split(version, sender, data):
    sent = data.draw(streams(version, sender))
    writer = PacketWriter(version, sender=sender)
    written = b"".join(map(writer.encode, sent))
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=12))
    found: list[packets.AnyPacket] = []
    one = PacketReader(version, sender=sender)
    for start, end in pairwise(sorted({0, *cuts, len(written)})):
        one.feed(memoryview(written)[start:end], found)
    assert found == sent


@both_versions
@settings(max_examples=50)
@given(data=st.data())
def test_connect_sets_the_version(version, data):
    connect = data.draw(strategies.connects(version))
    publish = data.draw(strategies.publishes(version, Side.CLIENT))
    writer = PacketWriter(version)
    written = writer.encode(connect) + writer.encode(publish)
    for assumed in Version:
        assert read(written, assumed, Side.CLIENT) == [connect, publish]


@both_versions
def test_reads_single_bytes(version):
    sent = [PublishPacket("a/b", bytes(n), 1, packet_id=n + 1) for n in (0, 60, 127, 128, 300)]
    written, _ = PacketWriter(version).encode_publications(sent)
    found: list[packets.AnyPacket] = []
    one = PacketReader(version)
    for byte in written:
        one.feed(bytes((byte,)), found)
    assert found == sent


def test_packets_before_a_fault_are_returned():
    found: list[packets.AnyPacket] = []
    with pytest.raises(BrokerMisbehaved):
        PacketReader(V4).feed(bytes.fromhex("40020001 d000 4002 0000 40020002"), found)
    assert found == [PubAckPacket(1), packets.PingRespPacket()]


# ---------------------------------------------------------------- what must be refused

NOT_FROM_A_BROKER = "header 0x{}: a packet that no broker sends in {}"

REFUSED = {
    "a kind that does not exist": ("00 00", V5, "header 0x00", 0x81),
    "what only a client sends": ("c0 00", V5, NOT_FROM_A_BROKER.format("c0", "V5"), 0x81),
    "disconnect in 3.1.1": ("e0 00", V4, NOT_FROM_A_BROKER.format("e0", "V311"), 0x81),
    "auth in 3.1.1": ("f0 00", V4, NOT_FROM_A_BROKER.format("f0", "V311"), 0x81),
    "reserved bits": ("41 02 0001", V5, "header 0x41", 0x81),
    "pubrel without its bits": ("60 02 0001", V5, "header 0x60", 0x81),
    "a wrong kind before its body": ("10 7f", V5, "header 0x10", 0x81),
    "a length of five bytes": ("30 8080808001", V5, "header: a length of more than 4", 0x81),
    "a length of five bytes in 3.1.1": ("30 80808080", V4, "header: a length of more", 0x81),
    "a length in more bytes than needed": ("d0 8000", V5, "header: length 0 in more", 0x81),
    "a length of one byte too many": ("40 828000 0001", V5, "header: length 2 in more", 0x81),
    "qos 3": ("36 08 0001 61 0001 00 0000", V5, "PUBLISH: flags 0110", 0x81),
    "dup at qos 0": ("38 04 0001 61 00", V5, "PUBLISH: flags 1000", 0x81),
    "publish without topic length": ("30 01 00", V5, "PUBLISH: 1 bytes do not hold", 0x81),
    "publish with nothing": ("30 00", V5, "PUBLISH: 0 bytes do not hold", 0x81),
    "publish with nothing, more behind": ("30 00 d000", V5, "PUBLISH: 2 bytes needed", 0x81),
    "topic across the end": ("30 03 0004 61", V4, "PUBLISH: 4 bytes needed, 1 left", 0x81),
    "empty topic": ("30 03 0000 00", V5, "PUBLISH: '' is not a topic name", 0x90),
    "wildcard in topic": ("30 04 0001 23 00", V5, "PUBLISH: '#' is not a topic name", 0x90),
    "topic not utf-8": ("30 04 0001 ff 00", V5, "PUBLISH: text is not UTF-8", 0x81),
    "topic with half a surrogate": ("30 05 0003 eda080", V4, "PUBLISH: text is not", 0x81),
    "topic overlong": ("30 04 0002 c080", V4, "PUBLISH: text is not UTF-8", 0x81),
    "topic with null": ("30 04 0001 00 00", V5, "PUBLISH: text contains the null", 0x81),
    "packet id 0": ("32 06 0001 61 0000 00", V5, "PUBLISH: packet id 0", 0x82),
    "no room for the packet id": ("32 04 0001 61 00", V4, "PUBLISH: 4 bytes do not", 0x81),
    "no properties": ("30 03 0001 61", V5, "PUBLISH: 3 bytes do not hold", 0x81),
    "no properties, more behind": ("30 03 0001 61 d000", V5, "PUBLISH: 1 bytes ne", 0x81),
    "properties across the end": ("30 04 0001 61 01", V5, "PUBLISH: 1 bytes needed", 0x81),
    "topic alias": ("30 07 0001 61 03 23 0001", V5, "PUBLISH properties: a topic alias", 0x94),
    "property of another packet": ("30 06 0001 61 02 24 01", V5, "PUBLISH properties: max", 0x81),
    "suback without codes": ("90 02 fde8", V4, "SUBACK: no reason codes", 0x81),
    "suback without codes in 5": ("90 03 fde8 00", V5, "SUBACK: no reason codes", 0x81),
    "suback with half an id": ("90 01 fd", V5, "SUBACK: 2 bytes needed, 1 left", 0x81),
    "suback granting qos 3": ("90 03 fde8 03", V4, "SUBACK: reason code 0x03", 0x82),
    "unsuback without codes in 5": ("b0 03 fde8 00", V5, "UNSUBACK: no reason codes", 0x81),
    "unsuback with codes in 3.1.1": ("b0 03 fde8 00", V4, "UNSUBACK: 1 bytes too many", 0x81),
    "unsuback granting": ("b0 04 fde8 00 01", V5, "UNSUBACK: reason code 0x01", 0x82),
    "puback of id 0": ("40 02 0000", V4, "PUBACK: packet id 0", 0x82),
    "puback too long in 3.1.1": ("40 03 0001 00", V4, "PUBACK: 1 bytes too many", 0x81),
    "puback with a code of others": ("40 03 0001 11", V5, "PUBACK: reason code 0x11", 0x82),
    "pubcomp with a code of others": ("70 03 0001 10", V5, "PUBCOMP: reason code 0x10", 0x82),
    "pingresp with a body": ("d0 01 00", V5, "PINGRESP: 1 bytes too many", 0x81),
    "connack flags": ("20 03 02 00 00", V5, "CONNACK: flags 0x02 with code 0x00", 0x81),
    "session for a refused client": ("20 02 01 05", V4, "CONNACK: flags 0x01 with", 0x81),
    "connack without properties": ("20 02 00 00", V5, "CONNACK: 1 bytes needed, 0 left", 0x81),
    "connack with a code of others": ("20 03 00 10 00", V5, "CONNACK: reason code 0x10", 0x82),
    "connack too short": ("20 01 00", V4, "CONNACK: 1 bytes needed, 0 left", 0x81),
    "disconnect with bytes too many": ("e0 03 00 00 00", V5, "DISCONNECT: 1 bytes too", 0x81),
    "disconnect with a code of others": ("e0 01 10", V5, "DISCONNECT: reason code 0x10", 0x82),
    "auth with a code of others": ("f0 02 10 00", V5, "AUTH: reason code 0x10", 0x82),
}


@pytest.mark.parametrize("case", REFUSED)
def test_broker_may_not_send(case):
    text, version, message, reason = REFUSED[case]
    text_found, code = refused(text, version)
    assert (text_found[: len(message)], code) == (message, reason)


REFUSED_FROM_CLIENT = {
    "another protocol": ("10 0e 0006 4d5149736470 03 02 0000 0000", "CONNECT: protocol b'MQIs"),
    "a later level": ("10 0c 0004 4d515454 06 02 0000 0000", "CONNECT: protocol b'MQTT' level 6"),
    "reserved connect flag": ("10 0c 0004 4d515454 04 03 0000 0000", "CONNECT: reserved bit"),
    "password alone": ("10 0e 0004 4d515454 04 42 0000 0000 0000", "CONNECT: a password"),
    "will qos without will": ("10 0c 0004 4d515454 04 0a 0000 0000", "CONNECT: flags of the w"),
    "will retain without will": ("10 0c 0004 4d515454 04 22 0000 0000", "CONNECT: flags of th"),
    "will qos 3": ("10 11 0004 4d515454 04 1e 0000 0000 0001 61 0000", "CONNECT: flags of the"),
    "subscribe without filters": ("82 02 0001", "SUBSCRIBE: 2 bytes needed, 0 left"),
    "an empty filter": ("82 05 0001 0000 00", "SUBSCRIBE: an empty topic filter"),
    "options of 5 in 3.1.1": ("82 06 0001 0001 61 04", "SUBSCRIBE: options 0x04 of 'a'"),
    "unsubscribe without filters": ("a2 02 0001", "UNSUBSCRIBE: 2 bytes needed, 0 left"),
}


@pytest.mark.parametrize("case", REFUSED_FROM_CLIENT)
def test_client_may_not_send(case):
    text, message = REFUSED_FROM_CLIENT[case]
    assert refused(text, V4, Side.CLIENT)[0][: len(message)] == message


def test_client_may_not_send_in_5():
    cases = {
        "82 10 0001 00 000a 2473686172652f672f61 04": "SUBSCRIBE: no local with '$share/g/a'",
        "82 07 0001 00 0001 61 03": "SUBSCRIBE: options 0x03 of 'a'",
        "82 07 0001 00 0001 61 40": "SUBSCRIBE: options 0x40 of 'a'",
        "82 07 0001 00 0001 61 30": "SUBSCRIBE: options 0x30 of 'a'",
        "30 06 0001 61 02 0b01": "PUBLISH: a subscription identifier",
    }
    for text, message in cases.items():
        assert refused(text, V5, Side.CLIENT)[0].startswith(message)


def test_overlong_length_is_legal_in_311():
    assert read(bytes.fromhex("40 828000 0001"), V4) == [PubAckPacket(1)]


def test_connack_of_either_version_is_understood():
    """A broker that does not support our version answers in the format of its own version."""
    assert read(bytes.fromhex("20 02 00 01"), V5) == [packets.ConnAckPacket(reason=1)]
    assert read(bytes.fromhex("20 03 00 84 00"), V4) == [packets.ConnAckPacket(reason=0x84)]


def test_unknown_reason_codes_are_refusals():
    assert read(bytes.fromhex("40 03 0001 f0")) == [PubAckPacket(1, 0xF0)]
    assert PubAckPacket(1, 0xF0).is_refused and not PubAckPacket(1, 0x10).is_refused


def test_error_is_broker_misbehaved():
    assert issubclass(BrokerMisbehaved, HansaError)


# ---------------------------------------------------------------- sizes


@both_versions
@pytest.mark.parametrize("text", ["90 ff ff ff 7f", "40 82 02"])
def test_oversized_packet_is_refused_by_its_header(version, text):
    with pytest.raises(BrokerMisbehaved, match="the limit is 256") as raised:
        read(bytes.fromhex(text), version, bytes_max=256)
    assert raised.value.reason == 0x95


def test_oversized_publication_is_refused_in_5():
    with pytest.raises(BrokerMisbehaved, match="header 0x30: 1003 bytes, the limit is 1000"):
        read(bytes.fromhex("30 e807"), V5, bytes_max=1000)


def test_packet_of_exactly_the_limit_is_read():
    publish = PublishPacket("a", bytes(256 - 7))
    data = PacketWriter(V5).encode(publish)
    assert len(data) == 256
    assert read(data, V5, bytes_max=256) == [publish]


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=6),
    qos=st.integers(0, 2),
    cut=st.integers(1, 400),
)
@example(sizes=[400, 0, 400], qos=2, cut=7)
def test_oversized_publication_is_skipped_in_311(sizes, qos, cut):
    """The broker cannot know our limit, and would send it again after every reconnection."""
    sent = [PublishPacket("a/b", bytes(size), qos, packet_id=9 if qos else 0) for size in sizes]
    written, _ = PacketWriter(V4).encode_publications(sent)
    found: list[packets.AnyPacket] = []
    one = PacketReader(V4, bytes_max=256)
    for start in range(0, len(written), cut):
        one.feed(written[start : start + cut], found)
    sizes_of = [len(PacketWriter(V4).encode(publish)) for publish in sent]
    assert found == [
        publish if size <= 256 else OversizedPublish("a/b", qos, False, publish.packet_id, size)
        for publish, size in zip(sent, sizes_of, strict=True)
    ]


@pytest.mark.parametrize("cut", [1_000, 70_000, 400_000])
def test_oversized_payload_is_discarded_as_it_arrives(cut):
    large, small = PublishPacket("a/b", bytes(100_000), 1, packet_id=9), PublishPacket("a/b", b"x")
    written, _ = PacketWriter(V4).encode_publications([large, small, large])
    found: list[packets.AnyPacket] = []
    one = PacketReader(V4, bytes_max=256)
    for start in range(0, len(written), cut):
        one.feed(written[start : start + cut], found)
    rest = OversizedPublish("a/b", 1, False, 9, len(PacketWriter(V4).encode(large)))
    assert found == [rest, small, rest]


def test_oversized_publication_is_validated():
    for text, message in {
        "36 8010 0001 61 0001": "flags",
        "32 8010 0001 61 0000": "packet id 0",
        "30 8010 0001 2b": "not a topic name",
    }.items():
        with pytest.raises(BrokerMisbehaved, match=message):
            read(bytes.fromhex(text) + bytes(66_000), V4, bytes_max=256)


def test_packet_limit_has_a_minimum():
    with pytest.raises(ValueError, match="at least 256 must fit"):
        PacketReader(V5, PACKET_BYTES_LIMIT_MIN - 1)


def test_buffer_is_bounded_by_received_bytes():
    """A header may declare 256 MB; no memory is reserved for it."""
    one = PacketReader(V5)
    found: list[packets.AnyPacket] = []
    tracemalloc.start()
    one.feed(bytes.fromhex("30 ffffff7f"), found)
    for _ in range(1_000):
        one.feed(b"\x00\x01a", found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == []
    assert peak < 4 * 3_000 + 2_000


def test_large_packet_in_small_chunks_takes_linear_time():
    """Copying the buffer for every chunk would take minutes."""
    size = 8 << 20
    data = PacketWriter(V5).encode(PublishPacket("a", bytes(size)))
    one = PacketReader(V5)
    found: list[packets.AnyPacket] = []
    for start in range(0, len(data), 256):
        one.feed(data[start : start + 256], found)
    assert len(found) == 1


@both_versions
def test_memory_of_a_chunk_is_a_small_multiple(version):
    """The smallest packets are the most expensive: a few bytes become an object each."""
    plain = PacketWriter(version, sender=Side.BROKER).encode(PublishPacket("a", b""))
    chunks = [plain * 10_000, bytes.fromhex("40020001") * 10_000, bytes.fromhex("d000") * 10_000]
    for chunk in chunks:
        one = PacketReader(version)
        found: list[packets.AnyPacket] = []
        tracemalloc.start()
        one.feed(chunk, found)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(found) == 10_000
        assert peak < 32 * len(chunk)


def test_number_of_decoded_properties_is_bounded():
    user = encode_properties(((P.USER_PROPERTY, ("", "")),))
    raw = user * 1_025
    body = bytes((0, 0, 0x85, 0x28)) + raw
    assert len(raw) == 0x28 * 128 + 5
    with pytest.raises(BrokerMisbehaved, match="CONNACK: more than 1024 properties"):
        read(bytes.fromhex("20 8928") + body)


def test_publish_may_have_any_number_of_properties():
    """A client that refused it would lose the connection and get the same packet again."""
    publish = PublishPacket(
        "a", b"", properties=encode_properties(((P.USER_PROPERTY, ("", "")),)) * 20_000
    )
    assert read(PacketWriter(V5).encode(publish)) == [publish]


# ---------------------------------------------------------------- what is remembered


def test_cache_eviction_changes_nothing(monkeypatch):
    monkeypatch.setattr(packet_reader, "CACHED_TOPICS_MAX", 3)
    monkeypatch.setattr(packet_reader, "CACHED_BLOCKS_MAX", 3)
    sent = [PublishPacket(f"t/{n % 7}", b"x", subscription_ids=(1 + n % 5,)) for n in range(100)]
    written, _ = PacketWriter(V5, sender=Side.BROKER).encode_publications(sent)
    assert read(written) == sent


def test_long_topics_and_properties_are_not_cached():
    long = "x" * (packet_reader.CACHED_TOPIC_BYTES_MAX + 1)
    raw = encode_properties(((P.CONTENT_TYPE, "x" * packet_reader.CACHED_BLOCK_BYTES_MAX),))
    sent = [PublishPacket(long, b"x", properties=raw)] * 2
    written, _ = PacketWriter(V5).encode_publications(sent)
    assert read(written) == sent


def test_cached_properties_do_not_hide_a_fault():
    """The second block is cached, but does not fit into its packet."""
    known = "30 06 0001 61 02 0b07"
    with pytest.raises(BrokerMisbehaved, match="PUBLISH: 5 bytes do not hold its fields"):
        read(bytes.fromhex(known + "30 05 0001 61 02 0b07"))
    with pytest.raises(BrokerMisbehaved, match="PUBLISH: 7 bytes do not hold its fields"):
        read(bytes.fromhex(known + "32 07 0001 61 0001 02 0b07"))
    with pytest.raises(BrokerMisbehaved, match="PUBLISH: 2 bytes do not hold its fields"):
        read(bytes.fromhex(known + "30 02 0001 61"))
