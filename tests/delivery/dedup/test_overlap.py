"""Which copy of a publication counts if filters overlap or change and connections end."""

from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace
from tests.delivery.subscriptions.test_table import holding

from hansa.delivery.dedup.overlap import OverlapDedup, content_hash
from hansa.delivery.subscriptions.table import SubscriptionTable
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property, encode_properties


def guaranteed(
    *identifiers: int,
    payload: bytes = b"same",
    topic: str = "a/b",
    dup: bool = False,
    packet_id: int = 0,
) -> PublishPacket:
    return PublishPacket(
        topic, payload, 1, dup=dup, packet_id=packet_id, subscription_ids=identifiers
    )


def taken(copies: OverlapDedup, *came: PublishPacket) -> list[tuple[int, ...]]:
    """Return the identifiers of the copies that count, in the order of decisions."""
    decided = [each for copy in came for each in copies.receive_copy(copy)]
    decided += copies.decide_waiting()
    assert [copy for copy, _ in decided] == list(came)
    return [copy.subscription_ids for copy, counts in decided if counts]


def test_one_copy_of_each_identical_publication_counts():
    copies = OverlapDedup(holding("a/#", "a/b"))
    assert taken(copies, *map(guaranteed, (1, 2, 2, 1, 1, 2))) == [(1,), (1,), (1,)]


def test_separated_copies_belong_to_their_publications():
    """Mosquitto 2.0 sends copies of others between them if it has a backlog."""
    copies = OverlapDedup(holding("a/#", "a/b"))
    other = partial(guaranteed, payload=b"other")
    came = guaranteed(1), other(1), other(2), guaranteed(1), guaranteed(2), guaranteed(2)
    assert taken(copies, *came) == [(1,), (1,), (1,)]
    assert taken(copies, other(2)) == [(2,)], "no publication lacks a copy"


@pytest.mark.parametrize(
    ("packet_id", "is_late_copy"), [(7, False), (8, True), (9, True), (10, False), (6, False)]
)
def test_late_deciding_copy_is_recognised_by_its_packet_id(packet_id, is_late_copy):
    """The broker sends `a/b` first, numbers all copies of a publication in a row, and the copy of
    the oldest filter arrives last. An identical publication has other ids."""
    copies = OverlapDedup(holding("a/#", "+/b", "a/b"))
    other = guaranteed(3, payload=b"other", packet_id=20)
    assert taken(copies, guaranteed(3, packet_id=7), other) == [(3,), (3,)]
    late = guaranteed(1, packet_id=packet_id)
    assert taken(copies, late) == ([] if is_late_copy else [(1,)])
    assert taken(copies, replace(late, packet_id=packet_id + 30)) == [(1,)], "the next publication"


def test_late_deciding_copy_is_recognised_where_packet_ids_start_again():
    copies = OverlapDedup(holding("a/#", "a/b"))
    first, other = guaranteed(2, packet_id=65_535), guaranteed(2, payload=b"other", packet_id=2)
    assert taken(copies, first, other) == [(2,), (2,)]
    assert taken(copies, guaranteed(1, packet_id=1)) == []


@pytest.mark.parametrize("has_ended", [False, True])
def test_late_deciding_copy_is_recognised_after_another_filter_ended(has_ended):
    """When it was published, `a/b` matched, too."""
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    if not has_ended:
        made.start_unsubscribe("a/b")
    other = guaranteed(2, payload=b"other", packet_id=20)
    assert taken(copies, guaranteed(2, packet_id=7), other) == [(2,), (2,)]
    if has_ended:
        end(made, "a/b")
    assert taken(copies, guaranteed(1, packet_id=8)) == []


def test_lone_copy_after_a_redelivery_is_the_next_publication():
    """The broker sends the copies of `+/b` and `a/#` again, then that of `a/b` for the first time.
    Of the identical publication it has one copy, because it was restarted before."""
    captured: list[int] = []
    copies = OverlapDedup(
        holding("a/#", "+/b", "a/b"), is_redelivery=lambda copy: copy.packet_id in captured
    )
    first, decides = guaranteed(2, packet_id=1), guaranteed(1, packet_id=2)
    assert taken(copies, first, decides) == [(1,)]
    captured.append(2)
    for was_sent in (False, True):
        copies.on_connected(session_present=True)
        again = (replace(copy, dup=True) for copy in (first, decides))
        assert taken(copies, *again, guaranteed(3, packet_id=3, dup=was_sent)) == [(1,)]
    assert taken(copies, guaranteed(2, packet_id=4)) == [(2,)]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_separated_copies_are_recognised_on_one_connection_up_to_a_bound(is_forgotten, monkeypatch):
    monkeypatch.setattr("hansa.delivery.dedup.overlap.OVERLAP_COPIES_MAX", 2)
    copies = OverlapDedup(holding("a/#", "a/b"))
    came = [guaranteed(1, payload=name) for name in (b"1", b"2", b"3")[: 2 + is_forgotten]]
    assert len(taken(copies, *came, guaranteed(2, payload=b"1"))) == 2 + 2 * is_forgotten
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(1, payload=b"9"), guaranteed(2, payload=b"2")) == [(1,), (2,)]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_filter_ended_between_two_copies_still_deduplicates(order):
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    decided = copies.receive_copy(guaranteed(order[0]))
    end(made, "a/#")
    decided += copies.receive_copy(guaranteed(order[1]))
    assert sorted(counts for _, counts in decided) == [False, True]


def end(made: SubscriptionTable, name: str) -> None:
    """Confirm the unsubscription; earlier copies may still arrive."""
    made.stop_requiring(name)
    made.on_unsubscribed(name)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_one_late_copy_of_each_publication_counts(order):
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    end(made, "a/#")
    assert taken(copies, *map(guaranteed, order * 3)) == [(order[0],)] * 3


def test_late_copy_of_single_filter_counts():
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    end(made, "a/#")
    assert taken(copies, *map(guaranteed, (1, 1, 2))) == [(1,), (1,)]
    assert taken(copies, *map(guaranteed, (2, 2))) == [(2,), (2,)]


def test_copy_from_a_newer_filter_is_another_publication():
    made = holding("a/#")
    copies = OverlapDedup(made)
    assert taken(copies, guaranteed(1)) == [(1,)]
    made.require("a/b")
    made.assign_identifier("a/b")
    end(made, "a/#")
    assert taken(copies, guaranteed(2)) == [(2,)]


def test_publication_before_suback_has_no_copy_from_that_filter():
    made = holding("a/b")
    copies = OverlapDedup(made)
    made.require("a/#")
    made.assign_identifier("a/#")
    decided = copies.receive_copy(guaranteed(1))
    made.on_confirmed("a/#")
    end(made, "a/b")
    decided += copies.receive_copy(guaranteed(2))
    assert [counts for _, counts in decided] == [True, True], "two that say the same"


def test_late_copy_is_not_mistaken_for_the_next_publication():
    """Of three identical publications the second was captured when the connection ended."""
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made, captured_before(b"same"))
    assert taken(copies, guaranteed(1, payload=b"x"), *map(guaranteed, (1, 2, 1))) == [(1,)] * 3
    copies.on_connected(session_present=True)
    assert taken(copies, *map(guaranteed, (2, 1, 2))) == [(1,)]
    again = OverlapDedup(made, captured_before(b"same"))
    assert taken(again, *map(guaranteed, (2, 1, 2))) == [(1,)], "in a new incarnation, too"


def test_copy_from_a_filter_subscribed_again_is_another_publication():
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    end(made, "a/#")
    made.require("a/#")
    made.assign_identifier("a/#")
    made.on_confirmed("a/#")
    assert taken(copies, *map(guaranteed, (1, 2, 2, 3))) == [(1,), (2,)]
    end(made, "a/b")
    assert taken(OverlapDedup(made), *map(guaranteed, (1, 3))) == [(1,), (3,)]
    again = SubscriptionTable()
    again.restore("a/#", 3)
    again.restore_identifiers(3, {1: 2, 2: 3})
    assert taken(OverlapDedup(again), *map(guaranteed, (1, 3))) == [(1,), (3,)], (
        "in a new incarnation, too"
    )


def test_copy_of_a_subscription_that_a_lost_state_made_is_a_copy():
    """The agent's state is an older copy: the broker still has filter 9 of the newer one."""
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    assert taken(copies, *map(guaranteed, (1, 2, 9, 1, 9, 2))) == [(1,), (1,)]
    assert taken(copies, *map(guaranteed, (9, 1, 2))) == [(9,)]
    made.require("b")
    assert made.assign_identifier("b") == 10


def test_different_content_is_another_publication():
    copies = OverlapDedup(holding("a/#", "a/b"))
    came = [guaranteed(1, payload=b"x"), guaranteed(2, payload=b"y"), guaranteed(1, payload=b"y")]
    assert taken(copies, *came) == [(1,), (1,)]


def test_copy_counts_if_deciding_copy_does_not_arrive():
    copies = OverlapDedup(holding("a/#", "a/b", "a/+"))
    assert copies.receive_copy(guaranteed(2)) == []
    assert copies.receive_copy(guaranteed(3)) == []
    assert copies.has_undecided
    assert copies.decide_waiting() == [(guaranteed(2), True), (guaranteed(3), False)]
    assert copies.decide_waiting() == []
    assert copies.receive_copy(guaranteed(1)) == [(guaranteed(1), False)], "it comes after all"
    first, second = guaranteed(2, payload=b"x"), guaranteed(2, payload=b"y")
    assert taken(copies, first, second, guaranteed(1, payload=b"y")) == [(2,), (1,)]


def captured_before(*payloads: bytes, by: int = 1) -> Callable[[PublishPacket], int]:
    """A copy of these payloads by subscription `by` was captured before."""
    return lambda copy: by if copy.payload in payloads else 0


def test_first_copy_on_a_connection_does_not_count_if_captured_before():
    copies = OverlapDedup(holding("a/#", "a/b", "a/+"), captured_before(b"x"))
    x, y = (partial(guaranteed, payload=payload) for payload in (b"x", b"y"))
    copies.on_connected(session_present=False)
    assert taken(copies, x(2), x(3), x(2), y(1), y(2), x(1)) == [(2,), (1,), (1,)]
    copies.on_connected(session_present=True)
    assert taken(copies, x(2), x(3), y(2), x(2)) == [(2,), (2,)]


def test_identical_copy_from_same_filter_is_new_publication():
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made, captured_before(b"same"))
    assert taken(copies, guaranteed(1, payload=b"before"), guaranteed(1), guaranteed(2)) == [
        (1,),
        (1,),
    ]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2)) == [(2,)]
    made.assign_identifier("a/+")
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(3)) == [(3,)], "the last one was before this filter"


@pytest.mark.parametrize("rest", [1, 2])
def test_late_copy_does_not_count_even_if_its_filter_decides(rest):
    """The other copy's filter has ended, or the other copy was the only one received."""
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made, captured_before(b"same"))
    assert taken(copies, guaranteed(1, payload=b"before"), guaranteed(3 - rest)) == [
        (1,),
        (3 - rest,),
    ]
    if rest == 2:
        end(made, "a/#")
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(rest, dup=True), guaranteed(rest)) == [(rest,)]


def test_redelivered_copy_that_did_not_count_is_recognised(monkeypatch):
    monkeypatch.setattr("hansa.delivery.dedup.overlap.OVERLAP_COPIES_MAX", 3)
    made = holding("a/#", "a/b")
    copies = OverlapDedup(made)
    assert taken(copies, guaranteed(1, packet_id=1), guaranteed(2, packet_id=2)) == [(1,)]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, packet_id=2, dup=True), guaranteed(1), guaranteed(2)) == [
        (1,)
    ]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, packet_id=2)) == [(2,)], "it is not the same"
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, packet_id=2, dup=True, payload=b"x")) == [(2,)], (
        "nor this one"
    )
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, packet_id=2, dup=True)) == [(2,)], (
        "so much later it cannot be"
    )
    assert taken(copies, guaranteed(2, payload=b"y", packet_id=8), guaranteed(1, payload=b"y")) == [
        (1,)
    ]
    copies.on_connected(session_present=False)
    assert taken(copies, guaranteed(2, payload=b"y", packet_id=8, dup=True)) == [(2,)], (
        "another session"
    )


def test_redelivered_copy_that_waited_is_recognised():
    copies = OverlapDedup(holding("a/#", "a/b"))
    assert taken(copies, guaranteed(2, packet_id=1), guaranteed(1, packet_id=2)) == [(1,)]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, packet_id=1, dup=True)) == []


def test_redelivered_copy_is_recognised_if_another_one_counted_after_waiting():
    copies = OverlapDedup(holding("a/#", "a/b", "+/b"))
    assert taken(copies, guaranteed(2, packet_id=1), guaranteed(3, packet_id=2)) == [(2,)]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(3, packet_id=2, dup=True)) == []


def test_content_is_equal_up_to_the_expiry():
    hashes = {
        content_hash(replace(guaranteed(1), properties=encode_properties(properties)))
        for properties in (
            ((Property.CONTENT_TYPE, "text"), (Property.MESSAGE_EXPIRY_INTERVAL, 5)),
            ((Property.CONTENT_TYPE, "text"), (Property.MESSAGE_EXPIRY_INTERVAL, 4)),
            ((Property.CONTENT_TYPE, "json"),),
            (),
        )
    }
    assert len(hashes) == 3


def test_copies_waiting_at_disconnection_wait_again():
    copies = OverlapDedup(holding("a/#", "a/b"))
    assert copies.receive_copy(guaranteed(2)) == []
    copies.on_connected(session_present=True)
    assert not copies.has_undecided
    assert taken(copies, guaranteed(2, dup=True)) == [(2,)]


def test_without_identifiers_waiting_copies_are_decided_first():
    copies = OverlapDedup(holding("a/#", "a/b"))
    assert copies.receive_copy(guaranteed(2)) == []
    assert copies.receive_copy(guaranteed(payload=b"x")) == [
        (guaranteed(2), True),
        (guaranteed(payload=b"x"), True),
    ]


def test_copies_of_local_or_invalid_topics_never_count():
    made = SubscriptionTable(["stay/#"])
    copies = OverlapDedup(made)
    made.assign_identifier("#")
    far = "/".join("x" * 300)
    assert taken(copies, *(guaranteed(n, topic=t) for t in ("stay/a", far) for n in (1, 9))) == []


def test_copies_without_identifiers_all_count():
    copies = OverlapDedup(holding("a/#"))
    assert taken(copies, guaranteed(), guaranteed(), guaranteed(topic="other")) == [(), ()]


def test_remembered_copies_are_bounded(monkeypatch):
    """The packet id that was not used for the longest time is forgotten first."""
    monkeypatch.setattr("hansa.delivery.dedup.overlap.OVERLAP_COPIES_MAX", 3)
    copies = OverlapDedup(holding("a/#", "a/b", "+/b"))
    for packet_id in (1, 2, 3):
        copy = partial(guaranteed, payload=b"%d" % packet_id, packet_id=packet_id)
        assert taken(copies, copy(1), copy(2)) == [(1,)]
    assert taken(copies, *(guaranteed(n, packet_id=i) for n, i in ((1, 9), (2, 1), (3, 4)))) == [
        (1,)
    ]
    assert len(copies._overlap_copies) == 3  # noqa: SLF001
    copies.on_connected(session_present=True)
    again = guaranteed(2, packet_id=1, dup=True)
    assert taken(copies, again) == [], "packet id 1 was used again"
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(3, packet_id=4, dup=True)) == [], "the newest one"


def test_separated_copies_of_the_last_contents_are_recognised(monkeypatch):
    """Content 1 was published again, so content 2 is forgotten."""
    monkeypatch.setattr("hansa.delivery.dedup.overlap.OVERLAP_COPIES_MAX", 2)
    copies = OverlapDedup(holding("a/#", "a/b"))
    taken(copies, *(guaranteed(1, payload=name) for name in (b"1", b"2", b"1", b"3")))
    assert taken(copies, *(guaranteed(2, payload=name) for name in (b"1", b"2"))) == [(2,)]


@pytest.mark.parametrize(("others", "is_copy"), [(2, True), (3, False)])
def test_copy_that_did_not_count_is_recognised_for_a_while(monkeypatch, others, is_copy):
    monkeypatch.setattr("hansa.delivery.dedup.overlap.OVERLAP_COPIES_MAX", 3)
    copies = OverlapDedup(holding("a/#", "a/b"))
    assert taken(copies, guaranteed(1, packet_id=1), guaranteed(2, packet_id=2)) == [(1,)]
    came = [guaranteed(1, payload=b"%d" % number) for number in range(others - 1)]
    assert len(taken(copies, *came)) == others - 1
    copies.on_connected(session_present=True)
    again = guaranteed(2, packet_id=2, dup=True)
    assert taken(copies, again) == ([] if is_copy else [(2,)])


def test_packet_id_of_a_copy_that_did_not_count_may_be_reused():
    copies = OverlapDedup(holding("a/#", "a/b"))
    assert taken(copies, guaranteed(1, packet_id=1), guaranteed(2, packet_id=2)) == [(1,)]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, packet_id=2, dup=True, payload=b"other")) == [(2,)]


def test_all_copies_of_a_publication_captured_before_are_recognised():
    """The last one on the previous connection had other content."""
    copies = OverlapDedup(holding("a/#", "a/b", "a/+"), captured_before(b"x"))
    assert taken(copies, guaranteed(1, payload=b"y")) == [(1,)]
    copies.on_connected(session_present=True)
    assert taken(copies, guaranteed(2, payload=b"x"), guaranteed(3, payload=b"x")) == []


def captured_as(*packet_ids: int) -> Callable[[PublishPacket], bool]:
    """Copies with these packet ids were captured, and are sent again."""
    return lambda copy: copy.dup and copy.packet_id in packet_ids


def test_copy_that_counted_without_the_deciding_one_counts_again():
    """The deciding copy waited at the broker for room in the window."""
    copies = OverlapDedup(holding("a/#", "a/b", "+/b"), is_redelivery=captured_as(1))
    assert taken(copies, guaranteed(2, packet_id=1)) == [(2,)]
    copies.on_connected(session_present=True)
    again = guaranteed(2, packet_id=1, dup=True)
    assert taken(copies, again, guaranteed(3, packet_id=2), guaranteed(1, packet_id=3)) == [(2,)]


def test_captured_copies_of_identical_publications_count_again():
    """Of the first publication copy 1 was captured, of the second one copy 2."""
    copies = OverlapDedup(holding("a/#", "a/b"), is_redelivery=captured_as(1, 3))
    came = [guaranteed(1, packet_id=1), guaranteed(2, packet_id=2), guaranteed(2, packet_id=3)]
    assert taken(copies, *came) == [(1,), (2,)]
    copies.on_connected(session_present=True)
    again = [guaranteed(1, packet_id=1, dup=True), guaranteed(2, packet_id=3, dup=True)]
    assert taken(copies, *again, guaranteed(1, packet_id=4)) == [(1,), (2,)]
