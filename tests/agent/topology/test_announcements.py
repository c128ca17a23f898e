"""An agent learns of changes from announcements at its broker, not from the event stream."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.manager.serving import Served

from hansa.testbed.mosquitto import free_port

OTHER = "00000000000000ff"


@pytest.fixture
def scene(mosquitto: str, tmp_path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@pytest.fixture
def served(tmp_path) -> Iterator[Served]:
    # Reports are so rare that no change arrives with the answer to one.
    running = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_HEALTH_INTERVAL": "3600"})
    yield running
    running.stop()


def topology(agent: Process) -> Any:
    status, text = agent.page("/status")
    return json.loads(text)["topology"] if status == 200 else {}


def test_change_announced_at_broker_is_applied(scene, served):
    broker = scene.broker()
    agent = scene.agent(
        topology_manager=served.url, topology_announcements="true", link_port=free_port(),
        broker_port=broker.port, broker_log_file=broker.log_file,
    )  # fmt: skip
    eventually(lambda: topology(agent).get("problem") == "", "the agent has joined", 60)
    watching = scene.client(broker.port).subscribe("federated_topology_ann")
    link = f"127.0.0.1:{free_port()}"
    assert served.ask("POST", "/api/v1/join", {"link": link, "node": OTHER})[0] == 200
    eventually(lambda: topology(agent)["assigned"] == [OTHER], "its new neighbour", 60)
    expected = {"action": "NEW", "neighbor": {"id": 1, "ip": ""}}
    watching.wait_for(json.dumps(expected).encode())
