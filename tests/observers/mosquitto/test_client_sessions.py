"""Client sessions: certain and uncertain subscriptions, and reconciliation with counts."""

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
    """Return sessions of connected clients, all certain and complete."""
    books = SessionTable("hansa-")
    for client, how in held.items():
        books.on_connected(client, *how, f"{client}:1")
        books.on_subscribed(client, f"{client}/x")
    books.mark_complete()
    books.confirm()
    return books


def expected_filters(books: SessionTable) -> tuple[str, ...]:
    return books.filter_counts.subscribed_filters()


def tally(books: SessionTable) -> tuple[int, int]:
    return books.count_by_certainty(SubscriptionKind.PLAIN)


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize(
    ("how", "left"), [(CLEAN, (0, 0)), (LASTING, (1, 0)), (TIMED, (0, 1)), (TIMED_RESUMED, (0, 1))]
)
@pytest.mark.parametrize("address", [None, "bob:1"])
def test_disconnection_ends_clean_session_only(how, left, address):
    books = sessions(bob=how)
    books.on_disconnected("bob", address, is_certain=True)
    assert tally(books) == left
    assert expected_filters(books) == (("bob/x",) if any(left) else ())
    assert ("bob" in books) == any(left)


@pytest.mark.parametrize(("how", "left"), [(CLEAN, (0, 1)), (LASTING, (1, 0)), (TIMED, (0, 1))])
def test_uncertain_disconnection_makes_subscriptions_uncertain(how, left):
    books = sessions(bob=how)
    books.on_disconnected("bob", None, is_certain=False)
    assert tally(books) == left


def test_disconnection_of_other_address_is_ignored():
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
def test_takeover_keeps_session_as_broker_does(
    before: tuple[SessionMode, bool], after: tuple[SessionMode, bool], left: tuple[int, int]
):
    books = sessions(bob=before)
    books.on_taken_over("bob")
    books.on_connected("bob", *after, "bob:2")
    assert tally(books) == left
    books.on_taken_over("nobody")


def test_late_close_of_old_websocket_keeps_new_session():
    books = sessions(bob=CLEAN)
    books.on_taken_over("bob")
    books.on_connected("bob", *CLEAN, "bob:2")
    books.on_subscribed("bob", "y")
    books.on_disconnected("bob", None, is_certain=True)
    assert (expected_filters(books), tally(books)) == (("y",), (0, 1))
    books.on_disconnected("bob", None, is_certain=True)
    assert expected_filters(books) == ()


def test_late_close_of_old_websocket_keeps_next_session():
    books = sessions(bob=CLEAN)
    books.on_taken_over("bob")
    books.on_connected("bob", *CLEAN, "bob:2")
    books.on_disconnected("bob", None, is_certain=True)  # its own line, but indistinguishable
    books.on_connected("bob", *CLEAN, "bob:3")
    books.on_subscribed("bob", "y")
    books.on_disconnected("bob", None, is_certain=True)  # the line of the first connection
    assert (expected_filters(books), tally(books)) == (("y",), (0, 1))
    books.on_disconnected("bob", None, is_certain=True)
    assert expected_filters(books) == ()


def test_expired_session_is_removed():
    books = sessions(bob=LASTING)
    books.on_disconnected("bob", None, is_certain=True)
    books.on_session_expired("bob")
    books.on_session_expired("bob")
    assert (expected_filters(books), "bob" in books) == ((), False)


def test_client_without_filters_is_known_while_it_is_connected():
    books = sessions()
    books.on_connected("bob", *LASTING, "bob:1")
    assert "bob" in books
    books.on_disconnected("bob", None, is_certain=True)
    assert "bob" not in books


def test_filter_of_two_clients_is_announced_once_and_counted_twice():
    books = sessions(ann=CLEAN, bob=CLEAN)
    for client in ("ann", "bob"):
        books.on_subscribed(client, "same")
        books.on_subscribed(client, "same")
    assert (expected_filters(books), tally(books)) == (("ann/x", "bob/x", "same"), (4, 0))
    books.on_unsubscribed([("ann", "same")])
    assert "same" in expected_filters(books)
    books.on_unsubscribed([("bob", "same")])
    assert "same" not in expected_filters(books)


def test_ambiguous_unsubscription_makes_both_uncertain():
    books = sessions(ann=CLEAN, bob=CLEAN)
    books.on_unsubscribed([("ann", "ann/x"), ("bob", "bob/x")])
    assert tally(books) == (0, 2)
    books.on_unsubscribed([("ann", "never"), ("bob", "bob/x")])
    assert expected_filters(books) == ("ann/x",)


def test_own_clients_and_local_topics_are_counted_but_not_announced():
    books = sessions()
    books.on_subscribed("hansa-1", "a")
    books.on_subscribed("bob", "$SYS/x")
    books.on_subscribed("bob", "$share/g/$SYS/x")
    assert (
        expected_filters(books),
        tally(books),
        books.count_by_certainty(SubscriptionKind.SHARED),
    ) == (
        (),
        (2, 0),
        (1, 0),
    )
    books.on_unsubscribed([("bob", "$SYS/x")])
    assert tally(books) == (1, 0)


def test_filter_that_cannot_be_announced_is_counted_and_refused():
    books = sessions()
    books.on_subscribed("bob", "a/" * 40)
    assert (expected_filters(books), tally(books), len(books.findings)) == ((), (1, 0), 1)
    (finding,) = books.findings
    assert isinstance(finding, FilterNotAnnounced)
    assert "41 levels, the limit is 32" in finding.reason
    books.on_unsubscribed([("bob", "a/" * 40)])
    assert tally(books) == (0, 0)


# ---------------------------------------------------------------- truncated filters


def test_truncated_filter_leaves_gap_until_removed():
    books = sessions()
    books.on_subscribed("bob", "long" + CUT_MARK)
    assert (expected_filters(books), tally(books), bool(books.incomplete_reason)) == (
        (),
        (1, 0),
        True,
    )
    books.on_unsubscribed([("bob", "long-er")])
    assert (tally(books), books.incomplete_reason) == ((0, 0), "")


def test_truncated_filter_may_end_inside_character():
    books = sessions()
    books.on_subscribed("bob", "long\ufffd" + CUT_MARK)
    books.on_unsubscribed([("bob", "longé-\ufffd" + CUT_MARK)])
    assert tally(books) == (0, 0)


def test_truncated_unsubscription_matches_a_filter_from_the_tree():
    books = sessions()
    books.on_subscribed("bob", "long-er")
    books.on_unsubscribed([("bob", "long" + CUT_MARK)])
    assert expected_filters(books) == ()


def test_truncated_filters_of_own_or_local_topics_leave_no_gap():
    books = sessions()
    books.on_subscribed("hansa-1", "long" + CUT_MARK)
    books.on_subscribed("bob", "$SYS/long" + CUT_MARK)
    assert books.incomplete_reason == ""
    books.on_unsubscribed([("bob", "other")])
    assert tally(books) == (2, 0)


# ---------------------------------------------------------------- counts


def test_count_equal_to_certain_subscriptions_confirms_state():
    books = sessions(ann=TIMED, bob=CLEAN)
    books.on_disconnected("ann", None, is_certain=True)
    books.mark_incomplete("a line was not read")
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    books.reconcile_count(SubscriptionKind.SHARED, 0)
    assert (expected_filters(books), tally(books), books.incomplete_reason) == (
        ("bob/x",),
        (1, 0),
        "",
    )
    assert "ann" not in books


def test_equal_count_confirms_uncertain_subscriptions_if_nothing_was_missed():
    books = sessions(ann=TIMED, bob=CLEAN)
    books.on_disconnected("ann", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    assert tally(books) == (2, 0)
    books.mark_all_uncertain("missed")
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    assert tally(books) == (0, 2)


def test_count_between_certain_and_known_changes_nothing():
    books = sessions(ann=TIMED, bob=TIMED)
    books.on_disconnected("ann", None, is_certain=True)
    books.on_disconnected("bob", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert (tally(books), books.incomplete_reason, books.findings) == ((0, 2), "", [])


def test_count_above_known_subscriptions_is_contradiction():
    books = sessions(bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 3)
    books.reconcile_count(SubscriptionKind.PLAIN, 3)
    assert books.findings == [SubscriptionCountMismatch("subscriptions", known=1, counted=3)]
    assert (
        books.incomplete_reason == "the broker counts 2 subscriptions that the agent does not know"
    )
    assert expected_filters(books) == ("bob/x",)


def test_two_equal_counts_end_contradiction():
    books = sessions(bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == UNCONFIRMED
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == UNCONFIRMED
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == ""


def test_log_read_does_not_end_contradiction():
    books = sessions(bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.mark_all_uncertain("the log is read again")
    books.mark_complete()
    books.confirm()
    assert (
        books.incomplete_reason == "the broker counts 1 subscriptions that the agent does not know"
    )


def test_uncertain_subscription_does_not_hide_unknown_one():
    """The broker has an unlogged subscription; one of a disconnected client may be gone."""
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
    assert (expected_filters(books), books.incomplete_reason) == (("bob/x", "found"), "")


def test_uncertain_subscription_does_not_hide_one_of_bridge():
    books = sessions(ann=TIMED)
    books.mark_complete()
    books.needs_proof = True
    books.on_disconnected("ann", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.SHARED, 0)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.incomplete_reason == UNCONFIRMED


def test_own_client_with_clean_start_leaves_no_subscription():
    """The log does not show the expiry of an MQTT 5 session, but this client is our own."""
    books = sessions()
    books.on_connected("hansa-reader", *TIMED, "h:1")
    books.on_subscribed("hansa-reader", "a/#")
    books.on_disconnected("hansa-reader", None, is_certain=True)
    assert tally(books) == (0, 0)


def test_session_of_a_replaced_agent_stays_certain_until_it_expires():
    """It was not complete before: only equality with the count proves that nothing is hidden."""
    books, replaced = SessionTable("hansa-00000000000000bb-"), "hansa-00000000000000aa-agent"
    books.on_connected(replaced, *TIMED_RESUMED, "h:1")
    books.on_subscribed(replaced, "a/#")
    books.on_disconnected(replaced, None, is_certain=True)
    for kind, counted in ((SubscriptionKind.SHARED, 0), (SubscriptionKind.PLAIN, 1)):
        books.reconcile_count(kind, counted)
    assert (tally(books), books.incomplete_reason) == ((1, 0), "")
    books.on_session_expired(replaced)
    assert tally(books) == (0, 0)


def test_session_ended_without_line_is_detected_from_count():
    """An MQTT 5 session ends without a line after its will delay."""
    books = sessions(ann=TIMED, bob=CLEAN)
    books.on_disconnected("ann", None, is_certain=True)
    books.reconcile_count(SubscriptionKind.PLAIN, 2)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert (expected_filters(books), books.incomplete_reason, books.findings) == (
        ("bob/x",),
        "",
        [],
    )


def test_count_below_certain_subscriptions_means_lost_lines():
    books = sessions(ann=CLEAN, bob=CLEAN)
    books.reconcile_count(SubscriptionKind.PLAIN, 1)
    assert books.findings == [SubscriptionCountMismatch("subscriptions", known=2, counted=1)]
    assert "lines were lost" in books.incomplete_reason
    assert (expected_filters(books), tally(books)) == (("ann/x", "bob/x"), (0, 2))


def test_subscription_kinds_are_counted_separately():
    books = sessions()
    books.on_subscribed("bob", "$share/g/x")
    books.on_subscribed("bob", "y", is_certain=False)
    books.reconcile_count(SubscriptionKind.SHARED, 1)
    assert tally(books) == (0, 1)
    assert subscription_kind("$share/g/x") is SubscriptionKind.SHARED


# ---------------------------------------------------------------- restart, tree


def test_disconnection_after_missed_lines_is_uncertain():
    books = sessions(bob=CLEAN)
    books.mark_all_uncertain("missed")
    books.on_disconnected("bob", None, is_certain=True)
    assert (expected_filters(books), books.incomplete_reason) == (("bob/x",), "missed")


def test_restart_ends_clean_sessions_and_makes_others_uncertain():
    books = sessions(ann=CLEAN, bob=LASTING, eve=TIMED)
    books.on_broker_started()
    assert (expected_filters(books), tally(books)) == (("bob/x", "eve/x"), (0, 2))


def test_declared_session_replaces_known_filters():
    books = sessions()
    books.on_subscribed("hansa-1", "a", is_certain=False)
    books.on_subscribed("hansa-1", "b", is_certain=False)
    books.set_plain_filters("hansa-1", ["b", "c"])
    assert books.filters_by_client() == {"hansa-1": ["b", "c"]}
    assert tally(books) == (2, 0)


def test_tree_replaces_known_subscriptions():
    books = sessions(ann=CLEAN, bob=TIMED)
    books.mark_all_uncertain("missed")
    books.on_subscribed("bob", "$share/g/x")
    books.apply_tree(
        SubscriptionTree({"bob": ("bob/x", "y"), "eve": ("z",)}, ("x",), (), is_complete=True)
    )
    assert expected_filters(books) == ("$share/g/x", "bob/x", "y", "z")
    assert tally(books) == (3, 0)
    assert books.incomplete_reason == "missed"  # there may be other groups


def test_tree_without_shared_subscriptions_ends_known_ones():
    books = sessions()
    books.mark_all_uncertain("missed")
    books.on_subscribed("bob", "$share/g/x")
    books.apply_tree(SubscriptionTree({}, (), (), is_complete=True))
    assert (expected_filters(books), books.incomplete_reason) == ((), "")


def test_known_shared_subscription_above_another_is_kept():
    books = sessions()
    books.on_subscribed("bob", "$share/g/x")
    books.on_subscribed("bob", "$share/g/x/+")
    books.apply_tree(SubscriptionTree({}, ("x/+",), ("x",), is_complete=True))
    assert expected_filters(books) == ("$share/g/x", "$share/g/x/+")


def test_shared_subscription_of_unknown_group_is_announced_as_plain():
    books = sessions()
    books.apply_tree(SubscriptionTree({}, ("x/+",), ("x",), is_complete=True))
    assert expected_filters(books) == ("x", "x/+")  # the level above may be shared, too
    assert books.incomplete_reason == "the groups of some shared subscriptions are unknown"
    assert UNKNOWN_CLIENT in books
    books.reconcile_count(SubscriptionKind.SHARED, 0)
    assert (expected_filters(books), books.incomplete_reason) == ((), "")


# ---------------------------------------------------------------- bounds


def test_number_of_subscriptions_is_bounded(monkeypatch):
    monkeypatch.setattr(client_sessions, "SUBSCRIPTIONS_MAX", 1)
    books = sessions(bob=CLEAN)
    books.on_subscribed("bob", "y")
    assert expected_filters(books) == ("bob/x",)
    assert books.incomplete_reason == "there are more than 1 subscriptions"


def test_number_of_idle_clients_is_bounded(monkeypatch):
    monkeypatch.setattr(client_sessions, "SESSIONS_MAX", 1)
    books = sessions(bob=CLEAN)
    books.on_connected("eve", *CLEAN, "eve:1")
    assert "eve" not in books
    books.on_subscribed("eve", "e")
    assert "e" in expected_filters(books)
