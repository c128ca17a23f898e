"""A hostile broker cannot break the client: generated, damaged and random streams."""

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.mqtt import strategies
from tests.mqtt.fuzz import fuzz_one
from tests.mqtt.test_golden import GOLDEN

from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.types import Side, Version

WAYS = [0, 1, 2, 3, 14, 15]  # both versions, in pieces of 1, 2 and 8 bytes


@given(st.binary(max_size=200))
@example(b"\x0130ffffff7f")
def test_random_bytes(data):
    fuzz_one(data)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.text[:20])
def test_truncated_packets_and_packets_with_a_changed_byte(golden):
    data = golden.data[:40]
    for mode, at in product((0, 1), range(len(data) + 1)):
        fuzz_one(bytes((mode,)) + data[:at])
        fuzz_one(bytes((mode,)) + data[:at] + data)
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            fuzz_one(bytes((mode,)) + data[:at] + bytes((value,)) + data[at + 1 :])


@st.composite
def damaged_streams(draw, version: Version, sender: Side) -> bytes:
    kinds = strategies.broker_packets if sender is Side.BROKER else strategies.client_packets
    sent = draw(st.lists(kinds(version), min_size=1, max_size=4))
    data = bytearray(b"".join(map(PacketWriter(version, sender=sender).encode, sent)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1, data[at] ^ 0x10]))
    cut = draw(st.integers(0, len(data)))
    return bytes(data[cut:] + data[:cut]) if draw(st.booleans()) else bytes(data)


@pytest.mark.parametrize("version", Version)
@pytest.mark.parametrize("sender", Side)
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_streams(version, sender, data):
    stream = data.draw(damaged_streams(version, sender))
    fuzz_one(bytes((data.draw(st.sampled_from(WAYS)),)) + stream)


@pytest.mark.long
@settings(max_examples=20_000)
@given(data=st.data())
def test_damaged_streams_at_length(data):
    version = data.draw(st.sampled_from(list(Version)))
    stream = data.draw(damaged_streams(version, Side.BROKER))
    fuzz_one(bytes((data.draw(st.integers(0, 127)),)) + stream)
