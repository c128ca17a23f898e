"""A broker that has no room: what it refused is published again, in order, and replaces nothing."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.agent.delivery.incarnation import YOU, Life, packet, run
from tests.agent.waiting import until

from hansa.agent.delivery.quota_backoff import QUOTA_EXCEEDED_TEXT
from hansa.mqtt.packets import PubAckPacket, PublishPacket, PubRecPacket, PubRelPacket
from hansa.protocol.model import Publication


def test_publication_refused_for_quota_is_retried(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.05)

    async def work() -> None:
        life = Life(tmp_path)
        told = life.quota_problems
        life.connect(receive_maximum=3)
        life.deliver(1, 2, qos=2)
        life.deliver(3, 4, 5, 6, qos=1)
        await life.says(packet(1), packet(2), packet(3, qos=1))
        life.injection.on_handshake_steps([PubRecPacket(2, 0x97), PubRecPacket(3, 0x97)])
        assert life.said == [], "one at a time"
        life.injection.on_handshake_steps([PubAckPacket(4)])
        await life.says(packet(4, qos=1), packet(5, qos=1))
        assert life.injection.counters["retried: broker quota exceeded"] == 2
        assert told == ["", QUOTA_EXCEEDED_TEXT, QUOTA_EXCEEDED_TEXT]
        life.injection.on_handshake_steps([PubAckPacket(5), PubAckPacket(6)])
        await until(lambda: len(life.said) == 3, "all of them")
        assert sorted(life.said, key=lambda each: each.packet_id) == [
            packet(1),
            packet(2),
            packet(6, qos=1),
        ]
        life.said.clear()
        life.injection.on_handshake_steps([PubRecPacket(2), PubRecPacket(3, 0x97)])
        await life.says(PubRelPacket(2))
        life.injection.on_disconnected()
        life.connect()
        await life.says(PubRelPacket(2), packet(2), packet(6, qos=1, dup=True))
        assert told[3:] == [QUOTA_EXCEEDED_TEXT, ""]
        await life.injection.stop()

    run(work)


def test_retried_publications_keep_order(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        life = Life(tmp_path)
        life.connect(receive_maximum=3)
        life.deliver(1, 2, 3, 4, 5, 6, qos=1)
        await life.says(*(packet(n, qos=1) for n in (1, 2, 3)))
        life.injection.on_handshake_steps(
            [PubAckPacket(2, 0x97), PubAckPacket(3, 0x97), PubAckPacket(4, 0x97)]
        )
        await life.says(packet(4, qos=1))
        await asyncio.sleep(0.02)  # the loop wakes all that has rested for less before this
        life.injection.on_handshake_steps([PubAckPacket(5)])
        await life.says(packet(1, qos=1), packet(2, qos=1))
        life.injection.on_handshake_steps([PubAckPacket(2), PubAckPacket(3)])
        await life.says(*(packet(n, qos=1) for n in (3, 5, 6)))
        await life.injection.stop()

    run(work)


def test_retry_keeps_dup_flag(tmp_path, monkeypatch):
    """EMQX refuses all if it holds too many, also those that it holds."""
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        await life.says(packet(1))
        life.injection.on_disconnected()
        life.connect()
        await life.says(packet(1, dup=True))
        life.injection.on_handshake_steps([PubRecPacket(2, 0x93)])
        await life.says(packet(1, dup=True))
        life.injection.on_handshake_steps([PubRecPacket(2, 0x91)])
        await life.says(PubRelPacket(2))
        await life.injection.stop()

    run(work)


def test_in_flight_limit_is_removed_when_quota_is_available(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        told = life.quota_problems
        told.clear()
        life.deliver(1, qos=1)
        await life.says(packet(1, qos=1))
        for _ in range(2):
            life.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
            await life.says(packet(1, qos=1))
        life.injection.on_handshake_steps([PubAckPacket(2)])
        assert told == [QUOTA_EXCEEDED_TEXT, QUOTA_EXCEEDED_TEXT, ""]
        life.deliver(2, 3, qos=1)
        await life.says(packet(2, qos=1), packet(3, qos=1))
        life.injection.on_handshake_steps([PubAckPacket(3, 0x97)])
        life.injection.on_not_sent([packet(3, qos=1)], "too large")
        await life.says(packet(2, qos=1))
        life.injection.on_not_sent([packet(2, qos=1)], "too large")
        assert told[3:] == [QUOTA_EXCEEDED_TEXT, ""], "what is dropped does not keep the alarm"
        await life.injection.stop()

    run(work)


@pytest.mark.parametrize("is_sent_before", [False, True])
def test_retried_value_does_not_replace_newer_one(tmp_path, monkeypatch, is_sent_before):
    """Also not if the agent dies over it."""
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.2)
    values = [Publication(YOU, 8, n, 1, "a", b"%d" % n, retain=True) for n in (1, 2)]

    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        old, new = (PublishPacket("a", b"%d" % n, 1, True, packet_id=1 + n) for n in (1, 2))
        late = PublishPacket("a", b"1", 1, packet_id=2)
        life.injection.add_publications(values[:1])
        await life.says(old)
        if is_sent_before:
            life.injection.add_publications(values[1:])
            await life.says(new)
            life.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
        else:
            life.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
            life.injection.add_publications(values[1:])
            await life.says(new)
        life.injection.on_handshake_steps([PubAckPacket(3)])
        await life.says(late)
        writer = life.backlog.writer
        await until(lambda: writer.durable == writer.end, "that the newer one is there")
        life.crash()
        life = Life(tmp_path)
        life.connect()
        await life.says(replace(late, dup=True))
        await life.injection.stop()

    run(work)


def test_rewritten_value_waits_until_durable(tmp_path):
    """Also if the broker goes and comes back meanwhile."""

    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([Publication(YOU, 8, 1, 1, "a", b"1", retain=True)])
        await until(lambda: life.said, "the first")
        life.injection.on_handshake_steps([PubAckPacket(2, 0x97)])
        life.injection.add_publications([Publication(YOU, 8, 2, 1, "a", b"2", retain=True)])
        await until(lambda: len(life.said) == 2, "the second")
        life.injection.on_disconnected()
        life.connect()
        again = PublishPacket("a", b"1", 1, packet_id=2)
        await until(lambda: again in life.said, "the first again")
        await life.injection.stop()

    run(work)
