"""Delivery class derived from the observed features of a broker."""

from dataclasses import replace

import pytest

from hansa.agent.broker.delivery_class import (
    DeliveryClass,
    DeliveryClassification,
    DeliveryProbeResult,
    classify,
)

MOSQUITTO = DeliveryProbeResult(
    resumes_session=True,
    redelivers_unacknowledged=True,
    keeps_packet_ids=True,
    marks_dup=True,
    accepts_qos2=True,
    deduplicates_publish=True,
    repeats_pubcomp=True,
    queued_count=1_000,
    queue_offered_count=1_200,
)
AEDES = replace(MOSQUITTO, marks_dup=False, queued_count=1_200)
NATS = DeliveryProbeResult(
    resumes_session=True,
    redelivers_unacknowledged=False,
    accepts_qos2=False,
    queued_count=1_200,
    queue_offered_count=1_200,
)
AMQTT = DeliveryProbeResult(
    resumes_session=False,
    accepts_qos2=True,
    deduplicates_publish=True,
    repeats_pubcomp=False,
    queue_offered_count=0,
)


@pytest.mark.parametrize(
    ("proof", "expected"),
    [
        (MOSQUITTO, DeliveryClass.EXACTLY_ONCE),
        (AEDES, DeliveryClass.EXACTLY_ONCE),
        (NATS, DeliveryClass.AT_LEAST_ONCE),
        (AMQTT, DeliveryClass.BEST_EFFORT),
    ],
    ids=["mosquitto", "aedes", "nats-server", "amqtt"],
)
def test_known_brokers_are_classified(proof, expected):
    assert classify(proof).delivery_class is expected


@pytest.mark.parametrize(
    ("changed", "expected", "words"),
    [
        ({"resumes_session": False}, DeliveryClass.BEST_EFFORT, "forgets a client"),
        ({"queued_count": 0}, DeliveryClass.BEST_EFFORT, "keeps nothing"),
        ({"redelivers_unacknowledged": False}, DeliveryClass.AT_LEAST_ONCE, "does not come again"),
        ({"keeps_packet_ids": False}, DeliveryClass.AT_LEAST_ONCE, "other packet ids"),
        ({"accepts_qos2": False}, DeliveryClass.AT_LEAST_ONCE, "takes no QoS 2"),
        ({"deduplicates_publish": False}, DeliveryClass.AT_LEAST_ONCE, "not delivered once"),
        ({"repeats_pubcomp": False}, DeliveryClass.AT_LEAST_ONCE, "PUBREL"),
        ({"queued_count": None}, DeliveryClass.EXACTLY_ONCE, "delivers QoS 2 once"),
        ({"resumes_session": None}, None, "reached another"),
    ],
)
def test_single_missing_feature_decides_class(changed, expected, words):
    verdict = classify(replace(AEDES, **changed))
    assert verdict.delivery_class is expected
    assert words in verdict.reason


def test_all_missing_features_are_listed():
    assert classify(NATS) == DeliveryClassification(
        DeliveryClass.AT_LEAST_ONCE,
        "it takes no QoS 2; what was not acknowledged does not come again at once",
    )


def test_queue_limit_is_stated_as_condition():
    reason = "it resumes sessions, and delivers QoS 2 once also when clients break off"
    assert classify(AEDES).reason == reason
    assert classify(MOSQUITTO).reason == (
        f"{reason}, while no more than 1000 publications wait for one"
    )
