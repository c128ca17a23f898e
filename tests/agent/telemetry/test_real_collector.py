"""Spans of live agents in a real OpenTelemetry collector, built from its Go modules."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually
from tests.agent.other_brokers.brokers import BUILD_TIMEOUT_S, CACHE, install
from tests.agent.telemetry.test_traces import publish, spans_of

from hansa.mqtt.packets import PublishPacket
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation
from hansa.testbed.mosquitto import free_port

SOURCE = Path(__file__).parent / "collector"
CONFIG = """
receivers:
  otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}
exporters:
  file: {{path: "{spans}", append: true, flush_interval: 100ms}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
"""

_NAME, _VALUE = b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACEPARENT = b"".join(
    (b"\x26", *(len(text).to_bytes(2, "big") + text for text in (_NAME, _VALUE)))
)
"""A user property of MQTT 5, encoded; it is left as it is."""


@pytest.fixture(scope="module")
def program() -> Path:
    place = CACHE / "opentelemetry-collector"
    place.mkdir(parents=True, exist_ok=True)
    for file in SOURCE.iterdir():
        shutil.copy(file, place)
    made = place / "collector"
    install(
        "go",
        ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", made.name, "."],
        made,
        BUILD_TIMEOUT_S,
    )
    return made


class RealCollector:
    def __init__(self, program: Path, directory: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._spans_file = directory / "spans.json"
        config, self._log = directory / "collector.yml", directory / "collector.log"
        config.write_text(CONFIG.format(port=port, spans=self._spans_file))
        self._command = [str(program), "--config", f"file:{config}"]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)
        eventually(self._answers, f"the collector answers; its log: {self._log}")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            urllib.request.urlopen(self.url, timeout=5)
        except urllib.error.HTTPError:  # this path has no page
            return True
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def spans(self) -> list[dict[str, Any]]:
        """Return the spans that the collector wrote."""
        if not self._spans_file.exists():
            return []
        lines = self._spans_file.read_text().split("\n")[:-1]
        return [span for line in lines for span in spans_of(json.loads(line))]


@pytest.fixture
def collector(program: Path, tmp_path: Path) -> Iterator[RealCollector]:
    made = RealCollector(program, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def line(mosquitto: str, collector: RealCollector) -> Iterator[Live]:
    settings = {"HANSA_TELEMETRY_SAMPLE": "all", "HANSA_TELEMETRY_OTLP": collector.url}
    with Live(LocalFederation(parse_topology("line:3", 1), settings)) as live:
        yield live


def by_name(spans: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in spans}


@pytest.mark.long
@pytest.mark.timeout(BUILD_TIMEOUT_S + 300)
def test_real_collector_gets_one_trace_per_publication(line, collector):
    subscriber = line.client_of(GuaranteedClient, 2).subscribe_qos2("plant/#")
    line.wait_installed(2, "plant/#")
    publisher = line.client_of(GuaranteedClient, 0)
    publisher.publish_as(PublishPacket("plant/a", b"x", 1, properties=TRACEPARENT))
    assert subscriber.read_until(1) == [b"x"]
    assert subscriber.received[0].properties == TRACEPARENT
    eventually(lambda: len(collector.spans()) == 3, "three spans")
    spans = by_name(collector.spans())
    assert sorted(spans) == ["deliver", "publish", "relay"]
    assert len({span["traceId"] for span in spans.values()}) == 1
    assert not spans["publish"].get("parentSpanId")
    assert spans["relay"]["parentSpanId"] == spans["publish"]["spanId"]
    assert spans["deliver"]["parentSpanId"] == spans["relay"]["spanId"]
    places = {name: span["node"] for name, span in spans.items()}
    assert places == {"publish": "0", "relay": "1", "deliver": "2"}
    assert [spans[name]["kind"] for name in ("publish", "relay", "deliver")] == [4, 1, 5]
    attributes = {each["key"]: each["value"] for each in spans["deliver"]["attributes"]}
    assert attributes["messaging.destination.name"] == {"stringValue": "plant/a"}
    assert attributes["messaging.message.body.size"] == {"intValue": "1"}
    assert "delivered" in [event["name"] for event in spans["deliver"]["events"]]

    collector.stop()
    publish(line, b"y")
    eventually(
        lambda: all("traces not exported" in node.status()["alarms"] for node in line.nodes),
        "the alarm at every node while the collector is stopped",
    )
    collector.start()
    eventually(lambda: len(collector.spans()) == 6, "the spans that waited")
    traces = [span["traceId"] for span in collector.spans()]
    assert sorted(traces.count(each) for each in set(traces)) == [3, 3]
    eventually(lambda: not any(node.status()["alarms"] for node in line.nodes), "no alarm is left")
