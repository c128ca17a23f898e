"""Fragmentation of large frames, and which frames may overtake them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.agent.links.fragments import (
    FRAGMENT_BYTES,
    LENGTH_PREFIX_BYTES,
    FragmentQueue,
    StreamReassembly,
)
from hansa.errors import InvalidFrame
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Heartbeat, RepairResponse

ONE, TWO = NodeId(1), NodeId(2)
FRAME_BYTES_MAX = 4 * FRAGMENT_BYTES
ROOM = 20 * FRAGMENT_BYTES


def publication(origin: NodeId, topic: str, size: int = 0, qos: int = 0) -> bytes:
    return encode(Publication(origin, 1, 1, qos, topic, bytes(size)))


LARGE = publication(ONE, "large", 2 * FRAGMENT_BYTES)
CONTROL = encode(Heartbeat(1, 0, 0, 0))
ANSWER = encode(RepairResponse(ONE, TWO, 1, 0, 1, 0, ()))


def drained(bulk: FragmentQueue) -> list[bytes]:
    """Return the queued frames as they arrive."""
    assembly, arrived = StreamReassembly(FRAME_BYTES_MAX), []
    while bulk:
        data, is_piece, is_whole = bulk.pop_chunk()
        assert len(data) <= FRAGMENT_BYTES + LENGTH_PREFIX_BYTES
        frame = assembly.add(data) if is_piece else data
        assert (frame is not None) == is_whole
        if frame is not None:
            arrived.append(frame)
    assert bulk.queued_bytes == 0
    return arrived


@given(st.lists(st.integers(0, FRAME_BYTES_MAX - 100), max_size=5))
@settings(max_examples=50)
def test_large_frames_are_fragmented_and_small_ones_are_not(sizes):
    frames = [publication(ONE, str(number), size) for number, size in enumerate(sizes)]
    bulk = FragmentQueue(ROOM)
    small = [frame for frame in frames if len(frame) <= FRAGMENT_BYTES]
    assert bulk.enqueue(frames) == (small, 0)
    assert bulk.queued_bytes == sum(len(frame) for frame in frames if len(frame) > FRAGMENT_BYTES)
    assert drained(bulk) == [frame for frame in frames if len(frame) > FRAGMENT_BYTES]


@pytest.mark.parametrize(
    ("frame", "waits"),
    [
        (CONTROL, False),
        (ANSWER, False),
        (publication(ONE, "small"), False),
        (publication(ONE, "large"), True),
        (publication(TWO, "large"), False),
        (publication(ONE, "large", qos=1), False),
    ],
    ids=["control", "answer", "another topic", "its topic", "another origin", "another QoS"],
)
def test_frames_behind_large_qos_0_publication_wait_or_overtake(frame, waits):
    bulk = FragmentQueue(ROOM)
    assert bulk.enqueue([LARGE, frame]) == ([] if waits else [frame], 0)
    assert drained(bulk) == ([LARGE, frame] if waits else [LARGE])


def test_publications_of_qos_1_and_2_of_one_origin_keep_their_order():
    large = publication(ONE, "large", FRAGMENT_BYTES, qos=1)
    behind, beside = publication(ONE, "other", qos=2), publication(TWO, "other", qos=1)
    bulk = FragmentQueue(ROOM)
    assert bulk.enqueue([large, behind, beside]) == ([beside], 0)
    assert drained(bulk) == [large, behind]


def test_large_control_frame_is_not_fragmented():
    large = CONTROL[:1] + bytes(FRAGMENT_BYTES)
    assert FragmentQueue(ROOM).enqueue([large]) == ([large], 0)


def test_publication_bypasses_queue_after_last_fragment():
    bulk = FragmentQueue(ROOM)
    bulk.enqueue([LARGE, publication(TWO, "large", FRAGMENT_BYTES)])
    while not bulk.pop_chunk()[2]:
        pass
    after = publication(ONE, "large")
    assert bulk.enqueue([after]) == ([after], 0)


def test_excess_frames_are_refused_and_responses_are_sent_last():
    answer = encode(RepairResponse(ONE, TWO, 1, 0, 1, 0, (LARGE,)))
    bulk = FragmentQueue(len(LARGE))
    assert bulk.enqueue([LARGE] * 3) == ([], 1)
    assert bulk.enqueue([answer] * 2) == ([], 1)
    assert drained(bulk) == [LARGE, LARGE, answer]


def test_small_publications_fit_behind_large_one():
    small = publication(ONE, "large")
    bulk = FragmentQueue(len(small))
    assert bulk.enqueue([LARGE, LARGE, small, small, small]) == ([], 2)
    assert drained(bulk) == [LARGE, small, small]


def total(count: int) -> bytes:
    return count.to_bytes(LENGTH_PREFIX_BYTES, "big")


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([b""], "a frame of 0 bytes in pieces, the limit is"),
        ([total(FRAGMENT_BYTES) + b"x"], f"a frame of {FRAGMENT_BYTES} bytes in pieces"),
        ([total(FRAME_BYTES_MAX + 1) + b"x"], f"a frame of {FRAME_BYTES_MAX + 1} bytes in pieces"),
        ([total(FRAGMENT_BYTES + 1)], f"a fragment of 0 bytes, {FRAGMENT_BYTES + 1} were missing"),
        (
            [total(FRAGMENT_BYTES + 1) + b"x", b""],
            f"a fragment of 0 bytes, {FRAGMENT_BYTES} were missing",
        ),
        (
            [total(FRAGMENT_BYTES + 1) + bytes(FRAGMENT_BYTES), b"xx"],
            "a fragment of 2 bytes, 1 were missing",
        ),
    ],
)
def test_invalid_fragments_are_refused(pieces, problem):
    assembly = StreamReassembly(FRAME_BYTES_MAX)
    with pytest.raises(InvalidFrame, match=problem):
        for piece in pieces:
            assert assembly.add(piece) is None
