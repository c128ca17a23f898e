"""Publications at which the broker closes the connection: quarantine and retry."""

import pytest
from tests.agent.delivery.incarnation import YOU, Incarnation, packet, run
from tests.agent.waiting import until

from hansa.agent.delivery import poison_quarantine
from hansa.agent.delivery.poison_quarantine import DISCONNECTS_MAX, DISCONNECTS_SUSPECT
from hansa.mqtt.packets import PubAckPacket
from hansa.protocol.model import Publication

COUNTER = "quarantined: broker closed the connection"


async def two_at_a_broker_that_ends_at_the_first(agent: Incarnation) -> None:
    """Disconnect until the first one is quarantined."""
    agent.connect()
    agent.deliver(1, 2, qos=1)
    await agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
    agent.injection.on_disconnected()
    for _ in range(DISCONNECTS_SUSPECT - 1):
        agent.connect()
        await agent.expect_sent(packet(1, qos=1, dup=True), packet(2, qos=1, dup=True))
        agent.injection.on_disconnected()
    for _ in range(DISCONNECTS_MAX - DISCONNECTS_SUSPECT):
        agent.connect()
        await agent.expect_sent(packet(1, qos=1, dup=True))  # alone
        agent.injection.on_disconnected()


def test_poison_message_is_quarantined_and_retried(tmp_path, monkeypatch):
    monkeypatch.setattr(poison_quarantine, "QUARANTINE_S", 0.01)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        alarms = agent.quarantine_problems
        await two_at_a_broker_that_ends_at_the_first(agent)
        assert (agent.injection.counters[COUNTER], len(agent.injection.quarantine)) == (1, 1)
        assert "a publication to 'a'" in alarms[-1]
        agent.connect()
        await agent.expect_sent(packet(2, qos=1, dup=True))  # the next one
        agent.injection.on_handshake_steps([PubAckPacket(3)])
        await agent.expect_sent(packet(1, qos=1, dup=True))
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        assert (agent.inbox.entries, alarms[-1]) == ({}, "")
        await agent.injection.stop()

    run(work)


@pytest.mark.parametrize("prefer", ["no-loss", "no-dup"])
def test_quarantine_survives_session_loss(tmp_path, prefer):
    async def work() -> None:
        agent = Incarnation(tmp_path, session_loss_policy=prefer)
        await two_at_a_broker_that_ends_at_the_first(agent)
        agent.connect(session_present=False)
        agent.deliver(3, qos=1)
        if prefer == "no-loss":
            await agent.expect_sent(packet(2, qos=1, marked=True))
            agent.injection.on_handshake_steps([PubAckPacket(3)])
        await agent.expect_sent(packet(3, qos=1))
        assert (1 in agent.inbox.entries) == bool(len(agent.injection.quarantine))
        assert (1 in agent.inbox.entries) == (prefer == "no-loss")
        await agent.injection.stop()

    run(work)


def test_acknowledged_publication_is_no_suspect(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2, qos=1)
        await agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
        for _ in range(DISCONNECTS_SUSPECT):
            agent.injection.on_disconnected()
            agent.sent.clear()
            agent.connect()
        await agent.expect_sent(packet(1, qos=1, dup=True))
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        await agent.expect_sent(packet(2, qos=1, dup=True))
        assert not agent.injection.quarantine.must_isolate
        await agent.injection.stop()

    run(work)


async def a_value_is_set_aside(agent: Incarnation) -> None:
    agent.injection.add_publications([Publication(YOU, 8, 1, 1, "a", b"1", retain=True)])
    await until(lambda: agent.committed, "stored")
    for _ in range(DISCONNECTS_MAX):
        agent.connect()
        agent.injection.on_disconnected()


def test_quarantined_value_does_not_replace_newer_one(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        await a_value_is_set_aside(agent)
        assert len(agent.injection.quarantine) == 1
        agent.inbox.writer.commit()
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.sent.clear()
        agent.connect()
        await agent.expect_sent(packet(1, qos=1, dup=True))  # without the retain flag
        await agent.injection.stop()

    run(work)


def test_retry_waits_until_rewritten_entry_is_durable(tmp_path, monkeypatch):
    monkeypatch.setattr(poison_quarantine, "QUARANTINE_S", 0.0)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        await a_value_is_set_aside(agent)
        agent.sent.clear()
        agent.connect()
        assert agent.sent == []  # the cleared retain flag is not durable
        await agent.expect_sent(packet(1, qos=1))
        await agent.injection.stop()

    run(work)
