"""The inbox by example; the rules are tested in test_spec_delivery.py."""

from collections.abc import Mapping

from msgspec.structs import replace
from tests.protocol.contexts import context, records

from hansa.protocol.clock import AHEAD_MAX_MS
from hansa.protocol.delivery.inbox import PUBLICATION_OVERHEAD_BYTES, Inbox, memory_bytes
from hansa.protocol.effects import Deliver, Effect, Gap, Ignored
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import PendingNotice, Receipt, RepairResponse

ME, ORIGIN, THIRD, FOURTH = (NodeId(number) for number in range(1, 5))


def inbox(taken: Mapping[NodeId, tuple[int, int]] | None = None, **settings: object) -> Inbox:
    """The inbox of a node that knows three others."""
    around = context(records(2, 3, 4))
    return Inbox(ME, ProtocolSettings(**settings), taken or {}, lambda item: item, around)  # type: ignore[arg-type]


def publication(number: int, previous: int, origin: NodeId = ORIGIN, size: int = 0) -> Publication:
    payload = b"x" * size
    return Publication(origin, 1, number, 1, "t", payload, receivers=((ME, previous),))


def response(
    *items: Publication, after: int = 0, upto: int = 9, acknowledged: int = 0
) -> RepairResponse:
    encoded = tuple(map(encode, items))
    return RepairResponse(ME, ORIGIN, 1, after, upto, 0, encoded, acknowledged=acknowledged)


def delivered(effects: list[Effect]) -> list[int]:
    return [effect.publication.sequence for effect in effects if isinstance(effect, Deliver)]


def test_repair_response_that_does_not_fit_is_ignored():
    made = inbox()
    assert made.receive_repair(response(), 0.0) == [
        Ignored("repair response that was not requested")
    ]
    made.receive_copy(publication(1, 0), 0.0)
    stale = RepairResponse(ME, ORIGIN, 7, 0, 9, 0, ())
    assert made.receive_repair(stale, 0.0) == [Ignored("repair response that was not requested")]


def test_publications_acknowledged_by_an_earlier_incarnation_are_not_sent_again():
    made = inbox()
    made.receive_copy(publication(9, 8), 0.0)
    effects = made.receive_repair(response(publication(8, 5), after=5, upto=8, acknowledged=5), 0.0)
    assert delivered(effects) == [8, 9]
    assert not [effect for effect in effects if isinstance(effect, Gap)]


def test_response_to_an_earlier_incarnation_does_not_cover_uncommitted_publications():
    """It had requested positions after 6, with 2 to 6 not yet committed."""
    made = inbox({ORIGIN: (1, 1)})
    effects = made.receive_repair(response(publication(7, 6), after=6, upto=8, acknowledged=1), 0.0)
    assert effects == [Ignored("repair response without the position before it")]
    assert made.streams[ORIGIN].accepted == 1


def test_publications_acknowledged_by_a_lost_state_are_counted():
    made = inbox({ORIGIN: (1, 2)})
    (effect,) = made.receive_repair(response(after=5, upto=5, acknowledged=5), 0.0)
    assert effect == Ignored("already acknowledged by a lost state, not sent again")
    assert made.receive_repair(response(after=5, upto=5, acknowledged=5), 0.0) == []


def test_response_with_publications_of_another_node_is_ignored():
    made = inbox()
    made.receive_copy(publication(9, 8), 0.0)
    effects = made.receive_repair(response(publication(8, 0, origin=THIRD)), 0.0)
    assert effects == [Ignored("repair response with publications of another node")]
    assert made.streams[ORIGIN].accepted == 0


def test_buffered_publication_that_also_arrives_in_a_response_is_delivered_once():
    made = inbox()
    made.receive_copy(publication(3, 2), 0.0)
    made.receive_copy(publication(4, 3), 0.0)
    made.receive_copy(publication(9, 8), 0.0)
    effects = made.receive_repair(response(publication(2, 0), publication(3, 2), upto=3), 0.0)
    assert delivered(effects) == [2, 3, 4]
    assert list(made.streams[ORIGIN].out_of_order) == [9]


def test_response_is_accepted_as_far_as_there_is_room():
    made = inbox(uncommitted_max=2)
    made.receive_copy(publication(9, 8), 0.0)
    items = [publication(number, number - 1) for number in range(1, 9)]
    assert delivered(made.receive_repair(response(*items, upto=8), 0.0)) == [1, 2]
    assert made.streams[ORIGIN].accepted == 2
    assert made.next_deadline() == 0.02  # a receipt without a request
    made.mark_committed(ORIGIN, 1, 2, 1.0)
    (receipt,) = made.handle_timer(2.0)
    assert receipt == Receipt(ORIGIN, ME, 1, 2, 2, bytes_requested=8 * 65_536)


def test_buffered_publications_follow_the_missing_one():
    made = inbox()
    assert delivered(made.receive_copy(publication(2, 1), 0.0)) == []
    assert delivered(made.receive_copy(publication(1, 0), 0.0)) == [1, 2]


def test_uncommitted_publications_are_bounded_in_bytes():
    each = memory_bytes(publication(1, 0, size=60))
    made = inbox(uncommitted_bytes_max=2 * each)
    came = [delivered(made.receive_copy(publication(n, n - 1, size=60), 0.0)) for n in range(1, 5)]
    assert came == [[1], [2], [], []]
    assert delivered(made.mark_committed(ORIGIN, 1, 1, 1.0)) == [3]
    assert made.uncommitted_bytes == 2 * each


def test_memory_of_a_publication_includes_contents_and_overhead():
    plain = Publication(ORIGIN, 1, 1, 1, "t", b"")
    full = replace(plain, topic="t" * 3, properties=b"p" * 5, payload=b"x" * 7)
    assert memory_bytes(full) == memory_bytes(plain) + 2 + 5 + 7
    assert memory_bytes(plain) > PUBLICATION_OVERHEAD_BYTES


def test_bound_is_shared_by_all_origins_and_the_longest_waiting_is_served_first():
    each = memory_bytes(publication(1, 0))
    made = inbox(uncommitted_bytes_max=each)
    assert delivered(made.receive_copy(publication(1, 0), 0.0)) == [1]
    for origin in (THIRD, FOURTH):
        assert delivered(made.receive_copy(publication(1, 0, origin), 0.0)) == []
    assert made.next_deadline() is None, "nothing is asked for"
    (deliver,) = made.mark_committed(ORIGIN, 1, 1, 1.0)
    assert isinstance(deliver, Deliver) and deliver.publication.origin == THIRD
    (deliver,) = made.mark_committed(THIRD, 1, 1, 2.0)
    assert isinstance(deliver, Deliver) and deliver.publication.origin == FOURTH
    assert made.mark_committed(FOURTH, 1, 1, 3.0) == []
    assert made.uncommitted_bytes == 0


def test_uncommitted_publications_of_an_ended_epoch_still_count():
    each = memory_bytes(publication(1, 0))
    made = inbox(uncommitted_bytes_max=each)
    made.receive_copy(publication(1, 0), 0.0)
    newer = replace(publication(1, 0), epoch=2)
    assert delivered(made.receive_copy(newer, 0.0)) == []
    assert delivered(made.mark_committed(ORIGIN, 1, 1, 1.0)) == [1]
    assert made.streams[ORIGIN].committed == 0


def test_one_commit_covers_two_epochs():
    made = inbox()
    made.receive_copy(publication(1, 0), 0.0)
    made.receive_copy(replace(publication(1, 0), epoch=2), 0.0)
    made.mark_committed(ORIGIN, 2, 1, 1.0)
    assert (made.uncommitted_bytes, made.streams[ORIGIN].committed) == (0, 1)


def test_stream_that_waits_for_room_can_be_evicted():
    made = inbox(nodes_max=2, uncommitted_bytes_max=1)
    made.receive_copy(publication(1, 0), 0.0)
    made.expire_node(THIRD)
    made.receive_copy(publication(2, 1, THIRD), 0.0)
    made.expire_node(THIRD)
    made.receive_pending_notice(PendingNotice(ME, THIRD, 1, 9), 0.0)
    made.receive_copy(publication(1, 0, FOURTH), 0.0)
    assert list(made.streams) == [ORIGIN, FOURTH]
    assert [
        e.publication.origin
        for e in made.mark_committed(ORIGIN, 1, 1, 1.0)
        if isinstance(e, Deliver)
    ] == [FOURTH]


def test_out_of_order_buffer_is_bounded():
    made = inbox(out_of_order_max=2)
    for number in range(5, 10):
        made.receive_copy(publication(number, number - 1), 0.0)
    assert list(made.streams[ORIGIN].out_of_order) == [5, 6]
    made = inbox(out_of_order_bytes_max=2 * memory_bytes(publication(5, 4, size=40)))
    for number in range(5, 10):
        made.receive_copy(publication(number, number - 1, size=40), 0.0)
    assert list(made.streams[ORIGIN].out_of_order) == [5, 6]
    made.expire_node(ORIGIN)
    made.receive_copy(publication(2, 1, THIRD, size=100), 0.0)
    assert list(made.streams[THIRD].out_of_order) == [2]


def test_commit_of_an_unknown_stream_or_an_ended_epoch_changes_nothing():
    made = inbox()
    assert made.mark_committed(ORIGIN, 1, 1, 0.0) == []
    made.receive_copy(publication(1, 0), 0.0)
    assert made.mark_committed(ORIGIN, 7, 1, 0.0) == []
    assert made.receive_pending_notice(PendingNotice(ME, ORIGIN, 0, 5), 0.0) == [
        Ignored("publication of an ended epoch")
    ]
    assert made.streams[ORIGIN].newest_known == 1


def test_origin_that_returns_to_an_ended_epoch_gets_a_receipt():
    made = inbox({ORIGIN: (7, 3)})
    made.receive_pending_notice(PendingNotice(ME, ORIGIN, 6, 90), 0.0)
    assert made.handle_timer(1.0) == [Receipt(ORIGIN, ME, 7, 3, 3)]


def test_epoch_ahead_of_the_clock_changes_nothing():
    made = inbox()
    far = AHEAD_MAX_MS + 1
    copy = Publication(ORIGIN, far, 1, 1, "t", b"", receivers=((ME, 0),))
    assert made.receive_copy(copy, 0.0) == [Ignored("epoch ahead of the clock")]
    assert made.receive_pending_notice(PendingNotice(ME, ORIGIN, far, 1), 0.0) == [
        Ignored("epoch ahead of the clock")
    ]
    assert made.streams == {}


def test_response_with_an_impossible_position_is_ignored():
    made = inbox({ORIGIN: (1, 3)})
    refused = [Ignored("repair response with a position out of bounds")]
    assert made.receive_repair(response(upto=1 << 60), 0.0) == refused
    assert made.receive_repair(response(acknowledged=1 << 60), 0.0) == refused
    assert made.streams[ORIGIN].accepted == 3


def test_unknown_origins_get_no_stream():
    made = inbox(nodes_max=2)
    for number in range(100, 110):
        stranger = NodeId(number)
        refusal = [Ignored("publication of an unknown node")]
        assert made.receive_pending_notice(PendingNotice(ME, stranger, 1, 0), 0.0) == refusal
        assert made.receive_copy(publication(1, 0, stranger), 0.0) == refusal
    assert made.streams == {}
    assert delivered(made.receive_copy(publication(1, 0), 0.0)) == [1]


def test_invalid_response_changes_nothing():
    made = inbox()
    made.receive_copy(publication(9, 8), 0.0)
    answered = RepairResponse(
        ME, ORIGIN, 1, 0, 8, 8, (encode(publication(8, 0)), b"\x00 no publication")
    )
    assert made.receive_repair(answered, 0.0) == [Ignored("invalid repair response")]
    assert made.streams[ORIGIN].accepted == 0


def test_number_of_origins_is_bounded():
    made = inbox(nodes_max=1)
    made.receive_copy(publication(1, 0), 0.0)
    assert made.receive_copy(publication(1, 0, THIRD), 0.0) == [Ignored("nodes_max")]
    assert made.receive_pending_notice(PendingNotice(ME, THIRD, 1, 5), 0.0) == [
        Ignored("nodes_max")
    ]


def test_number_of_restored_origins_is_bounded():
    """Without a bound, each origin that was ever known would be restored."""
    made = inbox({ORIGIN: (1, 5), THIRD: (1, 6), FOURTH: (1, 7)}, nodes_max=2)
    assert {origin: each.accepted for origin, each in made.streams.items()} == {THIRD: 6, FOURTH: 7}


def test_accepted_publications_stay_duplicates_after_the_lease_of_their_origin():
    made = inbox()
    made.receive_copy(publication(1, 0), 0.0)
    made.receive_copy(publication(9, 8), 0.0)
    made.receive_pending_notice(PendingNotice(ME, ORIGIN, 1, 10), 0.0)
    gap, *buffered, last = made.expire_node(ORIGIN)
    assert (gap, delivered(buffered)) == (Gap(ORIGIN, 1, 2, 8, "end of lease"), [9])
    assert last == Gap(ORIGIN, 1, 10, 10, "end of lease")
    assert made.expire_node(ORIGIN) == made.expire_node(THIRD) == []
    assert delivered(made.receive_copy(publication(9, 1), 0.0)) == []
    assert delivered(made.receive_copy(publication(12, 9), 0.0)) == [12]


def test_first_expired_origin_is_dropped_when_there_are_too_many():
    made = inbox(nodes_max=2)
    for origin in (ORIGIN, THIRD):
        made.receive_copy(publication(1, 0, origin), 0.0)
        assert made.expire_node(origin) == []
    made.on_node_reachable(ORIGIN, 0.0)
    assert delivered(made.receive_copy(publication(1, 0, FOURTH), 0.0)) == [1]
    assert list(made.streams) == [ORIGIN, FOURTH]


def test_response_with_a_lost_frame_counts_up_to_the_loss():
    """Otherwise the lost publications would count as accepted."""
    made = inbox()
    made.receive_copy(publication(9, 6), 0.0)
    lost, second = response(publication(3, 0), upto=3), response(publication(6, 3), after=3, upto=6)
    assert made.receive_repair(second, 0.0) == [
        Ignored("repair response without the position before it")
    ]
    assert delivered(made.receive_repair(lost, 0.0)) == [3]
    assert delivered(made.receive_repair(second, 0.0)) == [6, 9]


def test_buffered_publications_before_a_loss_are_delivered_as_far_as_there_is_room():
    made = inbox(uncommitted_max=2)
    made.receive_copy(publication(1, 0), 0.0)
    for number, previous in ((3, 2), (5, 4), (6, 5)):
        made.receive_copy(publication(number, previous), 0.0)
    gone = RepairResponse(ME, ORIGIN, 1, 1, 8, 8, ())
    gap, *rest = made.receive_repair(gone, 0.0)
    assert (gap, delivered(rest)) == (Gap(ORIGIN, 1, 2, 2, "retention"), [3])
    assert made.receive_repair(gone, 0.0) == []
    assert made.streams[ORIGIN].accepted == 3
    made.mark_committed(ORIGIN, 1, 3, 1.0)
    gap, *rest, last = made.receive_repair(RepairResponse(ME, ORIGIN, 1, 3, 8, 8, ()), 1.0)
    assert (gap, delivered(rest)) == (Gap(ORIGIN, 1, 4, 4, "retention"), [5, 6])
    assert last == Gap(ORIGIN, 1, 7, 8, "retention")


def test_publications_without_room_are_part_of_the_gap_when_a_lease_ends():
    made = inbox(uncommitted_max=2)
    made.receive_copy(publication(1, 0), 0.0)
    for number, previous in ((3, 2), (5, 4)):
        made.receive_copy(publication(number, previous), 0.0)
    gap, *rest, last = made.expire_node(ORIGIN)
    assert (gap, delivered(rest)) == (Gap(ORIGIN, 1, 2, 2, "end of lease"), [3])
    assert last == Gap(ORIGIN, 1, 4, 5, "end of lease")
    assert made.out_of_order_bytes == 0
