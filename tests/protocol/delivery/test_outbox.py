"""What a node owes others; the rules are proved in test_spec_delivery.py."""

from msgspec.structs import replace

from hansa.protocol.clock import AHEAD_MAX_MS, WallClock
from hansa.protocol.delivery.outbox import RENEWAL_PAUSE_S, Outbox
from hansa.protocol.effects import EpochRenewed, GivenUp, Hear, Ignored, Recall
from hansa.protocol.events import Published, Recalled, Reopened
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Owed, Receipt, Resend

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)


def outbox(count: int = 0) -> Outbox:
    """Owe the other node so many publications, all safe."""
    made = Outbox(ME, ProtocolSettings(repair_patience=1.0), WallClock(1))
    for _ in range(count):
        made.capture(Published("t", b"", qos=1), (OTHER,))
    made.keep(1, count, now=0.0)
    return made


def receipt(seq: int, want: int = 0, epoch: int = 1) -> Receipt:
    return Receipt(OTHER, OTHER, epoch, seq, seq, want)


def test_what_nobody_owes_needs_no_receipt():
    assert outbox().take(receipt(1), 1, 0.0) == [
        Ignored("receipt from a node that is owed nothing")
    ]


def test_a_receipt_of_an_older_epoch_is_answered_with_the_present_one():
    assert outbox(2).take(receipt(9, epoch=0), 1, 0.0) == [Owed(OTHER, ME, 1, 2)]


def test_a_receipt_of_a_newer_epoch_begins_one_above_it():
    assert outbox(2).take(receipt(9, epoch=7), 1, 0.0) == [EpochRenewed(8)]


def test_a_new_epoch_begins_when_its_journal_is_there():
    made = outbox(2)
    made.capture(Published("t", b"", qos=1), (OTHER,))  # on its way to the disk
    assert made.take(receipt(1), 1, 0.0) == []
    assert made.acknowledged == {OTHER: 1}
    assert made.take(receipt(9, epoch=7), 1, 0.0) == [EpochRenewed(8)]
    assert made.keep(1, 3, now=0.0) == [], "it does not leave at a position that was used before"
    assert made.take(receipt(9, epoch=7), 1, 0.0) == []
    assert made.next_deadline() is None
    made.reopen(Reopened(8, 3, ((OTHER, 2), (THIRD, 1))), now=1.0)
    assert made.keep(1, 9, now=1.0) == [], "that was the old journal"
    assert (made.position, made.acknowledged, list(made.debts)) == ((8, 3), {}, [OTHER])
    assert made.fire(1.0) == [Owed(OTHER, ME, 8, 2)]
    made.capture(Published("t", b"anew", qos=1), (OTHER,))
    (anew,) = made.keep(8, 3, 0.0)
    assert (anew.life, anew.number, anew.previous) == (8, 3, ((OTHER, 2),))


def test_no_receipt_makes_a_new_epoch_begin_soon_after_another():
    made = outbox(2)
    made.take(receipt(9, epoch=7), 1, 0.0)
    made.reopen(Reopened(8, 1, ()), now=1.0)
    ahead = receipt(9, epoch=8)
    soon = [Ignored("receipt ahead of a journal that was renewed just before")]
    assert made.take(ahead, 1, RENEWAL_PAUSE_S) == soon
    assert made.take(ahead, 1, 1.0 + RENEWAL_PAUSE_S) == [EpochRenewed(9)]


def test_a_receipt_of_an_epoch_that_nobody_can_have_is_ignored():
    made = outbox(2)
    last = AHEAD_MAX_MS - 1
    assert made.take(receipt(1, epoch=1 + last), 1, 0.0) == [Ignored("epoch ahead of the clock")]
    assert made.position == (1, 3)
    assert made.take(receipt(1, epoch=last), 1, 0.0) == [EpochRenewed(1 + last)]


def test_what_was_acknowledged_in_a_former_life_is_paid():
    owed, paid = {OTHER: 7, THIRD: 8}, {OTHER: 4, THIRD: 8}
    made = Outbox(ME, ProtocolSettings(), WallClock(1), 1, 9)
    made.resume(owed, paid, {})
    assert (made.settled, made.unpaid(9), made.acknowledged) == (4, {OTHER: 5}, paid)
    assert made.forget(OTHER) == [GivenUp(OTHER, 1, 5, 7)]
    assert made.forget(THIRD) == []


def test_nobody_gets_more_at_a_time_than_the_settings_say():
    made = outbox(3)
    assert made.take(receipt(0, want=1 << 60), 1, 0.0) == [Recall(OTHER, 1, 0, 3, 8 * 65_536)]


def test_an_answer_fits_its_frames_whatever_the_shell_has_read():
    made = outbox()
    made._settings = ProtocolSettings(repair_bytes=150, repair_frames=2)  # noqa: SLF001
    found = [made.capture(Published("t", b"x" * 20, qos=1), (OTHER,)) for _ in range(9)]
    letters = made.resend(Recalled(OTHER, 1, 0, 9, tuple(found)), now=0.0)
    shapes = [(each.after, each.upto, each.lost, len(each.publications)) for each in letters]
    assert shapes == [(0, 2, 0, 2), (2, 4, 0, 2)]
    assert [each.more for each in letters] == [True, False]
    large = made.capture(Published("t", b"x" * 500, qos=1), (OTHER,))
    (letter,) = made.resend(Recalled(OTHER, 1, 9, 10, (large,)), now=0.0)
    assert isinstance(letter, Resend)
    assert (letter.after, letter.upto, len(letter.publications)) == (9, 10, 1)


def test_what_was_acknowledged_is_not_sent_again_to_one_that_has_forgotten_it():
    made = outbox(3)
    made.take(receipt(2), 1, 0.0)
    assert made.take(receipt(0, want=100), 1, 0.0) == [Recall(OTHER, 1, 2, 3, 100)]


def test_a_receipt_ends_reminders_when_nothing_is_left():
    made = outbox(2)
    assert made.next_deadline() == 1.0
    made.take(receipt(1), 1, now=0.5)
    assert made.next_deadline() == 1.5
    made.take(receipt(2), 1, now=0.6)
    assert made.next_deadline() is None


def test_one_thing_is_recalled_at_a_time():
    made = outbox(2)
    assert made.take(receipt(0, want=100), 1, 0.0) == [Recall(OTHER, 1, 0, 2, 100)]
    assert made.take(receipt(0, want=100), 1, 0.0) == []


def test_what_is_settled_may_be_forgotten():
    made = outbox(3)
    assert made.settled == 0
    made.take(receipt(2), 1, 0.0)
    assert made.settled == 2
    made.take(receipt(3), 1, 0.0)
    assert made.settled == 3


def test_what_was_owed_to_a_forgotten_node_leaves_all_the_same():
    made = Outbox(ME, ProtocolSettings(), WallClock(1))
    made.capture(Published("t", b"", qos=1), (OTHER, THIRD))
    assert made.forget(OTHER) == [GivenUp(OTHER, 1, 1, 1)]
    assert made.forget(OTHER) == []
    assert [item.number for item in made.keep(1, 1, 0.0)] == [1]
    assert list(made.debts) == [THIRD]


def test_who_has_everything_is_forgotten_without_a_word():
    made = outbox(2)
    made.take(receipt(2), 1, 0.0)
    assert made.forget(OTHER) == []


def test_who_may_lack_something_before_a_position():
    made = outbox(3)
    assert made.unpaid(1) == {}
    assert made.unpaid(2) == {OTHER: 1}
    made.take(receipt(2), 1, 0.0)
    assert (made.unpaid(3), made.unpaid(4)) == ({}, {OTHER: 3})
    made.take(receipt(3), 1, 0.0)
    assert made.unpaid(9) == {}
    made.capture(Published("t", b"", qos=1), (THIRD,))
    made.capture(Published("t", b"", qos=1), (OTHER,))
    assert (made.unpaid(5), made.unpaid(6)) == ({THIRD: 4}, {OTHER: 5, THIRD: 4})


def test_of_a_former_life_nobody_knows_who_lacks_what():
    made = Outbox(ME, ProtocolSettings(), WallClock(1), next_seq=9)
    made.resume({OTHER: 7}, {}, {})
    assert made.unpaid(2) == {OTHER: 1}


# ---------------------------------------------------------------- what is large takes its time

MEGABYTES = 4


def large_one() -> tuple[Outbox, Recalled]:
    """Owe one that is large; return also what the shell reads when it is asked for."""
    made = Outbox(ME, ProtocolSettings(), WallClock(1))
    kept = made.capture(Published("t", bytes(MEGABYTES << 20), qos=1), (OTHER,))
    made.keep(1, 1, now=0.0)
    return made, Recalled(OTHER, 1, 0, 1, (kept,))


def test_a_large_publication_is_given_a_second_more_for_every_megabyte():
    made, _ = large_one()
    assert made.fire(1.0) == []
    assert made.next_deadline() == MEGABYTES
    assert made.fire(MEGABYTES) == [Owed(OTHER, ME, 1, 1)]


def test_what_follows_a_large_publication_that_has_arrived_is_missed_as_soon_as_ever():
    made, _ = large_one()
    for number in (2, 3):
        made.capture(Published("t", b"", qos=1), (OTHER,))
        made.keep(1, number, now=0.5)
    assert made.fire(1.0) == []
    made.take(receipt(1), 1, now=1.0)
    assert made.fire(2.0) == [Owed(OTHER, ME, 1, 3)]


def test_a_large_answer_is_not_given_again_while_it_is_on_its_way():
    made, recalled = large_one()
    asked = receipt(0, want=100)
    assert made.take(asked, 1, 1.0) == [Recall(OTHER, 1, 0, 1, 100)]
    assert len(made.resend(recalled, 1.0)) == 1
    assert made.take(asked, 1, 2.0) == []
    assert made.take(asked, 1, MEGABYTES + 1.0) == [Recall(OTHER, 1, 0, 1, 100)]


def test_whoever_comes_back_need_not_wait_for_what_was_on_its_way():
    made, recalled = large_one()
    made.take(receipt(0, want=100), 1, 1.0)
    made.resend(recalled, 1.0)
    made.joined(OTHER, 2.0)
    assert made.fire(2.0) == [Owed(OTHER, ME, 1, 1)]
    assert made.take(receipt(0, want=100), 1, 2.0) == [Recall(OTHER, 1, 0, 1, 100)]


# ---------------------------------------------------------------- the journal of a former life


def resumed(paid: int = 0, unheard_since: int = 5) -> Outbox:
    """The journal of a former life has four, all owed to the other node."""
    made = Outbox(ME, ProtocolSettings(repair_patience=1.0), WallClock(1), 1, 5)
    made.resume({OTHER: 4}, {OTHER: paid}, {OTHER: unheard_since})
    return made


def capture(made: Outbox, *receivers: NodeId) -> int:
    """Capture another one for these; return how many receivers it leaves for."""
    publication = made.capture(Published("t", b"", qos=1), receivers)
    (ready,) = made.keep(1, publication.number, now=0.0)
    assert ready.number == publication.number
    return len(ready.previous)


def test_a_receiver_says_what_it_has_before_anything_leaves_for_it():
    made = resumed()
    assert capture(made, OTHER, THIRD) == 0
    assert made.fire(0.0) == [Owed(OTHER, ME, 1, 4), Owed(THIRD, ME, 1, 4)], "what it may have"
    assert made.take(receipt(3, want=9), 1, 0.0) == [Hear(OTHER)]
    assert made.take(receipt(4, want=9), 1, 0.0) == [], "that is being written"
    assert capture(made, OTHER) == 0
    assert made.hear(OTHER, 0.0) == [Recall(OTHER, 1, 4, 6, 9)]
    assert capture(made, OTHER, THIRD) == 1
    assert made.take(replace(receipt(0), node=THIRD), 1, 0.0) == [Hear(THIRD)]
    assert made.hear(THIRD, 0.0) == [Owed(THIRD, ME, 1, 7)], "it did not know of this one"
    assert capture(made, OTHER, THIRD) == 2
    assert made.hear(THIRD, 0.0) == made.hear(NodeId(9), 0.0) == []


def test_a_receiver_that_has_more_than_was_sent_to_it_had_it_from_another_life():
    made = resumed()
    for _ in range(9):
        assert capture(made, OTHER) == 0
    assert made.take(receipt(7, want=9), 6, 0.0) == [EpochRenewed(6)]
    assert made.acknowledged == {}, "what it has at these positions is something else"
    made.reopen(Reopened(6, 10, ((OTHER, 9),)), now=1.0)
    made.capture(Published("t", b"", qos=1), (OTHER,))
    (ready,) = made.keep(6, 10, now=1.0)
    assert ready.previous == ((OTHER, 9),), "nobody can have anything of the new epoch"


def test_who_comes_back_after_its_lease_may_have_what_it_was_sent_before():
    made = resumed()
    assert capture(made, OTHER) == 0
    assert made.take(receipt(4), 1, 0.0) == [Hear(OTHER)]
    assert made.hear(OTHER, 0.0) == [Owed(OTHER, ME, 1, 5)]
    assert made.forget(OTHER) == [GivenUp(OTHER, 1, 5, 5)]
    assert capture(made, OTHER) == 0
    assert made.take(receipt(5), 1, 0.0) == [Hear(OTHER)]


def test_lives_that_did_not_hear_of_a_receiver_sent_it_nothing():
    made = resumed(unheard_since=3)
    assert made.take(receipt(3, want=9), 6, 0.0) == [EpochRenewed(6)]


def test_a_receiver_that_comes_into_reach_is_asked_even_if_it_seems_to_have_all():
    made = resumed(paid=4)
    assert made.next_deadline() is None
    made.joined(OTHER, 0.0)
    assert made.fire(0.0) == [Owed(OTHER, ME, 1, 4)]
    assert made.take(receipt(4), 1, 0.0) == [Hear(OTHER)]
    assert made.hear(OTHER, 0.0) == []
    made.joined(OTHER, 0.0)
    assert made.next_deadline() is None
