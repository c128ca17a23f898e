"""/metrics checked by `promtool check metrics` and scraped by a real Prometheus server."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.admin.prometheus_server import Prometheus, find
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process, Scene

from hansa.testbed.mosquitto import free_port

AWKWARD = 'plant "north" \\ 1'
"""A name with every character that a label has to escape."""


def check_metrics(page: str) -> None:
    """Check a page with promtool; it must report nothing."""
    command = [find("promtool"), "check", "metrics"]
    said = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


@pytest.fixture
def pair(scene: Scene) -> list[Process]:
    """Two linked agents; one publication has been forwarded and received."""
    link_port, brokers = free_port(), [scene.broker(), scene.broker()]
    agents = [
        scene.agent(
            name=name,
            broker_port=broker.port,
            broker_observer="static",
            broker_filters=filters,
            link_port=port,
            link_neighbours=neighbours,
        )
        for name, broker, filters, port, neighbours in (
            (AWKWARD, brokers[0], "u/#", link_port, ""),
            ("south", brokers[1], "t/#", 0, f"127.0.0.1:{link_port}"),
        )
    ]
    subscriber = scene.client(brokers[1].port).subscribe("t/#")
    agents[1].says("neighbour up")

    def is_installed() -> bool:
        status = json.loads(agents[1].page("/status")[1] or "{}")
        # Interest counts as installed at all reachable nodes, also while there is no other one.
        return len(status.get("reachable_nodes", ())) == 2 and status["interest"]["installed"]

    eventually(is_installed, "the interest of the second agent in force at the first")
    publisher = scene.client_of(GuaranteedClient, brokers[0].port)
    publisher.publish_guaranteed(1, "t/a", b"1")
    assert subscriber.wait_for(b"1") == [("t/a", b"1")]
    return agents


@pytest.fixture
def prometheus(tmp_path: Path, pair: list[Process]) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path, [agent.admin_port for agent in pair])
    yield made
    made.close()


def test_promtool_accepts_the_metrics_of_live_agents(pair):
    for agent in pair:
        page = agent.page("/metrics")[1]
        assert "hansa_link_sent_bytes_total" in page and "hansa_journal_position" in page
        check_metrics(page)


def test_promtool_accepts_metrics_of_mqttfed_node(scene):
    agent = scene.agent(
        mode="mqtt-fed",
        mqtt_fed_id=1,
        mqtt_fed_neighbours="2@127.0.0.1:1",
        broker_observer="static",
        broker_filters="federated/t",
        broker_port=scene.broker().port,
    )
    agent.says("core changed topic='t' core=1")
    page = agent.page("/metrics")[1]
    assert "hansa_neighbour_broker_connected" in page
    check_metrics(page)


def test_prometheus_scrapes_two_agents(pair, prometheus):
    def is_up() -> bool:
        targets = prometheus.get("targets")["activeTargets"]
        return [(each["health"], each["lastError"]) for each in targets] == [("up", "")] * 2

    eventually(is_up, "both targets up")
    up = eventually(lambda: prometheus.series("up"), "the series `up`")
    assert [value for _, value in up] == [1.0, 1.0]
    statuses = [json.loads(agent.page("/status")[1]) for agent in pair]
    ids = [status["node"] for status in statuses]

    def found(query: str) -> Any:
        return eventually(lambda: prometheus.series(query), query)

    for metric, value in found("hansa_broker_observed"):
        assert (metric["node"], metric["node_name"], value) in [
            (ids[0], AWKWARD, 1.0),
            (ids[1], "south", 1.0),
        ]
    ((link, sent),) = found('hansa_link_sent_bytes_total{node_name="south"}')
    assert (link["node"], link["neighbour"], link["neighbour_name"]) == (*ids[::-1], AWKWARD)
    assert sent > 100
    captured = found('hansa_captured_publications_total{node_name!="south"}')
    assert [value for _, value in captured] == [1.0]


def test_idle_link_has_no_outstanding_bytes(pair):
    """Heartbeats continue, so a few of them may be outstanding."""

    def is_confirmed() -> bool:
        (link,) = json.loads(pair[0].page("/status")[1])["neighbours"].values()
        return bool(link["outstanding_bytes"] == 0 and link["bytes_out"] > 500)

    eventually(is_confirmed, "all that was sent confirmed")
