"""User names, passwords and tokens only go to configured addresses (findings 15 and 20)."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.agent.hostile.capture import Capture
from tests.agent.hostile.raw_peer import RawPeer
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.manager.serving import Served

from hansa.agent.links.mqtt import CREDENTIALS_WITHHELD
from hansa.errors import UsageError
from hansa.testbed.mosquitto import free_port

USER, PASSWORD = "link-user", "link-password"
MQTT_CONNECT = 0x10


def status(agent: Process) -> Any:
    code, text = agent.page("/status")
    return json.loads(text) if code == 200 else None


def test_healing_sends_no_password_to_an_address_from_a_record(scene: Scene):
    port = free_port()
    agent = scene.agent(
        broker_port=scene.broker().port,
        link_port=port,
        link_mqtt_username=USER,
        link_mqtt_password=PASSWORD,
        topology_heal="true",
    )
    eventually(lambda: status(agent), "the agent is up")
    with Capture() as capture:
        with RawPeer(port) as peer:
            peer.hello().announce_self(addresses=(f"mqtt://127.0.0.1:{capture.port}",))
            name = f"{peer.node:016x}"
            eventually(lambda: name in status(agent)["reachable_nodes"], "the peer is a member")
        eventually(lambda: capture.received, "the agent looks for the lost member")
        eventually(lambda: len(capture.received) >= 3, "it tries again")
    assert {data[0] for data in capture.received if data} == {MQTT_CONNECT}
    sent = b"".join(capture.received)
    assert USER.encode() not in sent
    assert PASSWORD.encode() not in sent
    assert status(agent)["counters"][CREDENTIALS_WITHHELD] >= 1
    assert agent.process.poll() is None


def test_configured_neighbours_and_trusted_brokers_get_the_password(scene: Scene):
    with Capture() as neighbour, Capture() as member:
        port = free_port()
        agent = scene.agent(
            broker_port=scene.broker().port,
            link_port=port,
            link_neighbours=f"mqtt://127.0.0.1:{neighbour.port}",
            link_mqtt_trusted_brokers=f"127.0.0.1:{member.port}",
            link_mqtt_username=USER,
            link_mqtt_password=PASSWORD,
            topology_heal="true",
        )
        eventually(lambda: status(agent), "the agent is up")
        with RawPeer(port) as peer:
            peer.hello().announce_self(addresses=(f"mqtt://127.0.0.1:{member.port}",))
            name = f"{peer.node:016x}"
            eventually(lambda: name in status(agent)["reachable_nodes"], "the peer is a member")
        for capture in (neighbour, member):
            eventually(lambda: any(capture.received), "dialled")  # noqa: B023
    for capture in (neighbour, member):
        assert PASSWORD.encode() in b"".join(capture.received)


@pytest.mark.parametrize("trusted", [True, False])
def test_manager_sends_no_password_to_an_address_that_a_node_chose(tmp_path: Path, trusted: bool):
    with Capture() as capture:
        environment = {
            "HANSA_MANAGER_HEALTH_INTERVAL": "1",
            "HANSA_MANAGER_BROKER_USERNAME": USER,
            "HANSA_MANAGER_BROKER_PASSWORD": PASSWORD,
            "HANSA_MANAGER_BROKERS": f"127.0.0.1:{capture.port if trusted else 1}",
        }
        served = Served(f"sqlite:///{tmp_path / 'm.db'}", environment)
        try:
            joined, _ = served.ask(
                "POST", "/api/v1/join", {"ip": f"tcp://127.0.0.1:{capture.port}"}
            )
            assert joined == 200
            eventually(lambda: any(capture.received), "the manager connects to the broker")
        finally:
            served.stop()
    assert (PASSWORD.encode() in b"".join(capture.received)) is trusted


def test_manager_with_password_requires_trusted_brokers(tmp_path: Path):
    with pytest.raises(UsageError, match="HANSA_MANAGER_BROKERS, the brokers that get it"):
        Served(
            f"sqlite:///{tmp_path / 'm.db'}",
            {"HANSA_MANAGER_BROKER_USERNAME": USER, "HANSA_MANAGER_BROKER_PASSWORD": PASSWORD},
        )
