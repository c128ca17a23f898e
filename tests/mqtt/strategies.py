"""Packets drawn by hypothesis, from the tables of the standard rather than from our code."""

from functools import cache
from typing import Any

from hypothesis import strategies as st

from hansa.mqtt import packets
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import encode_properties
from hansa.mqtt.types import Side, Version

# One to four bytes of UTF-8, a control character, and the byte order mark that must not be skipped.
LETTERS = "ab/ $\x01é€\ufeff😀"
texts = st.text(LETTERS, max_size=8)
topics = st.text(LETTERS, min_size=1, max_size=8)
filters = st.one_of(topics, st.sampled_from(["#", "+", "a/+/b", "a/#", "$share/g/a/#"]))
blobs = st.binary(max_size=40)
packet_ids = st.integers(1, 65_535)
qualities = st.integers(0, 2)

bits, two_bytes, four_bytes = st.integers(0, 1), st.integers(0, 65_535), st.integers(0, 2**32 - 1)
variables = st.one_of(
    st.integers(1, 268_435_455),
    st.sampled_from([1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455]),
)

# Table 2-4 of the standard: each property, its type and the packets that it may be in.
_PROPERTIES: list[tuple[P, st.SearchStrategy[Any], str]] = [
    (P.PAYLOAD_FORMAT_INDICATOR, bits, "publish will"),
    (P.MESSAGE_EXPIRY_INTERVAL, four_bytes, "publish will"),
    (P.CONTENT_TYPE, texts, "publish will"),
    (P.RESPONSE_TOPIC, topics, "publish will"),
    (P.CORRELATION_DATA, blobs, "publish will"),
    (P.SUBSCRIPTION_IDENTIFIER, variables, "subscribe"),
    (P.SESSION_EXPIRY_INTERVAL, four_bytes, "connect connack disconnect"),
    (P.ASSIGNED_CLIENT_IDENTIFIER, texts, "connack"),
    (P.SERVER_KEEP_ALIVE, two_bytes, "connack"),
    (P.AUTHENTICATION_METHOD, texts, "connect connack auth"),
    (P.REQUEST_PROBLEM_INFORMATION, bits, "connect"),
    (P.WILL_DELAY_INTERVAL, four_bytes, "will"),
    (P.REQUEST_RESPONSE_INFORMATION, bits, "connect"),
    (P.RESPONSE_INFORMATION, texts, "connack"),
    (P.SERVER_REFERENCE, texts, "connack disconnect"),
    (P.REASON_STRING, texts, "connack answer disconnect auth"),
    (P.RECEIVE_MAXIMUM, st.integers(1, 65_535), "connect connack"),
    (P.TOPIC_ALIAS_MAXIMUM, two_bytes, "connect connack"),
    (P.MAXIMUM_QOS, bits, "connack"),
    (P.RETAIN_AVAILABLE, bits, "connack"),
    (P.MAXIMUM_PACKET_SIZE, st.integers(1, 2**32 - 1), "connect connack"),
    (P.WILDCARD_SUBSCRIPTION_AVAILABLE, bits, "connack"),
    (P.SUBSCRIPTION_IDENTIFIER_AVAILABLE, bits, "connack"),
    (P.SHARED_SUBSCRIPTION_AVAILABLE, bits, "connack"),
]


@cache
def properties(owner: str, version: Version = Version.V5) -> st.SearchStrategy[Any]:
    """Properties that a packet may have, in any order; user properties any number of times."""
    if version is Version.V311:
        return st.just(())
    single = [
        st.tuples(st.just(name), values)
        for name, values, owners in _PROPERTIES
        if owner in owners.split()
    ]
    user = st.tuples(st.just(P.USER_PROPERTY), st.tuples(texts, texts))
    lists = st.lists(
        st.one_of(user, *single),
        max_size=6,
        unique_by=lambda pair: pair if pair[0] is P.USER_PROPERTY else pair[0],
    )
    return lists.map(tuple)


def _welcome(drawn: Any) -> Any:
    """The same without control characters: a broker may close the connection because of them."""
    if isinstance(drawn, tuple):
        return tuple(map(_welcome, drawn))
    return drawn.replace("\x01", "b") if isinstance(drawn, str) else drawn


@cache
def publishes(
    version: Version, sender: Side = Side.BROKER
) -> st.SearchStrategy[packets.PublishPacket]:
    pairs, names = properties("publish", version), topics
    if sender is Side.CLIENT:
        pairs, names = pairs.map(_welcome), names.map(_welcome)
    raw = pairs.map(encode_properties)
    named: st.SearchStrategy[tuple[int, ...]] = st.just(())
    if version is Version.V5 and sender is Side.BROKER:
        named = st.lists(variables, max_size=3).map(tuple)

    def build(qos: int) -> st.SearchStrategy[packets.PublishPacket]:
        return st.builds(
            packets.PublishPacket,
            topic=names,
            payload=st.one_of(blobs, st.binary(min_size=100, max_size=300)),
            qos=st.just(qos),
            retain=st.booleans(),
            dup=st.booleans() if qos else st.just(False),
            packet_id=packet_ids if qos else st.just(0),
            subscription_ids=named,
            properties=raw,
        )

    return qualities.flatmap(build)


@cache
def _answers(version: Version) -> list[st.SearchStrategy[Any]]:
    codes = {
        packets.PubAckPacket: [0, 0x10, 0x80, 0x97],
        packets.PubRecPacket: [0, 0x10, 0x87, 0x91],
        packets.PubRelPacket: [0, 0x92],
        packets.PubCompPacket: [0, 0x92],
    }
    return [
        st.builds(
            kind,
            packet_ids,
            st.sampled_from(reasons if version is Version.V5 else [0]),
            properties("answer", version),
        )
        for kind, reasons in codes.items()
    ]


@cache
def _subscriptions(version: Version) -> st.SearchStrategy[packets.Subscription]:
    if version is Version.V311:
        return st.builds(packets.Subscription, filters, qualities)
    return st.builds(
        packets.Subscription,
        topics.filter(lambda topic: not topic.startswith("$share/")),
        qualities,
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
    ) | st.builds(packets.Subscription, filters, qualities)


@cache
def connects(version: Version) -> st.SearchStrategy[packets.ConnectPacket]:
    wills = st.builds(
        packets.Will, topics, blobs, qualities, st.booleans(), properties("will", version)
    )

    def build(username: str | None) -> st.SearchStrategy[packets.ConnectPacket]:
        secret = version is Version.V5 or username is not None
        return st.builds(
            packets.ConnectPacket,
            client_id=texts,
            version=st.just(version),
            clean_start=st.booleans(),
            keep_alive=two_bytes,
            username=st.just(username),
            password=st.none() | blobs if secret else st.none(),
            will=st.none() | wills,
            bridge=st.booleans() if version is Version.V311 else st.just(False),
            properties=properties("connect", version),
        )

    return (st.none() | texts).flatmap(build)


@cache
def client_packets(version: Version) -> st.SearchStrategy[Any]:
    """Packets of a client after its CONNECT."""
    v5 = version is Version.V5
    kinds = [
        publishes(version, Side.CLIENT),
        *_answers(version),
        st.builds(
            packets.SubscribePacket,
            packet_ids,
            st.lists(_subscriptions(version), min_size=1, max_size=4).map(tuple),
            properties("subscribe", version),
        ),
        st.builds(
            packets.UnsubscribePacket,
            packet_ids,
            st.lists(filters, min_size=1, max_size=4).map(tuple),
            properties("unsubscribe", version),
        ),
        st.builds(packets.PingReqPacket),
        st.builds(
            packets.DisconnectPacket,
            st.sampled_from([0, 4, 0x80, 0x93] if v5 else [0]),
            properties("disconnect", version),
        ),
    ]
    return st.one_of(kinds)


@cache
def broker_packets(version: Version) -> st.SearchStrategy[Any]:
    v5 = version is Version.V5
    subacks = st.lists(st.sampled_from([0, 1, 2, 0x80, 0x87]), min_size=1, max_size=5).map(bytes)
    unsubacks = st.lists(st.sampled_from([0, 0x11, 0x80]), min_size=1, max_size=5).map(bytes)
    kinds = [
        publishes(version, Side.BROKER),
        *_answers(version),
        st.builds(packets.ConnAckPacket, st.booleans(), st.just(0), properties("connack", version)),
        st.builds(
            packets.ConnAckPacket,
            st.just(False),
            st.sampled_from([0x84, 0x87] if v5 else [1, 5]),
            properties("connack", version),
        ),
        st.builds(packets.SubAckPacket, packet_ids, subacks, properties("answer", version)),
        st.builds(
            packets.UnsubAckPacket,
            packet_ids,
            unsubacks if v5 else st.just(b""),
            properties("answer", version),
        ),
        st.builds(packets.PingRespPacket),
    ]
    if v5:
        disconnects = st.sampled_from([0, 0x81, 0x8E, 0x9D])
        kinds.append(st.builds(packets.DisconnectPacket, disconnects, properties("disconnect")))
        kinds.append(st.builds(packets.AuthPacket, st.sampled_from([0, 0x18]), properties("auth")))
    return st.one_of(kinds)
