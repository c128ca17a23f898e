"""Reason codes as a person reads them."""

from hansa.mqtt.types import describe_connack_code, describe_reason


def test_codes_have_words():
    assert describe_reason(0x8E) == "0x8e session taken over"
    assert describe_reason(0xF0) == "0xf0 (not defined by MQTT)"


def test_refusals_have_the_words_of_their_version():
    assert describe_connack_code(5) == "0x05 not authorized"
    assert describe_connack_code(0x86) == "0x86 bad user name or password"
