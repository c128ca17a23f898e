"""A federation delivers the same messages as a single broker.

Every combination of published and subscribed QoS, MQTT 3.1.1 and 5 on both sides, retained or not,
at the same broker, one hop and three hops away, live or stored, is compared with a single broker
beside the federation.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from tests.agent.as_one.conftest import ORACLE, PLACES, SideBySide
from tests.agent.guaranteed import GuaranteedClient

from hansa.mqtt import properties
from hansa.mqtt.packets import PublishPacket, Subscription
from hansa.mqtt.properties import Property
from hansa.mqtt.types import Version

EXPIRY_S = 3_600
EXPIRY_SLACK_S = 60
"""Seconds in flight allowed on busy cores; the value is not asserted."""

PROPERTIES = properties.encode_properties(
    (
        (Property.PAYLOAD_FORMAT_INDICATOR, 1),
        (Property.MESSAGE_EXPIRY_INTERVAL, EXPIRY_S),
        (Property.CONTENT_TYPE, "text/plain"),
        (Property.RESPONSE_TOPIC, "matrix/answers"),
        (Property.CORRELATION_DATA, bytes(range(256))),
        (Property.USER_PROPERTY, ("zebra", "1")),
        (Property.USER_PROPERTY, ("ant", "2")),
        (Property.USER_PROPERTY, ("zebra", "1")),
    )
)


class Kind(NamedTuple):
    """MQTT version and subscription options of a client."""

    version: Version
    qos: int
    as_published: bool = False

    def __str__(self) -> str:
        flag = " as published" if self.as_published else ""
        return f"{self.version.name} QoS {self.qos}{flag}"


KINDS = [
    *(Kind(version, qos) for version in Version for qos in range(3)),
    *(Kind(Version.V5, qos, as_published=True) for qos in range(3)),
]
PUBLICATIONS = {
    version: [
        PublishPacket(
            f"matrix/{version.name}/{qos}/{'kept' if retain else 'passing'}",
            f"{version.name} {qos} {retain}".encode(),
            qos,
            retain,
            properties=PROPERTIES if version is Version.V5 else b"",
        )
        for qos, retain in product(range(3), (False, True))
    ]
    for version in Version
}
COUNT = sum(map(len, PUBLICATIONS.values()))
KEPT = sum(each.retain for batch in PUBLICATIONS.values() for each in batch)

Seen = dict[str, list[tuple[object, ...]]]
"""Received messages by topic: payload, QoS, retain, DUP, properties in order."""


def seen_by(client: GuaranteedClient) -> Seen:
    found: Seen = {}
    for each in client.received:
        answer = (each.payload, each.qos, each.retain, each.dup, read(each.properties))
        found.setdefault(each.topic, []).append(answer)
    return found


def read(raw: bytes) -> tuple[tuple[Property, object], ...]:
    """Decode properties; the expiry ignores seconds spent in flight."""
    return tuple(
        (name, EXPIRY_S if expires(name, value) else value)
        for name, value in properties.decode_properties(raw)
    )


def expires(name: Property, value: object) -> bool:
    return name is Property.MESSAGE_EXPIRY_INTERVAL and (
        isinstance(value, int) and EXPIRY_S - EXPIRY_SLACK_S <= value <= EXPIRY_S
    )


def subscribers(live: SideBySide, kept_only: bool) -> dict[tuple[str, Kind], GuaranteedClient]:
    made = {
        (place, kind): live.at(place, version=kind.version).subscribe_as(
            Subscription("matrix/#", kind.qos, retain_as_published=kind.as_published)
        )
        for place in (*PLACES, ORACLE)
        for kind in KINDS
    }
    if not kept_only:
        for number in PLACES.values():
            live.wait_installed(number, "matrix/#")
    return made


def collect(clients: dict[tuple[str, Kind], GuaranteedClient], count: int) -> dict[object, Seen]:
    for client in clients.values():
        client.read_until(count, pause=0.05)
    return {who: seen_by(client) for who, client in clients.items()}


@pytest.fixture(scope="module")
def answers(running_line: SideBySide) -> Iterator[tuple[dict[object, Seen], dict[object, Seen]]]:
    """Return the messages of live subscribers and of those that subscribed later."""
    live = running_line
    live.wait_converged()
    first = subscribers(live, kept_only=False)
    for place in ("same", ORACLE):
        for version, batch in PUBLICATIONS.items():
            live.at(place, version=version).publish_as(*batch)
    heard = collect(first, COUNT)
    late = collect(subscribers(live, kept_only=True), KEPT)
    yield heard, late
    live.hang_up()


CASES = [pytest.param(place, kind, id=f"{place}, {kind}") for place, kind in product(PLACES, KINDS)]


@pytest.mark.parametrize(("place", "kind"), CASES)
def test_live_messages_equal_those_of_single_broker(answers, place, kind):
    heard, _ = answers
    assert len(heard[ORACLE, kind]) == COUNT
    assert heard[place, kind] == heard[ORACLE, kind]


@pytest.mark.parametrize(("place", "kind"), CASES)
def test_retained_messages_equal_those_of_single_broker(answers, place, kind):
    _, late = answers
    assert len(late[ORACLE, kind]) == KEPT
    assert late[place, kind] == late[ORACLE, kind]
