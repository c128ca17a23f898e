"""The books: what is certain, what is doubtful, and what a count makes of it."""

import pytest

from hansa.observers.base import FilterNotAnnounced, SubscriptionCountMismatch
from hansa.observers.mosquitto import client_sessions
from hansa.observers.mosquitto.client_sessions import (
    UNCONFIRMED,
    UNKNOWN_CLIENT,
    SessionTable,
    SubscriptionKind,
    subscription_kind,
)
from hansa.observers.mosquitto.log import CUT_MARK, SessionMode
from hansa.observers.mosquitto.subscription_tree import SubscriptionTree

CLEAN = (SessionMode.CLEAN, True)
LASTING = (SessionMode.PERSISTENT, False)
TIMED = (SessionMode.EXPIRING, True)
TIMED_RESUMED = (SessionMode.EXPIRING, False)


def sessions(**held: tuple[SessionMode, bool]) -> SessionTable:
    """Books in which each client is connected, and all is certain and whole."""
    books = SessionTable("hansa-")
    for client, how in held.items():
        books.on_connected(client, *how, f"{client}:1")
        books.on_subscribed(client, f"{client}/x")
    books.mark_complete()
    books.confirm()
    return books


def wanted(books: SessionTable) -> tuple[str, ...]:
    return books.filter_counts.subscribed_filters()


def tally(books: SessionTable) -> tuple[int, int]:
    return books.count_by_certainty(SubscriptionKind.PLAIN)


# ---------------------------------------------------------------- lives


@pytest.mark.parametrize(
    ("how", "left"), [(CLEAN, (0, 0)), (LASTING, (1, 0)), (TIMED, (0, 1)), (TIMED_RESUMED, (0, 1))]
)
@pytest.mark.parametrize("address", [None, "bob:1"])
def test_end_of_a_connection_ends_a_clean_session_only(how, left, address):
    books = sessions(bob=how)
    books.on_disconnected("bob", address, is_certain=True)
    assert tally(books) == left
    assert wanted(books) == (("bob/x",) if any(left) else ())
    assert ("bob" in books) == any(left)


@pytest.mark.parametrize(("how", "left"), [(CLEAN, (0, 1)), (LASTING, (1, 0)), (TIMED, (0, 1))])
def test_unsure_end_leaves_a_doubt(how, left):
    books = sessions(bob=how)
    books.on_disconnected("bob", None, is_certain=False)
    assert tally(books) == left


def test_end_of_another_connection_is_ignored():
    books = sessions(bob=CLEAN)
    books.on_disconnected("bob", "eve:2", is_certain=True)
    books.on_disconnected("eve", None, is_certain=True)
    assert tally(books) == (1, 0)


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (CLEAN, CLEAN, (0, 0)),
        (CLEAN, LASTING, (0, 0)),
        (LASTING, CLEAN, (0, 0)),
        (LASTING, LASTING, (1, 0)),
        (TIMED, TIMED, (0, 0)),
        (TIMED, TIMED_RESUMED, (0, 1)),
        (LASTING, TIMED_RESUMED, (1, 0)),
        (CLEAN, TIMED_RESUMED, (0, 0)),
    ],
)
def test_takeover_keeps_what_the_broker_keeps(
    before: tuple[SessionMode, bool], after: tuple[SessionMode, bool], left: tuple[int, int]
):
    books = sessions(bob=before)
    books.on_taken_over("bob")
    books.on_connected("bob", *after, "bob:2")
    assert tally(books) == left
    books.on_taken_over("nobody")


def test_old_websocket_that_closes_late_does_not_end_the_new_session():
    books = sessions(bob=CLEAN)
    books.on_taken_over("bob")
    books.on_connected("bob", *CLEAN, "bob:2")
    books.on_subscribed("bob", "y")
    books.on_disconnected("bob", None, is_certain=True)
    assert (wanted(books), tally(books)) == (("y",), (0, 1))
    books.on_disconnected("bob", None, is_certain=True)
    assert wanted(books) == ()


def test_old_websocket_that_closes_after_a_life_does_not_end_the_next_session():
    books = sessions(bob=CLEAN)
    books.on_taken_over("bob")
    books.on_connected("bob", *CLEAN, "bob:2")
    books.on_disconnected("bob", None, is_certain=True)  # its own, but nobody can know
    books.on_connected("bob", *CLEAN, "bob:3")
    books.on_subscribed("bob", "y")
    books.on_disconnected("bob", None, is_certain=True)  # that of the first connection
    assert (wanted(books), tally(books)) == (("y",), (0, 1))
    books.on_disconnected("bob", None, is_certain=True)
    assert wanted(books) == ()


def test_expired_session_is_gone():
    books = sessions(bob=LASTING)
    books.on_disconnected("bob", None, is_certain=True)
    books.on_session_expired("bob")
    books.on_session_expired("bob")
    assert (wanted(books), "bob" in books) == ((), False)


def test_client_without_filters_is_known_while_it_is_connected():
    books = sessions()
    books.on_connected("bob", *LASTING, "bob:1")
    assert "bob" in books
    books.on_disconnected("bob", None, is_certain=True)
    assert "bob" not in books


def test_same_filter_of_two_clients_is_wanted_once_and_counted_twice():
    books = sessions(ann=CLEAN, bob=CLEAN)
    for client in ("ann", "bob"):
        books.on_subscribed(client, "same")
        books.on_subscribed(client, "same")
    assert (wanted(books), tally(books)) == (("ann/x", "bob/x", "same"), (4, 0))
    books.on_unsubscribed([("ann", "same")])
    assert "same" in wanted(books)
    books.on_unsubscribed([("bob", "same")])
    assert "same" not in wanted(books)


def test_unsubscription_that_may_mean_two_leaves_both_in_doubt():
    books = sessions(ann=CLEAN, bob=CLEAN)
    books.on_unsubscribed([("ann", "ann/x"), ("bob", "bob/x")])
    assert tally(books) == (0, 2)
    books.on_unsubscribed([("ann", "never"), ("bob", "bob/x")])
    assert wanted(books) == ("ann/x",)


def test_own_clients_and_local_topics_are_counted_but_not_announced():
    books = sessions()
    books.on_subscribed("hansa-1", "a")
    books.on_subscribed("bob", "$SYS/x")
    books.on_subscribed("bob", "$share/g/$SYS/x")
    assert (wanted(books), tally(books), books.count_by_certainty(SubscriptionKind.SHARED)) == (
        (),
        (2, 0),
        (1, 0),
    )
    books.on_unsubscribed([("bob", "$SYS/x")])
    assert tally(books) == (1, 0)


def test_filter_that_cannot_be_announced_is_counted_and_refused():
    books = sessions()
    books.on_subscribed("bob", "a/" * 40)
    assert (wanted(books), tally(books), books.refused_count) == ((), (1, 0), 1)
    (finding,) = books.findings
    assert isinstance(finding, FilterNotAnnounced)
    assert "41 levels, the limit is 32" in finding.reason
    books.on_unsubscribed([("bob", "a/" * 40)])
    assert tally(books) == (0, 0)


# ---------------------------------------------------------------- filters that are cut


def test_cut_filter_makes_a_gap_until_it_is_gone():
    books = sessions()
    books.on_subscribed("bob", "long" + CUT_MARK)
    assert (wanted(books), tally(books), bool(books.incomplete_reason)) == ((), (1, 0), True)
    books.on_unsubscribed([("bob", "long-er")])
    assert (tally(books), books.incomplete_reason) == ((0, 0), "")


def test_cut_filter_may_end_in_half_a_character():
    books = sessions()
    books.on_subscribed("bob", "long\ufffd" + CUT_MARK)
    books.on_unsubscribed([("bob", "longé-\ufffd" + CUT_MARK)])
    assert tally(books) == (0, 0)


def test_truncated_unsubscription_matches_a_filter_from_the_tree():
    books = sessions()
    books.on_subscribed("bob", "long-er")
    books.on_unsubscribed([("bob", "long" + CUT_MARK)])
    assert wanted(books) == ()


def test_cut_filters_of_own_or_local_topics_hide_nothing():
    books = sessions()
    books.on_subscribed("hansa-1", "long" + CUT_MARK)
    books.on_subscribed("bob", "$SYS/long" + CUT_MARK)
    assert books.incomplete_reason == ""
    books.on_unsubscribed([("bob", "other")])
    assert tally(books) == (2, 0)


# ---------------------------------------------------------------- counts


def test_as_many_as_are_certain_proves_the_picture():
    books = sessions(ann=TIMED, bob=CLEAN)
    books.on_disconnected("ann", None, is_certain=True)
    books.mark_incomplete("a line was not read")
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    books.reconcile_count(SubscriptionKind.SHARED, 0)
    assert (wanted(books), tally(books), books.incomplete_reason) == (("bob/x",), (1, 0), "")
    assert "ann" not in books


def test_equal_count_confirms_uncertain_subscriptions_if_nothing_was_missed():
    books = sessions(ann=TIMED, bob=CLEAN)
    books.on_disconnected("ann", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    assert tally(books) == (2, 0)
    books.mark_all_uncertain("missed")
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    assert tally(books) == (0, 2)


def test_between_the_two_nothing_is_learned():
    books = sessions(ann=TIMED, bob=TIMED)
    books.on_disconnected("ann", None, is_certain=True)
    books.on_disconnected("bob", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert (tally(books), books.incomplete_reason, books.findings) == ((0, 2), "", [])


def test_more_than_are_known_is_a_contradiction():
    books = sessions(bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 3)
    books.reconcile_count(SubscriptionKind.PLAIN, 3)
    assert books.findings == [SubscriptionCountMismatch("subscriptions", known=1, counted=3)]
    assert (
        books.incomplete_reason == "the broker counts 2 subscriptions that the agent does not know"
    )
    assert wanted(books) == ("bob/x",)


def test_after_a_contradiction_two_counts_have_to_agree():
    books = sessions(bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == UNCONFIRMED
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == UNCONFIRMED
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == ""


def test_reading_the_log_again_does_not_settle_a_contradiction():
    books = sessions(bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.mark_all_uncertain("the log is read again")
    books.mark_complete()
    books.confirm()
    assert (
        books.incomplete_reason == "the broker counts 1 subscriptions that the agent does not know"
    )


def test_a_doubtful_subscription_does_not_hide_an_unknown_one():
    """The broker has one that it never logged; one of a client that has left may be gone."""
    books = sessions(ann=TIMED, bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 3)
    books.note_reread()
    books.reconcile_count(SubscriptionKind.PLAIN, 3)
    books.on_disconnected("ann", None, is_certain=True)
    for _ in range(3):
        books.reconcile_count(SubscriptionKind.PLAIN, 2)
    assert (
        books.incomplete_reason == "the broker counts 1 subscriptions that the agent does not know"
    )
    books.on_subscribed("eve", "found")
    for _ in range(2):
        books.reconcile_count(SubscriptionKind.PLAIN, 2)
    assert (wanted(books), books.incomplete_reason) == (("bob/x", "found"), "")


def test_a_doubtful_subscription_does_not_hide_one_of_a_bridge():
    books = sessions(ann=TIMED)
    books.mark_complete()
    books.needs_proof = True
    books.on_disconnected("ann", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.SHARED, 0)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == UNCONFIRMED


def test_a_client_of_the_agent_with_a_clean_start_leaves_nothing():
    """The log does not say how long a session of MQTT 5 lasts, but this client is our own."""
    books = sessions()
    books.on_connected("hansa-reader", *TIMED, "h:1")
    books.on_subscribed("hansa-reader", "a/#")
    books.on_disconnected("hansa-reader", None, is_certain=True)
    assert tally(books) == (0, 0)


def test_session_that_ended_without_a_line_shows_in_the_count():
    """An MQTT 5 session ends unseen after its will was delayed."""
    books = sessions(ann=TIMED, bob=CLEAN)
    books.on_disconnected("ann", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert (wanted(books), books.incomplete_reason, books.findings) == (("bob/x",), "", [])


def test_fewer_than_are_certain_means_that_lines_were_lost():
    books = sessions(ann=CLEAN, bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.findings == [SubscriptionCountMismatch("subscriptions", known=2, counted=1)]
    assert "lines were lost" in books.incomplete_reason
    assert (wanted(books), tally(books)) == (("ann/x", "bob/x"), (0, 2))


def test_kinds_are_counted_apart():
    books = sessions()
    books.on_subscribed("bob", "$share/g/x")
    books.on_subscribed("bob", "y", is_certain=False)
    books.reconcile_count(SubscriptionKind.SHARED, 1)
    assert tally(books) == (0, 1)
    assert subscription_kind("$share/g/x") is SubscriptionKind.SHARED


# ---------------------------------------------------------------- all at once


def test_after_missed_lines_an_end_proves_nothing():
    books = sessions(bob=CLEAN)
    books.mark_all_uncertain("missed")
    books.on_disconnected("bob", None, is_certain=True)
    assert (wanted(books), books.incomplete_reason) == (("bob/x",), "missed")


def test_restart_ends_clean_sessions_and_doubts_the_others():
    books = sessions(ann=CLEAN, bob=LASTING, eve=TIMED)
    books.on_broker_started()
    assert (wanted(books), tally(books)) == (("bob/x", "eve/x"), (0, 2))


def test_declared_session_is_certain_and_has_nothing_else():
    books = sessions()
    books.on_subscribed("hansa-1", "a", is_certain=False)
    books.on_subscribed("hansa-1", "b", is_certain=False)
    books.set_plain_filters("hansa-1", ["b", "c"])
    assert books.filters_by_client() == {"hansa-1": ["b", "c"]}
    assert tally(books) == (2, 0)


def test_tree_is_the_truth():
    books = sessions(ann=CLEAN, bob=TIMED)
    books.mark_all_uncertain("missed")
    books.on_subscribed("bob", "$share/g/x")
    books.apply_tree(
        SubscriptionTree({"bob": ("bob/x", "y"), "eve": ("z",)}, ("x",), (), is_complete=True)
    )
    assert wanted(books) == ("$share/g/x", "bob/x", "y", "z")
    assert tally(books) == (3, 0)
    assert books.incomplete_reason == "missed"  # there may be other groups


def test_tree_without_shared_subscriptions_ends_those_that_were_known():
    books = sessions()
    books.mark_all_uncertain("missed")
    books.on_subscribed("bob", "$share/g/x")
    books.apply_tree(SubscriptionTree({}, (), (), is_complete=True))
    assert (wanted(books), books.incomplete_reason) == ((), "")


def test_shared_subscription_on_the_way_to_another_stays_if_it_was_known():
    books = sessions()
    books.on_subscribed("bob", "$share/g/x")
    books.on_subscribed("bob", "$share/g/x/+")
    books.apply_tree(SubscriptionTree({}, ("x/+",), ("x",), is_complete=True))
    assert wanted(books) == ("$share/g/x", "$share/g/x/+")


def test_shared_subscription_of_nobody_knows_whom_is_wanted_as_a_plain_one():
    books = sessions()
    books.apply_tree(SubscriptionTree({}, ("x/+",), ("x",), is_complete=True))
    assert wanted(books) == ("x", "x/+")  # what is above it may be shared, too
    assert books.incomplete_reason == "the groups of some shared subscriptions are unknown"
    assert UNKNOWN_CLIENT in books
    books.reconcile_count(SubscriptionKind.SHARED, 0)
    assert (wanted(books), books.incomplete_reason) == ((), "")


# ---------------------------------------------------------------- bounds


def test_number_of_subscriptions_is_bounded(monkeypatch):
    monkeypatch.setattr(client_sessions, "SUBSCRIPTIONS_MAX", 1)
    books = sessions(bob=CLEAN)
    books.on_subscribed("bob", "y")
    assert wanted(books) == ("bob/x",)
    assert books.incomplete_reason == "there are more than 1 subscriptions"


def test_number_of_idle_clients_is_bounded(monkeypatch):
    monkeypatch.setattr(client_sessions, "SESSIONS_MAX", 1)
    books = sessions(bob=CLEAN)
    books.on_connected("eve", *CLEAN, "eve:1")
    assert "eve" not in books
    books.on_subscribed("eve", "e")
    assert "e" in wanted(books)
