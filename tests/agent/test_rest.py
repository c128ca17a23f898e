"""An agent that polls an HTTP API, at a real broker to which nobody else makes it subscribe."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from tests.agent.live import eventually
from tests.agent.test_broker import status

from hansa.agent.broker.own_subscription import OWN_TOPIC
from hansa.observers.rest.observer import OWN_MISSING

OWN = {"clientid": "me-observer", "topic": OWN_TOPIC}


class Api(ThreadingHTTPServer):
    """Lists rows as RMQTT does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rows: list[dict[str, str]] = []
        self.thread = Thread(target=self.serve_forever)
        self.thread.start()


class Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.rows).encode())

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.shutdown()
    made.server_close()
    made.thread.join()


def test_list_of_another_broker_is_recognised_although_it_is_empty(scene, api):
    broker = scene.broker()
    agent = scene.agent(
        broker_port=broker.port,
        broker_client_id="me",
        broker_observer="rest",
        rest_kind="rmqtt",
        rest_url=f"http://127.0.0.1:{api.server_port}",
        rest_interval=0.2,
    )

    def says(reason: str) -> bool:
        found = status(agent)
        return bool(found) and found["broker"].get("observer_problem", "") == reason

    eventually(lambda: says(OWN_MISSING), "incomplete")
    assert agent.page("/readyz")[0] == 503
    assert OWN_TOPIC in broker.log_file.read_text()
    api.rows = [OWN, {"clientid": "c", "topic": "a"}]
    eventually(lambda: says("") and status(agent)["interest"]["local"] == ["a"], "complete")
    agent.process.terminate()
    agent.wait()
    assert "me-observer disconnected." in broker.log_file.read_text()
