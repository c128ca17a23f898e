"""The observer of brokers that announce subscriptions on `$SYS` topics."""

import json
from typing import Any

import pytest

from hansa.errors import UsageError
from hansa.observers import topics
from hansa.observers.base import (
    NO_CHANGE,
    FilterNotAnnounced,
    ObservationComplete,
    ObservationIncomplete,
    ObserverOutput,
)
from hansa.observers.topics import EARLIER, INTERRUPTED, TopicsObserver


def make(kind: str, agent_first: bool = True) -> TopicsObserver:
    made = TopicsObserver(kind, "hansa-1-", agent_first)
    made.on_connected(session_lost=True, now=0.0)
    return made


def send(observer: TopicsObserver, topic: str, value: Any) -> ObserverOutput:
    return observer.receive_publication(topic, json.dumps(value).encode(), 0.0)


def aedes(observer: TopicsObserver, verb: str, *subs: Any, client: str = "c") -> ObserverOutput:
    return send(observer, f"$SYS/id/new/{verb}", {"clientId": client, "subs": subs})


def rmqtt(
    observer: TopicsObserver, verb: str, topic: str = "", time: str = "1", **opts: str
) -> ObserverOutput:
    value = {"clientid": "c/1", "topic": topic, "opts": {"qos": 1, **opts}, "time": time}
    return send(observer, f"$SYS/brokers/1/session/c/1/{verb}", value)


def test_topics_of_each_kind():
    assert make("aedes").topics_to_subscribe() == (
        "$SYS/+/new/subscribes",
        "$SYS/+/new/unsubscribes",
    )
    assert make("rmqtt").topics_to_subscribe() == ("$SYS/brokers/+/session/#",)


def test_aedes_announces_subscriptions_and_their_end():
    observer = make("aedes")
    subs = [{"topic": "a", "qos": 0}, {"topic": "$share/g/b", "qos": 1}, {"topic": "x", "qos": 128}]
    assert aedes(observer, "subscribes", *subs) == ObserverOutput(added=("a", "$share/g/b"))
    assert aedes(observer, "subscribes", {"topic": "a", "qos": 1}, client="d") == NO_CHANGE
    assert aedes(observer, "unsubscribes", "a", "$share/g/b") == ObserverOutput(
        removed=("$share/g/b",)
    )
    assert aedes(observer, "unsubscribes", "a", "a", client="d") == ObserverOutput(removed=("a",))
    assert observer.is_complete


def test_own_subscriptions_and_local_topics_do_not_count():
    observer = make("aedes")
    aedes(observer, "subscribes", {"topic": "a", "qos": 0}, client="hansa-1-agent")
    aedes(observer, "subscribes", {"topic": "$SYS/#", "qos": 0})
    assert observer.subscribed_filters() == ()
    with pytest.raises(ValueError, match="every client"):
        TopicsObserver("aedes", "", agent_first=True)


def test_rmqtt_announces_subscriptions_and_the_end_of_sessions():
    observer = make("rmqtt")
    rmqtt(observer, "created")
    rmqtt(observer, "subscribed", "a")
    rmqtt(observer, "subscribed", "b", group="g")
    assert observer.subscribed_filters() == ("$share/g/b", "a")
    rmqtt(observer, "unsubscribed", "b", time="2")
    assert observer.subscribed_filters() == ("a",)
    assert rmqtt(observer, "terminated", time="2") == ObserverOutput(removed=("a",))


def test_message_that_arrives_late_changes_nothing():
    observer = make("rmqtt")
    rmqtt(observer, "subscribed", "a", time="3")
    assert rmqtt(observer, "unsubscribed", "a", time="2") == NO_CHANGE
    assert rmqtt(observer, "unsubscribed", "a", time="3") == NO_CHANGE, "the order is unknown"
    assert rmqtt(observer, "terminated", time="1") == NO_CHANGE
    assert rmqtt(observer, "unsubscribed", "a", time="4").removed == ("a",)


def test_observer_is_complete_only_if_the_agent_is_declared_first():
    observer = TopicsObserver("aedes", "hansa-1-", agent_first=False)
    assert observer.on_connected(True, 0.0) == NO_CHANGE
    assert observer.incomplete_reason == EARLIER
    observer = TopicsObserver("aedes", "hansa-1-", agent_first=True)
    assert observer.on_connected(True, 0.0).findings == (ObservationComplete(),)
    assert observer.on_connected(True, 0.0).findings == (ObservationIncomplete(INTERRUPTED),)
    observer.on_connected(True, 0.0)
    assert observer.incomplete_reason == INTERRUPTED


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000, b'{"clientId": 1, "subs": []}']
    + [b'{"clientId": "c", "subs": {}}', b'{"clientId": "c", "subs": [{"topic": "a"}]}']
    + [b'{"clientId": "c", "subs": [{"topic": 7, "qos": 0}]}', b'{"clientId": "c", "subs": ["a"]}'],
)
def test_message_that_cannot_be_read_ends_completeness(payload):
    observer = make("aedes")
    aedes(observer, "subscribes", {"topic": "a", "qos": 0})
    observer.receive_publication("$SYS/id/new/subscribes", payload, 0.0)
    assert observer.incomplete_reason == "a message of the broker could not be read"
    assert observer.subscribed_filters() == ("a",)


def test_number_of_subscriptions_is_bounded(monkeypatch):
    monkeypatch.setattr(topics, "SUBSCRIPTIONS_MAX", 2)
    observer = make("aedes")
    aedes(observer, "subscribes", *({"topic": name, "qos": 0} for name in "abc"))
    assert observer.subscribed_filters() == ("a", "b")
    assert observer.incomplete_reason == "there are more than 2 subscriptions"


def test_invalid_filter_is_reported():
    findings = aedes(make("aedes"), "subscribes", {"topic": "a/#/b", "qos": 0}).findings
    assert [type(each) for each in findings] == [FilterNotAnnounced]


def test_restored_filters_stay_and_the_observer_is_incomplete():
    observer = make("aedes")
    aedes(observer, "subscribes", {"topic": "a", "qos": 0})
    restarted = TopicsObserver("aedes", "hansa-1-", agent_first=True)
    assert restarted.restore(observer.snapshot(), 0.0) == ObserverOutput(added=("a",))
    restarted.on_connected(True, 0.0)
    assert restarted.incomplete_reason == INTERRUPTED
    assert aedes(restarted, "unsubscribes", "a").removed == ("a",)


def test_agent_that_was_connected_before_and_saved_nothing_is_not_first():
    observer = TopicsObserver("aedes", "hansa-1-", agent_first=True)
    observer.on_snapshot_missing()
    observer.on_connected(session_lost=True, now=0.0)
    assert observer.incomplete_reason == INTERRUPTED


@pytest.mark.parametrize("saved", [{}, {"format": "topics 1", "sessions": {"c": "a"}}])
def test_snapshot_of_another_observer_is_refused(saved):
    with pytest.raises(UsageError):
        make("aedes").restore(saved, 0.0)
