"""Federators of the paper with real brokers: latency, announcements, failure."""

import json
from collections.abc import Iterator

import pytest
from tests.agent.live import Client, LoopThread, eventually
from tests.manager.serving import Served

from hansa.manager.federators import TOPICS
from hansa.testbed.mosquitto import Mosquitto, free_port


class Paper:
    """Brokers whose federators joined with `ip` only."""

    def __init__(self, served: Served, folder) -> None:
        self.served = served
        self.thread = LoopThread()
        self.brokers = [Mosquitto(folder / str(n), free_port()) for n in range(3)]
        for broker in self.brokers:
            self.thread.run(broker.start())
        self.clients = [Client(broker.port).subscribe(*TOPICS) for broker in self.brokers]

    def ip(self, number: int) -> str:
        return f"tcp://127.0.0.1:{self.brokers[number].port}"

    def join(self, number: int) -> None:
        assert self.served.ask("POST", "/api/v1/join", {"ip": self.ip(number)})[0] == 200

    def node(self, number: int) -> dict[str, object]:
        found: dict[str, object] = self.served.ask("GET", f"/api/v1/nodes/{number}")[1]
        return found

    def announcement(self, at: int, action: str, number: int) -> None:
        """Wait until a broker has received an announcement on both topics."""
        payload = json.dumps({"action": action, "neighbor": {"id": number, "ip": self.ip(number)}})

        def came() -> bool:
            client = self.clients[at]
            client.silent(0.05)
            got = [(each.topic, bytes(each.payload)) for each in client.received]
            return all((topic, payload.encode()) in got for topic in TOPICS)

        eventually(came, f"{action} {number} at {at}", 60)

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        for broker in self.brokers:
            self.thread.run(broker.stop())
        self.thread.close()


@pytest.fixture
def paper(mosquitto: str, tmp_path) -> Iterator[Paper]:
    # A broker has half of this to answer; less is too short on a busy machine.
    served = Served(f"sqlite:///{tmp_path / 'm.db'}", {"HANSA_MANAGER_HEALTH_INTERVAL": "1"})
    made = Paper(served, tmp_path)
    try:
        yield made
    finally:
        served.stop()
        made.close()


def test_brokers_are_measured_and_get_announcements(paper):
    for number in range(3):
        paper.join(number)
    paper.announcement(0, "NEW", 1)
    paper.announcement(0, "NEW", 2)
    paper.announcement(1, "NEW", 2)
    assert not paper.clients[2].received  # it got its neighbours in the join response
    eventually(lambda: all(paper.node(n)["latency"] is not None for n in range(3)), "measured", 60)
    paper.thread.run(paper.brokers[2].stop())
    eventually(lambda: paper.node(2)["state"] == "gone", "node 2 is gone", 60)
    paper.announcement(0, "REMOVE", 2)
    paper.announcement(1, "REMOVE", 2)
    assert paper.node(0)["neighbors"] == [{"id": 1, "ip": paper.ip(1)}]
    assert [paper.node(n)["state"] for n in range(2)] == ["up", "up"]
    paper.thread.run(paper.brokers[2].start())
    eventually(lambda: paper.node(2)["state"] == "up", "node 2 is back", 60)
