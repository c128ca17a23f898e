"""Spans of live agents arrive at a collector; a collector that fails does no harm."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.agent.telemetry.settings import SampleRate, TelemetrySettings
from hansa.errors import UsageError
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation


def spans_of(body: Any) -> list[dict[str, Any]]:
    """Return the spans of an OTLP document, with the name of their node."""
    found = []
    for resource in body["resourceSpans"]:
        attributes = resource["resource"]["attributes"]
        named = {each["key"]: each["value"]["stringValue"] for each in attributes}
        for scope in resource["scopeSpans"]:
            found += [{**span, "node": named["hansa.node"]} for span in scope["spans"]]
    return found


class Collector:
    """Takes OTLP over HTTP; `status` is its answer."""

    def __init__(self) -> None:
        self.status = 200
        self.answer = b"{}"
        self.spans: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if collector.status == 200:
                    collector.take(self.path, self.headers["Content-Type"], json.loads(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", str(len(collector.answer)))
                self.end_headers()
                self.wfile.write(collector.answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, content_type: str, body: dict[str, Any]) -> None:
        assert (path, content_type) == ("/v1/traces", "application/json")
        self.spans += spans_of(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def traced(mosquitto: str, collector: Collector) -> Iterator[Live]:
    settings = {"HANSA_TELEMETRY_SAMPLE": "all", "HANSA_TELEMETRY_OTLP": collector.url}
    live = Live(LocalFederation(parse_topology("line:3", 1), settings))
    try:
        live.start()
        yield live
    finally:
        live.close()


def publish(live: Live, payload: bytes) -> None:
    live.client_of(GuaranteedClient, 0).publish_guaranteed(1, "plant/a", payload)


def names(spans: list[dict[str, Any]]) -> list[str]:
    return sorted(span["name"] for span in spans)


def test_publication_is_one_trace_also_after_the_collector_failed(traced, collector):
    collector.status = 503
    subscriber = traced.client_of(GuaranteedClient, 2).subscribe_qos2("plant/#")
    traced.wait_installed(2, "plant/#")
    publish(traced, b"x")
    assert subscriber.read_until(1) == [b"x"]
    eventually(
        lambda: all(
            "status 503" in node.status()["alarms"].get("traces not exported", "")
            for node in traced.nodes
        ),
        "the alarm at every node",
    )
    collector.status = 200
    eventually(
        lambda: names(collector.spans) == ["deliver", "publish", "relay"], "the spans of all nodes"
    )
    by_name = {span["name"]: span for span in collector.spans}
    assert len({span["traceId"] for span in collector.spans}) == 1
    assert by_name["relay"]["parentSpanId"] == by_name["publish"]["spanId"]
    assert by_name["deliver"]["parentSpanId"] == by_name["relay"]["spanId"]
    assert [by_name[each]["node"] for each in ("publish", "relay", "deliver")] == [
        node.name for node in traced.nodes
    ]
    eventually(
        lambda: not any("traces not exported" in node.status()["alarms"] for node in traced.nodes),
        "the alarm cleared",
    )
    assert traced.counter(0, "spans exported") == 1
    collector.answer = b'{"partialSuccess": {"rejectedSpans": "1"}}'
    publish(traced, b"y")
    eventually(lambda: traced.counter(0, "spans dropped") == 1, "the rejected span counted")
    collector.status = 400
    publish(traced, b"z")
    eventually(lambda: traced.counter(0, "spans dropped") == 2, "the refused span counted")
    assert "refuses spans" in traced.nodes[0].status()["alarms"]["traces not exported"]


@pytest.mark.parametrize(
    ("url", "sample", "said"),
    [
        ("127.0.0.1:4318", "all", "otlp must be http://HOST:PORT"),
        ("http://example.org:4318", "all", "use https"),
        ("http://127.0.0.1:4318", "none", 'sample is "none"'),
        ("http://127.0.0.1:4318", "off", 'sample is "off"'),
    ],
)
def test_wrong_setting_says_what_to_change(url, sample, said):
    with pytest.raises(UsageError) as raised:
        TelemetrySettings(sample=SampleRate(sample), otlp=url)
    assert said in str(raised.value)


def test_collector_elsewhere_needs_https():
    made = TelemetrySettings(sample=SampleRate("10"), otlp="https://collector.example.org")
    assert made.otlp.startswith("https://")
