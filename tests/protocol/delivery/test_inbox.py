"""What others owe a node; the rules are proved in test_spec_delivery.py."""

from collections.abc import Mapping

from msgspec.structs import replace
from tests.protocol.contexts import context, records

from hansa.protocol.clock import AHEAD_MAX_MS
from hansa.protocol.delivery.inbox import FOOTPRINT_BYTES, Inbox, footprint
from hansa.protocol.effects import Deliver, Effect, Gap, Ignored
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Owed, Receipt, Resend

ME, ORIGIN, THIRD, FOURTH = (NodeId(number) for number in range(1, 5))


def inbox(taken: Mapping[NodeId, tuple[int, int]] | None = None, **settings: object) -> Inbox:
    """The inbox of a node that knows three others."""
    around = context(records(2, 3, 4))
    return Inbox(ME, ProtocolSettings(**settings), taken or {}, lambda item: item, around)  # type: ignore[arg-type]


def owed(number: int, previous: int, origin: NodeId = ORIGIN, size: int = 0) -> Publication:
    payload = b"x" * size
    return Publication(origin, 1, number, 1, "t", payload, previous=((ME, previous),))


def answer(*items: Publication, after: int = 0, upto: int = 9, acknowledged: int = 0) -> Resend:
    encoded = tuple(map(encode, items))
    return Resend(ME, ORIGIN, 1, after, upto, 0, encoded, acknowledged=acknowledged)


def delivered(effects: list[Effect]) -> list[int]:
    return [effect.publication.number for effect in effects if isinstance(effect, Deliver)]


def test_an_answer_that_does_not_fit_is_ignored():
    made = inbox()
    assert made.resend(answer(), 0.0) == [Ignored("repair that nobody asked for")]
    made.take(owed(1, 0), 0.0)
    stale = Resend(ME, ORIGIN, 7, 0, 9, 0, ())
    assert made.resend(stale, 0.0) == [Ignored("repair that nobody asked for")]


def test_what_a_former_life_acknowledged_does_not_come_again():
    made = inbox()
    made.take(owed(9, 8), 0.0)
    effects = made.resend(answer(owed(8, 5), after=5, upto=8, acknowledged=5), 0.0)
    assert delivered(effects) == [8, 9]
    assert not [effect for effect in effects if isinstance(effect, Gap)]


def test_an_answer_to_a_former_life_does_not_count_for_what_that_only_took():
    """It had asked for what comes after 6, with 2 to 6 on their way to the disk."""
    made = inbox({ORIGIN: (1, 1)})
    effects = made.resend(answer(owed(7, 6), after=6, upto=8, acknowledged=1), 0.0)
    assert effects == [Ignored("repair without what comes before it")]
    assert made.streams[ORIGIN].taken == 1


def test_what_this_state_did_not_have_and_another_acknowledged_is_counted():
    made = inbox({ORIGIN: (1, 2)})
    (news,) = made.resend(answer(after=5, upto=5, acknowledged=5), 0.0)
    assert news == Ignored("what a state that is gone had acknowledged does not come again")
    assert made.resend(answer(after=5, upto=5, acknowledged=5), 0.0) == []


def test_an_answer_with_publications_of_another_node_is_ignored():
    made = inbox()
    made.take(owed(9, 8), 0.0)
    effects = made.resend(answer(owed(8, 0, origin=THIRD)), 0.0)
    assert effects == [Ignored("repair with publications of another node")]
    assert made.streams[ORIGIN].taken == 0


def test_what_was_held_and_then_came_in_an_answer_is_delivered_once():
    made = inbox()
    made.take(owed(3, 2), 0.0)
    made.take(owed(4, 3), 0.0)
    made.take(owed(9, 8), 0.0)
    effects = made.resend(answer(owed(2, 0), owed(3, 2), upto=3), 0.0)
    assert delivered(effects) == [2, 3, 4]
    assert list(made.streams[ORIGIN].held) == [9]


def test_an_answer_is_taken_as_far_as_there_is_room():
    made = inbox(undelivered_max=2)
    made.take(owed(9, 8), 0.0)
    items = [owed(number, number - 1) for number in range(1, 9)]
    assert delivered(made.resend(answer(*items, upto=8), 0.0)) == [1, 2]
    assert made.streams[ORIGIN].taken == 2
    assert made.next_deadline() == 0.02  # a receipt, no question
    made.store(ORIGIN, 1, 2, 1.0)
    (letter,) = made.fire(2.0)
    assert letter == Receipt(ORIGIN, ME, 1, 2, 2, want=8 * 65_536)


def test_what_came_early_follows_what_was_missing():
    made = inbox()
    assert delivered(made.take(owed(2, 1), 0.0)) == []
    assert delivered(made.take(owed(1, 0), 0.0)) == [1, 2]


def test_what_is_on_its_way_to_the_disk_has_a_bound_in_bytes():
    each = footprint(owed(1, 0, size=60))
    made = inbox(undelivered_bytes_max=2 * each)
    came = [delivered(made.take(owed(n, n - 1, size=60), 0.0)) for n in range(1, 5)]
    assert came == [[1], [2], [], []]
    assert delivered(made.store(ORIGIN, 1, 1, 1.0)) == [3]
    assert made.undelivered_bytes == 2 * each


def test_all_that_a_publication_carries_counts_and_what_it_takes_itself():
    plain = Publication(ORIGIN, 1, 1, 1, "t", b"")
    full = replace(plain, topic="t" * 3, properties=b"p" * 5, payload=b"x" * 7)
    assert footprint(full) == footprint(plain) + 2 + 5 + 7
    assert footprint(plain) > FOOTPRINT_BYTES


def test_that_bound_is_one_for_all_origins_and_who_waited_longest_comes_first():
    each = footprint(owed(1, 0))
    made = inbox(undelivered_bytes_max=each)
    assert delivered(made.take(owed(1, 0), 0.0)) == [1]
    for origin in (THIRD, FOURTH):
        assert delivered(made.take(owed(1, 0, origin), 0.0)) == []
    assert made.next_deadline() is None, "nothing is asked for"
    (deliver,) = made.store(ORIGIN, 1, 1, 1.0)
    assert isinstance(deliver, Deliver) and deliver.publication.origin == THIRD
    (deliver,) = made.store(THIRD, 1, 1, 2.0)
    assert isinstance(deliver, Deliver) and deliver.publication.origin == FOURTH
    assert made.store(FOURTH, 1, 1, 3.0) == []
    assert made.undelivered_bytes == 0


def test_what_of_an_ended_epoch_is_not_on_disk_yet_still_counts():
    each = footprint(owed(1, 0))
    made = inbox(undelivered_bytes_max=each)
    made.take(owed(1, 0), 0.0)
    newer = replace(owed(1, 0), life=2)
    assert delivered(made.take(newer, 0.0)) == []
    assert delivered(made.store(ORIGIN, 1, 1, 1.0)) == [1]
    assert made.streams[ORIGIN].safe == 0


def test_two_epochs_that_reach_the_disk_at_once_need_no_more_than_one_word():
    made = inbox()
    made.take(owed(1, 0), 0.0)
    made.take(replace(owed(1, 0), life=2), 0.0)
    made.store(ORIGIN, 2, 1, 1.0)
    assert (made.undelivered_bytes, made.streams[ORIGIN].safe) == (0, 1)


def test_who_waits_for_room_may_be_evicted_for_another():
    made = inbox(nodes_max=2, undelivered_bytes_max=1)
    made.take(owed(1, 0), 0.0)
    made.forget(THIRD)
    made.take(owed(2, 1, THIRD), 0.0)
    made.forget(THIRD)
    made.remind(Owed(ME, THIRD, 1, 9), 0.0)
    made.take(owed(1, 0, FOURTH), 0.0)
    assert list(made.streams) == [ORIGIN, FOURTH]
    assert [
        e.publication.origin for e in made.store(ORIGIN, 1, 1, 1.0) if isinstance(e, Deliver)
    ] == [FOURTH]


def test_what_is_held_has_bounds():
    made = inbox(held_max=2)
    for number in range(5, 10):
        made.take(owed(number, number - 1), 0.0)
    assert list(made.streams[ORIGIN].held) == [5, 6]
    made = inbox(held_bytes_max=2 * footprint(owed(5, 4, size=40)))
    for number in range(5, 10):
        made.take(owed(number, number - 1, size=40), 0.0)
    assert list(made.streams[ORIGIN].held) == [5, 6]
    made.forget(ORIGIN)
    made.take(owed(2, 1, THIRD, size=100), 0.0)
    assert list(made.streams[THIRD].held) == [2]


def test_news_of_an_unknown_stream_or_an_ended_epoch_changes_nothing():
    made = inbox()
    assert made.store(ORIGIN, 1, 1, 0.0) == []
    made.take(owed(1, 0), 0.0)
    assert made.store(ORIGIN, 7, 1, 0.0) == []
    assert made.remind(Owed(ME, ORIGIN, 0, 5), 0.0) == [Ignored("publication of an ended epoch")]
    assert made.streams[ORIGIN].newest == 1


def test_an_origin_that_fell_back_into_an_ended_epoch_is_told():
    made = inbox({ORIGIN: (7, 3)})
    made.remind(Owed(ME, ORIGIN, 6, 90), 0.0)
    assert made.fire(1.0) == [Receipt(ORIGIN, ME, 7, 3, 3)]


def test_an_epoch_that_nobody_can_have_changes_nothing():
    made = inbox()
    far = AHEAD_MAX_MS + 1
    copy = Publication(ORIGIN, far, 1, 1, "t", b"", previous=((ME, 0),))
    assert made.take(copy, 0.0) == [Ignored("epoch ahead of the clock")]
    assert made.remind(Owed(ME, ORIGIN, far, 1), 0.0) == [Ignored("epoch ahead of the clock")]
    assert made.streams == {}


def test_answer_with_a_number_that_no_journal_can_have_is_ignored():
    made = inbox({ORIGIN: (1, 3)})
    refused = [Ignored("repair with a number out of bounds")]
    assert made.resend(answer(upto=1 << 60), 0.0) == refused
    assert made.resend(answer(acknowledged=1 << 60), 0.0) == refused
    assert made.streams[ORIGIN].taken == 3


def test_made_up_origins_get_no_stream():
    made = inbox(nodes_max=2)
    for number in range(100, 110):
        stranger = NodeId(number)
        refusal = [Ignored("publication of an unknown node")]
        assert made.remind(Owed(ME, stranger, 1, 0), 0.0) == refusal
        assert made.take(owed(1, 0, stranger), 0.0) == refusal
    assert made.streams == {}
    assert delivered(made.take(owed(1, 0), 0.0)) == [1]


def test_an_answer_that_cannot_be_read_changes_nothing():
    made = inbox()
    made.take(owed(9, 8), 0.0)
    answered = Resend(ME, ORIGIN, 1, 0, 8, 8, (encode(owed(8, 0)), b"\x00 no publication"))
    assert made.resend(answered, 0.0) == [Ignored("repair that cannot be read")]
    assert made.streams[ORIGIN].taken == 0


def test_origins_have_a_bound():
    made = inbox(nodes_max=1)
    made.take(owed(1, 0), 0.0)
    assert made.take(owed(1, 0, THIRD), 0.0) == [Ignored("nodes_max")]
    assert made.remind(Owed(ME, THIRD, 1, 5), 0.0) == [Ignored("nodes_max")]


def test_what_was_taken_is_a_duplicate_even_after_the_lease_of_its_origin():
    made = inbox()
    made.take(owed(1, 0), 0.0)
    made.take(owed(9, 8), 0.0)
    made.remind(Owed(ME, ORIGIN, 1, 10), 0.0)
    gap, *held, last = made.forget(ORIGIN)
    assert (gap, delivered(held)) == (Gap(ORIGIN, 1, 2, 8, "end of lease"), [9])
    assert last == Gap(ORIGIN, 1, 10, 10, "end of lease")
    assert made.forget(ORIGIN) == made.forget(THIRD) == []
    assert delivered(made.take(owed(9, 1), 0.0)) == []
    assert delivered(made.take(owed(12, 9), 0.0)) == [12]


def test_of_too_many_origins_the_one_forgotten_first_makes_room():
    made = inbox(nodes_max=2)
    for origin in (ORIGIN, THIRD):
        made.take(owed(1, 0, origin), 0.0)
        assert made.forget(origin) == []
    made.joined(ORIGIN, 0.0)
    assert delivered(made.take(owed(1, 0, FOURTH), 0.0)) == [1]
    assert list(made.streams) == [ORIGIN, FOURTH]


def test_an_answer_of_which_a_frame_was_lost_counts_up_to_there():
    """Or what was in it would be taken for taken."""
    made = inbox()
    made.take(owed(9, 6), 0.0)
    lost, second = answer(owed(3, 0), upto=3), answer(owed(6, 3), after=3, upto=6)
    assert made.resend(second, 0.0) == [Ignored("repair without what comes before it")]
    assert delivered(made.resend(lost, 0.0)) == [3]
    assert delivered(made.resend(second, 0.0)) == [6, 9]


def test_what_is_held_of_what_is_lost_is_delivered_as_far_as_there_is_room():
    made = inbox(undelivered_max=2)
    made.take(owed(1, 0), 0.0)
    for number, previous in ((3, 2), (5, 4), (6, 5)):
        made.take(owed(number, previous), 0.0)
    gone = Resend(ME, ORIGIN, 1, 1, 8, 8, ())
    gap, *rest = made.resend(gone, 0.0)
    assert (gap, delivered(rest)) == (Gap(ORIGIN, 1, 2, 2, "retention"), [3])
    assert made.resend(gone, 0.0) == []
    assert made.streams[ORIGIN].taken == 3
    made.store(ORIGIN, 1, 3, 1.0)
    gap, *rest, last = made.resend(Resend(ME, ORIGIN, 1, 3, 8, 8, ()), 1.0)
    assert (gap, delivered(rest)) == (Gap(ORIGIN, 1, 4, 4, "retention"), [5, 6])
    assert last == Gap(ORIGIN, 1, 7, 8, "retention")


def test_at_the_end_of_a_lease_what_does_not_fit_is_part_of_the_gap():
    made = inbox(undelivered_max=2)
    made.take(owed(1, 0), 0.0)
    for number, previous in ((3, 2), (5, 4)):
        made.take(owed(number, previous), 0.0)
    gap, *rest, last = made.forget(ORIGIN)
    assert (gap, delivered(rest)) == (Gap(ORIGIN, 1, 2, 2, "end of lease"), [3])
    assert last == Gap(ORIGIN, 1, 4, 5, "end of lease")
    assert made.held_bytes == 0
