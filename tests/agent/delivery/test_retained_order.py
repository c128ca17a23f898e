"""Retained publications to one topic reach the broker in order, whatever their QoS."""

from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.agent.delivery.incarnation import YOU, Life, run
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
    """A retained value of another node, newer than those before."""
    number = next(NUMBERS)
    return Publication(YOU, 8, number, qos, topic, payload, True, version=version or number)


def sent(
    index: int, payload: bytes, qos: int, topic: str = "t", retain: bool = True, dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, retain, dup, 1 + index)


async def settled(life: Life) -> None:
    """Wait until the disk has everything."""
    writer = life.backlog.writer
    await until(lambda: writer.durable == writer.end, "the disk")


def test_qos_1_waits_until_the_handshake_of_qos_2_has_ended_and_nothing_else_waits(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([value(b"set", 2), value(b"", 1), value(b"x", 1, "other")])
        life.injection.add_publications([Publication(YOU, 8, next(NUMBERS), 1, "t", b"plain")])
        await life.says(
            sent(1, b"set", 2), sent(3, b"x", 1, "other"), sent(4, b"plain", 1, "t", False)
        )
        life.injection.on_handshake_steps([PubRecPacket(2)])
        await life.says(PubRelPacket(2))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        await life.says(sent(2, b"", 1))
        await life.injection.stop()

    run(work)


def test_equal_qos_and_qos_2_after_qos_1_are_sent_at_once(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications(
            [value(b"1", 1), value(b"2", 1), value(b"3", 2), value(b"4", 2)]
        )
        await life.says(*(sent(n, b"%d" % n, qos) for n, qos in ((1, 1), (2, 1), (3, 2), (4, 2))))
        await life.injection.stop()

    run(work)


def test_followers_keep_their_order(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications(
            [value(b"%d" % n, qos) for n, qos in enumerate((2, 2, 1, 2, 1), 1)]
        )
        await life.says(sent(1, b"1", 2), sent(2, b"2", 2))
        for packet_id in (2, 3):
            life.injection.on_handshake_steps([PubRecPacket(packet_id)])
            await life.says(PubRelPacket(packet_id))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        assert life.said == [], "the second is still in flight"
        life.injection.on_handshake_steps([PubCompPacket(3)])
        await life.says(sent(3, b"3", 1), sent(4, b"4", 2))
        life.injection.on_handshake_steps([PubAckPacket(4)])
        life.injection.on_handshake_steps([PubRecPacket(5)])
        await life.says(PubRelPacket(5))
        life.injection.on_handshake_steps([PubCompPacket(5)])
        await life.says(sent(5, b"5", 1))
        await life.injection.stop()

    run(work)


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("is_killed", [False, True], ids=["connection lost", "killed"])
def test_order_holds_over_reconnect(tmp_path, is_accepted, is_killed):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await life.says(sent(1, b"set", 2))
        if is_accepted:
            life.injection.on_handshake_steps([PubRecPacket(2)])
            await life.says(PubRelPacket(2))
        await settled(life)
        assert life.uncertain == []
        if is_killed:
            life.crash()
            life = Life(tmp_path)
        else:
            life.injection.on_disconnected()
        life.connect()
        assert life.uncertain == [("t",)], "the node is to check what the broker stores"
        if is_accepted:
            await life.says(PubRelPacket(2))
        else:
            await life.says(sent(1, b"set", 2, dup=True))
            life.injection.on_handshake_steps([PubRecPacket(2)])
            await life.says(PubRelPacket(2))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        await life.says(sent(2, b"", 1, dup=is_killed))
        await life.injection.stop()

    run(work)


def test_qos_2_value_refused_for_quota_does_not_follow_newer_one(tmp_path, monkeypatch):
    monkeypatch.setattr("hansa.agent.delivery.quota_backoff.BACKOFF_MIN_S", 0.01)

    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await life.says(sent(1, b"set", 2))
        life.injection.on_handshake_steps([PubRecPacket(2, 0x97)])
        await life.says(sent(2, b"", 1))
        assert life.uncertain == [("t",)]
        life.injection.on_handshake_steps([PubAckPacket(3)])
        await life.says(sent(1, b"set", 2, retain=False))
        await life.injection.stop()

    run(work)


def test_follower_is_sent_when_the_broker_cannot_have_the_first(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await life.says(sent(1, b"set", 2))
        life.injection.on_not_sent([sent(1, b"set", 2)], "too large")
        await life.says(sent(2, b"", 1))
        life.injection.on_handshake_steps([PubAckPacket(3, 0x87)])
        assert life.uncertain == [("t",), ("t",)]
        await life.injection.stop()

    run(work)


def test_broker_without_qos_2_needs_no_wait(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect(qos_max=1)
        life.injection.add_publications([value(b"set", 2), value(b"", 1)])
        await life.says(sent(1, b"set", 1), sent(2, b"", 1))
        await life.injection.stop()

    run(work)


@pytest.mark.parametrize("qos", [1, 2])
def test_qos_0_waits_until_earlier_ones_are_completed(tmp_path, qos):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([value(b"set", qos)])
        assert not life.injection.retained_order.is_empty
        gone = value(b"", 0)
        other = value(b"x", 0, "other")
        free: list[PlainMessage | Publication] = [
            ("t", b"plain"),
            replace(gone, retain=False),
            other,
        ]
        assert life.injection.retained_order.hold_back([gone, *free]) == free
        await life.says(sent(1, b"set", qos))
        if qos == 2:
            life.injection.on_handshake_steps([PubRecPacket(2)])
            await life.says(PubRelPacket(2))
        assert life.published == []
        life.injection.on_handshake_steps([PubCompPacket(2) if qos == 2 else PubAckPacket(2)])
        assert life.published == [gone]
        await life.injection.stop()

    run(work)


def test_qos_0_waits_for_entries_of_previous_incarnation(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.injection.add_publications([value(b"set", 2)])
        await settled(life)
        life.crash()
        life = Life(tmp_path)
        gone = value(b"", 0)
        assert life.injection.retained_order.hold_back([gone]) == []
        life.connect()
        await life.says(sent(1, b"set", 2, dup=True))
        life.injection.on_handshake_steps([PubRecPacket(2)])
        await life.says(PubRelPacket(2))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        assert life.published == [gone]
        await life.injection.stop()

    run(work)


def test_only_the_newest_value_is_stored(tmp_path, monkeypatch):
    """What it replaces reaches subscribers, without the retain flag."""
    monkeypatch.setattr(write_order, "HELD_BYTES_MAX", 5)

    async def work() -> None:
        life = Life(tmp_path)
        order = life.injection.retained_order
        old, middle, new = value(b"old", 0), value(b"mid", 0), value(b"new", 0)
        life.injection.add_publications([value(b"set", 1, version=old.version - 1)])
        assert order.hold_back([old]) == []
        assert order.hold_back([middle]) == [middle], "there is no room"
        monkeypatch.setattr(write_order, "HELD_BYTES_MAX", 6)
        assert order.hold_back([middle]) == []
        assert life.published == [replace(old, retain=False)]
        life.injection.add_publications([value(b"last", 1)])
        assert life.published[1:] == [replace(middle, retain=False)]
        assert order.hold_back([new]) == [replace(new, retain=False)], "it is older than the last"
        life.connect()
        await life.says(sent(1, b"set", 1), sent(2, b"last", 1))
        life.injection.on_handshake_steps([PubAckPacket(2), PubAckPacket(3)])
        assert order.is_empty
        assert len(life.published) == 2
        await life.injection.stop()

    run(work)


def test_local_topics_hold_nothing_back(tmp_path: Path) -> None:
    async def work() -> None:
        life = Life(tmp_path)
        life.injection.add_publications([value(b"x", 1, "stays")])
        assert life.injection.retained_order.is_empty
        await life.injection.stop()

    run(work)
