"""The saved subscriptions across incarnations."""

from collections.abc import Iterable

import pytest

from hansa.delivery.subscriptions import table
from hansa.delivery.subscriptions.saved import (
    ENDED,
    LEAVING,
    VERSION_3_1_1,
    SavedSubscriptions,
    SubscriptionChange,
)

Changes = Iterable[tuple[str, int]]


class Saved:
    """Subscriptions and what is saved of them; `is_summary` saves everything anew each time."""

    def __init__(self, is_summary: bool) -> None:
        self._is_summary = is_summary
        self._saved: list[SubscriptionChange] = []
        self.saved_subscriptions = SavedSubscriptions(has_session=True)

    def save(self, *changes: tuple[str, int]) -> None:
        for name, identifier in changes:
            self.saved_subscriptions.record(name, identifier)
        had_unsaved = self.saved_subscriptions.has_unsaved
        if self._is_summary:
            self.saved_subscriptions.request_rewrite()
        unsaved = self.saved_subscriptions.take_unsaved()
        assert (had_unsaved, self.saved_subscriptions.has_unsaved) == (True, False)
        if unsaved is None:
            self._saved = self.saved_subscriptions.summary()
        else:
            self._saved += unsaved

    def restart(self) -> None:
        self.saved_subscriptions = SavedSubscriptions(self._saved, has_session=True)


@pytest.fixture(params=[False, True], ids=["changes", "summary"])
def saved(request):
    return Saved(request.param)


def test_next_incarnation_knows_filters_in_order(saved):
    saved.save(("a/#", 1), ("b", 2), ("c", 3))
    saved.save(("b", LEAVING), ("a/#", ENDED))
    saved.restart()
    assert list(saved.saved_subscriptions.identifiers.items()) == [("b", LEAVING), ("c", 3)]


def test_next_incarnation_knows_assigned_identifiers_and_ended_filters(saved):
    saved.save(("a", 1), ("b", 2), ("a", LEAVING))
    for _ in range(2):
        saved.restart()
        saved.save(("c", 3))
    saved.save(("a", ENDED), ("a", 4), ("c", ENDED), ("d", 5), ("d", ENDED))
    for _ in range(2):
        saved.restart()
        saved.save()
    subscriptions = saved.saved_subscriptions
    assert (subscriptions.last_identifier, subscriptions.last_identifier_at_end) == (
        5,
        {1: 3, 3: 4, 5: 5},
    )
    assert subscriptions.identifiers == {"b": 2, "a": 4}


def test_first_save_of_an_incarnation_saves_everything(saved):
    """The previous incarnation may not have synced."""
    saved.save(("a", 1))
    saved.restart()
    assert saved.saved_subscriptions.has_unsaved
    assert saved.saved_subscriptions.take_unsaved() is None


def test_lost_session_clears_everything(saved):
    saved.save(("a", 1), ("x", 2), ("x", ENDED))
    saved.saved_subscriptions.record("c", 3)
    saved.saved_subscriptions.clear()
    saved.save(("b", 1))
    saved.restart()
    subscriptions = saved.saved_subscriptions
    assert (
        subscriptions.identifiers,
        subscriptions.last_identifier,
        subscriptions.last_identifier_at_end,
    ) == (
        {"b": 1},
        1,
        {},
    )


def test_change_after_a_requested_rewrite_is_saved_with_it():
    subscriptions = SavedSubscriptions()
    subscriptions.record("a", 1)
    subscriptions.request_rewrite()
    subscriptions.record("b", 2)
    assert subscriptions.take_unsaved() is None
    assert [each.name for each in subscriptions.summary()] == ["a", "b", ""]


def test_leaving_filter_without_known_identifier_is_restored():
    """An earlier save may have been lost."""
    subscriptions = SavedSubscriptions([SubscriptionChange("a", LEAVING)])
    assert subscriptions.summary() == [
        SubscriptionChange("a", LEAVING),
        SubscriptionChange("", 0, 0),
    ]
    subscriptions.record("b", ENDED)
    assert subscriptions.identifiers == {"a": LEAVING}


def test_ended_filters_are_bounded(saved, monkeypatch):
    monkeypatch.setattr(table, "ENDS_MAX", 5)
    for number in range(1, 101):
        saved.save(("a", number), ("a", ENDED))
    assert saved.saved_subscriptions.last_identifier_at_end == {n: n for n in range(96, 101)}


def test_without_a_saved_state_there_is_no_session():
    subscriptions = SavedSubscriptions()
    assert (subscriptions.has_session, subscriptions.summary()) == (
        False,
        [SubscriptionChange("", 0, 0)],
    )


def test_nothing_but_the_session_is_saved_of_a_new_session():
    subscriptions = SavedSubscriptions([SubscriptionChange("a", 1)], has_session=True)
    subscriptions.clear()
    assert (subscriptions.last_identifier, subscriptions.summary()) == (
        0,
        [SubscriptionChange("", 0, 0)],
    )
    subscriptions.record("a", LEAVING)
    assert subscriptions.summary() == [
        SubscriptionChange("a", LEAVING),
        SubscriptionChange("", 0, 0),
    ], "its identifier was one of the former session"


def test_end_of_an_unknown_filter_ends_no_other():
    subscriptions = SavedSubscriptions([SubscriptionChange("a", 1)])
    subscriptions.record("unknown", ENDED)
    assert 1 not in subscriptions.last_identifier_at_end


def test_saved_files_name_states_by_these_numbers():
    assert (LEAVING, ENDED, VERSION_3_1_1) == (-1, 0, -2)
