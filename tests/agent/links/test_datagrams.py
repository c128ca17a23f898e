"""Frames in datagrams."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.agent.links.datagrams import (
    BODY_BYTES_MAX,
    FRAGMENT_BYTES,
    FRAGMENTS_HELD_MAX,
    FRAGMENTS_MAX,
    SMALL_BYTES_MAX,
    DatagramReassembly,
    pack_frames,
    split_frame,
    unpack_frames,
)
from hansa.errors import InvalidFrame
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX, PUBLICATION


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@given(st.lists(st.binary(min_size=1, max_size=SMALL_BYTES_MAX), max_size=20))
def test_small_frames_share_datagrams(frames):
    bodies = [*pack_frames(frames)]
    assert [frame for body, _ in bodies for frame in unpack_frames(body)] == frames
    assert all(0 < len(body) <= BODY_BYTES_MAX for body, _ in bodies)
    publications = sum(frame[0] == PUBLICATION for frame in frames)
    assert sum(count for _, count in bodies) == publications


def test_datagram_is_filled_with_as_many_frames_as_fit():
    assert len([*pack_frames([b"x" * 10] * 96)]) == 1
    assert len([*pack_frames([b"x" * 10] * 97)]) == 2


@given(st.binary(max_size=50))
def test_arbitrary_bytes_are_parsed_or_refused(body):
    try:
        found = unpack_frames(body)
        expected = [(body, sum(f[0] == PUBLICATION for f in found))] if body else []
        assert [*pack_frames(found)] == expected
    except InvalidFrame as error:
        assert "a frame of " in str(error)


@pytest.mark.parametrize("size", [1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, CONTROL_BYTES_MAX])
def test_frame_is_reassembled_from_fragments_in_any_order(size):
    frame, assembly = noise(size), DatagramReassembly()
    pieces = split_frame(frame)
    assert len(pieces) <= FRAGMENTS_MAX
    assert all(len(piece) <= BODY_BYTES_MAX for piece in pieces)
    random.Random(1).shuffle(pieces)
    assert [assembly.add(piece) for piece in pieces] == [None] * (len(pieces) - 1) + [frame]
    assert len(assembly) == 0


def test_repeated_fragments_complete_an_earlier_attempt():
    frame, assembly, chance = noise(300_000), DatagramReassembly(), random.Random(1)
    attempt = 0
    while True:
        attempt += 1
        arrived = [assembly.add(piece) for piece in split_frame(frame) if chance.random() > 0.1]
        if frame in arrived:
            break
    assert attempt <= 5


def test_oldest_unfinished_frames_are_dropped_first():
    assembly = DatagramReassembly()
    frames = [noise(CONTROL_BYTES_MAX, seed) for seed in range(4)]
    for frame in frames:
        for piece in split_frame(frame)[1:]:
            assert assembly.add(piece) is None
        assert len(assembly) <= FRAGMENTS_HELD_MAX
    assert assembly.add(split_frame(frames[0])[0]) is None
    assert assembly.add(split_frame(frames[-1])[0]) == frames[-1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "a fragment of 0 bytes"),
        (bytes(12), "a fragment of 12 bytes"),
        (bytes(8) + b"\0\0\0\0x", "fragment 0 of 0, the limit is"),
        (bytes(8) + b"\0\2\0\2x", "fragment 2 of 2, the limit is"),
        (bytes(8) + b"\0\0\xff\xffx", "fragment 0 of 65535, the limit is"),
        (bytes(8) + b"\0\0\0\1x", "1 fragments that make no frame"),
    ],
)
def test_invalid_fragments_are_refused(body, reason):
    with pytest.raises(InvalidFrame, match=reason):
        DatagramReassembly().add(body)
