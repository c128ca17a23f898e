"""All payloads and topics that MQTT allows, across three hops."""

import random

import pytest

from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import PACKET_BYTES_MAX

FAR = 3
TOO_DEEP = "dropped: topic with too many levels"
ODD_TOPICS = [
    "/",
    "//",
    "/odd",
    "odd//empty",
    "odd/",
    "odd/ with spaces ",
    "odd/" + "/".join("x" * 199),
    "odd/" + "y" * 65_531,
    "odd/\u00e9\U0001f600\u4e2d\ufdcf\U0010fffd\u200d\ufeff",
    "odd/$inside",
]


def test_unusual_topics_arrive_unchanged(line):
    subscriber = line.at("three hops").subscribe_qos2("/#", "odd/#")
    alone = line.at("alone").subscribe_qos2("/#", "odd/#")
    line.wait_installed(FAR, "/#", "odd/#")
    for place in ("same", "alone"):
        line.at(place).publish_as(*(PublishPacket(topic, b"odd", 1) for topic in ODD_TOPICS))
    alone.read_until(len(ODD_TOPICS))
    subscriber.read_until(len(ODD_TOPICS))
    assert [each.topic for each in alone.received] == ODD_TOPICS
    assert [each.topic for each in subscriber.received] == ODD_TOPICS


def is_allowed(code: int) -> bool:
    """Whether Mosquitto accepts a character in a topic; MQTT allows brokers to refuse the
    others."""
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    is_surrogate = 0xD800 <= code < 0xE000
    is_none = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code < 0xFDF0
    return not (is_control or is_surrogate or is_none) and chr(code) not in "+#/"


def test_every_valid_topic_character_arrives(line):
    characters = "".join(chr(code) for code in range(0x110000) if is_allowed(code))
    topics = [f"all/{characters[at : at + 16_000]}" for at in range(0, len(characters), 16_000)]
    subscriber = line.at("three hops").subscribe_qos2("all/+")
    line.wait_installed(FAR, "all/+")
    line.at("same").publish_as(*(PublishPacket(topic, b"", 1) for topic in topics))
    subscriber.read_until(len(topics))
    assert [each.topic for each in subscriber.received] == topics


@pytest.mark.parametrize("qos", [0, 1])
def test_topics_of_more_than_200_levels_stay_at_their_broker_and_are_counted(line, qos):
    subscriber = line.at("three hops").subscribe_qos2(f"deep/{qos}/#")
    line.wait_installed(FAR, f"deep/{qos}/#")
    before = line.counter(0, TOO_DEEP)
    publisher = line.at("same")
    publisher.publish_guaranteed(qos, f"deep/{qos}" + "/x" * 199, b"201 levels")
    publisher.publish_guaranteed(qos, f"deep/{qos}" + "/x" * 198, b"200 levels")
    assert subscriber.read_until(1) == [b"200 levels"]
    assert line.counter(0, TOO_DEEP) == before + 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payloads_of_all_sizes_up_to_limit_arrive(line, qos):
    topic = f"size/{qos}"
    subscriber = line.at("three hops").subscribe_qos2(topic)
    line.wait_installed(FAR, topic)
    chance = random.Random(qos)
    sizes = (0, 1, 127, 128, 4_095, 4_096, 4_097, 65_536, 1_000_000)
    payloads = [chance.randbytes(size) for size in sizes]
    payloads.append(b"\xff\xfe\x00 not UTF-8 \xc0")
    line.at("same").publish_guaranteed(qos, topic, *payloads)
    subscriber.read_until(len(payloads))
    assert [each.payload for each in subscriber.received] == payloads


LONG = [pytest.param(64, qos, marks=pytest.mark.long) for qos in range(3)]


@pytest.mark.parametrize(("mebibytes", "qos"), [(8, 1), *LONG])
def test_large_payloads_are_forwarded_if_settings_allow(line, mebibytes, qos):
    topic = f"large/{mebibytes}/{qos}"
    subscriber = line.at("three hops", packet_bytes_max=PACKET_BYTES_MAX).subscribe_qos2(topic)
    line.wait_installed(FAR, topic)
    payload = random.Random(qos).randbytes(mebibytes << 20)
    line.at("same").publish_guaranteed(qos, topic, payload, b"end")
    subscriber.read_until(2, patience=60.0)
    assert [(each.payload == payload, each.qos) for each in subscriber.received] == [
        (True, qos),
        (False, qos),
    ]
