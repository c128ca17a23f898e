"""The broker inside the agent: what it tells of its clients; nothing is lost or doubled."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.live import Live, assert_each_once, eventually

from hansa.agent.broker.embedded import EmbeddedObserver
from hansa.observers.contract import UNCHANGED, Change
from hansa.simulator.topologies import parse
from hansa.testbed.federation import LocalFederation

# ---------------------------------------------------------------- the observer


def test_a_filter_is_wanted_while_anybody_wants_it():
    observer = EmbeddedObserver()
    assert observer.subscribed("one", "a/#") == Change(added=("a/#",))
    assert observer.subscribed("two", "a/#") == UNCHANGED
    assert observer.subscribed("two", "a/#") == UNCHANGED  # once more, as clients may
    assert observer.unsubscribed("two", "a/#") == UNCHANGED
    assert observer.unsubscribed("two", "a/#") == UNCHANGED
    assert observer.wanted() == ("a/#",)
    assert observer.unsubscribed("one", "a/#") == Change(removed=("a/#",))


def test_all_that_a_client_wanted_goes_with_its_session():
    observer = EmbeddedObserver()
    for name in ("b", "a"):
        observer.subscribed("one", name)
    assert observer.forgotten("one") == Change(removed=("a", "b"))
    assert observer.forgotten("one") == UNCHANGED


def test_a_filter_that_cannot_be_announced_is_left_out():
    observer = EmbeddedObserver()
    assert observer.subscribed("one", "a/" * 40 + "#") == UNCHANGED
    assert observer.wanted() == ()


# ---------------------------------------------------------------- a federation of such brokers


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    settings = {"HANSA_BROKER_OBSERVER": "embedded"}
    running = Live(LocalFederation(parse("ring:3", 1), settings))
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_overlapping_filters_at_all_brokers_get_each_publication_once(live):
    subscribers = [live.subscriber(n, f) for n in range(3) for f in ("over/#", "over/+/b")]
    payloads = [b"%d" % number for number in range(20)]
    for number in range(3):
        assert_each_once(live.client(number), subscribers, "over/a/b", payloads)


def test_unsubscribing_and_vanishing_are_noticed(live):
    leaving, vanishing = live.subscriber(1, "leave"), live.subscriber(1, "vanish")
    leaving.unsubscribe("leave")
    vanishing.kill()

    def noticed() -> bool:
        interest: Any = live.nodes[1].status()["interest"]
        return not {"leave", "vanish"} & set(interest["local"])

    eventually(noticed, "interest withdrawn")
