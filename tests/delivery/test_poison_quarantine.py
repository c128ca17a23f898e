"""Publications at which the broker closes the connection: quarantine and retry."""

import pytest
from tests.delivery.injecting import InjectingIncarnation, incarnation, packet
from tests.delivery.shell import YOU

from hansa.delivery.effects import LogName
from hansa.delivery.poison_quarantine import (
    DISCONNECTS_MAX,
    DISCONNECTS_SUSPECT,
    QUARANTINE_ALARM,
    QUARANTINE_S,
)
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.protocol.model import Publication

COUNTER = "quarantined: broker closed the connection"


def quarantine_first_of_two(agent: InjectingIncarnation) -> None:
    """Disconnect until the first one is quarantined."""
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    agent.disconnect()
    for _ in range(DISCONNECTS_SUSPECT - 1):
        agent.connect()
        agent.expect_sent(packet(1, qos=1, dup=True), packet(2, qos=1, dup=True))
        agent.disconnect()
    for _ in range(DISCONNECTS_MAX - DISCONNECTS_SUSPECT):
        agent.connect()
        agent.expect_sent(packet(1, qos=1, dup=True))  # alone
        agent.disconnect()


def test_poison_message_is_quarantined_and_retried():
    agent = incarnation()
    quarantine_first_of_two(agent)
    assert (agent.counters[COUNTER], len(agent.injection.quarantine)) == (1, 1)
    assert agent.alarm(QUARANTINE_ALARM) == (
        "the broker closes the connection at a publication to 'a': 1 quarantined, retried in 60 min"
    )
    agent.connect()
    agent.expect_sent(packet(2, qos=1, dup=True))  # the next one
    agent.answer(PubAckPacket(3))
    assert agent.injection.deadline == QUARANTINE_S
    agent.advance(QUARANTINE_S / 2)
    assert agent.sent == []
    agent.advance(QUARANTINE_S / 2)
    agent.expect_sent(packet(1, qos=1, dup=True))
    agent.advance(QUARANTINE_S)
    assert (agent.sent, len(agent.injection.quarantine)) == ([], 0), "it is retried once"
    agent.receive(PubAckPacket(2))
    assert (agent.inbox.entries, agent.alarm(QUARANTINE_ALARM)) == ({}, "")


def test_completion_is_committed_at_once_while_publications_are_sent_alone():
    agent = incarnation()
    quarantine_first_of_two(agent)
    agent.connect()
    agent.deliver(3, qos=1)
    agent.receive(PubAckPacket(3))
    assert agent.commits == [LogName.INBOX], "the next publication waits for it"


@pytest.mark.parametrize("policy", ["no-loss", "no-dup"])
def test_quarantine_survives_session_loss(policy):
    agent = incarnation(session_loss_policy=policy)
    quarantine_first_of_two(agent)
    agent.connect(session_present=False)
    agent.deliver(3, qos=1)
    if policy == "no-loss":
        agent.expect_sent(packet(2, qos=1, marked=True))
        agent.answer(PubAckPacket(3))
    agent.expect_sent(packet(3, qos=1))
    assert (1 in agent.inbox.entries) == bool(len(agent.injection.quarantine))
    assert (1 in agent.inbox.entries) == (policy == "no-loss")


def test_one_of_two_in_flight_is_not_quarantined():
    """The other one may be the poison message: the last acknowledgements can be lost."""
    agent = incarnation()
    agent.deliver(1, 2, qos=1)
    first, second = agent.inbox.entries.values()
    quarantine = agent.injection.quarantine
    for _ in range(2 * DISCONNECTS_MAX):
        assert not quarantine.on_disconnected([first, second])
    assert quarantine.on_disconnected([first])


def test_acknowledged_publication_is_no_suspect():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, qos=1)
    agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    for _ in range(DISCONNECTS_SUSPECT):
        agent.disconnect()
        agent.sent.clear()
        agent.connect()
    agent.expect_sent(packet(1, qos=1, dup=True))
    agent.answer(PubAckPacket(2))
    agent.expect_sent(packet(2, qos=1, dup=True))
    assert not agent.injection.quarantine.must_isolate


def test_publication_that_waits_for_the_disk_is_no_suspect():
    """The broker accepted it, and PUBREL was not sent."""
    agent = incarnation()
    agent.connect()
    agent.deliver(1)
    agent.receive(PubRecPacket(2))
    for _ in range(DISCONNECTS_MAX):
        agent.disconnect()
        agent.connect()
    assert not agent.injection.quarantine.must_isolate
    assert agent.alarm(QUARANTINE_ALARM) == ""


def end_connections_at_pubrel(agent: InjectingIncarnation, session_present: bool) -> None:
    """Have a broker that accepts publications and fails when it has to deliver them."""
    for _ in range(DISCONNECTS_MAX):
        agent.sent.clear()
        agent.connect(session_present)
        agent.commit()
        agent.answer(
            *(PubRecPacket(p.packet_id) for p in agent.sent if isinstance(p, PublishPacket))
        )
        agent.disconnect()


@pytest.mark.parametrize("session_present", [True, False])
def test_publication_at_whose_pubrel_the_connection_ends_is_quarantined(session_present):
    """A broker delivers a QoS 2 publication when PUBREL arrives, and may fail there. Otherwise all
    others would wait indefinitely, or be sent again in each new session."""
    agent = incarnation()
    agent.deliver(1, 2)
    end_connections_at_pubrel(agent, session_present)
    first, second = agent.inbox.entries.values()
    assert first in agent.injection.quarantine and second not in agent.injection.quarantine
    assert agent.counters[COUNTER] == 1
    agent.sent.clear()
    agent.connect(session_present)
    agent.commit()
    if not session_present:
        agent.answer(PubRecPacket(3))
    assert agent.sent[-1] == PubRelPacket(3)
    agent.answer(PubCompPacket(3))
    assert list(agent.inbox.entries) == [1]


def test_accepted_publications_are_released_alone_to_find_the_poison_message():
    agent = incarnation()
    agent.connect()
    agent.deliver(1, 2, 3)
    agent.answer(PubRecPacket(2), PubRecPacket(3), PubRecPacket(4))
    for _ in range(DISCONNECTS_SUSPECT):
        agent.disconnect()
        agent.sent.clear()
        agent.connect()
    agent.expect_sent(PubRelPacket(2))
    agent.answer(PubCompPacket(2))
    agent.expect_sent(PubRelPacket(3), PubRelPacket(4))


def test_accepted_publication_is_released_after_the_quarantine():
    """PUBLISH must not follow PUBREL: the broker would deliver it twice."""
    agent = incarnation()
    agent.deliver(1)
    end_connections_at_pubrel(agent, session_present=True)
    agent.sent.clear()
    agent.connect()
    agent.commit()
    assert agent.sent == []
    agent.advance(QUARANTINE_S)
    agent.expect_sent(PubRelPacket(2))
    agent.answer(PubCompPacket(2))
    assert (agent.inbox.entries, agent.alarm(QUARANTINE_ALARM)) == ({}, "")


def test_accepted_publication_whose_quarantine_ends_without_connection_is_released_later():
    agent = incarnation()
    agent.deliver(1)
    end_connections_at_pubrel(agent, session_present=True)
    agent.sent.clear()
    agent.advance(QUARANTINE_S)
    assert agent.sent == []
    agent.connect()
    agent.expect_sent(PubRelPacket(2))


def test_dropped_publication_is_no_suspect():
    agent = incarnation()
    agent.deliver(1, qos=1)
    for _ in range(DISCONNECTS_SUSPECT):
        agent.connect()
        agent.disconnect()
    assert agent.injection.quarantine.must_isolate
    agent.connect()
    agent.not_sent([packet(1, qos=1)], "too large")
    assert not agent.injection.quarantine.must_isolate


def test_alarm_stays_while_others_are_quarantined():
    agent = incarnation()
    quarantine_first_of_two(agent)
    for _ in range(DISCONNECTS_MAX):
        agent.connect()
        agent.disconnect()
    assert len(agent.injection.quarantine) == 2
    assert ": 2 quarantined," in agent.alarm(QUARANTINE_ALARM)
    agent.connect()
    agent.sent.clear()
    quarantine = agent.injection.quarantine
    first, second = agent.inbox.entries.values()
    quarantine.forget(first)
    assert agent.alarm(QUARANTINE_ALARM) != ""
    quarantine.forget(second)
    agent.collect()
    assert agent.alarm(QUARANTINE_ALARM) == ""


def quarantine_retained_value(agent: InjectingIncarnation, qos: int = 1) -> None:
    agent.store(Publication(YOU, 8, 1, qos, "a", b"1", retain=True))
    for _ in range(DISCONNECTS_MAX):
        agent.connect()
        agent.disconnect()
    assert len(agent.injection.quarantine) == 1


def test_quarantined_value_does_not_replace_newer_one():
    agent = incarnation()
    quarantine_retained_value(agent)
    assert agent.uncertain[-1] == ("a",)
    agent.commit()
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(packet(1, qos=1, dup=True))  # without the retain flag


def test_retry_waits_until_rewritten_entry_is_durable():
    agent = incarnation()
    quarantine_retained_value(agent)
    agent.sent.clear()
    agent.connect()
    agent.advance(QUARANTINE_S)
    assert agent.sent == []  # the cleared retain flag is not durable
    agent.commit()
    agent.expect_sent(packet(1, qos=1, dup=True))


def test_value_that_the_broker_held_during_the_quarantine_is_checked():
    """The broker has the first PUBLISH, with the retain flag, and stores it at PUBREL."""
    agent = incarnation()
    quarantine_retained_value(agent, qos=2)
    agent.connect()
    agent.commit()
    agent.sent.clear()
    agent.events.clear()
    agent.advance(QUARANTINE_S)
    agent.expect_sent(packet(1, dup=True))
    agent.answer(PubRecPacket(2))
    assert agent.uncertain == []
    agent.answer(PubCompPacket(2))
    assert agent.uncertain == [("a",)]


def test_accepted_value_in_quarantine_holds_back_no_other_value():
    """It is checked when the broker has stored it. After a crash it is released, not published."""
    agent = incarnation()
    agent.store(Publication(YOU, 8, 1, 2, "a", b"1", retain=True))
    end_connections_at_pubrel(agent, session_present=True)
    assert agent.injection.retained_order.is_empty
    agent.commit()
    agent.connect()
    agent.events.clear()
    agent.advance(QUARANTINE_S)
    agent.receive(PubCompPacket(2))
    assert agent.uncertain == [("a",)]
    agent = agent.crash()
    agent.connect()
    agent.expect_sent(PubRelPacket(2))


@pytest.mark.parametrize("policy", ["no-loss", "no-dup"])
def test_quarantined_value_is_in_doubt_after_session_loss(policy):
    """The broker may have delivered it before it closed the connection."""
    agent = incarnation(session_loss_policy=policy)
    quarantine_retained_value(agent)
    agent.sent.clear()
    agent.connect(session_present=False)
    agent.commit()
    agent.advance(QUARANTINE_S)
    agent.expect_sent(*[packet(1, qos=1, marked=True)] * (policy == "no-loss"))
    assert agent.counters["injections uncertain"] == 1


def test_session_loss_while_a_retried_entry_is_rewritten():
    """It is rewritten once more, and sent when that is durable."""
    agent = incarnation()
    quarantine_retained_value(agent)
    agent.sent.clear()
    agent.advance(QUARANTINE_S)
    agent.connect(session_present=False)
    agent.commit()
    agent.expect_sent(packet(1, qos=1, marked=True))


def test_node_checks_the_value_of_a_quarantined_retained_publication():
    agent = incarnation()
    agent.store(Publication(YOU, 8, 1, 1, "a", b"1", True))
    for _ in range(DISCONNECTS_MAX):
        agent.connect()
        agent.events.clear()
        agent.disconnect()
    assert (agent.counters[COUNTER], agent.uncertain) == (1, [("a",)])
