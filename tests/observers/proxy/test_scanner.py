"""Packets in a byte stream that is split anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.mqtt.types import PacketType
from hansa.observers.proxy.scanner import (
    PACKET_BYTES_MAX,
    InvalidStream,
    PacketScanner,
    first_packet_bytes,
)


def packet(first: int, body: bytes) -> bytes:
    length = len(body)
    encoded = bytearray()
    while True:
        length, digit = divmod(length, 128)
        encoded.append(digit | (128 if length else 0))
        if not length:
            return bytes([first]) + bytes(encoded) + body


def scan(*chunks: bytes, stale: bytes = b"") -> list[tuple[PacketType, bytes]]:
    """Scan chunks as a proxy does; `stale` bytes of earlier chunks follow each in the buffer."""
    scanner = PacketScanner(frozenset((PacketType.SUBSCRIBE, PacketType.CONNECT)))
    return [
        found
        for chunk in chunks
        if not scanner.skips(memoryview(chunk + stale), len(chunk))
        for found in scanner.feed(chunk)
    ]


def test_only_relevant_packets_are_returned():
    stream = packet(0x10, b"c") + packet(0x30, b"payload") + packet(0x82, b"") + packet(0xC0, b"")
    assert scan(stream) == [(PacketType.CONNECT, b"c"), (PacketType.SUBSCRIBE, b"")]


BODIES = st.one_of(
    st.binary(max_size=5),
    st.binary(min_size=127, max_size=130),
    st.sampled_from([16_383, 16_384]).map(bytes),
)


@given(
    st.lists(st.tuples(st.sampled_from([0x10, 0x30, 0x3D, 0x82, 0xC0]), BODIES)),
    st.binary(max_size=5),
    st.data(),
)
def test_packet_boundaries_do_not_depend_on_chunks(sent, stale, data):
    encoded = [packet(first, body) for first, body in sent]
    stream = b"".join(encoded)
    ends = list(itertools.accumulate(map(len, encoded), initial=0))
    cut = st.one_of(st.integers(0, len(stream)), st.sampled_from(ends))
    cuts = sorted(data.draw(st.lists(cut)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [(PacketType(f >> 4), body) for f, body in sent if f in (0x10, 0x82)]
    assert scan(*chunks, stale=stale) == expected


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383])
def test_one_publication_need_not_be_fed(size):
    scanner = PacketScanner(frozenset((PacketType.SUBSCRIBE,)))
    whole = packet(0x30, bytes(size))
    assert scanner.skips(memoryview(whole), len(whole))
    assert not scanner.skips(memoryview(whole), len(whole) - 1)
    assert not scanner.skips(memoryview(whole + b"0"), len(whole) + 1)


def test_large_publication_is_skipped_and_not_kept():
    scanner = PacketScanner(frozenset((PacketType.SUBSCRIBE,)))
    stream = packet(0x30, bytes(1 << 20))
    assert list(scanner.feed(stream[:1000])) == []
    assert scanner._held == b""  # noqa: SLF001
    assert list(scanner.feed(stream[1000:] + packet(0x82, b"x"))) == [(PacketType.SUBSCRIBE, b"x")]


def test_relevant_packet_has_size_limit():
    with pytest.raises(InvalidStream, match="SUBSCRIBE of 262145 bytes"):
        scan(packet(0x82, bytes(PACKET_BYTES_MAX + 1))[:10])


def test_length_field_above_four_bytes_is_refused():
    with pytest.raises(InvalidStream, match="not MQTT"):
        scan(b"GET / HTTP/1.1"[:1] + b"\xff\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", None),
        (b"\x10", None),
        (b"\x10\x05abc", 7),
        (b"\x10\x80", None),
        (b"\x10\x80\x01", 131),
    ],
)
def test_length_of_the_first_packet(data, length):
    assert first_packet_bytes(data) == length
