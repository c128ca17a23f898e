"""Frames and window acks in a stream of bytes; test_tcp and test_mqtt use real streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.agent.links.fragments import FRAGMENT_BYTES, LENGTH_PREFIX_BYTES, StreamReassembly
from hansa.agent.links.stream import FRAGMENT_BIT, WINDOW_ACK_BIT, split_frames
from hansa.errors import InvalidFrame
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def window_ack(count: int) -> bytes:
    return (WINDOW_ACK_BIT | count).to_bytes(4, "big")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.integers(0, 60))
def test_splitting_returns_whole_frames_and_leaves_the_rest(frames, cut):
    data = framed(*frames)
    filled = max(0, len(data) - cut)
    found, used, handled, acknowledged = split_frames(data[:filled], StreamReassembly(0))
    assert (handled, acknowledged) == (used, 0)
    assert found == frames[: len(found)]
    assert used == len(framed(*found))
    rest = filled - used
    assert rest < 4 or rest < 4 + int.from_bytes(data[used : used + 4], "big")


@pytest.mark.parametrize(
    "length",
    [
        0,
        CONTROL_BYTES_MAX + 1,
        FRAGMENT_BIT,
        FRAGMENT_BIT + LENGTH_PREFIX_BYTES + FRAGMENT_BYTES + 1,
        WINDOW_ACK_BIT,
    ],
)
def test_invalid_length_is_refused_before_its_bytes_arrive(length):
    with pytest.raises(InvalidFrame, match=f"a frame of {length} bytes, the limit is"):
        split_frames(length.to_bytes(4, "big"), StreamReassembly(0))


def test_window_acks_among_frames_are_added_up():
    data = window_ack(5) + framed(b"a") + window_ack(7) + window_ack(1)[:3]
    assert split_frames(data, StreamReassembly(0)) == (
        [b"a"],
        len(data) - 3,
        5,
        12,
    )
