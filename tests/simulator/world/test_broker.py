"""The broker of a site: clients, the agent and its session."""

import pytest

from hansa.mqtt.packets import (
    PubAckPacket,
    PublishPacket,
    PubRelPacket,
    SubscribePacket,
    Subscription,
)
from hansa.simulator.world.broker import SiteBroker


@pytest.fixture
def broker():
    return SiteBroker()


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


def connect(broker, *filters, has_session=True):
    """Connect the agent and subscribe; return the connection."""
    broker.connect_agent(has_session, 100, 0.0)
    for number, name in enumerate(filters, start=1):
        wish = SubscribePacket(number, (Subscription(name, qos=2),))
        broker.receive_from_agent(broker.agent_connection, wish, 0.0)
    return broker.agent_connection


def test_agent_gets_only_subscribed_topics(broker):
    connect(broker, "a/#")
    assert (list(broker.granted), broker.is_agent_subscribed("a/b")) == (["a/#"], True)
    assert [broker.publish(topic, b"x", 1, False, 0.0)[1] for topic in ("a/b", "b")] == [
        True,
        False,
    ]
    assert [packet.topic for packet in broker.unacknowledged] == ["a/b"]


def test_system_topics_are_excluded(broker):
    connect(broker, "#")
    assert not broker.is_agent_subscribed("$SYS/uptime")


def test_session_outlasts_the_connection_only_if_it_is_to(broker):
    connect(broker, "a")
    broker.close_agent(0.0)
    assert [broker.publish("a", b"x", qos, False, 0.0)[1] for qos in (0, 1)] == [False, True]
    connect(broker, "a", has_session=False)
    broker.close_agent(0.0)
    assert not broker.publish("a", b"x", 1, False, 0.0)[1]


def test_lost_session_returns_what_was_not_acknowledged(broker):
    connection = connect(broker, "a")
    for payload in (b"1", b"2"):
        broker.publish("a", payload, 1, False, 0.0)
    first = broker.unacknowledged[0].packet_id
    broker.receive_from_agent(connection, PubAckPacket(first), 0.0)
    assert [packet.payload for packet in broker.lose_session(5.0)] == [b"2"]
    assert (broker.session_lost_at, broker.is_connected, broker.unacknowledged) == (5.0, False, [])
    assert broker.receive_from_agent(connection, PubAckPacket(first), 5.0) == []


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
    broker = SiteBroker(queue_max=2)
    connect(broker, "a")
    broker.close_agent(0.0)
    assert [broker.publish("a", b"", 1, False, 0.0)[1] for _ in range(3)] == [True, True, False]
    assert (len(broker.unacknowledged), broker.dropped_count) == (2, 1)


def test_retained_message_is_stored_until_cleared(broker):
    broker.publish("a", b"1", 1, True, 0.0)
    broker.publish("a", b"2", 2, True, 0.0)
    assert {topic: each.payload for topic, each in broker.stored.items()} == {"a": b"2"}
    broker.publish("a", b"", 0, True, 0.0)
    broker.publish("b", b"", 0, True, 0.0)
    assert broker.stored == {}


def test_publications_of_the_agent_are_reported_when_clients_get_them(broker):
    reported = []
    broker.on_agent_published = lambda message: reported.append(message.payload)
    connection = connect(broker, "a")
    broker.publish("a", b"of a client", 1, False, 0.0)
    broker.receive_from_agent(connection, PublishPacket("a", b"1", 1, packet_id=1), 0.0)
    broker.receive_from_agent(connection, PublishPacket("a", b"2", 2, packet_id=2), 0.0)
    assert (reported, broker.unreleased_count) == ([b"1"], 1)
    broker.receive_from_agent(connection, PubRelPacket(2), 0.0)
    assert (reported, broker.unreleased_count) == ([b"1", b"2"], 0)
