"""Third-party brokers in one federation with Mosquitto; see docs/brokers.md.

Their agents are configured with the subscribed filters; `test_observed` observes them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.agent.absence import ENDS, check_absence
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.other_brokers.brokers import BUILD_TIMEOUT_S, Other
from tests.agent.process import Process, Scene
from tests.agent.test_broker import is_installed, status

from hansa.cli import doctor
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Version
from hansa.testbed.mosquitto import Mosquitto, free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("other brokers"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 120),
]

PATIENCE_S = 60.0
"""One broker delays the first connection by ten seconds."""


class Capabilities(NamedTuple):
    """Delivered QoS of QoS 0, 1 and 2, the reason reported by `hansa doctor`, and the copies for
    two filters that match one topic."""

    qos: tuple[int, ...]
    delivery: str
    overlap_copies: str = "each"


CAPABILITIES = {
    "aedes": Capabilities((0, 1, 2), "exactly-once: it resumes sessions", "once"),
    "NATS": Capabilities((0, 1, 2), "at-least-once: "),
    # It delivers everything with the QoS of the subscription.
    "amqtt": Capabilities((2, 2, 2), "best effort: it keeps nothing for a client that is away"),
}


OVERLAP_COPIES = {kind: each.overlap_copies for kind, each in CAPABILITIES.items()}


class Stage(Scene):
    """Brokers of all kinds, agents and clients of one test."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._others: list[Other] = []

    def other(self, kind: str) -> Other:
        self._others.append(Other(kind, self._directory / kind))
        return self._others[-1]

    def old(self, place: Other | GuaranteedClient, **options: Any) -> GuaranteedClient:
        """Return an MQTT 3.1.1 client at a broker or at that of another client."""
        return self.client_of(GuaranteedClient, place.port, version=Version.V311, **options)

    def new(self, place: GuaranteedClient | Mosquitto) -> GuaranteedClient:
        return self.client_of(GuaranteedClient, place.port)

    def close(self) -> None:
        super().close()
        for broker in self._others:
            broker.close()


@pytest.fixture
def stage(mosquitto: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def beside(stage: Stage, broker: Other, link_port: int, topic_filter: str) -> Process:
    return stage.agent(
        broker_port=broker.port,
        broker_observer="static",
        broker_filters=topic_filter,
        broker_overlap_copies=OVERLAP_COPIES.get(broker.kind, "each"),
        link_neighbours=f"127.0.0.1:{link_port}",
    )


def with_mosquitto(stage: Stage, *others: Other, topic_filter: str) -> GuaranteedClient:
    """Link the agents to that of a Mosquitto with an equally subscribed client; return that
    client."""
    mosquitto, link_port = stage.broker(), free_port()
    hub = stage.agent(
        broker_port=mosquitto.port, broker_log_file=mosquitto.log_file, link_port=link_port
    )
    agents = [beside(stage, each, link_port, topic_filter) for each in others]
    subscriber = stage.new(mosquitto).subscribe_qos2(topic_filter)
    everybody = (hub, *agents)

    def is_ready() -> bool:
        known = {len(status(agent).get("reachable_nodes", ())) for agent in everybody}
        return known == {len(everybody)} and all(
            is_installed(each, topic_filter) for each in everybody
        )

    eventually(is_ready, "installed everywhere", PATIENCE_S)
    return subscriber


def seen(subscriber: GuaranteedClient, count: int) -> dict[str, list[tuple[int, bytes]]]:
    """Received payloads with QoS by topic, in order."""
    subscriber.read_until(count, pause=1.0)
    found: dict[str, list[tuple[int, bytes]]] = {}
    for each in subscriber.received:
        found.setdefault(each.topic, []).append((each.qos, each.payload))
    return found


@pytest.mark.parametrize("kind", CAPABILITIES)
def test_publications_arrive_once_in_order_both_ways(kind, stage):
    broker = stage.other(kind)
    far = with_mosquitto(stage, broker, topic_filter="t/#")
    near = stage.old(broker).subscribe_qos2("t/#")
    payloads = [b"%d" % each for each in range(20)]
    for qos in range(3):
        stage.new(far).publish_guaranteed(qos, f"t/there/{qos}", *payloads)
        stage.old(broker).publish_guaranteed(qos, f"t/here/{qos}", *payloads)
    qos_here = CAPABILITIES[kind].qos
    assert seen(far, 6 * len(payloads)) == {
        **{f"t/there/{qos}": [(qos, each) for each in payloads] for qos in range(3)},
        **{f"t/here/{qos}": [(qos_here[qos], each) for each in payloads] for qos in range(3)},
    }
    assert seen(near, 6 * len(payloads)) == {
        f"t/{place}/{qos}": [(qos_here[qos], each) for each in payloads]
        for place in ("there", "here")
        for qos in range(3)
    }


@pytest.mark.parametrize("kind", CAPABILITIES)
def test_retained_values_are_forwarded_both_ways(kind, stage):
    broker = stage.other(kind)
    stage.old(broker).publish_as(PublishPacket("kept/here", b"1", 1, retain=True))
    far = with_mosquitto(stage, broker, topic_filter="kept/#")
    stage.new(far).publish_as(PublishPacket("kept/there", b"2", 1, retain=True))
    far.read_until(2)
    eventually(lambda: stored(stage.new(far)) == KEPT, "both at Mosquitto")
    eventually(lambda: stored(stage.old(broker)) == KEPT, f"both at {kind}")


@pytest.mark.parametrize("kind", CAPABILITIES)
@pytest.mark.parametrize("qos", [0, 1])
def test_overlapping_filters_neither_duplicate_nor_hide(kind, qos, stage):
    broker = stage.other(kind)
    one = with_mosquitto(stage, broker, topic_filter="lap/#")
    two = stage.new(one).subscribe_qos2("+/lap")
    agent = stage.agents[0]
    eventually(lambda: is_installed(agent, "lap/#", "+/lap"), "installed", PATIENCE_S)
    near = stage.old(broker).subscribe_qos2("lap/#")
    payloads = [b"same", b"same", b"other", b"same", b"end"]
    for client in (stage.old(broker), stage.new(one), stage.old(broker)):
        client.publish_guaranteed(qos, "lap/lap", *payloads)
        for subscriber in (one, two, near):
            subscriber.read_until(len(payloads), pause=0.5)
            assert sorted(each.payload for each in subscriber.received) == sorted(payloads)
            subscriber.forget()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["aedes", "NATS", "RabbitMQ"])
def test_publications_while_the_agent_is_away_arrive(kind, end, stage, tmp_path):
    broker, mosquitto, link_port = stage.other(kind), stage.broker(), free_port()
    stage.agent(broker_port=mosquitto.port, broker_log_file=mosquitto.log_file, link_port=link_port)
    check_absence(
        broker.port,
        lambda: stage.agent(
            state=tmp_path / "state",
            broker_port=broker.port,
            broker_observer="static",
            broker_filters="t/#",
            broker_overlap_copies=OVERLAP_COPIES.get(kind, "each"),
            broker_session_3_1_1="lasting",
            link_neighbours=f"127.0.0.1:{link_port}",
        ),
        stage.new(mosquitto).subscribe_qos2("t/#"),
        ENDS[end],
        qos_levels=(1,) if kind == "RabbitMQ" else (1, 2),  # it closes connections at QoS 2
        is_exact=kind != "aedes",  # it sends publications again without DUP
    )


KEPT = {"kept/here": b"1", "kept/there": b"2"}


def stored(reader: GuaranteedClient) -> dict[str, bytes]:
    reader.subscribe_qos2("kept/+").read_for(0.5)
    reader.close()
    return {each.topic: each.payload for each in reader.received if each.retain}


@pytest.mark.parametrize("kind", CAPABILITIES)
def test_payloads_near_limit_are_forwarded_both_ways(kind, stage):
    broker = stage.other(kind)
    far = with_mosquitto(stage, broker, topic_filter="large/#")
    near = stage.old(broker).subscribe_qos2("large/#")
    large = bytes(range(256)) * 3_600
    for each in (stage.new(far), stage.old(broker)):
        each.publish_guaranteed(1, f"large/{each.port}", large)
    for subscriber in (far, near):
        assert [payload for _, payload in sum(seen(subscriber, 2).values(), [])] == [large] * 2


@pytest.mark.parametrize("kind", CAPABILITIES)
def test_doctor_reports_delivery_class_and_missing_features(kind, stage, capsys):
    assert doctor.run([f"127.0.0.1:{stage.other(kind).port}", "--observer", "static"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"guaranteed delivery: {CAPABILITIES[kind].delivery}" in said
    assert "MQTT 3.1.1" in said
    assert "the broker does not support MQTT 5: properties and retain flags" in said
    assert "mosquitto.conf" not in said
    assert ('overlap_copies = "once"' in said) == (CAPABILITIES[kind].overlap_copies == "once")
    assert said.endswith("An agent can work here, with the limits named above.")
