"""The model broker."""

import pytest

from hansa.simulator.world.broker import ModelBroker


@pytest.fixture
def broker():
    return ModelBroker()


def test_first_and_last_subscriber_are_reported(broker):
    assert [broker.subscribe("a/#"), broker.subscribe("a/#")] == [True, False]
    assert broker.has_plain_subscriber("a/b")
    assert [broker.unsubscribe("a/#"), broker.unsubscribe("a/#")] == [False, True]
    assert not broker.has_plain_subscriber("a/b")


def test_missing_subscription_cannot_be_removed(broker):
    assert not broker.unsubscribe("a")


def test_shared_subscription_is_no_plain_subscriber(broker):
    broker.subscribe("$share/g/a")
    assert not broker.has_plain_subscriber("a")
    broker.subscribe("a")
    assert broker.has_plain_subscriber("a")
    assert broker.unsubscribe("a")
    assert not broker.has_plain_subscriber("a")
    assert broker.lapse_count("a") == 1
    assert broker.unsubscribe("$share/g/a")


def test_agent_gets_only_subscribed_topics(broker):
    broker.grant(["a/#"])
    assert broker.is_agent_subscribed("a/b")
    assert not broker.is_agent_subscribed("b")
    broker.withdraw(["a/#", "never/granted"])
    assert not broker.is_agent_subscribed("a/b")


def test_system_topics_are_excluded(broker):
    broker.grant(["#"])
    assert not broker.is_agent_subscribed("$SYS/uptime")


def test_topic_lapses_with_its_last_subscriber(broker):
    for name in ("a/b", "a/#", "+/b", "$share/g/a/b"):
        broker.subscribe(name)
    broker.unsubscribe("a/#")
    broker.unsubscribe("a/b")
    assert (broker.lapse_count("a/b"), broker.lapse_count("a/c"), broker.lapse_count("b")) == (
        0,
        1,
        0,
    )
    broker.unsubscribe("+/b")
    assert (broker.lapse_count("a/b"), broker.lapse_count("a/c")) == (1, 1)


def test_full_session_drops_and_counts():
    broker = ModelBroker(queue_max=2)
    packets = [broker.enqueue("a", b"", 1, False) for _ in range(3)]
    assert [packet and packet.packet_id for packet in packets] == [1, 2, None]
    assert (list(broker.session_queue), broker.dropped_count) == ([1, 2], 1)


def test_retained_message_is_stored_until_cleared():
    broker = ModelBroker()
    broker.store("a", b"1", 1)
    broker.store("a", b"2", 2)
    assert broker.stored == {"a": (b"2", 2)}
    broker.store("a", b"", 0)
    broker.store("b", b"", 0)
    assert broker.stored == {}
