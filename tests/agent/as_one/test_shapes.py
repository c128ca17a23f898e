"""Payloads and topics of every shape that MQTT allows, across three hops."""

import random

import pytest

from hansa.mqtt.packets import Publish

FAR = 3
ODD_TOPICS = [
    "/",
    "//",
    "/odd",
    "odd//empty",
    "odd/",
    "odd/ with spaces ",
    "odd/" + "/".join("x" * 196),
    "odd/" + "y" * 65_531,
    "odd/\u00e9\U0001f600\u4e2d\ufdcf\U0010fffd\u200d\ufeff",
    "odd/$inside",
]


def test_odd_topics_arrive_as_they_are(line):
    subscriber = line.at("three hops").subscribe_surely("/#", "odd/#")
    alone = line.at("alone").subscribe_surely("/#", "odd/#")
    line.wait_installed(FAR, "/#", "odd/#")
    for place in ("same", "alone"):
        line.at(place).publish_as(*(Publish(topic, b"odd", 1) for topic in ODD_TOPICS))
    alone.read_until(len(ODD_TOPICS))
    subscriber.read_until(len(ODD_TOPICS))
    assert [each.topic for each in alone.received] == ODD_TOPICS
    assert [each.topic for each in subscriber.received] == ODD_TOPICS


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payloads_from_nothing_to_the_limit(line, qos):
    topic = f"size/{qos}"
    subscriber = line.at("three hops").subscribe_surely(topic)
    line.wait_installed(FAR, topic)
    chance = random.Random(qos)
    sizes = (0, 1, 127, 128, 4_095, 4_096, 4_097, 65_536, 1_000_000)
    payloads = [chance.randbytes(size) for size in sizes]
    payloads.append(b"\xff\xfe\x00 not UTF-8 \xc0")
    line.at("same").publish_surely(qos, topic, *payloads)
    subscriber.read_until(len(payloads))
    assert [each.payload for each in subscriber.received] == payloads
