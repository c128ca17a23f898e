"""Properties: round trips, the rules of each, and forwarded ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mqtt import strategies

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.fields import FieldCursor, write_variable_integer
from hansa.mqtt.properties import Property as P
from hansa.mqtt.properties import (
    decode_properties,
    encode_properties,
    find_property,
    message_expiry,
    read_properties,
    split_publish_properties,
    with_reduced_expiry,
    without_expiry,
    write_properties,
)
from hansa.mqtt.types import PacketType


def read_back(raw: bytes, owner: PacketType):
    data = write_variable_integer(len(raw)) + raw
    return read_properties(FieldCursor(data, 0, len(data), owner.name), owner)


def refused(text: str, owner: PacketType) -> str:
    with pytest.raises(BrokerMisbehaved) as raised:
        read_back(bytes.fromhex(text), owner)
    return str(raised.value)


@given(strategies.properties("connack"))
def test_property_round_trip_keeps_order(properties):
    assert read_back(encode_properties(properties), PacketType.CONNACK) == properties


@given(strategies.properties("publish"), st.lists(strategies.variables, max_size=3))
def test_split_extracts_subscription_identifiers(properties, identifiers):
    named = tuple((P.SUBSCRIPTION_IDENTIFIER, each) for each in identifiers)
    middle = len(properties) // 2
    mixed = properties[:middle] + named + properties[middle:]
    assert split_publish_properties(encode_properties(mixed)) == (
        tuple(identifiers),
        encode_properties(properties),
    )
    assert decode_properties(encode_properties(mixed)) == mixed


@pytest.mark.parametrize(
    ("owner", "text", "message"),
    [
        (PacketType.CONNACK, "7f", "CONNACK: unknown property 0x7f"),
        (PacketType.CONNACK, "00", "CONNACK: unknown property 0x00"),
        (PacketType.CONNACK, "8011 00000000", "CONNACK: unknown property 0x80"),
        (PacketType.CONNACK, "01 00", "CONNACK: payload format indicator is not allowed here"),
        (PacketType.CONNACK, "13 0001 13 0001", "CONNACK: server keep alive occurs twice"),
        (PacketType.CONNACK, "21 0000", "CONNACK: receive maximum is 0"),
        (PacketType.CONNACK, "27 00000000", "CONNACK: maximum packet size is 0"),
        (PacketType.CONNACK, "24 02", "CONNACK: maximum qos is 2"),
        (PacketType.CONNACK, "25 02", "CONNACK: retain available is 2"),
        (PacketType.CONNACK, "16 0000", "CONNACK: authentication data without a method"),
        (PacketType.CONNACK, "21 00", "CONNACK: 2 bytes needed, 1 left"),
        (PacketType.CONNACK, "1f 0001 00", "CONNACK: text contains the null character"),
        (PacketType.SUBSCRIBE, "0b 00", "SUBSCRIBE: subscription identifier is 0"),
        (PacketType.SUBSCRIBE, "0b 01 0b 02", "SUBSCRIBE: subscription identifier occurs twice"),
        (PacketType.WILL, "08 0001 2b", "WILL: response topic is '+'"),
        (PacketType.WILL, "08 0000", "WILL: response topic is ''"),
    ],
)
def test_invalid_properties_are_refused(owner, text, message):
    assert refused(text, owner) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("03 26 0000 0000", "CONNACK: the last property crosses the end of 3 bytes"),
        ("05 1f 0000", "CONNACK: 5 bytes of properties declared, 3 left"),
    ],
)
def test_length_must_match(text, message):
    data = bytes.fromhex(text)
    with pytest.raises(BrokerMisbehaved, match=message):
        read_properties(FieldCursor(data, 0, len(data), "CONNACK"), PacketType.CONNACK)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("23 0001", "a topic alias, although none is allowed"),
        ("02 00000001 02 00000001", "message expiry interval occurs twice"),
        ("0b 00", "subscription identifier is 0"),
        ("11 00000000", "session expiry interval is not allowed here"),
    ],
)
def test_split_refuses(raw, message):
    with pytest.raises(BrokerMisbehaved, match=f"^PUBLISH properties: {message}"):
        split_publish_properties(bytes.fromhex(raw))


@pytest.mark.parametrize("raw", ["01 02", "08 0001 23", "08 0003 612f2b", "08 0000"])
def test_values_that_brokers_pass_on_against_the_standard_are_left_out(raw):
    """A connection that ended there would get the publication again at every connect."""
    before, after = bytes.fromhex("03 0001 61"), bytes.fromhex("26 0001 6b 0001 76")
    given = before + bytes.fromhex("0b 07") + bytes.fromhex(raw) + after
    assert split_publish_properties(given) == ((7,), before + after)
    assert split_publish_properties(bytes.fromhex(raw)) == ((), b"")


def test_user_properties_may_repeat():
    twice = ((P.USER_PROPERTY, ("a", "b")), (P.USER_PROPERTY, ("a", "b")))
    assert read_back(encode_properties(twice), PacketType.CONNACK) == twice


def test_find_property():
    properties = ((P.RECEIVE_MAXIMUM, 7), (P.REASON_STRING, "x"))
    assert find_property(properties, P.REASON_STRING, None) == "x"
    assert find_property(properties, P.MAXIMUM_QOS, 2) == 2


@pytest.mark.parametrize(
    "pair",
    [
        (P.RECEIVE_MAXIMUM, 0),
        (P.RECEIVE_MAXIMUM, 65_536),
        (P.RECEIVE_MAXIMUM, "x"),
        (P.REASON_STRING, 7),
        (P.REASON_STRING, "\0"),
        (P.AUTHENTICATION_DATA, "x"),
        (P.USER_PROPERTY, "x"),
        (P.TOPIC_ALIAS, 1),
    ],
)
def test_invalid_properties_are_not_encoded(pair):
    with pytest.raises(ValueError):
        write_properties((pair,), PacketType.CONNECT)


def test_expiry_is_reduced_to_zero():
    before = encode_properties(
        ((P.CONTENT_TYPE, "t"), (P.MESSAGE_EXPIRY_INTERVAL, 10), (P.USER_PROPERTY, ("a", "b")))
    )
    assert message_expiry(before) == 10
    assert with_reduced_expiry(before, 0) == before
    assert [message_expiry(with_reduced_expiry(before, waited)) for waited in (3, 10, 11)] == [
        7,
        0,
        0,
    ]
    others = ((P.CONTENT_TYPE, "t"), (P.USER_PROPERTY, ("a", "b")))
    assert decode_properties(with_reduced_expiry(before, 3))[1:] == others
    assert without_expiry(before) == encode_properties(others)


def test_properties_without_expiry_are_unchanged():
    raw = encode_properties(
        ((P.USER_PROPERTY, ("\x02", "b")),)
    )  # the expiry's number, but not an expiry
    assert message_expiry(raw) is message_expiry(b"") is None
    assert with_reduced_expiry(raw, 5) == without_expiry(raw) == raw


def test_malformed_properties_have_no_expiry():
    for raw in (b"\x02", b"\x7f\x02", b"\x26\x00\x02a"):
        assert message_expiry(raw) is None
        assert with_reduced_expiry(raw, 5) == without_expiry(raw) == raw
