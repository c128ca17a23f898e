"""Which frames count as repeated, and which paths they then take."""

import pytest

from hansa.protocol.membership.graph import Graph
from hansa.protocol.membership.unicast_routes import (
    FAILED_PATHS_MAX,
    SEARCHES_PER_S_MAX,
    UnicastRoutes,
)
from hansa.protocol.model import HOPS_MAX, NodeId
from hansa.protocol.settings import Metric
from hansa.protocol.wire.frames import (
    RETAINED_BUCKETS,
    InterestAck,
    InterestAckRequest,
    Path,
    PendingNotice,
    Query,
    Receipt,
    RepairResponse,
    RetainedDigests,
    RetainedValuesFrame,
    RetainedVersions,
    Unicast,
)

ONE, FOUR = NodeId(1), NodeId(4)
RING = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 1)]
GRID = [(1, 2), (2, 3), (4, 5), (5, 6), (7, 8), (8, 9), (1, 4), (4, 7), (2, 5), (5, 8)]
GRID += [(3, 6), (6, 9)]


def routes(pairs: list[tuple[int, int]] = RING, node: NodeId = ONE) -> UnicastRoutes:
    """By default a ring of six, seen from node 1; the best path to node 4 passes 2 and 3, the best
    path back 3 and 2."""
    graph = Graph(node, Metric.HOPS)
    for each in sorted({end for pair in pairs for end in pair}):
        near = {b if a == each else a for a, b in pairs if each in (a, b)}
        graph.set_links(NodeId(each), {NodeId(end): 0 for end in sorted(near)})
    return UnicastRoutes(node, graph)


def named(made: UnicastRoutes, *frames: Unicast | InterestAck | InterestAckRequest) -> list[Path]:
    """Return the path that each frame names."""
    return [made.route(frame, 0.0)[0].via for frame in frames]


def notice(to: int = 4) -> PendingNotice:
    return PendingNotice(NodeId(to), ONE, 1, 1)


def repair(after: int) -> RepairResponse:
    return RepairResponse(FOUR, ONE, 1, after, after + 5, 0, ())


def path(*nodes: int) -> Path:
    return tuple(map(NodeId, nodes))


REPEATED = [
    notice(),
    Receipt(FOUR, ONE, 1, 1, 1, 100),
    InterestAck(FOUR, 1, 1, ONE, 1, 1, 0),
    InterestAckRequest(FOUR, ONE, 0),
    Query(FOUR, ONE, 1, b"status"),
    repair(5),
]


# ---------------------------------------------------------------- repeated frames


@pytest.mark.parametrize("frame", REPEATED)
def test_repeated_frame_takes_the_other_side_and_then_the_first_one_again(frame):
    assert named(routes(), *[frame] * 4) == [(), (6, 5, 4), (2, 3, 4), (6, 5, 4)]


def test_pending_notice_of_a_later_position_is_a_repetition_until_it_is_answered():
    made = routes()
    first, second, third = (PendingNotice(FOUR, ONE, 1, position) for position in (1, 2, 3))
    assert named(made, first, second) == [(), (6, 5, 4)]
    made.on_answer(FOUR, PendingNotice)
    assert named(made, third) == [(6, 5, 4)]


def test_later_frames_take_the_same_path():
    made, receipt = routes(), Receipt(FOUR, ONE, 1, 2, 2)
    assert named(made, notice(), notice(), receipt, repair(1))[1:] == [(6, 5, 4)] * 3
    values = RetainedValuesFrame(FOUR, ONE, ())
    assert named(made, values, values) == [(6, 5, 4)] * 2
    assert named(made, notice(3)) == [()]


def test_frames_of_one_repair_response_take_one_path():
    answer = [repair(0), repair(5), repair(10)]
    assert named(routes(), *answer, *answer) == [()] * 3 + [(6, 5, 4)] * 3


def test_destination_that_was_unreachable_is_tried_on_the_best_path():
    made = routes()
    assert named(made, notice(), notice()) == [(), (6, 5, 4)]
    made.reset(FOUR)
    assert named(made, notice()) == [()]


def test_repeated_frame_to_a_neighbour_goes_straight():
    assert named(routes(), *[notice(2)] * 3) == [(), (2,), (2,)]


def test_repeated_frame_to_a_neighbour_does_not_pass_a_relay_that_failed():
    """By round-trip time the best path to the neighbour 3 passes 2."""
    graph = Graph(ONE, Metric.RTT)
    lengths = {1: {2: 1, 3: 5}, 2: {1: 1, 3: 1}, 3: {1: 5, 2: 1}}
    for node, near in lengths.items():
        graph.set_links(NodeId(node), {NodeId(end): rtt for end, rtt in near.items()})
    made, frame = UnicastRoutes(ONE, graph), notice(3)
    routed = [made.route(frame, 0.0) for _ in range(2)]
    assert [(each.via, hop) for each, hop in routed] == [((), 2), ((3,), 3)]


def test_request_after_an_answer_is_not_a_repetition():
    made, request = routes(), InterestAckRequest(FOUR, ONE, 0)
    assert named(made, request) == [()]
    made.on_answer(FOUR, InterestAckRequest)
    made.on_answer(NodeId(5), InterestAckRequest)
    assert named(made, request, request) == [(), (6, 5, 4)]


def test_digests_are_repeated_without_a_reason_to_doubt_the_path():
    digests = RetainedDigests(FOUR, ONE, (0,) * RETAINED_BUCKETS)
    assert named(routes(), digests, digests, digests) == [()] * 3


def test_unreachable_destination_leaves_no_state():
    made, lost = routes(), notice(99)
    assert [made.route(lost, 0.0) for _ in range(2)] == [(lost, None)] * 2
    made.on_received(PendingNotice(ONE, NodeId(99), 1, 1, via=path(2, 1)))
    assert made._destinations == {}  # noqa: SLF001


# ---------------------------------------------------------------- choice of the path


def test_path_shares_no_relay_with_those_that_failed():
    """The best path to node 5 passes 2, 3 and 4. Shorter paths around 2 or around 3 pass 4."""
    pairs = [(1, 2), (2, 3), (3, 4), (4, 5), (1, 6), (6, 3), (2, 7), (7, 4), (1, 8), (8, 9)]
    made = routes([*pairs, (9, 10), (10, 11), (11, 5)])
    assert named(made, notice(5), notice(5)) == [(), (8, 9, 10, 11, 5)]


def test_relay_whose_path_has_no_other_has_all_the_blame():
    """Paths 1-2-3 and 1-4-5-6-3 of a grid fail: relay 2 must drop frames, and of 4, 5 and 6 one. So
    the path through 4 and 6 is better than that through 2."""
    assert named(routes(GRID), *[notice(3)] * 3) == [(), (4, 5, 6, 3), (4, 7, 8, 9, 6, 3)]


def test_best_paths_of_frame_and_answer_are_both_blamed():
    """Node 1 takes the path through 2 and 5, and node 6 the one through 3 and 4."""
    pairs = [(1, 2), (2, 5), (5, 6), (1, 4), (4, 3), (3, 6), (1, 7), (7, 8), (8, 9), (9, 6)]
    assert named(routes(pairs), notice(6), notice(6)) == [(), (7, 8, 9, 6)]


def test_number_of_remembered_paths_is_bounded():
    made = routes()
    named(made, *[notice()] * (FAILED_PATHS_MAX + 3))
    assert len(made._destinations[FOUR].failed) == FAILED_PATHS_MAX  # noqa: SLF001


def test_searches_are_bounded_in_time():
    """Peers cause them by not answering."""
    made = routes()
    named(made, *[notice()] * (SEARCHES_PER_S_MAX + 1))
    kept = made.route(notice(), 0.5)[0].via
    assert made.route(notice(), 0.9)[0].via == kept
    assert made.route(notice(3), 0.9)[0].via == made.route(notice(3), 0.9)[0].via == ()
    assert made.route(notice(3), 1.0)[0].via == (6, 5, 4, 3)


@pytest.mark.parametrize(("length", "is_named"), [(HOPS_MAX, True), (HOPS_MAX + 1, False)])
def test_path_that_is_too_long_is_not_named(length, is_named):
    far = length + 1
    made = routes([(node, node + 1) for node in range(1, far)])
    assert bool(named(made, notice(far), notice(far))[1]) == is_named


# ---------------------------------------------------------------- relays


def test_source_sends_to_the_first_relay():
    made = routes()
    assert [made.route(notice(), 0.0)[1] for _ in range(2)] == [2, 6]


@pytest.mark.parametrize(("node", "hop"), [(6, 5), (5, 4)])
def test_relay_sends_to_the_next_one(node, hop):
    frame = PendingNotice(FOUR, ONE, 1, 1, hops=1, via=path(6, 5, 4))
    assert [routes(node=NodeId(node)).route(frame, 0.0) for _ in range(2)] == [(frame, hop)] * 2


@pytest.mark.parametrize("via", [path(6, 5, 4), path(2, 5, 4), path(1, 2)])
def test_relay_without_a_next_one_sends_over_the_best_path(via):
    """Node 2 is not on the first path, not linked to the next relay of the second, and the end of
    the third."""
    frame = PendingNotice(FOUR, ONE, 1, 1, hops=1, via=via)
    best = PendingNotice(FOUR, ONE, 1, 1, hops=1)
    assert routes(node=NodeId(2)).route(frame, 0.0) == (best, 3)


# ---------------------------------------------------------------- proven paths


def test_answers_take_the_named_path_in_reverse():
    made, receipt = routes(), Receipt(FOUR, ONE, 1, 1, 1)
    request = PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6, 1))
    assert not made.on_received(PendingNotice(ONE, FOUR, 1, 1))
    assert named(made, receipt) == [()]
    assert [made.on_received(request) for _ in range(2)] == [True, False]
    assert named(made, receipt) == [(6, 5, 4)]


@pytest.mark.parametrize(
    "frame",
    [
        PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6)),  # it ends elsewhere
        PendingNotice(ONE, FOUR, 1, 1, via=path(5, 4, 6, 1)),  # it returns to its source
        RetainedVersions(ONE, FOUR, (), via=path(5, 6, 1)),  # node 4 is the owner, not the sender
    ],
)
def test_senseless_path_is_ignored(frame):
    made = routes()
    assert not made.on_received(frame)
    assert named(made, Receipt(FOUR, ONE, 1, 1, 1)) == [()]


def test_answer_proves_the_path_that_its_request_named():
    made = routes()
    assert named(made, notice(), notice()) == [(), (6, 5, 4)]
    answer = Receipt(ONE, FOUR, 1, 1, 1, via=path(5, 6, 1))
    assert [made.on_received(answer) for _ in range(2)] == [True, False]


def test_proven_path_is_not_replaced_by_another_one():
    """Otherwise two nodes that chose different paths at the same time exchange them without end."""
    made, receipt = routes(), Receipt(FOUR, ONE, 1, 1, 1)
    assert made.on_received(PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6, 1)))
    assert not made.on_received(PendingNotice(ONE, FOUR, 1, 1, via=path(3, 2, 1)))
    assert named(made, receipt) == [(6, 5, 4)]


def test_direct_link_that_is_proven_again_is_not_reported():
    """Otherwise requests without an answer to a neighbour keep their shortest interval."""
    made, two = routes(), NodeId(2)
    direct = Receipt(ONE, two, 1, 1, 1, via=path(1))
    around = Receipt(ONE, two, 1, 1, 1, via=path(3, 4, 5, 6, 1))
    reported: list[bool] = []
    for answer in (direct, around, around, direct, direct):
        reported.append(made.on_received(answer))
        named(made, notice(2), notice(2))  # the proven path fails
    assert reported == [False, True, True, True, False]


def test_frame_that_is_sent_again_when_its_path_is_proven_is_not_repeated():
    made, ack = routes(), InterestAck(FOUR, 1, 1, ONE, 1, 1, 0)
    assert named(made, ack, ack) == [(), (6, 5, 4)]
    assert made.on_received(PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6, 1)))
    assert named(made, ack) == [(6, 5, 4)]


def test_frame_that_was_sent_over_another_path_is_not_repeated():
    made, receipt = routes(), Receipt(FOUR, ONE, 1, 1, 1)
    assert named(made, receipt) == [()]
    made.on_received(PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6, 1)))
    assert named(made, receipt, receipt) == [(6, 5, 4), (2, 3, 4)]


# ---------------------------------------------------------------- paths that the map has lost


def cut(made: UnicastRoutes, one: int, other: int) -> None:
    graph = made._graph  # noqa: SLF001
    links = dict(graph.lengths(NodeId(one)))
    del links[NodeId(other)]
    graph.set_links(NodeId(one), links)


def test_path_without_a_link_in_the_map_is_replaced_by_one_with_the_least_blame():
    made = routes()
    assert named(made, notice(), notice(), repair(1)) == [(), (6, 5, 4), (6, 5, 4)]
    cut(made, 5, 6)
    assert named(made, repair(2), repair(3)) == [(2, 3, 4)] * 2


def test_proven_path_without_a_link_in_the_map_is_replaced_by_the_best_path():
    made = routes()
    assert made.on_received(PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6, 1)))
    assert named(made, repair(1)) == [(6, 5, 4)]
    cut(made, 5, 4)
    assert named(made, repair(2)) == [()]


def test_path_that_is_proven_by_a_late_frame_is_compared_with_the_map():
    """The frame left before its path lost a link."""
    made = routes()
    late = PendingNotice(ONE, FOUR, 1, 1, via=path(5, 6, 1))
    made.on_received(late)
    cut(made, 5, 4)
    assert named(made, repair(1)) == [()]
    assert made.on_received(late)
    assert named(made, repair(2), repair(3)) == [(), ()]


def test_path_stays_if_the_map_changes_elsewhere():
    made = routes()
    named(made, notice(), notice())
    cut(made, 2, 3)
    assert named(made, repair(1)) == [(6, 5, 4)]


def test_path_that_names_an_unknown_node_is_not_taken():
    made = routes()
    made.on_received(PendingNotice(ONE, FOUR, 1, 1, via=path(99, 1)))
    assert named(made, repair(1)) == [()]


def test_requests_and_mere_receipts_by_turns_are_repetitions():
    """Notices and requests were sent at the same interval: no receipt was like the one before."""
    made = routes()
    mere, request = Receipt(FOUR, ONE, 1, 2, 2), Receipt(FOUR, ONE, 1, 2, 2, 100)
    assert named(made, mere, request, mere) == [(), (), (6, 5, 4)]
    assert named(made, request, mere, request) == [(6, 5, 4), (2, 3, 4), (2, 3, 4)]
