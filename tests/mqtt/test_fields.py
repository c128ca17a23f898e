"""The data types of MQTT: round trips and malformed input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import BrokerMisbehaved
from hansa.mqtt.fields import (
    VARIABLE_INTEGER_MAX,
    FieldCursor,
    write_binary,
    write_integer,
    write_packet_id,
    write_text,
    write_variable_integer,
)


def cursor(data: bytes) -> FieldCursor:
    return FieldCursor(data, 0, len(data), "here")


@pytest.mark.parametrize(
    ("value", "text"),
    [  # table 1-1 of the standard: the least and greatest of each length
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (VARIABLE_INTEGER_MAX, "ffffff7f"),
    ],
)
def test_variable_integers_as_in_the_standard(value, text):
    assert write_variable_integer(value) == bytes.fromhex(text)
    assert cursor(bytes.fromhex(text)).read_variable_integer() == value


@given(st.binary(max_size=6))
def test_variable_integer_has_one_encoding(data):
    one = cursor(data)
    try:
        value = one.read_variable_integer()
    except BrokerMisbehaved:
        return
    assert write_variable_integer(value) == data[: one.position]


@pytest.mark.parametrize("text", ["", "80", "8000", "808000", "80808000", "ffffffff01"])
def test_malformed_variable_integers_are_refused(text):
    with pytest.raises(BrokerMisbehaved, match="here: "):
        cursor(bytes.fromhex(text)).read_variable_integer()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_text_round_trip(text):
    assert cursor(write_text(text)).read_text() == text


def test_byte_order_mark_is_not_skipped():
    assert cursor(bytes.fromhex("0003 efbbbf")).read_text() == "\ufeff"


@given(st.binary(max_size=20))
def test_invalid_utf_8_is_refused(data):
    try:
        text = cursor(write_binary(data)).read_text()
    except BrokerMisbehaved:
        return
    assert text.encode() == data
    assert "\0" not in text


@pytest.mark.parametrize("value", [0, 1, 255, 65_535])
def test_integer_round_trip(value):
    assert cursor(write_integer(value, 2)).read_integer(2) == value


@pytest.mark.parametrize(
    "write",
    [
        lambda: write_variable_integer(VARIABLE_INTEGER_MAX + 1),
        lambda: write_variable_integer(-1),
        lambda: write_integer(256, 1),
        lambda: write_integer(-1, 4),
        lambda: write_packet_id(0),
        lambda: write_packet_id(65_536),
        lambda: write_binary(bytes(65_536)),
        lambda: write_text("é" * 32_768),
        lambda: write_text("\ud800"),
    ],
)
def test_values_that_cannot_be_encoded_raise_value_error(write):
    with pytest.raises(ValueError):
        write()


def test_field_across_the_end_is_refused():
    one = FieldCursor(b"\x00\x02ab", 0, 3, "here")
    with pytest.raises(BrokerMisbehaved, match="^here: 2 bytes needed, 1 left$"):
        one.read_text()


def test_remaining_bytes_are_refused():
    with pytest.raises(BrokerMisbehaved, match="^here: 2 bytes too many$"):
        cursor(b"ab").require_end()
