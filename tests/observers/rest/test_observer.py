"""The observer of HTTP APIs: polls, failures and doubts."""

import pytest

from hansa.errors import UsageError
from hansa.observers.base import (
    NO_CHANGE,
    FilterNotAnnounced,
    ObservationComplete,
    ObservationIncomplete,
    ObserverOutput,
)
from hansa.observers.rest import observer as rest_observer
from hansa.observers.rest.answer import ListedSubscription, hash_client_id
from hansa.observers.rest.observer import NOT_CONFIRMED, NOT_POLLED, OWN_AWAITED, RestObserver

STALE = "the broker's HTTP API has not listed its subscriptions for too long"


def make() -> RestObserver:
    return RestObserver("hansa-1-", stale_after_s=10.0)


def poll(observer: RestObserver, *filters: str, requests: int = 1, now: float = 0.0):
    listed = [ListedSubscription("c", name) for name in filters]
    return observer.on_polled(listed, requests, now)


def test_observer_is_incomplete_before_its_first_poll():
    observer = make()
    assert observer.on_connected(session_lost=True, now=0.0) == NO_CHANGE
    assert (observer.is_complete, observer.incomplete_reason) == (False, NOT_POLLED)
    assert observer.is_confirmation_pending


def test_each_poll_replaces_the_known_filters():
    observer = make()
    assert poll(observer, "a", "b") == ObserverOutput(("a", "b"), (), (ObservationComplete(),))
    assert poll(observer, "b", "c") == ObserverOutput(added=("c",), removed=("a",))
    assert observer.subscribed_filters() == ("b", "c")


def test_list_in_several_parts_is_complete_the_second_time():
    """A row may have moved from the second part to the first while they were requested."""
    observer = make()
    assert poll(observer, "a", requests=2) == ObserverOutput(added=("a",))
    assert (observer.incomplete_reason, observer.is_confirmation_pending) == (NOT_CONFIRMED, True)
    assert poll(observer, "a", "b", requests=2) == ObserverOutput(
        ("b",), (), (ObservationComplete(),)
    )
    observer.on_poll_failed("away")
    poll(observer, "a", "b", requests=2)
    assert observer.incomplete_reason == NOT_CONFIRMED


def test_own_subscriptions_and_local_topics_do_not_count():
    observer = make()
    rows = [("hansa-1-agent", "a"), ("hansa-2-agent", "b"), ("c", "$SYS/#"), ("c", "$share/g/d")]
    observer.on_polled([ListedSubscription(*row) for row in rows], 1, 0.0)
    assert observer.subscribed_filters() == ("$share/g/d", "b")


def test_own_clients_are_recognised_by_their_hash():
    own, other = hash_client_id("hansa-1-agent"), hash_client_id("c")
    observer = RestObserver("hansa-1-", 10.0, [own])
    observer.on_polled([ListedSubscription(own, "a"), ListedSubscription(other, "b")], 1, 0.0)
    assert observer.subscribed_filters() == ("b",)


def test_list_proves_something_once_it_has_contained_an_own_subscription():
    observer = make()
    theirs, own = ListedSubscription("c", "a"), ListedSubscription("hansa-1-observer", "x")
    observer.on_polled([theirs], 1, 0.0, awaits_own=True)
    assert observer.subscribed_filters() == ("a",)
    assert (observer.incomplete_reason, observer.is_confirmation_pending) == (OWN_AWAITED, True)
    observer.on_polled([theirs, own], 1, 0.0, awaits_own=True)
    assert observer.is_complete
    observer.on_polled([theirs], 1, 0.0, awaits_own=True)  # its connection was lost
    assert observer.is_complete


def test_own_client_prefix_must_not_be_empty():
    with pytest.raises(ValueError, match="every client"):
        RestObserver("", 1.0)


def test_failed_poll_keeps_everything_and_ends_completeness():
    observer = make()
    poll(observer, "a")
    failed = ObserverOutput(findings=(ObservationIncomplete("status 500"),))
    assert observer.on_poll_failed("status 500") == failed
    assert observer.on_poll_failed("status 500") == NO_CHANGE
    assert (observer.is_complete, observer.subscribed_filters()) == (False, ("a",))
    assert poll(observer, "a") == ObserverOutput(findings=(ObservationComplete(),))


def test_filter_missing_in_a_poll_of_several_requests_stays_until_the_next():
    observer = make()
    for _ in range(2):
        poll(observer, "a", "b", requests=2)
    assert poll(observer, "b", requests=2) == NO_CHANGE
    assert poll(observer, "b", requests=2) == ObserverOutput(removed=("a",))
    poll(observer, requests=2)
    poll(observer, "b", requests=2)
    assert poll(observer, requests=2) == NO_CHANGE, "it was there in between"


def test_old_poll_proves_nothing():
    observer = make()
    poll(observer, "a", now=5.0)
    assert observer.next_deadline() == 15.0
    assert observer.handle_timer(14.9) == NO_CHANGE
    assert observer.handle_timer(15.0) == ObserverOutput(findings=(ObservationIncomplete(STALE),))
    assert (observer.next_deadline(), observer.subscribed_filters()) == (None, ("a",))


def test_more_filters_than_allowed_make_it_incomplete(monkeypatch):
    monkeypatch.setattr(rest_observer, "FILTERS_MAX", 2)
    observer = make()
    poll(observer, "a", "b")
    poll(observer, "a", "b", "c")
    assert observer.incomplete_reason == "the broker lists more than 2 filters"
    assert observer.subscribed_filters() == ("a", "b")


def test_invalid_filter_is_reported_once():
    observer = make()
    findings = poll(observer, "a/#/b").findings
    assert [type(each) for each in findings] == [FilterNotAnnounced, ObservationComplete]
    assert poll(observer, "a/#/b") == NO_CHANGE


def test_restored_filters_stay_until_a_poll():
    observer = make()
    poll(observer, "a", "b")
    restarted = make()
    assert restarted.restore(observer.snapshot(), 0.0) == ObserverOutput(added=("a", "b"))
    assert not restarted.is_complete
    assert poll(restarted, "b").removed == ("a",)


@pytest.mark.parametrize("saved", [{}, {"format": 1, "filters": ["a"]}, {"format": "rest 1"}])
def test_snapshot_of_another_observer_is_refused(saved):
    with pytest.raises(UsageError):
        make().restore(saved, 0.0)
