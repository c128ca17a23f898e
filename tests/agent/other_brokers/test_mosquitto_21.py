"""The live tests of the Mosquitto observer and of `hansa doctor`, with Mosquitto 2.1.

They use the Mosquitto that is first on the PATH, so they run again in a process of their own.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.live import eventually
from tests.agent.other_brokers.brokers import mosquitto_21
from tests.agent.process import Scene
from tests.agent.test_broker import status
from tests.websocket import WebSocketClient, connect_packet, subscribe_packet

from hansa.testbed.mosquitto import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("other brokers"),
    pytest.mark.timeout(1_800),
]

ROOT = Path(__file__).parents[3]
LIVE = (
    "tests/observers/mosquitto/test_observer_live.py",
    "tests/cli/test_doctor.py",
    "tests/agent/test_unknown_subscribers.py",
)


@pytest.mark.parametrize("path", LIVE)
def test_live_tests_pass_with_mosquitto_21(path):
    directory = mosquitto_21().parent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", path],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5_000:]


@pytest.fixture
def with_21(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    monkeypatch.setenv("PATH", f"{mosquitto_21().parent}:{os.environ['PATH']}")
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_websocket_client_of_the_proxy_is_served(with_21):
    websocket_port, proxy_port = free_port(), free_port()
    broker = with_21.broker(f"listener {websocket_port} 127.0.0.1", "protocol websockets")
    agent = with_21.agent(
        broker_port=broker.port,
        broker_observer="proxy",
        proxy_port=0,
        proxy_websocket_port=proxy_port,
        proxy_broker_websocket_port=websocket_port,
        proxy_no_earlier_sessions="true",
    )
    agent.says("proxy for WebSocket clients at")
    client = WebSocketClient(socket.create_connection(("127.0.0.1", proxy_port)))
    client.send(connect_packet("web"))
    assert client.receive(4)[3] == 0
    client.send(subscribe_packet("t/1"))
    assert client.receive(5)[4] == 1
    eventually(lambda: "t/1" in status(agent)["interest"]["local"], "the filter is known")
    with_21.client(broker.port, "writer").publish("t/1", b"hello")
    assert client.receive(12) == b"\x30\x0a\x00\x03t/1hello"
    assert status(agent)["broker"]["observer_complete"] is True
    client.close()
    eventually(lambda: status(agent)["interest"]["local"] == [], "the filter is gone")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("host", "client_host"), [("127.0.0.1", "127.0.0.2"), ("::1", "::1")])
def test_broker_reads_the_address_of_a_client_in_the_proxy_protocol(
    version, host, client_host, with_21
):
    """The agent connects to a listener without the PROXY protocol."""
    listener, proxy_port = free_port(), free_port()
    options = (f"listener {listener} 127.0.0.1", f"enable_proxy_protocol {version}")
    broker = with_21.broker(*options, "allow_anonymous true")
    agent = with_21.agent(
        broker_port=broker.port,
        broker_observer="proxy",
        proxy_host=host,
        proxy_port=proxy_port,
        proxy_broker_port=listener,
        proxy_proxy_protocol=f"v{version}",
        proxy_no_earlier_sessions="true",
    )
    agent.says("proxy for clients at")
    where = (host, proxy_port)
    with socket.create_connection(where, source_address=(client_host, 0)) as client:
        client.sendall(bytes.fromhex("100d00044d5154540402000000017a"))
        assert client.recv(4) == bytes.fromhex("20020000")
        connected = f"New client connected from {client_host}:{client.getsockname()[1]} as z "
        eventually(lambda: connected in broker.log_file.read_text(), connected)
