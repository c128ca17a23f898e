"""The observer of beacons and announcements."""

import json

import pytest

from hansa.errors import UsageError
from hansa.observers import beacon
from hansa.observers.base import (
    NO_CHANGE,
    FilterNotAnnounced,
    LineNotUnderstood,
    ObservationComplete,
    ObservationIncomplete,
    ObserverOutput,
)
from hansa.observers.beacon import BeaconObserver

TOPIC = "NEW_REGULAR_TOPIC"


def observing(interval=2.0) -> BeaconObserver:
    observer = BeaconObserver(interval)
    assert observer.on_connected(session_lost=True, now=0.0) == NO_CHANGE
    return observer


def announce(observer, text):
    return observer.receive_publication(TOPIC, text.encode(), now=0.0)


def test_subscribes_to_beacons_and_announcements():
    assert BeaconObserver(1.0).topics_to_subscribe() == ("federator/beacon/#", TOPIC)
    assert BeaconObserver(1.0, "b/", "n").topics_to_subscribe() == ("b/#", "n")


def test_beacon_is_valid_for_three_intervals():
    observer = observing()
    assert observer.receive_publication("federator/beacon/a/b", b"", now=1.0) == ObserverOutput(
        added=("a/b",)
    )
    assert observer.handle_timer(now=2.0) == ObserverOutput(findings=(ObservationComplete(),))
    assert observer.next_deadline() == 7.0
    assert observer.handle_timer(now=6.9) == NO_CHANGE
    assert observer.handle_timer(now=7.0) == ObserverOutput(removed=("a/b",))
    assert observer.next_deadline() is None


def test_repeated_beacon_lasts_longer():
    observer = observing()
    observer.receive_publication("federator/beacon/a", b"", now=0.0)
    observer.receive_publication("federator/beacon/b", b"", now=1.0)
    assert observer.receive_publication("federator/beacon/a", b"", now=3.0) == NO_CHANGE
    observer.handle_timer(now=3.0)
    assert observer.next_deadline() == 7.0
    assert observer.handle_timer(now=7.0) == ObserverOutput(removed=("b",))
    assert observer.next_deadline() == 9.0


def test_observer_is_complete_after_one_interval_of_each_connection():
    observer = observing()
    assert (observer.is_complete, observer.next_deadline()) == (False, 2.0)
    assert observer.incomplete_reason
    assert observer.handle_timer(now=2.0) == ObserverOutput(findings=(ObservationComplete(),))
    assert (observer.is_complete, observer.incomplete_reason) == (True, "")
    observer.receive_publication("federator/beacon/a", b"", now=3.0)
    change = observer.on_connected(session_lost=True, now=8.0)
    assert change == ObserverOutput(
        findings=(ObservationIncomplete("a beacon interval has not passed yet"),)
    )
    assert observer.handle_timer(now=13.0) == ObserverOutput(findings=(ObservationComplete(),))
    assert observer.handle_timer(now=14.0) == ObserverOutput(removed=("a",))


def test_deadline_at_time_zero_is_a_deadline():
    observer = BeaconObserver(0.0)
    observer.on_connected(session_lost=True, now=0.0)
    assert observer.next_deadline() == 0.0


def test_announcements_of_all_kinds():
    observer = observing()
    assert announce(observer, "a/+") == ObserverOutput(added=("a/+",))
    assert announce(observer, "subscribe a/+") == NO_CHANGE
    assert announce(observer, "subscribe $share/g/two words") == ObserverOutput(
        added=("$share/g/two words",)
    )
    assert announce(observer, "publish c") == NO_CHANGE
    assert announce(observer, "unsubscribe never") == NO_CHANGE
    assert announce(observer, "unsubscribe a/+") == ObserverOutput(removed=("a/+",))
    assert announce(observer, "publish") == ObserverOutput(added=("publish",))
    assert observer.handle_timer(now=1e9).removed == ()


def test_withdrawn_announcement_keeps_beacon():
    observer = observing()
    observer.receive_publication("federator/beacon/a", b"", now=0.0)
    announce(observer, "a")
    assert announce(observer, "unsubscribe a") == NO_CHANGE
    assert observer.subscribed_filters() == ("a",)


@pytest.mark.parametrize("text", ["", "a/#/b", "$SYS/x", "$share/g/$SYS/x", "x" * 1025])
def test_filter_that_cannot_be_announced_is_refused_and_counted(text):
    observer = observing()
    change = announce(observer, text)
    (finding,) = change.findings
    assert isinstance(finding, FilterNotAnnounced)
    assert (finding.topic_filter, observer.refused_count, observer.subscribed_filters()) == (
        text,
        1,
        (),
    )


def test_invalid_utf_8_is_counted():
    observer = observing()
    (finding,) = observer.receive_publication(TOPIC, b"\xff", now=0.0).findings
    assert isinstance(finding, LineNotUnderstood)
    assert observer.refused_count == 1


def test_number_of_filters_is_bounded(monkeypatch):
    monkeypatch.setattr(beacon, "FILTERS_MAX", 2)
    observer = observing()
    observer.receive_publication("federator/beacon/a", b"", now=0.0)
    announce(observer, "b")
    (finding,) = announce(observer, "c").findings
    assert isinstance(finding, FilterNotAnnounced)
    assert observer.subscribed_filters() == ("a", "b")
    observer.handle_timer(now=100.0)
    assert (observer.is_complete, observer.incomplete_reason) == (
        False,
        "there were more than 2 filters",
    )


def test_other_topics_are_ignored():
    assert observing().receive_publication("federator/core_ann/a", b"", now=0.0) == NO_CHANGE


def test_snapshot_survives_json():
    observer = observing()
    observer.receive_publication("federator/beacon/b", b"", now=0.0)
    announce(observer, "a")
    saved = json.loads(json.dumps(observer.snapshot()))
    other = BeaconObserver(2.0)
    assert other.restore(saved, now=100.0) == ObserverOutput(added=("b", "a"))
    assert other.handle_timer(now=106.0) == ObserverOutput(removed=("b",))
    assert other.subscribed_filters() == ("a",)


@pytest.mark.parametrize(
    "saved", [{}, {"format": 1}, {"format": 9, "beacons": [], "announced": []}]
)
def test_other_snapshots_are_refused(saved):
    with pytest.raises(UsageError):
        BeaconObserver(1.0).restore(saved, now=0.0)
