"""Reason codes as text."""

from hansa.mqtt.types import describe_connack_code, describe_reason


def test_reason_code_text():
    assert describe_reason(0x8E) == "0x8e session taken over"
    assert describe_reason(0xF0) == "0xf0 (not defined by MQTT)"


def test_connack_code_text_by_version():
    assert describe_connack_code(5) == "0x05 not authorized"
    assert describe_connack_code(0x86) == "0x86 bad user name or password"
