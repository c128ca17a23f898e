"""Messages of mqtt-fed compared with bytes written by hand from the format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import InvalidFrame
from hansa.mqttfed.messages import (
    PREFIXES,
    BeaconMessage,
    ClientMessage,
    CoreAnnouncementMessage,
    FedMessage,
    MembershipMessage,
    RoutedMessage,
    decode_message,
    encode_message,
)

RECORDED: dict[str, tuple[str, str, FedMessage]] = {
    "core announcement": (
        "federator/core_ann/sensors/a",
        "02000000 07000000 03000000 01020000",
        CoreAnnouncementMessage(core=2, sequence=7, distance=3, sender=0x201),
    ),
    "membership": (
        "federator/memb_ann/sensors/a",
        "02000000 ffffffff 05000000",
        MembershipMessage(core=2, sequence=0xFFFF_FFFF, sender=5),
    ),
    "routed publication": (
        "federator/routing/sensors/a",
        "06000000 e8030000 07000000 0500000000000000 32312e3543",
        RoutedMessage(origin=6, sequence=1_000, sender=7, payload=b"21.5C"),
    ),
    "routed publication without payload": (
        "federator/routing/t",
        "06000000 00000000 06000000 0000000000000000",
        RoutedMessage(origin=6, sequence=0, sender=6, payload=b""),
    ),
    "beacon": ("federator/beacon/sensors/a", "", BeaconMessage()),
    "federated publication": ("federated/sensors/a", "32312e3543", ClientMessage(b"21.5C")),
}


@pytest.mark.parametrize(("name", "frame", "message"), RECORDED.values(), ids=RECORDED)
def test_recorded_messages_round_trip(name, frame, message):
    topic, found = decode_message(name, bytes.fromhex(frame))
    assert (found, name) == (message, next(p for p in PREFIXES if name.startswith(p)) + topic)
    if isinstance(message, CoreAnnouncementMessage | MembershipMessage | RoutedMessage):
        assert encode_message(topic, message) == (name, bytes.fromhex(frame))


def test_trailing_bytes_are_ignored():
    name, frame, message = RECORDED["membership"]
    assert decode_message(name, bytes.fromhex(frame) + b"more")[1] == message
    name, frame, message = RECORDED["routed publication"]
    assert decode_message(name, bytes.fromhex(frame) + b"more")[1] == message


@pytest.mark.parametrize(
    ("name", "payload", "reason"),
    [
        ("federator/core_ann/t", bytes(15), "15 bytes are too few for federator/core_ann/"),
        ("federator/memb_ann/t", bytes(11), "11 bytes are too few for federator/memb_ann/"),
        ("federator/routing/t", bytes(19), "19 bytes are too few for federator/routing/"),
        ("federator/routing/t", bytes(12) + b"\x01" + bytes(7), "1 bytes of payload announced, 0"),
        ("federator/routing/t", bytes(12) + b"\xff" * 9, "18446744073709551615 bytes of payload"),
        ("federator/core_ann/", bytes(16), "'federator/core_ann/' contains no topic"),
        ("federator/other/t", b"", "'federator/other/t' is not a topic of mqtt-fed"),
    ],
)
def test_malformed_message_is_refused_with_reason(name, payload, reason):
    with pytest.raises(InvalidFrame, match=f"^{reason}"):
        decode_message(name, payload)


@given(st.sampled_from(PREFIXES), st.text(max_size=5), st.binary(max_size=40))
def test_random_bytes_decode_or_are_invalid(prefix, topic, payload):
    try:
        found, _ = decode_message(prefix + topic, payload)
    except InvalidFrame:
        return
    assert found == topic
