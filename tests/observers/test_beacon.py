"""The observer of beacons and announcements."""

import json

import pytest

from hansa.errors import UsageError
from hansa.observers import beacon
from hansa.observers.beacon import BeaconObserver
from hansa.observers.contract import (
    UNCHANGED,
    Change,
    Completed,
    FilterRefused,
    Incomplete,
    LineUnread,
)

TOPIC = "NEW_REGULAR_TOPIC"


def observing(interval=2.0) -> BeaconObserver:
    observer = BeaconObserver(interval)
    assert observer.reconnected(session_lost=True, now=0.0) == UNCHANGED
    return observer


def announce(observer, text):
    return observer.take(TOPIC, text.encode(), now=0.0)


def test_subscribes_to_beacons_and_announcements():
    assert BeaconObserver(1.0).subscriptions() == ("federator/beacon/#", TOPIC)
    assert BeaconObserver(1.0, "b/", "n").subscriptions() == ("b/#", "n")


def test_beacon_is_valid_for_three_intervals():
    observer = observing()
    assert observer.take("federator/beacon/a/b", b"", now=1.0) == Change(added=("a/b",))
    assert observer.expire(now=2.0) == Change(findings=(Completed(),))
    assert observer.next_deadline() == 7.0
    assert observer.expire(now=6.9) == UNCHANGED
    assert observer.expire(now=7.0) == Change(removed=("a/b",))
    assert observer.next_deadline() is None


def test_repeated_beacon_lasts_longer():
    observer = observing()
    observer.take("federator/beacon/a", b"", now=0.0)
    observer.take("federator/beacon/b", b"", now=1.0)
    assert observer.take("federator/beacon/a", b"", now=3.0) == UNCHANGED
    observer.expire(now=3.0)
    assert observer.next_deadline() == 7.0
    assert observer.expire(now=7.0) == Change(removed=("b",))
    assert observer.next_deadline() == 9.0


def test_picture_is_complete_after_one_interval_of_each_connection():
    observer = observing()
    assert (observer.complete, observer.next_deadline()) == (False, 2.0)
    assert observer.reason
    assert observer.expire(now=2.0) == Change(findings=(Completed(),))
    assert (observer.complete, observer.reason) == (True, "")
    observer.take("federator/beacon/a", b"", now=3.0)
    change = observer.reconnected(session_lost=True, now=8.0)
    assert change == Change(findings=(Incomplete("a beacon interval has not passed yet"),))
    assert observer.expire(now=13.0) == Change(findings=(Completed(),))
    assert observer.expire(now=14.0) == Change(removed=("a",))


def test_deadline_at_time_zero_is_a_deadline():
    observer = BeaconObserver(0.0)
    observer.reconnected(session_lost=True, now=0.0)
    assert observer.next_deadline() == 0.0


def test_announcements_of_all_kinds():
    observer = observing()
    assert announce(observer, "a/+") == Change(added=("a/+",))
    assert announce(observer, "subscribe a/+") == UNCHANGED
    assert announce(observer, "subscribe $share/g/two words") == Change(
        added=("$share/g/two words",)
    )
    assert announce(observer, "publish c") == UNCHANGED
    assert announce(observer, "unsubscribe never") == UNCHANGED
    assert announce(observer, "unsubscribe a/+") == Change(removed=("a/+",))
    assert announce(observer, "publish") == Change(added=("publish",))
    assert observer.expire(now=1e9).removed == ()


def test_withdrawn_announcement_leaves_a_beacon_alone():
    observer = observing()
    observer.take("federator/beacon/a", b"", now=0.0)
    announce(observer, "a")
    assert announce(observer, "unsubscribe a") == UNCHANGED
    assert observer.wanted() == ("a",)


@pytest.mark.parametrize("text", ["", "a/#/b", "$SYS/x", "$share/g/$SYS/x", "x" * 1025])
def test_what_cannot_be_announced_is_refused_and_counted(text):
    observer = observing()
    change = announce(observer, text)
    (finding,) = change.findings
    assert isinstance(finding, FilterRefused)
    assert (finding.topic_filter, observer.refused_count, observer.wanted()) == (text, 1, ())


def test_bytes_that_are_no_text_are_counted():
    observer = observing()
    (finding,) = observer.take(TOPIC, b"\xff", now=0.0).findings
    assert isinstance(finding, LineUnread)
    assert observer.refused_count == 1


def test_number_of_filters_is_bounded(monkeypatch):
    monkeypatch.setattr(beacon, "FILTERS_MAX", 2)
    observer = observing()
    observer.take("federator/beacon/a", b"", now=0.0)
    announce(observer, "b")
    (finding,) = announce(observer, "c").findings
    assert isinstance(finding, FilterRefused)
    assert observer.wanted() == ("a", "b")


def test_other_topics_are_of_no_interest():
    assert observing().take("federator/core_ann/a", b"", now=0.0) == UNCHANGED


def test_snapshot_survives_json():
    observer = observing()
    observer.take("federator/beacon/b", b"", now=0.0)
    announce(observer, "a")
    saved = json.loads(json.dumps(observer.snapshot()))
    other = BeaconObserver(2.0)
    assert other.restore(saved, now=100.0) == Change(added=("b", "a"))
    assert other.expire(now=106.0) == Change(removed=("b",))
    assert other.wanted() == ("a",)


@pytest.mark.parametrize(
    "saved", [{}, {"format": 1}, {"format": 9, "beacons": [], "announced": []}]
)
def test_other_snapshots_are_refused(saved):
    with pytest.raises(UsageError):
        BeaconObserver(1.0).restore(saved, now=0.0)
