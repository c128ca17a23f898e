"""Limits per neighbour: what is within them passes at once, what exceeds them pauses the link."""

import pytest

from hansa.agent.links.budget import BURST_S, PAUSE_MAX_S, LimitSettings, NeighbourBudget
from hansa.errors import UsageError
from hansa.protocol.membership.records import InterestRecord, NodeRecord
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import (
    Fetch,
    InterestAck,
    InterestAcks,
    PendingNotice,
    SealedUnicast,
    SequencedFrame,
    Update,
)

LIMITS = LimitSettings(frames=100, bytes=1_000, records=10, unicasts=5)
NODE = NodeId(1)


@pytest.mark.parametrize(
    ("frames", "size", "limit"), [(1_100, 0, "frames"), (0, 10_500, "bytes"), (1, 1, "")]
)
def test_exceeded_limit_is_named(frames, size, limit):
    pause, name = NeighbourBudget(LIMITS, 0.0).charge(frames, size, 0.0)
    assert (bool(pause), name) == (bool(limit), limit)
    assert pause <= PAUSE_MAX_S


def node_record(links: int) -> NodeRecord:
    others = tuple((NodeId(number), 1) for number in range(links))
    return NodeRecord(NODE, 1, 1, 1, b"", "", (), 1.0, others)


ACK = InterestAck(NODE, NODE, 0, NODE, 0, 0, 0)


@pytest.mark.parametrize(
    ("frame", "records", "unicasts"),
    [
        (Update((node_record(3), node_record(0))), 5, 0),
        (Update((InterestRecord(NODE, 1, 2, 1, ("a", "b"), ("c",)),)), 4, 0),
        (SequencedFrame(1, Update((node_record(1),))), 2, 0),
        (Fetch(()), 1, 0),
        (InterestAcks((ACK, ACK, ACK)), 0, 3),
        (SealedUnicast(NODE, NODE, 1, 1, b""), 0, 1),
        (PendingNotice(NODE, NODE, 0, 0, 0, (NODE,)), 0, 1),
    ],
)
def test_cost_of_control_frames(frame, records, unicasts):
    """A frame is repeated until it has used exactly the burst: nothing pauses; one more does."""
    budget = NeighbourBudget(LimitSettings(records=6, unicasts=6), 0.0)
    repeats = round(6 * BURST_S) // records if records else round(12 * BURST_S) // unicasts
    for _ in range(repeats):
        budget.note_control_frame(frame, 0.0)
    assert budget.charge(0, 0, 0.0) == (0.0, "")
    budget.note_control_frame(frame, 0.0)
    assert budget.charge(0, 0, 0.0)[1] == ("records" if records else "unicasts")


def test_limit_of_zero_is_refused():
    with pytest.raises(UsageError, match=r"\[link.limits\] records must be at least 1"):
        LimitSettings(records=0)
