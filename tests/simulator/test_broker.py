"""The model broker."""

import pytest

from hansa.simulator.broker import Broker


@pytest.fixture
def broker():
    return Broker()


def test_only_the_first_subscriber_and_the_last_matter(broker):
    assert [broker.subscribe("a/#"), broker.subscribe("a/#")] == [True, False]
    assert broker.wants("a/b")
    assert [broker.unsubscribe("a/#"), broker.unsubscribe("a/#")] == [False, True]
    assert not broker.wants("a/b")


def test_a_subscription_that_is_not_there_cannot_be_taken_back(broker):
    assert not broker.unsubscribe("a")


def test_a_shared_subscription_wants_what_its_filter_matches(broker):
    broker.subscribe("$share/g/a")
    broker.subscribe("a")
    assert broker.unsubscribe("a")
    assert broker.wants("a")
    assert broker.unsubscribe("$share/g/a")
    assert not broker.wants("a")


def test_the_agent_sees_only_what_it_is_subscribed_to(broker):
    broker.grant(["a/#"])
    assert broker.shows("a/b")
    assert not broker.shows("b")
    broker.withdraw(["a/#", "never/granted"])
    assert not broker.shows("a/b")


def test_topics_of_the_broker_itself_are_never_shown(broker):
    broker.grant(["#"])
    assert not broker.shows("$SYS/uptime")
