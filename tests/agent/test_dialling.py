"""Links between two live agents: either dials, over any transport, and refused links."""

import json
import socket
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process, Scene

from hansa.protocol.wire.frames import PROTOCOL_VERSION
from hansa.testbed.mosquitto import free_port

NEWER = """
from hansa.protocol.wire import frames
frames.PROTOCOL_VERSION += 1  # before anybody else takes it from there
from hansa.cli.main import main
raise SystemExit(main(["agent"]))
"""


def status(agent: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(eventually(lambda: agent.page("/status")[1], "a page"))
    return found


def is_settled(agent: Process, neighbour: str) -> bool:
    seen = status(agent)
    return [*seen["neighbours"]] == [neighbour] and bool(seen["interest"]["installed"])


def pair(scene: Scene, transport: str, dialling: str) -> tuple[Process, Process]:
    """Start two agents of which the first or both dial. Their ids are random."""
    ports = free_port(), free_port()
    agents = [
        scene.agent(
            broker_port=scene.broker().port,
            link_port=own,
            link_transport=transport,
            link_neighbours=f"127.0.0.1:{other}" if dialling in (name, "both") else "",
            broker_observer="static",
            broker_filters="meet/#",
        )
        for name, own, other in (("first", *ports), ("second", *reversed(ports)))
    ]
    return agents[0], agents[1]


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("dialling", ["first", "both"])
def test_one_link_remains_regardless_of_dialling_side(scene, transport, dialling):
    agents = pair(scene, transport, dialling)
    for agent, other in zip(agents, reversed(agents), strict=True):
        agent.says("neighbour up")
        seen = status(other)
        agent.says(f"node reachable node={seen['node']} name={seen['name']!r}")
        assert status(agent)["names"][seen["node"]] == seen["name"]
        settled = partial(is_settled, agent, str(status(other)["node"]))
        eventually(settled, "the other one is the only neighbour, and has our interest in force")
    ports = [int(status(agent)["broker"]["address"].split(":")[1]) for agent in agents]
    subscriber, publisher = scene.client(ports[1]).subscribe("meet/#"), scene.client(ports[0])
    numbers = count()

    def has_arrived() -> bool:
        publisher.publish("meet/a", b"%d" % next(numbers))
        return not subscriber.silent()

    # If both dial, one link is closed; QoS 0 in flight on it may be lost.
    eventually(has_arrived, "a path")
    came = subscriber.wait_for(subscriber.received[0].payload)
    assert len(came) == len(set(came))


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_other_protocol_version_is_refused_and_logged_on_both_sides(scene, transport):
    broker, port = scene.broker(), free_port()
    settings = {"broker_port": broker.port, "link_transport": transport}
    old = scene.agent(**settings, link_port=port, name="old")
    neighbours = f"127.0.0.1:{port}"
    new = scene.agent(**settings, link_neighbours=neighbours, name="new", program=("-c", NEWER))
    ours, theirs = f"{PROTOCOL_VERSION} of old", f"{PROTOCOL_VERSION + 1} of new"
    old.says(f"protocol version {theirs} meets {ours}")
    new.says("protocol version ")
    assert f"version {ours} meets {theirs}" in new.log or f"{theirs} meets {ours}" in new.log
    assert "neighbour up" not in old.log + new.log
    assert "Traceback" not in old.log + new.log
    assert old.process.poll() is None and new.process.poll() is None


def test_neighbour_without_udp_is_reported_and_dialling_continues(scene):
    port = free_port()
    scene.agent(broker_port=free_port(), link_port=port).says("agent up")
    agent = scene.agent(broker_port=free_port(), link_neighbours=f"udp://127.0.0.1:{port}")
    agent.says(f"address=127.0.0.1:{port} reason='Connection refused'")
    assert status(agent)["not_reached"] == {f"127.0.0.1:{port}": "Connection refused"}
    assert agent.process.poll() is None


def test_broker_at_neighbour_address_is_rejected(scene):
    broker = scene.broker()
    agent = scene.agent(broker_port=broker.port, link_neighbours=f"127.0.0.1:{broker.port}")
    agent.says(f"link closed remote=127.0.0.1:{broker.port}")
    assert "neighbour up" not in agent.log


def test_garbage_on_datagram_port_is_counted_and_ignored(scene):
    port = free_port()
    agent = scene.agent(broker_port=free_port(), link_port=port, link_transport="udp")
    agent.says("agent up")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for garbage in (b"?", b"GET / HTTP/1.1\r\n\r\n", bytes(60_000)):
            stranger.sendto(garbage, ("127.0.0.1", port))
    eventually(lambda: status(agent)["counters"].get("invalid datagrams") == 3, "all counted")
    assert status(agent)["neighbours"] == {}
