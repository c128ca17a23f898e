"""Retained publications to one topic reach the broker in order at any QoS."""

from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.agent.delivery.incarnation import YOU, Incarnation, run
from tests.agent.waiting import until

from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.protocol.model import PlainMessage, Publication
from hansa.protocol.retained import write_order

NUMBERS = count(1)


def value(payload: bytes, qos: int, topic: str = "t", version: int = 0) -> Publication:
    """Return a retained value of another node, newer than the previous ones."""
    number = next(NUMBERS)
    return Publication(YOU, 8, number, qos, topic, payload, True, version=version or number)


def sent(
    index: int, payload: bytes, qos: int, topic: str = "t", retain: bool = True, dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, retain, dup, 1 + index)


async def settled(agent: Incarnation) -> None:
    """Wait until everything is durable."""
    writer = agent.inbox.writer
    await until(lambda: writer.durable == writer.end, "the disk")


def test_only_qos_1_waits_for_earlier_qos_2_handshake(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([value(b"set", 2), value(b"", 1), value(b"x", 1, "other")])
        agent.injection.add_publications([Publication(YOU, 8, next(NUMBERS), 1, "t", b"plain")])
        await agent.expect_sent(
            sent(1, b"set", 2), sent(3, b"x", 1, "other"), sent(4, b"plain", 1, "t", False)
        )
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        await agent.expect_sent(sent(2, b"", 1))
        await agent.injection.stop()

    run(work)


def test_equal_qos_and_qos_2_after_qos_1_are_sent_at_once(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications(
            [value(b"1", 1), value(b"2", 1), value(b"3", 2), value(b"4", 2)]
        )
        await agent.expect_sent(
            *(sent(n, b"%d" % n, qos) for n, qos in ((1, 1), (2, 1), (3, 2), (4, 2)))
        )
        await agent.injection.stop()

    run(work)


def test_waiting_values_keep_their_order(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications(
            [value(b"%d" % n, qos) for n, qos in enumerate((2, 2, 1, 2, 1), 1)]
        )
        await agent.expect_sent(sent(1, b"1", 2), sent(2, b"2", 2))
        for packet_id in (2, 3):
            agent.injection.on_handshake_steps([PubRecPacket(packet_id)])
            await agent.expect_sent(PubRelPacket(packet_id))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        assert agent.sent == [], "the second is still in flight"
        agent.injection.on_handshake_steps([PubCompPacket(3)])
        await agent.expect_sent(sent(3, b"3", 1), sent(4, b"4", 2))
        agent.injection.on_handshake_steps([PubAckPacket(4)])
        agent.injection.on_handshake_steps([PubRecPacket(5)])
        await agent.expect_sent(PubRelPacket(5))
        agent.injection.on_handshake_steps([PubCompPacket(5)])
        await agent.expect_sent(sent(5, b"5", 1))
        await agent.injection.stop()

    run(work)


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("is_killed", [False, True], ids=["connection lost", "killed"])
def test_order_holds_over_reconnect(tmp_path, is_accepted, is_killed):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await agent.expect_sent(sent(1, b"set", 2))
        if is_accepted:
            agent.injection.on_handshake_steps([PubRecPacket(2)])
            await agent.expect_sent(PubRelPacket(2))
        await settled(agent)
        assert agent.uncertain == []
        if is_killed:
            agent.crash()
            agent = Incarnation(tmp_path)
        else:
            agent.injection.on_disconnected()
        agent.connect()
        assert agent.uncertain == [("t",)], "the node is to check what the broker stores"
        if is_accepted:
            await agent.expect_sent(PubRelPacket(2))
        else:
            await agent.expect_sent(sent(1, b"set", 2, dup=True))
            agent.injection.on_handshake_steps([PubRecPacket(2)])
            await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        await agent.expect_sent(sent(2, b"", 1, dup=is_killed))
        await agent.injection.stop()

    run(work)


def test_qos_2_value_refused_for_quota_does_not_follow_newer_one(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await agent.expect_sent(sent(1, b"set", 2))
        agent.injection.on_handshake_steps([PubRecPacket(2, 0x97)])
        await agent.expect_sent(sent(2, b"", 1))
        assert agent.uncertain == [("t",)]
        agent.injection.on_handshake_steps([PubAckPacket(3)])
        await agent.expect_sent(sent(1, b"set", 2, retain=False))
        await agent.injection.stop()

    run(work)


def test_waiting_value_is_sent_if_earlier_value_cannot_be_sent(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await agent.expect_sent(sent(1, b"set", 2))
        agent.injection.on_not_sent([sent(1, b"set", 2)], "too large")
        await agent.expect_sent(sent(2, b"", 1))
        agent.injection.on_handshake_steps([PubAckPacket(3, 0x87)])
        assert agent.uncertain == [("t",), ("t",)]
        await agent.injection.stop()

    run(work)


def test_broker_without_qos_2_needs_no_wait(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect(qos_max=1)
        agent.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await agent.expect_sent(sent(1, b"set", 1), sent(2, b"", 1))
        await agent.injection.stop()

    run(work)


@pytest.mark.parametrize("qos", [1, 2])
def test_qos_0_waits_until_earlier_ones_are_completed(tmp_path, qos):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([value(b"set", qos)])
        assert not agent.injection.retained_order.is_empty
        gone = value(b"", 0)
        other = value(b"x", 0, "other")
        free: list[PlainMessage | Publication] = [
            ("t", b"plain"),
            replace(gone, retain=False),
            other,
        ]
        assert agent.injection.retained_order.hold_back([gone, *free]) == free
        await agent.expect_sent(sent(1, b"set", qos))
        if qos == 2:
            agent.injection.on_handshake_steps([PubRecPacket(2)])
            await agent.expect_sent(PubRelPacket(2))
        assert agent.published == []
        agent.injection.on_handshake_steps([PubCompPacket(2) if qos == 2 else PubAckPacket(2)])
        assert agent.published == [gone]
        await agent.injection.stop()

    run(work)


def test_qos_0_waits_for_entries_of_previous_incarnation(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.injection.add_publications([value(b"set", 2)])
        await settled(agent)
        agent.crash()
        agent = Incarnation(tmp_path)
        gone = value(b"", 0)
        assert agent.injection.retained_order.hold_back([gone]) == []
        agent.connect()
        await agent.expect_sent(sent(1, b"set", 2, dup=True))
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        assert agent.published == [gone]
        await agent.injection.stop()

    run(work)


def test_only_the_newest_value_is_stored(tmp_path, monkeypatch):
    """Replaced values reach subscribers without the retain flag."""
    monkeypatch.setattr(write_order, "HELD_BYTES_MAX", 5)

    async def work() -> None:
        agent = Incarnation(tmp_path)
        order = agent.injection.retained_order
        old, middle, new = value(b"old", 0), value(b"mid", 0), value(b"new", 0)
        agent.injection.add_publications([value(b"set", 1, version=old.version - 1)])
        assert order.hold_back([old]) == []
        assert order.hold_back([middle]) == [middle], "there is no room"
        monkeypatch.setattr(write_order, "HELD_BYTES_MAX", 6)
        assert order.hold_back([middle]) == []
        assert agent.published == [replace(old, retain=False)]
        agent.injection.add_publications([value(b"last", 1)])
        assert agent.published[1:] == [replace(middle, retain=False)]
        assert order.hold_back([new]) == [replace(new, retain=False)], "it is older than the last"
        agent.connect()
        await agent.expect_sent(sent(1, b"set", 1), sent(2, b"last", 1))
        agent.injection.on_handshake_steps([PubAckPacket(2), PubAckPacket(3)])
        assert order.is_empty
        assert len(agent.published) == 2
        await agent.injection.stop()

    run(work)


def test_local_topics_delay_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.injection.add_publications([value(b"x", 1, "stays")])
        assert agent.injection.retained_order.is_empty
        await agent.injection.stop()

    run(work)
