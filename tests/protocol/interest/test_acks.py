"""Acknowledgement of interest, and the frames that carry it."""

from hansa.protocol.effects import Ignored
from hansa.protocol.interest.acks import (
    ACKS_PER_FRAME_MAX,
    AckFrame,
    InterestAckBatcher,
    InterestInstallation,
)
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import InterestAck, InterestAckRequest, InterestAcks

ME, A, B = NodeId(1), NodeId(2), NodeId(3)
ALL: dict[NodeId, None] = {ME: None, A: None, B: None}

# ---------------------------------------------------------------- installation


def installation(*confirmed: NodeId) -> InterestInstallation:
    """Version 4 of an interest, new at 10 s."""
    made = InterestInstallation(ME, ProtocolSettings(interest_ack_retry_interval=2.0))
    made.restart((1, 4), 10.0)
    for node in confirmed:
        made.add_ack(node, (1, 4))
    return made


def test_empty_interest_needs_no_acknowledgement():
    made = InterestInstallation(ME, ProtocolSettings())
    assert (made.is_complete, made.update_complete(ALL, 10.0), made.request_due) == (
        True,
        False,
        None,
    )


def test_new_interest_is_not_installed():
    assert not installation().is_complete


def test_interest_is_installed_once_all_reachable_nodes_have_acknowledged():
    made = installation(A, B)
    assert (made.update_complete(ALL, 11.0), made.is_complete, made.request_due) == (
        True,
        True,
        None,
    )
    assert not made.update_complete(ALL, 11.0)


def test_one_missing_acknowledgement_prevents_installation():
    made = installation(A)
    assert (made.update_complete(ALL, 11.0), made.is_complete) == (False, False)


def test_unreachable_nodes_do_not_count():
    made = installation(A, NodeId(9))
    assert not made.update_complete(ALL, 11.0)
    assert made.update_complete({ME: None, A: None}, 11.0)


def test_interest_of_a_node_alone_is_installed():
    assert installation().update_complete({ME: None}, 11.0)


def test_acknowledgement_of_another_version_does_not_count():
    made = installation(A)
    made.add_ack(B, (1, 3))
    assert not made.update_complete(ALL, 11.0)


def test_newer_interest_must_be_acknowledged_again():
    made = installation(A, B)
    made.update_complete(ALL, 11.0)
    made.restart((1, 5), 12.0)
    assert (made.stamp, made.update_complete(ALL, 12.0)) == ((1, 5), False)


def test_restarted_node_must_acknowledge_again():
    made = installation(A, B)
    made.update_complete(ALL, 11.0)
    made.discard_ack(A)
    assert (made.update_complete(ALL, 12.0), made.is_complete) == (False, False)
    made.add_ack(A, (1, 4))
    assert made.update_complete(ALL, 13.0)


def test_silent_node_is_asked_at_growing_intervals():
    made = installation(A)
    assert (made.request_due, made.pop_due_requests(ALL, 11.0)) == (12.0, [])
    assert (made.pop_due_requests(ALL, 12.0), made.request_due) == ([B], 16.0)
    assert (made.pop_due_requests(ALL, 16.0), made.request_due) == ([B], 24.0)
    for _ in range(8):
        assert made.request_due is not None
        asked_at = made.request_due
        made.pop_due_requests(ALL, asked_at)
    assert made.request_due == asked_at + 64 * 2.0


def test_no_node_is_asked_when_all_have_acknowledged():
    made = installation(A, B)
    made.update_complete(ALL, 11.0)
    assert made.pop_due_requests(ALL, 99.0) == []


def test_new_node_has_time_to_acknowledge():
    made = installation(A, B)
    made.update_complete(ALL, 11.0)
    assert not made.update_complete({**ALL, NodeId(4): None}, 20.0)
    assert made.request_due == 22.0
    assert made.pop_due_requests({**ALL, NodeId(4): None}, 22.0) == [4]


# ---------------------------------------------------------------- frames


def ack(to: int, node: int = 1, version: int = 1, hops: int = 0) -> InterestAck:
    return InterestAck(NodeId(to), 1, version, NodeId(node), 1, 1, hops)


def batcher(*frames: InterestAck | InterestAckRequest) -> InterestAckBatcher:
    """A batcher with frames queued at 10 s."""
    made = InterestAckBatcher(delay=0.5)
    for frame in frames:
        made.add(frame, 10.0)
    return made


def by_tens(frame: AckFrame) -> tuple[AckFrame, NodeId | None]:
    """Nodes from 10 to 19 are reached by node 1, and so on; none above 99."""
    to = frame.destination
    return frame, NodeId(to // 10) if to < 100 else None


NOTHING: tuple[list[object], list[object]] = ([], [])


def test_nothing_is_flushed_without_frames():
    assert (batcher().flush(by_tens, 99.0), batcher().flush_due) == (NOTHING, None)


def test_frames_wait_for_the_delay():
    made = batcher(ack(10))
    made.add(ack(11), 10.25)
    assert (made.flush_due, made.flush(by_tens, 10.25)) == (10.5, NOTHING)


def test_acknowledgements_with_the_same_next_hop_share_a_frame():
    made = batcher(ack(10), ack(20), ack(11))
    frames = [
        (1, InterestAcks((ack(10), ack(11)))),
        (2, InterestAcks((ack(20),))),
    ]
    assert made.flush(by_tens, 10.5) == (frames, [])
    assert (made.flush(by_tens, 99.0), made.flush_due) == (NOTHING, None)


def test_newer_acknowledgement_replaces_an_older_one():
    made = batcher(ack(10, version=1), ack(10, version=2))
    assert made.flush(by_tens, 10.5) == ([(1, InterestAcks((ack(10, version=2),)))], [])


def test_request_has_its_own_frame():
    request = InterestAckRequest(NodeId(20), NodeId(10), 3)
    assert batcher(request).flush(by_tens, 10.5) == ([(2, request)], [])


def test_forwarded_frames_without_a_route_are_dropped_and_counted():
    made = batcher(ack(100, hops=1), InterestAckRequest(NodeId(100), NodeId(10), 1))
    assert made.flush(by_tens, 10.5) == ([], [Ignored("unicast without a route")] * 2)


def test_own_frames_without_a_route_are_not_counted():
    made = batcher(ack(100), InterestAckRequest(NodeId(100), NodeId(10), 0))
    assert made.flush(by_tens, 10.5) == NOTHING


def test_frames_at_the_hop_limit_are_dropped_and_counted():
    made = batcher(ack(10, hops=HOPS_MAX), InterestAckRequest(NodeId(10), NodeId(20), HOPS_MAX))
    assert made.flush(by_tens, 10.5) == ([], [Ignored("unicast past the hop limit")] * 2)
    assert made.flush_due is None


def test_number_of_acknowledgements_in_a_frame_is_bounded():
    acks = [ack(10, node) for node in range(ACKS_PER_FRAME_MAX + 1)]
    frames = [frame for _, frame in batcher(*acks).flush(by_tens, 10.5)[0]]
    assert frames == [InterestAcks(tuple(acks[:-1])), InterestAcks(tuple(acks[-1:]))]
