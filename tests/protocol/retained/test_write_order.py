"""Which retained publications wait for others to their topic; see also the tests of both shells."""

import pytest
from msgspec.structs import replace

from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained import write_order
from hansa.protocol.retained.write_order import RetainedOrder


def order() -> tuple[RetainedOrder[str], list[Publication]]:
    published: list[Publication] = []
    return RetainedOrder[str](published.extend), published


def value(version: int, payload: bytes = b"x", topic: str = "t") -> Publication:
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
    other, plain = value(3, topic="other"), ("t", b"plain")
    assert made.hold_back([value(3), other, plain]) == [other, plain]
    made.remove("t")
    assert published == []
    made.remove("t")
    assert published == [value(3)]
    made.add("t", 4)
    made.remove("t")
    assert published == [value(3)]
    assert made.is_empty


def test_replaced_values_lose_the_retain_flag():
    made, published = order()
    made.add("t", 1)
    made.hold_back([value(2)])
    made.hold_back([value(3)])
    assert published == [replace(value(2), retain=False)]
    made.add("t", 5)
    assert published[1:] == [replace(value(3), retain=False)]
    assert made.hold_back([value(4)]) == [replace(value(4), retain=False)]


def test_held_bytes_are_bounded(monkeypatch):
    monkeypatch.setattr(write_order, "HELD_BYTES_MAX", 3)
    made, published = order()
    made.add("t", 1)
    assert made.hold_back([value(2, b"four")]) == [value(2, b"four")]
    assert made.hold_back([value(3, b"abc")]) == []
    made.remove("t")
    made.add("t", 4)
    assert made.hold_back([value(5, b"abc")]) == []
    assert published == [value(3, b"abc")]
