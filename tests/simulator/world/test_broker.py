"""The model broker."""

import pytest

from hansa.simulator.world.broker import ModelBroker


@pytest.fixture
def broker():
    return ModelBroker()


def test_only_the_first_subscriber_and_the_last_matter(broker):
    assert [broker.subscribe("a/#"), broker.subscribe("a/#")] == [True, False]
    assert broker.has_plain_subscriber("a/b")
    assert [broker.unsubscribe("a/#"), broker.unsubscribe("a/#")] == [False, True]
    assert not broker.has_plain_subscriber("a/b")


def test_a_subscription_that_is_not_there_cannot_be_taken_back(broker):
    assert not broker.unsubscribe("a")


def test_a_share_group_does_not_want_all_that_its_filter_matches(broker):
    broker.subscribe("$share/g/a")
    assert not broker.has_plain_subscriber("a")
    broker.subscribe("a")
    assert broker.has_plain_subscriber("a")
    assert broker.unsubscribe("a")
    assert not broker.has_plain_subscriber("a")
    assert broker.lapse_count("a") == 1
    assert broker.unsubscribe("$share/g/a")


def test_the_agent_sees_only_what_it_is_subscribed_to(broker):
    broker.grant(["a/#"])
    assert broker.is_agent_subscribed("a/b")
    assert not broker.is_agent_subscribed("b")
    broker.withdraw(["a/#", "never/granted"])
    assert not broker.is_agent_subscribed("a/b")


def test_topics_of_the_broker_itself_are_never_shown(broker):
    broker.grant(["#"])
    assert not broker.is_agent_subscribed("$SYS/uptime")


def test_a_topic_lapses_when_nobody_wants_it_any_more(broker):
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


def test_a_full_session_drops_and_counts():
    broker = ModelBroker(queue_max=2)
    packets = [broker.enqueue("a", b"", 1, False) for _ in range(3)]
    assert [packet and packet.packet_id for packet in packets] == [1, 2, None]
    assert (list(broker.session_queue), broker.dropped_count) == ([1, 2], 1)


def test_retained_values_are_kept_until_an_empty_one_comes():
    broker = ModelBroker()
    broker.store("a", b"1", 1)
    broker.store("a", b"2", 2)
    assert broker.stored == {"a": (b"2", 2)}
    broker.store("a", b"", 0)
    broker.store("b", b"", 0)
    assert broker.stored == {}
