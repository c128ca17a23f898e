"""/metrics checked by `promtool check metrics` and scraped by a real Prometheus server."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process, Scene

from hansa.testbed.mosquitto import free_port

DOWNLOADED = Path(__file__).parents[3] / ".prometheus"
"""Path where `./run test` installs the programs of Debian's package."""

CONFIG = """
global:
  scrape_interval: 500ms
  scrape_timeout: 500ms
  evaluation_interval: 500ms
rule_files: {rule_files}
scrape_configs:
  - job_name: hansa
    static_configs:
      - targets: [{targets}]
"""

ALERT_RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "hansa.rules.yml"

AWKWARD = 'plant "north" \\ 1'
"""A name with every character that a label has to escape."""


def find(program: str) -> str:
    found = shutil.which(program, path=os.pathsep.join([str(DOWNLOADED), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"there is no {program} here; Debian: the package prometheus")
    return found


def check_metrics(page: str) -> None:
    """Check a page with promtool; it must report nothing."""
    command = [find("promtool"), "check", "metrics"]
    said = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


class Prometheus:
    """A server that scrapes agents until the test ends."""

    def __init__(
        self, directory: Path, agents: list[Process], rule_file: Path | None = None
    ) -> None:
        self.port = free_port()
        targets = ", ".join(f"'127.0.0.1:{agent.admin_port}'" for agent in agents)
        config = directory / "prometheus.yml"
        rule_files = [] if rule_file is None else [str(rule_file)]
        config.write_text(CONFIG.format(targets=targets, rule_files=rule_files))
        self.log_file = directory / "prometheus.log"
        options = {
            "config.file": config,
            "storage.tsdb.path": directory / "series",
            "web.listen-address": f"127.0.0.1:{self.port}",
        }
        with self.log_file.open("wb") as out:
            self.process = subprocess.Popen(
                [find("prometheus"), *(f"--{name}={value}" for name, value in options.items())],
                stdout=out,
                stderr=out,
                cwd=directory,
            )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError) as error:
            assert self.process.poll() is None, self.log_file.read_text()
            raise TimeoutError from error  # it is not up yet

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        found = self.get("query", query=query)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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
    made = Prometheus(tmp_path, pair)
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


# ---------------------------------------------------------------- with real faults


def shortened(directory: Path) -> Path:
    """The rules with seconds in place of minutes, so that a test need not wait for an hour."""
    text = ALERT_RULES.read_text()
    text = re.sub(r"for: \d+[mh]", "for: 1s", text)
    text = re.sub(r"\[\d+[mh]\]", "[15s]", text).replace("> 6", "> 3")
    file = directory / "short.rules.yml"
    file.write_text(text)
    return file


@pytest.mark.long  # a minute: alerts fire and clear
def test_alerts_fire_and_clear_with_real_faults(scene: Scene, tmp_path):
    brokers = [scene.broker() for _ in range(2)]
    port = free_port()
    north = scene.agent(name="north", broker_port=brokers[0].port, link_port=port)
    south = scene.agent(
        name="south", broker_port=brokers[1].port, link_neighbours=f"127.0.0.1:{port}"
    )
    server = Prometheus(tmp_path, [north, south], shortened(tmp_path))
    try:

        def firing() -> set[str]:
            return {
                alert["labels"]["alertname"]
                for alert in server.get("alerts")["alerts"]
                if alert["state"] == "firing"
            }

        def calm() -> bool:
            query = server.get("query", query="min(hansa_neighbours)")["result"]
            return not firing() and bool(query) and query[0]["value"][1] == "1"

        eventually(calm, "two agents, a link and no alert")
        south.process.send_signal(signal.SIGSTOP)
        eventually(
            lambda: firing() >= {"HansaAgentDown", "HansaNodeUnreachable", "HansaNodeIsolated"},
            "the alerts of a stopped agent",
        )
        south.process.send_signal(signal.SIGCONT)
        eventually(calm, "no alert after the agent continues")

        scene.client(brokers[0].port).subscribe("plant/#")
        gone = brokers[1].process
        assert gone is not None
        gone.send_signal(signal.SIGKILL)
        eventually(
            lambda: firing() >= {"HansaBrokerDisconnected"}, "the alert of a broker that is gone"
        )
        scene.forget(brokers[1])
        eventually(
            lambda: "HansaBrokerDisconnected" not in firing(), "the broker's alert has cleared"
        )
    finally:
        server.close()
