"""Publications refused for quota: back-off, order, retained values."""

import pytest
from msgspec.structs import replace
from tests.delivery.injecting import incarnation, packet
from tests.delivery.shell import YOU

from hansa.delivery.quota_backoff import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    QUOTA_ALARM,
    QUOTA_EXCEEDED_TEXT,
)
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.protocol.model import Publication


def test_publication_refused_for_quota_is_retried():
    agent = incarnation()
    agent.connect(receive_maximum=3)
    agent.deliver(1, 2, qos=2)
    agent.deliver(3, 4, 5, 6, qos=1)
    agent.expect_sent(packet(1), packet(2), packet(3, qos=1))
    agent.answer(PubRecPacket(2, 0x97), PubRecPacket(3, 0x97))
    assert agent.sent == [], "one at a time"
    agent.answer(PubAckPacket(4))
    agent.expect_sent(packet(4, qos=1), packet(5, qos=1))
    assert agent.counters["retried: broker quota exceeded"] == 2
    assert agent.alarms[QUOTA_ALARM] == [QUOTA_EXCEEDED_TEXT]
    agent.answer(PubAckPacket(5), PubAckPacket(6))
    agent.expect_sent(packet(6, qos=1))
    assert agent.injection.deadline == BACKOFF_MIN_S
    agent.advance(BACKOFF_MIN_S)
    agent.expect_sent(packet(1), packet(2))
    agent.answer(PubRecPacket(2), PubRecPacket(3, 0x97))
    agent.expect_sent(PubRelPacket(2))
    agent.disconnect()
    agent.connect()
    agent.expect_sent(PubRelPacket(2), packet(2), packet(6, qos=1, dup=True))
    assert agent.alarms[QUOTA_ALARM] == [QUOTA_EXCEEDED_TEXT, ""]


def test_pause_doubles_up_to_the_longest():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=1)
    pauses = []
    for _ in range(9):
        agent.expect_sent(packet(1, qos=1))
        agent.receive(PubAckPacket(2, 0x97))
        due = agent.injection.deadline
        assert due is not None
        pauses.append(due - agent.context.now)
        agent.advance(pauses[-1] / 2)
        assert agent.sent == []
        agent.advance(pauses[-1] / 2)
    assert pauses == [BACKOFF_MIN_S * 2**n for n in range(6)] + [BACKOFF_MAX_S] * 3


def test_retried_publications_keep_order():
    agent = incarnation()
    agent.connect(receive_maximum=3)
    agent.deliver(1, 2, 3, 4, 5, 6, qos=1)
    agent.expect_sent(*(packet(n, qos=1) for n in (1, 2, 3)))
    agent.receive(PubAckPacket(2, 0x97), PubAckPacket(3, 0x97), PubAckPacket(4, 0x97))
    agent.expect_sent(packet(4, qos=1))
    agent.advance(BACKOFF_MIN_S)
    agent.answer(PubAckPacket(5))
    agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    agent.answer(PubAckPacket(2), PubAckPacket(3))
    agent.expect_sent(*(packet(n, qos=1) for n in (3, 5, 6)))


def test_retry_keeps_dup_flag():
    """EMQX at its limit refuses even publications that it has."""
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.expect_sent(packet(1))
    agent.disconnect()
    agent.connect()
    agent.expect_sent(packet(1, dup=True))
    agent.answer(PubRecPacket(2, 0x93))
    agent.advance(BACKOFF_MIN_S)
    agent.expect_sent(packet(1, dup=True))
    agent.answer(PubRecPacket(2, 0x91))
    agent.expect_sent(PubRelPacket(2))


def test_retried_value_that_lost_its_retain_flag_keeps_dup_flag():
    """Without DUP the agent would take 0x91 for a refusal, and drop a publication that EMQX
    holds."""
    agent = incarnation()
    agent.connect()
    agent.store(Publication(YOU, 8, 1, 2, "a", b"1", retain=True))
    agent.disconnect()
    agent.connect()
    agent.answer(PubRecPacket(2, 0x93))
    agent.sent.clear()
    agent.store(Publication(YOU, 8, 2, 2, "a", b"2", retain=True))
    agent.expect_sent(PublishPacket("a", b"2", 2, True, packet_id=3))
    agent.answer(PubRecPacket(3))
    agent.answer(PubCompPacket(3))
    agent.expect_sent(PubRelPacket(3), packet(1, dup=True))
    agent.answer(PubRecPacket(2, 0x91))
    agent.expect_sent(PubRelPacket(2))
    agent.events.clear()
    agent.answer(PubCompPacket(2))
    assert agent.uncertain == [("a",)], "EMQX has it with the retain flag"
    assert not agent.dropped


def test_in_flight_limit_is_removed_when_quota_is_available():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, qos=1)
    agent.expect_sent(packet(1, qos=1))
    for pause in (BACKOFF_MIN_S, 2 * BACKOFF_MIN_S):
        agent.answer(PubAckPacket(2, 0x97))
        agent.advance(pause)
        agent.expect_sent(packet(1, qos=1))
    agent.answer(PubAckPacket(2))
    assert agent.alarms[QUOTA_ALARM] == [QUOTA_EXCEEDED_TEXT, ""]
    agent.deliver(2, 3, qos=1)
    agent.expect_sent(packet(2, qos=1), packet(3, qos=1))
    agent.answer(PubAckPacket(3, 0x97))
    agent.not_sent([packet(3, qos=1)], "too large")
    agent.advance(BACKOFF_MIN_S)
    agent.expect_sent(packet(2, qos=1))
    agent.not_sent([packet(2, qos=1)], "too large")
    assert agent.alarms[QUOTA_ALARM][2:] == [QUOTA_EXCEEDED_TEXT, ""], (
        "what is dropped does not keep the alarm"
    )


def test_alarm_stays_while_others_are_refused():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.sent.clear()
    agent.answer(PubAckPacket(2, 0x97), PubAckPacket(3, 0x97))
    agent.advance(BACKOFF_MIN_S)
    agent.expect_sent(packet(1, qos=1))
    agent.answer(PubAckPacket(2))
    assert agent.alarm(QUOTA_ALARM) == QUOTA_EXCEEDED_TEXT
    agent.answer(PubAckPacket(3))
    assert agent.alarm(QUOTA_ALARM) == ""


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_retried_value_does_not_replace_newer_one(is_sent_before):
    """Also after a crash of the agent."""
    values = [Publication(YOU, 8, n, 1, "a", b"%d" % n, retain=True) for n in (1, 2)]
    agent = incarnation()
    agent.connect()
    old, new = (PublishPacket("a", b"%d" % n, 1, True, packet_id=1 + n) for n in (1, 2))
    late = PublishPacket("a", b"1", 1, packet_id=2)
    agent.store(values[0])
    agent.expect_sent(old)
    if is_sent_before:
        agent.store(values[1])
        agent.expect_sent(new)
        agent.receive(PubAckPacket(2, 0x97))
    else:
        agent.receive(PubAckPacket(2, 0x97))
        agent.store(values[1])
        agent.expect_sent(new)
    agent.answer(PubAckPacket(3))
    agent.expect_sent(late)
    assert agent.injection.retained_order.is_empty, "no value of QoS 0 has to wait any more"
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(replace(late, dup=True))


def test_values_refused_out_of_order_are_retried_in_order():
    """Otherwise the broker would store the older value last."""
    agent = incarnation()
    agent.connect()
    agent.store(*(Publication(YOU, 8, n, 1, "a", b"%d" % n, retain=True) for n in (1, 2)))
    old, new = agent.sent
    agent.sent.clear()
    agent.answer(PubAckPacket(3, 0x97), PubAckPacket(2, 0x97))
    agent.advance(BACKOFF_MIN_S)
    agent.expect_sent(old)
    agent.answer(PubAckPacket(2))
    agent.expect_sent(new)


def test_value_to_another_topic_keeps_the_retain_flag():
    agent = incarnation()
    agent.connect()
    agent.add(*(Publication(YOU, 8, n, 1, f"t{n}", b"", retain=True) for n in (1, 2)))
    agent.store(Publication(YOU, 8, 3, 1, "t1", b""))
    agent.sent.clear()
    agent.answer(PubAckPacket(2, 0x97))
    agent.advance(BACKOFF_MIN_S)
    agent.answer(PubAckPacket(3), PubAckPacket(4))
    agent.expect_sent(PublishPacket("t1", b"", 1, True, packet_id=2))


def test_rewritten_value_waits_until_durable():
    """Also after a reconnect."""
    agent = incarnation()
    agent.connect()
    agent.store(Publication(YOU, 8, 1, 1, "a", b"1", retain=True))
    agent.receive(PubAckPacket(2, 0x97))
    agent.commit()
    agent.sent.clear()
    agent.add(Publication(YOU, 8, 2, 1, "a", b"2", retain=True))
    agent.log.commit(agent.log.end)
    agent.commits.clear()
    agent.injection.on_committed()
    agent.collect()
    agent.expect_sent(PublishPacket("a", b"2", 1, True, packet_id=3))
    agent.disconnect()
    agent.connect()
    agent.expect_sent(PublishPacket("a", b"2", 1, True, True, packet_id=3))
    agent.commit()
    agent.expect_sent(PublishPacket("a", b"1", 1, packet_id=2))


def test_back_off_ends_when_the_broker_accepts():
    """PUBREC says that there is room; PUBCOMP may take long."""
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.receive(PubRecPacket(2, 0x97))
    assert agent.alarm(QUOTA_ALARM) == QUOTA_EXCEEDED_TEXT
    agent.advance(BACKOFF_MIN_S)
    agent.receive(PubRecPacket(2))
    assert (agent.alarm(QUOTA_ALARM), agent.injection.quota_backoff.in_flight_max) == ("", None)
