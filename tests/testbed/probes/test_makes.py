"""The make of a broker, from its messages or its HTTP API."""

import asyncio

import pytest
from tests.agent.broker.test_rest_poller import answer, api

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.settings import OBSERVERS, RestSettings
from hansa.mqtt.types import Version
from hansa.observers.rest.description import DESCRIPTIONS
from hansa.testbed.clients import Arrival
from hansa.testbed.probes.makes import (
    MAKES,
    MOSQUITTO,
    make_from,
    recognise_api,
    recognise_make,
)


@pytest.mark.parametrize(
    ("topic", "payload", "make"),
    [
        ("$SYS/broker/version", b"mosquitto version 2.0.11", MOSQUITTO),
        ("$SYS/broker/version", b"mochi 2.7", None),
        ("$SYS/5f9b/new/subscribes", b'{"clientId": "c"}', MAKES["aedes"]),
        ("$SYS/brokers/1/session/c/1/subscribed", b"{}", MAKES["rmqtt"]),
        ("$SYS/brokers/1/session/c/1/created", b"{}", None),
        ("$SYS/brokers/emqx@127.0.0.1/sysdescr", b"EMQX", MAKES["emqx"]),
        ("$SYS/brokers/other/sysdescr", b"\xff", None),
    ],
)
def test_make_is_shown_by_messages(topic, payload, make):
    assert make_from([Arrival(0.0, topic, payload)]) == make


def test_every_described_api_has_a_make_with_an_observer():
    assert set(DESCRIPTIONS) <= set(MAKES)
    assert all(make.observer in OBSERVERS and make.settings for make in MAKES.values())


def test_mosquitto_is_recognised(broker):
    host, _, port = broker("allow_anonymous true").rpartition(":")
    address = BrokerAddress(host, int(port))
    assert asyncio.run(recognise_make(address, Version.V5)) == MOSQUITTO


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/api/exchanges/", [], "rabbitmq"),
        ("/api/v1/subscriptions", [], "rmqtt"),
        ("/api/v5/subscriptions", {"data": [], "meta": {"count": 0}}, "emqx"),
        ("/api/v4/subscriptions", {"code": 0, "data": []}, "nanomq"),
        ("/else", [], None),
    ],
)
def test_api_is_recognised_by_the_description_that_fits(path, body, kind):
    async def scene() -> str | None:
        handler = lambda asked, headers: answer(  # noqa: E731
            body if asked.startswith(path) else {}, 200 if asked.startswith(path) else 404
        )
        async with api(handler) as url:
            found = await recognise_api(RestSettings("nats", url))
            return None if found is None else found[0]

    assert asyncio.run(scene()) == kind
