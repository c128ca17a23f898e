"""Publications refused for quota: back-off, order, retained values."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.agent.delivery.incarnation import YOU, Incarnation, packet, run
from tests.agent.waiting import until

from hansa.agent.delivery.quota_backoff import QUOTA_EXCEEDED_TEXT
from hansa.mqtt.packets import PubAckPacket, PublishPacket, PubRecPacket, PubRelPacket
from hansa.protocol.model import Publication


def test_publication_refused_for_quota_is_retried(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.05)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        alarms = agent.quota_problems
        agent.connect(receive_maximum=3)
        agent.deliver(1, 2, qos=2)
        agent.deliver(3, 4, 5, 6, qos=1)
        await agent.expect_sent(packet(1), packet(2), packet(3, qos=1))
        agent.injection.on_handshake_steps([PubRecPacket(2, 0x97), PubRecPacket(3, 0x97)])
        assert agent.sent == [], "one at a time"
        agent.injection.on_handshake_steps([PubAckPacket(4)])
        await agent.expect_sent(packet(4, qos=1), packet(5, qos=1))
        assert agent.injection.counters["retried: broker quota exceeded"] == 2
        assert alarms == ["", QUOTA_EXCEEDED_TEXT, QUOTA_EXCEEDED_TEXT]
        agent.injection.on_handshake_steps([PubAckPacket(5), PubAckPacket(6)])
        await until(lambda: len(agent.sent) == 3, "all of them")
        assert sorted(agent.sent, key=lambda each: each.packet_id) == [
            packet(1),
            packet(2),
            packet(6, qos=1),
        ]
        agent.sent.clear()
        agent.injection.on_handshake_steps([PubRecPacket(2), PubRecPacket(3, 0x97)])
        await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_disconnected()
        agent.connect()
        await agent.expect_sent(PubRelPacket(2), packet(2), packet(6, qos=1, dup=True))
        assert alarms[3:] == [QUOTA_EXCEEDED_TEXT, ""]
        await agent.injection.stop()

    run(work)


def test_retried_publications_keep_order(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect(receive_maximum=3)
        agent.deliver(1, 2, 3, 4, 5, 6, qos=1)
        await agent.expect_sent(*(packet(n, qos=1) for n in (1, 2, 3)))
        agent.injection.on_handshake_steps(
            [PubAckPacket(2, 0x97), PubAckPacket(3, 0x97), PubAckPacket(4, 0x97)]
        )
        await agent.expect_sent(packet(4, qos=1))
        await asyncio.sleep(0.02)  # all shorter timers end before this
        agent.injection.on_handshake_steps([PubAckPacket(5)])
        await agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
        agent.injection.on_handshake_steps([PubAckPacket(2), PubAckPacket(3)])
        await agent.expect_sent(*(packet(n, qos=1) for n in (3, 5, 6)))
        await agent.injection.stop()

    run(work)


def test_retry_keeps_dup_flag(tmp_path, monkeypatch):
    """EMQX at its limit refuses even publications that it has."""
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))
        agent.injection.on_disconnected()
        agent.connect()
        await agent.expect_sent(packet(1, dup=True))
        agent.injection.on_handshake_steps([PubRecPacket(2, 0x93)])
        await agent.expect_sent(packet(1, dup=True))
        agent.injection.on_handshake_steps([PubRecPacket(2, 0x91)])
        await agent.expect_sent(PubRelPacket(2))
        await agent.injection.stop()

    run(work)


def test_in_flight_limit_is_removed_when_quota_is_available(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        alarms = agent.quota_problems
        alarms.clear()
        agent.deliver(1, qos=1)
        await agent.expect_sent(packet(1, qos=1))
        for _ in range(2):
            agent.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
            await agent.expect_sent(packet(1, qos=1))
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        assert alarms == [QUOTA_EXCEEDED_TEXT, QUOTA_EXCEEDED_TEXT, ""]
        agent.deliver(2, 3, qos=1)
        await agent.expect_sent(packet(2, qos=1), packet(3, qos=1))
        agent.injection.on_handshake_steps([PubAckPacket(3, 0x97)])
        agent.injection.on_not_sent([packet(3, qos=1)], "too large")
        await agent.expect_sent(packet(2, qos=1))
        agent.injection.on_not_sent([packet(2, qos=1)], "too large")
        assert alarms[3:] == [QUOTA_EXCEEDED_TEXT, ""], "what is dropped does not keep the alarm"
        await agent.injection.stop()

    run(work)


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_retried_value_does_not_replace_newer_one(tmp_path, monkeypatch, is_sent_before):
    """Also after a crash of the agent."""
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.2)
    values = [Publication(YOU, 8, n, 1, "a", b"%d" % n, retain=True) for n in (1, 2)]

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        old, new = (PublishPacket("a", b"%d" % n, 1, True, packet_id=1 + n) for n in (1, 2))
        late = PublishPacket("a", b"1", 1, packet_id=2)
        agent.injection.add_publications(values[:1])
        await agent.expect_sent(old)
        if is_sent_before:
            agent.injection.add_publications(values[1:])
            await agent.expect_sent(new)
            agent.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
        else:
            agent.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
            agent.injection.add_publications(values[1:])
            await agent.expect_sent(new)
        agent.injection.on_handshake_steps([PubAckPacket(3)])
        await agent.expect_sent(late)
        writer = agent.inbox.writer
        await until(lambda: writer.durable == writer.end, "that the newer one is there")
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.connect()
        await agent.expect_sent(replace(late, dup=True))
        await agent.injection.stop()

    run(work)


def test_rewritten_value_waits_until_durable(tmp_path):
    """Also after a reconnect."""

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([Publication(YOU, 8, 1, 1, "a", b"1", retain=True)])
        await until(lambda: agent.sent, "the first")
        agent.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
        agent.injection.add_publications([Publication(YOU, 8, 2, 1, "a", b"2", retain=True)])
        await until(lambda: len(agent.sent) == 2, "the second")
        agent.injection.on_disconnected()
        agent.connect()
        again = PublishPacket("a", b"1", 1, packet_id=2)
        await until(lambda: again in agent.sent, "the first again")
        await agent.injection.stop()

    run(work)
