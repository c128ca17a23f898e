"""Which frames count as repeated, and which relays they then avoid."""

import pytest

from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.unicast_routes import UnicastRoutes
from hansa.protocol.model import NodeId
from hansa.protocol.settings import Metric
from hansa.protocol.wire.frames import (
    NO_NODE,
    RETAINED_BUCKETS,
    InterestAck,
    InterestAckRequest,
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedDigests,
    RetainedValuesFrame,
    Unicast,
)

ONE, FOUR = NodeId(1), NodeId(4)
LINKS = {1: (2, 6), 2: (1, 3), 3: (2, 4), 4: (3, 5), 5: (4, 6), 6: (5, 1)}


def routes() -> UnicastRoutes:
    """A ring of six, seen from node 1; the best path to node 4 passes 2 and 3."""
    graph = Graph(ONE, Metric.HOPS)
    for node, ends in LINKS.items():
        graph.set_links(NodeId(node), {NodeId(end): 0 for end in ends})
    return UnicastRoutes(graph)


def avoided(made: UnicastRoutes, *frames: Unicast | InterestAck | InterestAckRequest) -> list[int]:
    return [made.route(frame)[0].avoid for frame in frames]


def repair(after: int) -> RepairResponse:
    return RepairResponse(FOUR, ONE, 1, after, after + 5, 0, ())


REPEATED = [
    PendingNotice(FOUR, ONE, 1, 1),
    Receipt(FOUR, ONE, 1, 1, 1, 100),
    InterestAck(FOUR, 1, 1, ONE, 1, 1, 0),
    InterestAckRequest(FOUR, ONE, 0),
    repair(5),
]


@pytest.mark.parametrize("frame", REPEATED)
def test_repeated_frame_avoids_one_relay_after_the_other(frame):
    assert avoided(routes(), *[frame] * 5) == [NO_NODE, 2, 3, NO_NODE, 2]


def test_repeated_frame_takes_another_next_hop():
    made, notice = routes(), PendingNotice(FOUR, ONE, 1, 1)
    assert [made.route(notice)[1] for _ in range(2)] == [2, 6]


def test_later_frames_take_the_same_detour():
    made, notice = routes(), PendingNotice(FOUR, ONE, 1, 1)
    assert avoided(made, notice, notice, PendingNotice(FOUR, ONE, 1, 2), repair(1)) == [0, 2, 2, 2]
    assert avoided(
        made, RetainedValuesFrame(FOUR, ONE, ()), RetainedValuesFrame(FOUR, ONE, ())
    ) == [
        2,
        2,
    ]
    assert avoided(made, PendingNotice(NodeId(3), ONE, 1, 1)) == [NO_NODE]


def test_frames_of_one_repair_answer_take_one_path():
    answer = [repair(0), repair(5), repair(10)]
    assert avoided(routes(), *answer, *answer) == [0, 0, 0, 2, 2, 2]


def test_relayed_frame_keeps_what_its_source_avoids():
    made = routes()
    relayed = PendingNotice(FOUR, NodeId(6), 1, 1, hops=1, avoid=NodeId(2))
    assert [made.route(relayed) for _ in range(2)] == [(relayed, 6)] * 2


def test_destination_that_was_unreachable_is_tried_on_the_best_path():
    made, notice = routes(), PendingNotice(FOUR, ONE, 1, 1)
    assert avoided(made, notice, notice) == [NO_NODE, 2]
    made.reset(FOUR)
    assert avoided(made, notice) == [NO_NODE]


def test_repeated_frame_to_a_neighbour_has_no_relay_to_avoid():
    notice = PendingNotice(NodeId(2), ONE, 1, 1)
    assert avoided(routes(), notice, notice) == [NO_NODE, NO_NODE]


def test_request_after_an_answer_is_not_a_repetition():
    made, request = routes(), InterestAckRequest(FOUR, ONE, 0)
    assert avoided(made, request) == [NO_NODE]
    made.on_interest_ack(FOUR)
    made.on_interest_ack(NodeId(5))
    assert avoided(made, request, request) == [NO_NODE, 2]


def test_digests_are_repeated_without_a_reason_to_doubt_the_path():
    digests = RetainedDigests(FOUR, ONE, (0,) * RETAINED_BUCKETS)
    assert avoided(routes(), digests, digests, digests) == [NO_NODE] * 3


def test_unreachable_destination_leaves_no_state():
    made, notice = routes(), PendingNotice(NodeId(99), ONE, 1, 1)
    assert [made.route(notice) for _ in range(2)] == [(notice, None)] * 2
    assert made._destinations == {}  # noqa: SLF001
