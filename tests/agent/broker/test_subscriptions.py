"""Which copy of a publication counts, also while the set of subscriptions changes."""

from hansa.agent.broker import subscriptions
from hansa.agent.broker.subscriptions import UNFIT, Subscriptions


def holding(*filters: str) -> Subscriptions:
    made = Subscriptions()
    for name in filters:
        made.want(name)
        made.enter(name)
        made.confirm(name)
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


def test_a_filter_in_doubt_that_is_given_up_has_ended_like_any_other():
    made = holding("a/#")
    made.want("a/b")
    made.enter("a/b")
    made.resume()
    made.drop("a/b")
    made.part("a/b")
    assert made.leave("a/b") is False
    made.want("a/b")
    assert made.enter("a/b") == 3
    made.confirm("a/b")
    assert made.newest_beside((2,)) == 2, "its copies are from before the next one"
    assert made.brought_by((2, 3)) == (2, 3)


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
