"""Clients of third-party brokers receive what they should, whenever and however they subscribed.

Each broker is observed as docs/brokers.md recommends, in a federation with a Mosquitto.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.other_brokers.brokers import BUILD_TIMEOUT_S, Other, api_port
from tests.agent.other_brokers.test_others import Stage
from tests.agent.process import Process
from tests.agent.test_broker import status

from hansa.cli import doctor
from hansa.mqtt import packets
from hansa.testbed.mosquitto import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("other brokers"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 300),
]

PATIENCE_S = 120.0


def rest(kind: str, broker: Other, **more: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{api_port(broker.port)}"
    return {"broker_observer": "rest", "rest_kind": kind, "rest_url": url, **more}


SETTINGS = {
    "NATS": lambda broker: rest("nats", broker),
    "RabbitMQ": lambda broker: rest(
        "rabbitmq", broker, rest_username="guest", rest_password="guest"
    ),
    "RMQTT": lambda broker: rest("rmqtt", broker),
}
AFTER_RESTART = {"NATS": ("away/1", "clean"), "RabbitMQ": ("away/1",)}
"""Filters that are known after a restart of the broker. NATS keeps the consumers of clean
sessions."""


class Site:
    """A broker with its agent, and a Mosquitto with its own: all publications are made there."""

    def __init__(self, stage: Stage, kind: str, directory: Path) -> None:
        self._stage = stage
        self._state = directory / "state"
        self.broker = stage.other(kind)
        self._link_port = free_port()
        mosquitto = stage.broker()
        stage.agent(
            broker_port=mosquitto.port,
            broker_log_file=mosquitto.log_file,
            link_port=self._link_port,
        )
        self._publisher = stage.new(mosquitto)
        self.agent: Process | None = None

    def start_agent(self, **settings: str) -> None:
        """Start the agent with these settings of its observer, or with those of SETTINGS."""
        self.agent = self._stage.agent(
            state=self._state,
            broker_port=self.broker.port,
            link_neighbours=f"127.0.0.1:{self._link_port}",
            **(settings or SETTINGS[self.broker.kind](self.broker)),
        )

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.process.send_signal(signal.SIGKILL)
        self.agent.wait()

    def client(self, name: str, is_clean: bool = True) -> GuaranteedClient:
        old = self._stage.old
        return old(self.broker, name=name, clean=is_clean)

    def wait_for(self, *filters: str) -> None:
        """Wait until the agent is complete and announces exactly these filters."""

        def is_settled() -> bool:
            found = status(self.agent) if self.agent is not None else {}
            interest = found.get("interest", {})
            return bool(
                found
                and found["broker"]["observer_complete"]
                and found["broker"]["connected"]
                and sorted(interest["local"]) == sorted(filters)
                and interest["installed"]
                and len(found["reachable_nodes"]) == 2
            )

        try:
            eventually(is_settled, f"{filters}", PATIENCE_S)
        except AssertionError as error:
            found = status(self.agent) if self.agent is not None else {}
            raise AssertionError(found.get("broker"), found.get("interest")) from error

    def publish(self, *topics: str) -> None:
        for topic in topics:
            self._publisher.publish_guaranteed(1, topic, topic.encode())


@pytest.fixture
def stage(mosquitto: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def subscribe(client: GuaranteedClient, *filters: str) -> GuaranteedClient:
    return client.subscribe_as(*(packets.Subscription(name, 1) for name in filters))


@pytest.mark.parametrize("kind", SETTINGS)
def test_subscribers_are_served_whenever_they_subscribed(kind, stage, tmp_path):
    site = Site(stage, kind, tmp_path)
    early = subscribe(site.client("early"), "early/+")
    subscribe(site.client("away", is_clean=False), "away/1").close()
    site.start_agent()
    site.wait_for("away/1", "early/+")
    late = subscribe(site.client("late"), "late/#", "short")
    site.wait_for("away/1", "early/+", "late/#", "short")
    late.unsubscribe("short")
    site.wait_for("away/1", "early/+", "late/#")
    site.publish("early/x", "away/1", "late/a/b")
    early.wait_for(b"early/x")
    late.wait_for(b"late/a/b")
    site.client("away", is_clean=False).wait_for(b"away/1")
    early.kill()
    site.wait_for("away/1", "late/#")

    site.kill_agent()
    subscribe(site.client("between"), "between")
    late.unsubscribe("late/#")
    site.start_agent()
    site.wait_for("away/1", "between")


@pytest.mark.parametrize("kind", SETTINGS)
def test_doctor_recognises_a_broker_by_its_api(kind, stage, capsys, monkeypatch):
    monkeypatch.setenv("HANSA_REST_USERNAME", "guest")
    monkeypatch.setenv("HANSA_REST_PASSWORD", "guest")
    broker = stage.other(kind)
    subscribe(stage.old(broker), "a/+")
    url = f"http://127.0.0.1:{api_port(broker.port)}"
    assert doctor.run([f"127.0.0.1:{broker.port}", "--api", url]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "✓ its HTTP API lists all subscriptions: 1 different filters" in said
    assert f'✓ {kind}: use observer = "rest" ([rest] kind = "{kind.lower()}"' in said


@pytest.mark.parametrize("kind", ["aedes", "RMQTT"])
def test_messages_of_the_broker_show_subscriptions(kind, stage, tmp_path):
    site = Site(stage, kind, tmp_path)
    site.start_agent(broker_observer="topics", topics_kind=kind.lower(), topics_agent_first="true")
    site.wait_for()
    client = subscribe(site.client("one"), "a/+", "b")
    subscribe(site.client("two", is_clean=False), "c").close()
    site.wait_for("a/+", "b", "c")
    site.publish("a/x")
    client.wait_for(b"a/x")
    client.unsubscribe("b")
    site.wait_for("a/+", "c")
    client.kill()
    site.wait_for("c")


@pytest.mark.parametrize(("kind", "observer"), [("aedes", "proxy"), ("RMQTT", "rest")])
def test_doctor_recognises_a_broker_by_its_messages(kind, observer, stage, capsys):
    assert doctor.run([f"127.0.0.1:{stage.other(kind).port}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f'✓ {kind}: use observer = "{observer}"' in said


@pytest.mark.parametrize("kind", AFTER_RESTART)
def test_sessions_that_the_broker_restores_are_served(kind, stage, tmp_path):
    site = Site(stage, kind, tmp_path)
    site.start_agent()
    subscribe(site.client("away", is_clean=False), "away/1").close()
    subscribe(site.client("clean"), "clean")
    site.wait_for("away/1", "clean")
    site.broker.restart()
    site.wait_for(*AFTER_RESTART[kind])
    site.publish("away/1")
    site.client("away", is_clean=False).wait_for(b"away/1")
