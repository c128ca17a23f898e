"""Retained publications to one topic reach the broker in order at any QoS."""

from itertools import count

import pytest
from msgspec.structs import replace
from tests.delivery.injecting import incarnation
from tests.delivery.shell import YOU

from hansa.delivery import retained_order
from hansa.delivery.quota_backoff import BACKOFF_MIN_S
from hansa.delivery.retained_order import RetainedOrder
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.protocol.model import NodeId, PlainMessage, Publication

NUMBERS = count(1)


def order() -> tuple[RetainedOrder[str], list[Publication]]:
    published: list[Publication] = []
    return RetainedOrder[str](published.extend), published


def qos0_value(version: int, payload: bytes = b"x", topic: str = "t") -> Publication:
    return Publication(NodeId(1), 1, version, 0, topic, payload, True, version=version)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("second", [1, 2])
def test_only_qos_1_after_qos_2_waits(first, second):
    made, _ = order()
    assert not made.wait_or_send("first", "t", 1, first)
    assert made.wait_or_send("second", "t", 2, second) == (first == 2 and second == 1)
    assert not made.wait_or_send("other", "other", 3, 1)


def test_later_publications_wait_until_all_of_qos_2_are_complete():
    made, _ = order()
    for index in (1, 2):
        assert not made.wait_or_send(f"{index}", "t", index, 2)
    assert made.wait_or_send("3", "t", 3, 1)
    assert made.wait_or_send("4", "t", 4, 2)
    assert made.on_completed("t", 1) == ()
    assert made.on_completed("t", 99) == ()
    assert made.on_completed("t", 2) == ["3", "4"]
    assert made.on_completed("t", 2) == ()


def test_nothing_waits_after_the_connection_has_ended():
    made, _ = order()
    made.on_sent("t", 1)
    assert made.wait_or_send("2", "t", 2, 1)
    made.on_disconnected()
    assert not made.wait_or_send("2", "t", 2, 1)


def test_qos_0_follows_when_all_before_it_are_completed():
    made, published = order()
    made.add("t", 1)
    made.add("t", 2)
    other, plain = qos0_value(3, topic="other"), ("t", b"plain")
    assert made.hold_back([qos0_value(3), other, plain]) == [other, plain]
    made.remove("t")
    assert published == []
    made.remove("t")
    assert published == [qos0_value(3)]
    made.add("t", 4)
    made.remove("t")
    assert published == [qos0_value(3)]
    assert made.is_empty


def test_replaced_values_lose_the_retain_flag():
    made, published = order()
    made.add("t", 1)
    made.hold_back([qos0_value(2)])
    made.hold_back([qos0_value(3)])
    assert published == [replace(qos0_value(2), retain=False)]
    made.add("t", 5)
    assert published[1:] == [replace(qos0_value(3), retain=False)]
    assert made.hold_back([qos0_value(4)]) == [replace(qos0_value(4), retain=False)]


def test_held_bytes_are_bounded(monkeypatch):
    monkeypatch.setattr(retained_order, "HELD_BYTES_MAX", 3)
    made, published = order()
    made.add("t", 1)
    assert made.hold_back([qos0_value(2, b"four")]) == [qos0_value(2, b"four")]
    assert made.hold_back([qos0_value(3, b"abc")]) == []
    made.remove("t")
    made.add("t", 4)
    assert made.hold_back([qos0_value(5, b"abc")]) == []
    assert published == [qos0_value(3, b"abc")]


# ---------------------------------------------------------------- with injection


def value(payload: bytes, qos: int, topic: str = "t", version: int = 0) -> Publication:
    """Return a retained value of another node, newer than the previous ones."""
    number = next(NUMBERS)
    return Publication(YOU, 8, number, qos, topic, payload, True, version=version or number)


def sent(
    index: int, payload: bytes, qos: int, topic: str = "t", retain: bool = True, dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, retain, dup, 1 + index)


def test_only_qos_1_waits_for_earlier_qos_2_handshake():
    agent = incarnation()
    agent.connect()
    agent.store(value(b"set", 2), value(b"", 1), value(b"x", 1, "other"))
    agent.store(Publication(YOU, 8, next(NUMBERS), 1, "t", b"plain"))
    agent.expect_sent(
        sent(1, b"set", 2), sent(3, b"x", 1, "other"), sent(4, b"plain", 1, "t", False)
    )
    agent.answer(PubRecPacket(2))
    agent.expect_sent(PubRelPacket(2))
    agent.answer(PubCompPacket(2))
    agent.expect_sent(sent(2, b"", 1))


def test_equal_qos_and_qos_2_after_qos_1_are_sent_at_once():
    agent = incarnation()
    agent.connect()
    agent.store(value(b"1", 1), value(b"2", 1), value(b"3", 2), value(b"4", 2))
    agent.expect_sent(*(sent(n, b"%d" % n, qos) for n, qos in ((1, 1), (2, 1), (3, 2), (4, 2))))


def test_waiting_values_keep_their_order():
    agent = incarnation()
    agent.connect()
    agent.store(*(value(b"%d" % n, qos) for n, qos in enumerate((2, 2, 1, 2, 1), 1)))
    agent.expect_sent(sent(1, b"1", 2), sent(2, b"2", 2))
    for packet_id in (2, 3):
        agent.answer(PubRecPacket(packet_id))
        agent.expect_sent(PubRelPacket(packet_id))
    agent.answer(PubCompPacket(2))
    assert agent.sent == [], "the second is still in flight"
    agent.answer(PubCompPacket(3))
    agent.expect_sent(sent(3, b"3", 1), sent(4, b"4", 2))
    agent.answer(PubAckPacket(4))
    agent.answer(PubRecPacket(5))
    agent.expect_sent(PubRelPacket(5))
    agent.answer(PubCompPacket(5))
    agent.expect_sent(sent(5, b"5", 1))


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("is_killed", [False, True], ids=["connection lost", "killed"])
def test_order_holds_over_reconnect(is_accepted, is_killed):
    agent = incarnation()
    agent.connect()
    agent.store(value(b"set", 2), value(b"", 1))
    agent.expect_sent(sent(1, b"set", 2))
    if is_accepted:
        agent.answer(PubRecPacket(2))
        agent.expect_sent(PubRelPacket(2))
    assert agent.uncertain == []
    if is_killed:
        agent = agent.crash()
    else:
        agent.disconnect()
    agent.connect()
    assert agent.uncertain == [("t",)], "the node is to check what the broker stores"
    if is_accepted:
        agent.expect_sent(PubRelPacket(2))
    else:
        agent.expect_sent(sent(1, b"set", 2, dup=True))
        agent.answer(PubRecPacket(2))
        agent.expect_sent(PubRelPacket(2))
    agent.answer(PubCompPacket(2))
    agent.expect_sent(sent(2, b"", 1, dup=is_killed))


def test_qos_2_value_refused_for_quota_does_not_follow_newer_one():
    agent = incarnation()
    agent.connect()
    agent.store(value(b"set", 2), value(b"", 1))
    agent.expect_sent(sent(1, b"set", 2))
    agent.answer(PubRecPacket(2, 0x97))
    agent.expect_sent(sent(2, b"", 1))
    assert agent.uncertain == [("t",)]
    agent.answer(PubAckPacket(3))
    assert agent.context.now < BACKOFF_MIN_S, "without the retain flag there is no need to wait"
    agent.expect_sent(sent(1, b"set", 2, retain=False))


def test_waiting_value_is_sent_if_earlier_value_cannot_be_sent():
    agent = incarnation()
    agent.connect()
    agent.store(value(b"set", 2), value(b"", 1))
    agent.expect_sent(sent(1, b"set", 2))
    agent.not_sent([sent(1, b"set", 2)], "too large")
    agent.commit()
    agent.expect_sent(sent(2, b"", 1))
    agent.answer(PubAckPacket(3, 0x87))
    assert agent.uncertain == [("t",), ("t",)]


def test_broker_without_qos_2_needs_no_wait():
    agent = incarnation()
    agent.connect(qos_max=1)
    agent.store(value(b"set", 2), value(b"", 1))
    agent.expect_sent(sent(1, b"set", 1), sent(2, b"", 1))


@pytest.mark.parametrize("qos", [1, 2])
def test_qos_0_waits_until_earlier_ones_are_completed(qos):
    agent = incarnation()
    agent.connect()
    agent.store(value(b"set", qos))
    assert not agent.injection.retained_order.is_empty
    gone = value(b"", 0)
    other = value(b"x", 0, "other")
    free: list[PlainMessage | Publication] = [
        ("t", b"plain"),
        replace(gone, retain=False),
        other,
    ]
    assert agent.injection.retained_order.hold_back([gone, *free]) == free
    agent.expect_sent(sent(1, b"set", qos))
    if qos == 2:
        agent.answer(PubRecPacket(2))
        agent.expect_sent(PubRelPacket(2))
    assert agent.published_qos0 == []
    agent.answer(PubCompPacket(2) if qos == 2 else PubAckPacket(2))
    assert agent.published_qos0 == [gone]


def test_qos_0_waits_for_entries_of_previous_incarnation():
    agent = incarnation()
    agent.store(value(b"set", 2))
    agent = agent.crash()
    gone = value(b"", 0)
    assert agent.injection.retained_order.hold_back([gone]) == []
    agent.connect()
    agent.expect_sent(sent(1, b"set", 2, dup=True))
    agent.answer(PubRecPacket(2))
    agent.expect_sent(PubRelPacket(2))
    agent.answer(PubCompPacket(2))
    assert agent.published_qos0 == [gone]


def test_only_the_newest_value_is_stored(monkeypatch):
    """Replaced values reach subscribers without the retain flag."""
    monkeypatch.setattr(retained_order, "HELD_BYTES_MAX", 5)
    agent = incarnation()
    order = agent.injection.retained_order
    old, middle, new = value(b"old", 0), value(b"mid", 0), value(b"new", 0)
    agent.store(value(b"set", 1, version=old.version - 1))
    assert order.hold_back([old]) == []
    assert order.hold_back([middle]) == [middle], "there is no room"
    monkeypatch.setattr(retained_order, "HELD_BYTES_MAX", 6)
    assert order.hold_back([middle]) == []
    agent.collect()
    assert agent.published_qos0 == [replace(old, retain=False)]
    agent.store(value(b"last", 1))
    assert agent.published_qos0[1:] == [replace(middle, retain=False)]
    assert order.hold_back([new]) == [replace(new, retain=False)], "it is older than the last"
    agent.connect()
    agent.expect_sent(sent(1, b"set", 1), sent(2, b"last", 1))
    agent.answer(PubAckPacket(2), PubAckPacket(3))
    assert order.is_empty
    assert len(agent.published_qos0) == 2


def test_local_topics_delay_nothing():
    agent = incarnation()
    agent.store(value(b"x", 1, "stays"))
    assert agent.injection.retained_order.is_empty
