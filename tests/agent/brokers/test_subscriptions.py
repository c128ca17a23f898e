"""Which copy of a publication counts, also while the set of subscriptions changes."""

import pytest

from hansa.agent.brokers import subscriptions
from hansa.agent.brokers.subscriptions import UNFIT, Copies, Subscriptions
from hansa.mqtt.packets import Publish


def holding(*filters: str) -> Subscriptions:
    made = Subscriptions()
    for name in filters:
        made.want(name)
        made.enter(name)
    return made


def test_the_oldest_matching_filter_decides():
    made = holding("a/#", "a/b", "+/b")
    assert [made.oldest(topic) for topic in ("a/b", "a/c", "x/b", "x/y")] == [1, 1, 3, 0]


def test_a_new_filter_decides_only_where_no_other_matches():
    made = holding("a/b")
    assert made.oldest("a/c") == 0
    made.want("a/#")
    assert made.enter("a/#") == 2
    assert [made.oldest("a/b"), made.oldest("a/c")] == [1, 2]


def test_a_filter_that_is_given_up_decides_until_its_end_is_confirmed():
    made = holding("a/#", "a/b")
    made.drop("a/#")
    made.part("a/#")
    assert "a/#" not in made
    assert made.oldest("a/b") == 1
    assert made.leave("a/#") is False
    assert made.oldest("a/b") == 2


def test_a_filter_that_is_wanted_again_while_it_leaves_is_to_be_entered_anew():
    made = holding("a/#")
    made.drop("a/#")
    made.part("a/#")
    made.want("a/#")
    assert (made.holds("a/#"), made.is_leaving("a/#")) == (False, True)
    assert made.leave("a/#") is True
    assert made.enter("a/#") == 2


def test_a_refused_filter_decides_nothing_and_stays_wanted():
    made = holding("a/#", "a/b")
    made.exclude("a/#")
    assert made.oldest("a/b") == 2
    assert made.wanted == ("a/#", "a/b")


def test_a_new_session_starts_from_nothing():
    made = holding("a/#", "a/b")
    made.part("a/b")
    made.start_over()
    assert made.oldest("a/b") == 0
    assert made.is_leaving("a/b") is False
    assert made.enter("a/b") == 1


def test_a_topic_that_no_frame_can_hold_is_unfit():
    made = holding("#")
    assert made.oldest("/".join("x" * 200)) == 1
    assert made.oldest("/".join("x" * 201)) == UNFIT


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(subscriptions, "TOPICS_MAX", 2)
    made = holding("#")
    assert [made.oldest(f"t/{number}") for number in range(5)] == [1] * 5


def test_nothing_is_captured_from_topics_that_stay():
    made = Subscriptions(["beacon/#", "NEWS"])
    made.want("#")
    made.enter("#")
    topics = ("beacon", "beacon/a", "NEWS", "NEWS/x")
    assert [made.stays(topic) for topic in topics] == [True, True, True, False]
    assert [made.oldest(topic) for topic in topics] == [0, 0, 0, 1]


def test_a_filter_that_is_being_ended_does_not_count():
    made = holding("a/#", "a/b", "b")
    assert made.count("a/b") == 2
    made.part("a/#")
    assert [made.count(topic) for topic in ("a/b", "a/c", "b")] == [1, 0, 1]


# ---------------------------------------------------------------- copies that waited in a queue


def sure(
    *identifiers: int, payload: bytes = b"same", topic: str = "a/b", dup: bool = False
) -> Publish:
    return Publish(topic, payload, 1, dup=dup, subscriptions=identifiers)


def taken(copies: Copies, *came: Publish) -> list[tuple[int, ...]]:
    """Which copies count, by their identifiers; every other one is decided, too, in its turn."""
    decided = [each for copy in came for each in copies.sort(copy)]
    decided += copies.settle()
    assert [copy for copy, _ in decided] == list(came)
    return [copy.subscriptions for copy, counts in decided if counts]


def test_of_each_publication_one_copy_counts_also_if_all_are_equal():
    copies = Copies(holding("a/#", "a/b"))
    assert taken(copies, *map(sure, (1, 2, 2, 1, 1, 2))) == [(1,), (1,), (1,)]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_filter_s_end_between_two_copies_of_one_publication_changes_nothing_for_it(order):
    made = holding("a/#", "a/b")
    copies = Copies(made)
    decided = copies.sort(sure(order[0]))
    end(made, "a/#")
    decided += copies.sort(sure(order[1]))
    assert sorted(counts for _, counts in decided) == [False, True]


def end(made: Subscriptions, name: str) -> None:
    """Its end is confirmed; copies from before it may still come."""
    made.drop(name)
    made.leave(name)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_late_copies_one_of_each_publication_counts(order):
    made = holding("a/#", "a/b")
    copies = Copies(made)
    end(made, "a/#")
    assert taken(copies, *map(sure, order * 3)) == [(order[0],)] * 3


def test_a_late_copy_counts_if_there_was_no_other_filter_then():
    made = holding("a/#", "a/b")
    copies = Copies(made)
    end(made, "a/#")
    assert taken(copies, *map(sure, (1, 1, 2))) == [(1,), (1,)]
    assert taken(copies, *map(sure, (2, 2))) == [(2,), (2,)]


def test_what_a_younger_filter_brings_is_another_publication():
    made = holding("a/#")
    copies = Copies(made)
    assert taken(copies, sure(1)) == [(1,)]
    made.want("a/b")
    made.enter("a/b")
    end(made, "a/#")
    assert taken(copies, sure(2)) == [(2,)]


def test_another_publication_begins_with_other_content():
    copies = Copies(holding("a/#", "a/b"))
    came = [sure(1, payload=b"x"), sure(2, payload=b"y"), sure(1, payload=b"y")]
    assert taken(copies, *came) == [(1,), (1,)]


def test_a_copy_waits_for_the_one_that_decides_and_counts_if_that_does_not_come():
    copies = Copies(holding("a/#", "a/b", "a/+"))
    assert copies.sort(sure(2)) == []
    assert copies.sort(sure(3)) == []
    assert copies.are_waiting
    assert copies.settle() == [(sure(2), True), (sure(3), False)]
    assert copies.settle() == []
    assert copies.sort(sure(1)) == [(sure(1), False)], "it comes after all"
    first, second = sure(2, payload=b"x"), sure(2, payload=b"y")
    assert taken(copies, first, second, sure(1, payload=b"y")) == [(2,), (1,)]


def test_a_copy_that_is_sent_again_alone_does_not_count():
    """The broker had the answer to the copy that decided."""
    copies = Copies(holding("a/#", "a/b"))
    assert taken(copies, sure(2, dup=True)) == []
    assert taken(copies, sure(2, dup=True), sure(1)) == [(1,)]


def test_a_copy_that_was_next_when_the_connection_ended_does_not_count():
    copies = Copies(holding("a/#", "a/b"), lambda copy: copy.payload == b"last")
    again, rest = sure(2, payload=b"x", dup=True), sure(2, payload=b"last")
    assert taken(copies, again, rest) == []
    assert taken(copies, sure(2, payload=b"other"), rest) == [(2,), (2,)], "it was not next"


def test_without_identifiers_what_waits_is_decided_first():
    copies = Copies(holding("a/#", "a/b"))
    assert copies.sort(sure(2)) == []
    assert copies.sort(sure(payload=b"x")) == [(sure(2), True), (sure(payload=b"x"), True)]


def test_what_stays_at_its_broker_or_cannot_travel_never_counts():
    made = Subscriptions(["stay/#"])
    copies = Copies(made)
    made.enter("#")
    far = "/".join("x" * 300)
    assert taken(copies, *(sure(n, topic=t) for t in ("stay/a", far) for n in (1, 9))) == []


def test_copies_without_identifiers_all_count():
    copies = Copies(holding("a/#"))
    assert taken(copies, sure(), sure(), sure(topic="other")) == [(), ()]
