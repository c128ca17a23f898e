"""Expiry, wills, persistent sessions and request/response across brokers."""

import time
from functools import partial
from typing import Any

import pytest
from tests.agent.live import eventually

from hansa.mqtt import properties
from hansa.mqtt.packets import PublishPacket, Subscription, Will
from hansa.mqtt.properties import Property
from hansa.mqtt.types import Version

EXPIRED = "dropped: expired"
WAIT_S = 2.2
NEAR, FAR = 1, 3


def expiring(topic: str, payload: bytes, seconds: int, qos: int = 1) -> PublishPacket:
    raw = properties.encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, seconds),))
    return PublishPacket(topic, payload, qos, properties=raw)


def has_reachable(line: Any, place: int, count: int) -> bool:
    return len(line.nodes[place].status()["reachable_nodes"]) == count


def left(packet: PublishPacket) -> int:
    found = properties.message_expiry(packet.properties)
    assert found is not None
    return found


def test_time_in_partition_reduces_expiry(line):
    subscriber = line.at("three hops").subscribe_qos2("expiry/parted")
    line.wait_installed(FAR, "expiry/parted")
    expired = line.counter(FAR, EXPIRED)
    line.federation.cut_link(2, 3)
    began = time.monotonic()
    line.at("same").publish_as(
        expiring("expiry/parted", b"short", 1), expiring("expiry/parted", b"long", 1_000)
    )
    for place, count in ((0, 3), (FAR, 1)):  # both ends: bytes on their way pass after the cut
        eventually(partial(has_reachable, line, place, count), f"the partition seen at {place}")
    eventually(lambda: time.monotonic() - began > WAIT_S, "some seconds")
    line.federation.restore_link(2, 3)
    assert subscriber.read_until(1) == [b"long"]
    assert left(subscriber.received[0]) <= 1_000 - int(WAIT_S)
    assert line.counter(FAR, EXPIRED) == expired + 1


@pytest.mark.parametrize("delay_s", [0, 1], ids=["at once", "delayed"])
def test_will_is_forwarded_like_any_publication(line, delay_s):
    topic = f"will/{delay_s}"
    subscriber = line.at("three hops").subscribe_qos2(topic)
    line.wait_installed(FAR, topic)
    sent_properties = (
        (Property.WILL_DELAY_INTERVAL, delay_s),
        (Property.CONTENT_TYPE, "text/plain"),
    )
    will = Will(topic, b"gone", 1, properties=sent_properties)
    dying = line.at("same", will=will, session_expiry=60)
    began = time.monotonic()
    dying.kill()
    assert subscriber.read_until(1) == [b"gone"]
    assert time.monotonic() - began >= delay_s
    got = subscriber.received[0]
    assert (got.qos, got.retain) == (1, False)
    assert properties.decode_properties(got.properties) == ((Property.CONTENT_TYPE, "text/plain"),)


def test_client_that_disconnects_publishes_no_will(line):
    subscriber = line.at("one hop").subscribe_qos2("will/none", "will/fence")
    line.wait_installed(NEAR, "will/none", "will/fence")
    line.at("same", will=Will("will/none", b"gone", 1)).close()
    line.at("same").publish_guaranteed(1, "will/fence", b"end")
    assert subscriber.read_until(1) == [b"end"]


@pytest.mark.parametrize("version", list(Version), ids=lambda each: each.name)
def test_messages_of_a_disconnected_session_wait_at_its_own_broker(line, version):
    topic = f"session/{version.name}"
    lasting = {"name": f"absent-{version.name}", "version": version, "clean": False}
    if version is Version.V5:
        lasting["session_expiry"] = 600
    first = line.at("three hops", **lasting).subscribe_qos2(topic)
    line.wait_installed(FAR, topic)
    first.close()
    publisher = line.at("same")
    publisher.publish_guaranteed(1, topic, b"1", b"2")
    publisher.publish_guaranteed(2, topic, b"3")
    back = line.at("three hops", **lasting)
    came = [back.read_until(3), [each.qos for each in back.received]]
    assert came == [[b"1", b"2", b"3"], [1, 1, 2]]
    back.unsubscribe(topic)


def test_response_reaches_requester(line):
    """The requester waits until its subscription is installed; see docs/differences.md."""
    served = line.at("three hops").subscribe_qos2("service/+")
    line.wait_installed(FAR, "service/+")
    asking = line.at("same").subscribe_qos2("answers/7")
    line.wait_installed(0, "answers/7")
    sent_properties = (
        (Property.RESPONSE_TOPIC, "answers/7"),
        (Property.CORRELATION_DATA, b"\0no. 1"),
    )
    asking.publish_as(
        PublishPacket(
            "service/add", b"2+3", 1, properties=properties.encode_properties(sent_properties)
        )
    )
    assert served.read_until(1) == [b"2+3"]
    asked = dict(properties.decode_properties(served.received[0].properties))
    answer = properties.encode_properties(
        ((Property.CORRELATION_DATA, asked[Property.CORRELATION_DATA]),)
    )
    served.publish_as(
        PublishPacket(str(asked[Property.RESPONSE_TOPIC]), b"5", 1, properties=answer)
    )
    assert asking.read_until(1) == [b"5"]
    assert asking.received[0].properties == answer


def test_overlapping_subscriptions_deliver_as_many_copies_as_single_broker(line):
    wishes = (Subscription("lap/#", 1), Subscription("lap/+", 2))
    far, alone = (line.at(place).subscribe_as(*wishes) for place in ("three hops", "alone"))
    line.wait_installed(FAR, "lap/#", "lap/+")
    for place, subscriber in (("same", far), ("alone", alone)):
        line.at(place).publish_guaranteed(2, "lap/x", b"1")
        subscriber.read_until(1)
    assert sorted(each.qos for each in far.received) == sorted(each.qos for each in alone.received)
