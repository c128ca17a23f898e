"""The embedded broker: it reports the subscriptions of its clients, and nothing is lost or
duplicated."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.live import Live, assert_each_once, eventually

from hansa.agent.broker.embedded import EmbeddedObserver
from hansa.observers.base import NO_CHANGE, ObserverOutput
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

# ---------------------------------------------------------------- the observer


def test_filter_is_subscribed_while_a_client_is_subscribed():
    observer = EmbeddedObserver()
    assert observer.on_subscribed("one", "a/#") == ObserverOutput(added=("a/#",))
    assert observer.on_subscribed("two", "a/#") == NO_CHANGE
    assert observer.on_subscribed("two", "a/#") == NO_CHANGE  # subscribed again
    assert observer.on_unsubscribed("two", "a/#") == NO_CHANGE
    assert observer.on_unsubscribed("two", "a/#") == NO_CHANGE
    assert observer.subscribed_filters() == ("a/#",)
    assert observer.on_unsubscribed("one", "a/#") == ObserverOutput(removed=("a/#",))


def test_subscriptions_of_a_client_end_with_its_session():
    observer = EmbeddedObserver()
    for name in ("b", "a"):
        observer.on_subscribed("one", name)
    assert observer.on_session_ended("one") == ObserverOutput(removed=("a", "b"))
    assert observer.on_session_ended("one") == NO_CHANGE


def test_filter_that_cannot_be_announced_is_ignored():
    observer = EmbeddedObserver()
    assert observer.on_subscribed("one", "a/" * 40 + "#") == NO_CHANGE
    assert observer.subscribed_filters() == ()


# ---------------------------------------------------------------- a federation of such brokers


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    settings = {"HANSA_BROKER_OBSERVER": "embedded"}
    with Live(LocalFederation(parse_topology("ring:3", 1), settings)) as running:
        yield running


def test_overlapping_filters_at_all_brokers_get_each_publication_once(live):
    subscribers = [live.subscriber(n, f) for n in range(3) for f in ("over/#", "over/+/b")]
    payloads = [b"%d" % number for number in range(20)]
    for number in range(3):
        assert_each_once(live.client(number), subscribers, "over/a/b", payloads)


def test_unsubscribe_and_disconnection_end_interest(live):
    leaving, vanishing = live.subscriber(1, "leave"), live.subscriber(1, "vanish")
    leaving.unsubscribe("leave")
    vanishing.kill()

    def noticed() -> bool:
        interest: Any = live.nodes[1].status()["interest"]
        return not {"leave", "vanish"} & set(interest["local"])

    eventually(noticed, "interest withdrawn")
