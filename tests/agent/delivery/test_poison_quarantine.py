"""A publication at which the broker ends the connection: it is set aside, and no other waits."""

import pytest
from tests.agent.delivery.incarnation import YOU, Life, packet, run
from tests.agent.waiting import until

from hansa.agent.delivery import poison_quarantine
from hansa.agent.delivery.poison_quarantine import DISCONNECTS_MAX, DISCONNECTS_SUSPECT
from hansa.mqtt.packets import PubAckPacket
from hansa.protocol.model import Publication

COUNTER = "quarantined: broker closed the connection"


async def two_at_a_broker_that_ends_at_the_first(life: Life) -> None:
    """Until the first one is set aside."""
    life.connect()
    life.deliver(1, 2, qos=1)
    await life.says(packet(1, qos=1), packet(2, qos=1))
    life.injection.on_disconnected()
    for _ in range(DISCONNECTS_SUSPECT - 1):
        life.connect()
        await life.says(packet(1, qos=1, dup=True), packet(2, qos=1, dup=True))
        life.injection.on_disconnected()
    for _ in range(DISCONNECTS_MAX - DISCONNECTS_SUSPECT):
        life.connect()
        await life.says(packet(1, qos=1, dup=True))  # alone
        life.injection.on_disconnected()


def test_poison_message_is_quarantined_and_retried(tmp_path, monkeypatch):
    monkeypatch.setattr(poison_quarantine, "QUARANTINE_S", 0.01)

    async def work() -> None:
        life = Life(tmp_path)
        alarms = life.quarantine_problems
        await two_at_a_broker_that_ends_at_the_first(life)
        assert (life.injection.counters[COUNTER], len(life.injection.quarantine)) == (1, 1)
        assert "a publication to 'a'" in alarms[-1]
        life.connect()
        await life.says(packet(2, qos=1, dup=True))  # the one behind it
        life.injection.on_handshake_steps([PubAckPacket(3)])
        await life.says(packet(1, qos=1, dup=True))
        life.injection.on_handshake_steps([PubAckPacket(2)])
        assert (life.backlog.entries, alarms[-1]) == ({}, "")
        await life.injection.stop()

    run(work)


@pytest.mark.parametrize("prefer", ["no-loss", "no-dup"])
def test_quarantine_survives_session_loss(tmp_path, prefer):
    async def work() -> None:
        life = Life(tmp_path, session_loss_policy=prefer)
        await two_at_a_broker_that_ends_at_the_first(life)
        life.connect(session_present=False)
        life.deliver(3, qos=1)
        if prefer == "no-loss":
            await life.says(packet(2, qos=1, marked=True))
            life.injection.on_handshake_steps([PubAckPacket(3)])
        await life.says(packet(3, qos=1))
        assert (1 in life.backlog.entries) == bool(len(life.injection.quarantine))
        assert (1 in life.backlog.entries) == (prefer == "no-loss")
        await life.injection.stop()

    run(work)


def test_acknowledged_publication_is_no_suspect(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2, qos=1)
        await life.says(packet(1, qos=1), packet(2, qos=1))
        for _ in range(DISCONNECTS_SUSPECT):
            life.injection.on_disconnected()
            life.said.clear()
            life.connect()
        await life.says(packet(1, qos=1, dup=True))
        life.injection.on_handshake_steps([PubAckPacket(2)])
        await life.says(packet(2, qos=1, dup=True))
        assert not life.injection.quarantine.must_isolate
        await life.injection.stop()

    run(work)


async def a_value_is_set_aside(life: Life) -> None:
    life.injection.add_publications([Publication(YOU, 8, 1, 1, "a", b"1", retain=True)])
    await until(lambda: life.stored, "stored")
    for _ in range(DISCONNECTS_MAX):
        life.connect()
        life.injection.on_disconnected()


def test_quarantined_value_does_not_replace_newer_one(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        await a_value_is_set_aside(life)
        assert len(life.injection.quarantine) == 1
        life.backlog.writer.commit()
        life.crash()
        life = Life(tmp_path)
        life.said.clear()
        life.connect()
        await life.says(packet(1, qos=1, dup=True))  # which has no flag
        await life.injection.stop()

    run(work)


def test_retry_waits_until_rewritten_entry_is_durable(tmp_path, monkeypatch):
    monkeypatch.setattr(poison_quarantine, "QUARANTINE_S", 0.0)

    async def work() -> None:
        life = Life(tmp_path)
        await a_value_is_set_aside(life)
        life.said.clear()
        life.connect()
        assert life.said == []  # it is not durable that it is no value any more
        await life.says(packet(1, qos=1))
        await life.injection.stop()

    run(work)
