"""Which filter decides for a topic, also while subscriptions change."""

from hansa.delivery.subscriptions import table
from hansa.delivery.subscriptions.table import TOPIC_TOO_DEEP, SubscriptionTable


def holding(*filters: str) -> SubscriptionTable:
    made = SubscriptionTable()
    for name in filters:
        made.require(name)
        made.assign_identifier(name)
        made.on_confirmed(name)
    return made


def test_oldest_matching_filter_decides():
    made = holding("a/#", "a/b", "+/b")
    assert [made.deciding_identifier(topic) for topic in ("a/b", "a/c", "x/b", "x/y")] == [
        1,
        1,
        3,
        0,
    ]


def test_active_filters_that_match_are_counted():
    made = holding("a/#", "a/b", "+/b")
    made.start_unsubscribe("a/b")
    for topic, count in (("a/b", 3), ("a/c", 1), ("x/y", 0), ("/" * 300, 0)):
        made.deciding_identifier(topic)
        assert made.count_active(topic) == count
    made.on_unsubscribed("a/b")
    made.deciding_identifier("a/b")
    assert made.count_active("a/b") == 2


def test_new_filter_decides_only_if_no_other_matches():
    made = holding("a/b")
    assert made.deciding_identifier("a/c") == 0
    made.require("a/#")
    assert made.assign_identifier("a/#") == 2
    assert [made.deciding_identifier("a/b"), made.deciding_identifier("a/c")] == [1, 2]


def test_unsubscribed_filter_counts_until_unsuback():
    made = holding("a/#", "a/b")
    made.stop_requiring("a/#")
    made.start_unsubscribe("a/#")
    assert "a/#" not in made
    assert made.deciding_identifier("a/b") == 1
    assert made.on_unsubscribed("a/#") is False
    assert made.deciding_identifier("a/b") == 2


def test_filter_required_again_during_unsubscribe_is_subscribed_again():
    made = holding("a/#")
    made.stop_requiring("a/#")
    made.start_unsubscribe("a/#")
    made.require("a/#")
    assert (made.is_subscribed("a/#"), made.is_unsubscribing("a/#")) == (False, True)
    assert made.on_unsubscribed("a/#") is True
    assert made.assign_identifier("a/#") == 2


def test_refused_filter_does_not_count_and_stays_required():
    made = holding("a/#", "a/b")
    made.deactivate("a/#")
    assert made.deciding_identifier("a/b") == 2
    assert made.required == ("a/#", "a/b")


def test_new_session_clears_table():
    made = holding("a/#", "a/b")
    made.start_unsubscribe("a/b")
    made.on_session_lost()
    assert made.deciding_identifier("a/b") == 0
    assert made.is_unsubscribing("a/b") is False
    assert made.assign_identifier("a/b") == 1


def test_unconfirmed_filter_is_unsubscribed_like_any_other():
    made = holding("a/#")
    made.require("a/b")
    made.assign_identifier("a/b")
    made.on_session_resumed()
    made.stop_requiring("a/b")
    made.start_unsubscribe("a/b")
    assert made.on_unsubscribed("a/b") is False
    made.require("a/b")
    assert made.assign_identifier("a/b") == 3
    made.on_confirmed("a/b")
    assert made.newest_overlapping((2,)) == 2, "its copies are from before the next one"
    assert made.original_identifiers((2, 3)) == (2, 3)


def test_topic_with_too_many_levels_is_rejected():
    made = holding("#")
    assert made.deciding_identifier("/".join("x" * 200)) == 1
    assert made.deciding_identifier("/".join("x" * 201)) == TOPIC_TOO_DEEP


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(table, "TOPICS_MAX", 2)
    made = holding("#")
    assert [made.deciding_identifier(f"t/{number}") for number in range(5)] == [1] * 5


def test_decisions_are_cached(monkeypatch):
    made = holding("#")
    found = [made.deciding_identifier(topic) for topic in ("a", "b")]
    monkeypatch.setattr(made, "_find_deciding", lambda topic: 99)
    assert [made.deciding_identifier(topic) for topic in ("a", "b")] == found == [1, 1]


def test_local_topics_are_not_captured():
    made = SubscriptionTable(["beacon/#", "NEWS"])
    made.require("#")
    made.assign_identifier("#")
    topics = ("beacon", "beacon/a", "NEWS", "NEWS/x")
    assert [made.is_local_topic(topic) for topic in topics] == [True, True, True, False]
    assert [made.deciding_identifier(topic) for topic in topics] == [0, 0, 0, 1]


def test_filter_being_unsubscribed_is_not_active():
    made = holding("a/#", "a/b", "b")
    assert made.count_matching("a/b") == 2
    made.start_unsubscribe("a/#")
    assert [made.count_matching(topic) for topic in ("a/b", "a/c", "b")] == [1, 0, 1]


def test_table_says_whether_there_are_local_topics():
    assert (SubscriptionTable(["a"]).has_local_topics, holding("a").has_local_topics) == (
        True,
        False,
    )


def test_first_topic_beyond_the_bound_clears_the_cache(monkeypatch):
    monkeypatch.setattr(table, "TOPICS_MAX", 2)
    made = holding("#")
    for topic in ("a", "b", "c"):
        made.deciding_identifier(topic)
    monkeypatch.setattr(made, "_find_deciding", lambda topic: 99)
    assert [made.deciding_identifier(topic) for topic in ("c", "a")] == [1, 99]


def test_nothing_is_confirmed_before_the_broker_answers():
    made = SubscriptionTable()
    assert made.last_confirmed == 0
    made.on_confirmed("a")
    assert made.last_confirmed == 0, "the filter has ended meanwhile"


def test_new_session_clears_cached_decisions_and_previous_identifiers():
    made = holding("a")
    made.require("b")
    made.assign_identifier("b")
    made.on_session_resumed()
    assert made.assign_identifier("b") == 3
    assert (made.deciding_identifier("a"), made.original_identifiers((3,))) == (1, (2,))
    made.on_session_lost()
    assert (made.deciding_identifier("a"), made.original_identifiers((3,))) == (0, (3,))


def test_new_session_knows_nothing_of_former_identifiers():
    made = holding("a")
    made.deactivate("a")
    for name in ("b", "c", "d"):
        made.require(name)
        made.assign_identifier(name)
    made.on_confirmed("c")
    made.on_session_resumed()
    made.on_session_lost()
    assert [made.is_active_identifier(each) for each in (1, 2, 3)] == [False] * 3
    assert made.active_identifiers == {}
    for name in ("d", "a"):
        made.assign_identifier(name)
        made.on_confirmed(name)
    assert made.original_identifiers((1, 2)) == (1, 2)
    assert made.newest_overlapping((1,)) == 2


def test_restored_identifier_is_not_assigned_again():
    made = SubscriptionTable()
    made.restore("a", 5)
    assert made.assign_identifier("b") == 6


def test_unsubscription_is_not_pending_in_a_resumed_session():
    made = holding("a")
    made.start_unsubscribe("a")
    made.on_session_resumed()
    assert (made.is_unsubscribing("a"), made.is_subscribed("a")) == (False, True)


def test_filter_has_one_active_identifier():
    made = holding("a", "b")
    made.restore("b", 5)
    assert [made.is_active_identifier(each) for each in (1, 2, 5)] == [True, False, True]


def test_end_of_an_unknown_filter_ends_no_other():
    made = holding("a")
    made.on_unsubscribed("unknown")
    made.assign_identifier("b")
    made.on_confirmed("b")
    assert made.newest_overlapping((1,)) == 2
