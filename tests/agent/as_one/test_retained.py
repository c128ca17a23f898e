"""Retained messages across brokers: every broker with a subscriber holds the same value."""

import random
from typing import Any

import pytest
from tests.agent.as_one.conftest import SideBySide
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.mqtt import properties
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property

NEAR, FAR = 1, 3
SETTLED_S = 30.0


def stored(live: Live, number: int, topic_filter: str) -> dict[str, bytes]:
    """Return the retained values of a broker, read by a separate client; each value once."""
    name = f"hansa-{live.nodes[number].status()['node']}-test"  # not a subscriber for the agent
    reader = live.client_of(GuaranteedClient, number, name=name).subscribe_qos2(topic_filter)
    reader.unsubscribe(topic_filter)  # the broker answers this after all retained values
    reader.read_for(0.1)
    reader.close()
    kept = [(each.topic, each.payload) for each in reader.received if each.retain]
    assert len(dict(kept)) == len(kept)
    return dict(kept)


def kept(topic: str, payload: bytes, qos: int = 1, **fields: Any) -> PublishPacket:
    return PublishPacket(topic, payload, qos, retain=True, **fields)


def test_earlier_retained_value_reaches_a_later_subscriber_elsewhere(line):
    sent_properties = properties.encode_properties(((Property.CONTENT_TYPE, "text/plain"),))
    values = {f"before/{qos}": b"value %d" % qos for qos in range(3)}
    publisher = line.at("same")
    publisher.publish_as(
        *(kept(t, payload, int(t[-1]), properties=sent_properties) for t, payload in values.items())
    )
    first = line.at("three hops").subscribe_qos2("before/+")
    first.read_until(3)
    assert {each.topic: each.payload for each in first.received} == values
    later = line.at("three hops").subscribe_qos2("before/+")
    later.read_until(3)
    assert {e.topic: (e.payload, e.qos, e.retain, e.properties) for e in later.received} == {
        topic: (payload, int(topic[-1]), True, sent_properties) for topic, payload in values.items()
    }
    assert stored(line, 2, "before/+") == {}  # no subscriber there


def test_deleted_value_is_removed_everywhere(line):
    subscribers = [line.at(place).subscribe_qos2("gone/#") for place in ("one hop", "three hops")]
    for number in (NEAR, FAR):
        line.wait_installed(number, "gone/#")
    line.at("same").publish_as(kept("gone/a", b"1"), kept("gone/b", b"2"))
    for each in subscribers:
        each.read_until(2)
    line.at("three hops").publish_as(kept("gone/a", b""))
    everywhere = (0, NEAR, FAR)  # also at the origin, which has no subscriber
    eventually(
        lambda: [stored(line, n, "gone/#") for n in everywhere] == [{"gone/b": b"2"}] * 3,
        "gone/a gone",
    )
    for each in subscribers:
        each.unsubscribe("gone/#")
    eventually(lambda: not _remote_interest(line, FAR), "withdrawn")
    back = line.at("three hops").subscribe_qos2("gone/#")
    back.read_until(1)
    assert [(each.topic, each.payload) for each in back.received] == [("gone/b", b"2")]


def test_lost_retained_values_are_restored(line):
    line.at("same").publish_as(kept("lost/a", b"1"))
    line.at("three hops").subscribe_qos2("lost/#").read_until(1)
    broker = line.nodes[FAR].broker
    line.run(broker.stop())
    line.run(broker.start())
    late = line.at("three hops").subscribe_qos2("lost/#")
    assert late.read_until(1) == [b"1"]
    eventually(lambda: stored(line, FAR, "lost/#") == {"lost/a": b"1"}, "held again")


def test_values_are_cleared_with_the_last_subscriber(line):
    line.at("same").publish_as(kept("leave/a", b"1"))
    wanting = line.at("three hops").subscribe_qos2("leave/a")
    wanting.read_until(1)
    assert stored(line, FAR, "leave/#") == {"leave/a": b"1"}
    wanting.unsubscribe("leave/a")
    eventually(lambda: stored(line, FAR, "leave/#") == {}, "cleared where nobody wants it")
    assert stored(line, 0, "leave/#") == {"leave/a": b"1"}


def test_value_written_by_local_client_is_kept(line):
    line.at("same").publish_as(kept("own/a", b"theirs"))
    wanting = line.at("three hops").subscribe_qos2("own/a")
    wanting.read_until(1)
    line.at("three hops").publish_as(kept("own/a", b"ours", qos=0))
    wanting.read_until(2)
    wanting.unsubscribe("own/a")
    fence = line.at("three hops")
    eventually(lambda: "own/a" not in _remote_interest(line, FAR), "withdrawn")
    fence.read_for(2.5)  # the agent may read the broker before it clears
    assert stored(line, FAR, "own/#") == {"own/a": b"ours"}


def _remote_interest(live: SideBySide, number: int) -> list[str]:
    node = live.nodes[number].status()["node"]
    interest: Any = live.nodes[0].status()["interest"]
    filters: list[str] = interest["remote"].get(node, [])
    return filters


def test_reconnection_resends_no_value(line):
    subscriber = line.at("three hops").subscribe_qos2("calm/#")
    line.wait_installed(FAR, "calm/#")
    line.at("same").publish_as(*(kept(f"calm/{n}", b"%d" % n) for n in range(20)))
    subscriber.read_until(20)
    line.federation.cut_link(2, 3)
    eventually(lambda: len(line.nodes[0].status()["reachable_nodes"]) == 3, "the partition seen")
    line.federation.restore_link(2, 3)
    line.wait_converged()
    line.at("same").publish_as(kept("calm/fence", b"end"))
    assert len(subscriber.read_until(21)) == 21


@pytest.mark.parametrize("qos", [0, 1])
def test_values_converge_after_partition(line, qos):
    places = ("same", "one hop", "three hops")
    subscribers = [line.at(place).subscribe_qos2(f"part/{qos}/#") for place in places]
    for number in (0, NEAR, FAR):
        line.wait_installed(number, f"part/{qos}/#")
    publishers = [line.at("same"), line.at("three hops")]
    topics = [f"part/{qos}/{n}" for n in range(6)]
    publishers[0].publish_as(*(kept(topic, b"old", qos) for topic in topics))
    for each in subscribers:
        each.read_until(len(topics))
    line.federation.cut_link(1, 2)
    eventually(lambda: len(line.nodes[0].status()["reachable_nodes"]) == 2, "the partition seen")
    eventually(lambda: len(line.nodes[FAR].status()["reachable_nodes"]) == 2, "on both sides")
    publishers[0].publish_as(
        kept(topics[0], b"left", qos), kept(topics[1], b"", qos), kept(topics[3], b"left", qos)
    )
    publishers[1].publish_as(
        kept(topics[0], b"right", qos), kept(topics[2], b"", qos), kept(topics[4], b"right", qos)
    )
    line.federation.restore_link(1, 2)
    required = {topics[3]: b"left", topics[4]: b"right", topics[5]: b"old"}

    def agree() -> bool:
        found = [stored(line, number, f"part/{qos}/#") for number in (0, NEAR, FAR)]
        return found[0] == found[1] == found[2] and required.items() <= found[0].items()

    eventually(agree, "agreement", SETTLED_S)
    assert stored(line, 0, topics[0])[topics[0]] in (b"left", b"right")
    assert set(stored(line, 0, f"part/{qos}/#")) == {topics[0], *required}


def test_concurrent_writes_converge(line):
    subscribers = [line.at(place).subscribe_qos2("race/#") for place in ("same", "three hops")]
    for number in (0, FAR):
        line.wait_installed(number, "race/#")
    chance = random.Random(7)
    writers = [line.at("same"), line.at("three hops")]
    for step in range(200):
        writer = chance.choice(writers)
        payload = b"" if chance.random() < 0.2 else b"%d" % step
        writer.publish_as(kept(f"race/{chance.randrange(5)}", payload, chance.randrange(2)))

    def agree() -> bool:
        return stored(line, 0, "race/#") == stored(line, FAR, "race/#")

    eventually(agree, "agreement", SETTLED_S)
    first = stored(line, 0, "race/#")
    subscribers[0].read_for(2.5)
    assert stored(line, 0, "race/#") == stored(line, FAR, "race/#") == first
