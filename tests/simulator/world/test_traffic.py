"""Counting frames and bytes."""

import pytest

from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire import codec
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    Heartbeat,
    MeshMembership,
    SequencedFrame,
)
from hansa.simulator.world.traffic import TrafficCounter

PUBLICATION = Publication(
    origin=NodeId(1), epoch=1, sequence=1, qos=0, topic="a/b", payload=b"x" * 64
)
MEMBERSHIP = MeshMembership(NodeId(1), 1, ("a", "b"))
FRAMES: list[AnyFrame | Publication] = [
    Heartbeat(1, 2, 3, 4),
    CoreAnnouncement(NodeId(1), 1, 1, 0),
    MEMBERSHIP,
    SequencedFrame(1, MEMBERSHIP),
    PUBLICATION,
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
@pytest.mark.parametrize("wire_bytes", [False, True])
def test_frame_size_is_its_encoded_size(frame, wire_bytes):
    size, _ = TrafficCounter(wire_bytes).count_frame(frame)
    assert size == len(codec.encode(frame))


def test_sequenced_frames_count_as_the_type_they_carry():
    traffic = TrafficCounter(wire_bytes=False)
    for frame in FRAMES:
        traffic.count_frame(frame)
    assert traffic.control_frames() == {"CoreAnnouncement": 1, "Heartbeat": 1, "MeshMembership": 2}
    assert list(traffic.control_bytes()) == ["CoreAnnouncement", "Heartbeat", "MeshMembership"]
    assert traffic.data_frames == 1
    assert traffic.data_bytes == len(codec.encode(PUBLICATION))


def test_checksum_distinguishes_frames_of_equal_size():
    traffic = TrafficCounter(wire_bytes=False)
    one, other = (
        traffic.count_frame(CoreAnnouncement(NodeId(1), 1, 1, 0)),
        traffic.count_frame(CoreAnnouncement(NodeId(2), 1, 1, 0)),
    )
    assert one[0] == other[0]
    assert one[1] != other[1]
