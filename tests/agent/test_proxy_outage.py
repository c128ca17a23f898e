"""Clients of the proxy while its process or its disk fails, and while its settings change."""

import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.agent.test_broker import status

from hansa.testbed.mosquitto import free_port

CONNECT = bytes.fromhex("100d00044d5154540402000000017a")
CONNACK = bytes.fromhex("20020000")
PERSISTENT = {"clean": False, "session_expiry": 3600}


class Place:
    """A broker, and an agent with a proxy before it."""

    def __init__(self, scene: Scene, directory: Path) -> None:
        self._scene = scene
        self.broker = scene.broker()
        self.state = directory / "state"
        self.port = free_port()

    def start(self, **more: Any) -> Process:
        return self._scene.agent(
            state=self.state,
            broker_port=self.broker.port,
            broker_observer="proxy",
            proxy_port=self.port,
            proxy_no_earlier_sessions="true",
            **more,
        )

    def client(self, name: str) -> GuaranteedClient:
        return self._scene.client_of(GuaranteedClient, self.port, name=name, **PERSISTENT)


@pytest.fixture
def place(scene: Scene, tmp_path: Path) -> Place:
    return Place(scene, tmp_path)


def kill(agent: Process) -> None:
    agent.process.send_signal(signal.SIGKILL)
    agent.wait()


def problem(agent: Process) -> str:
    found = status(agent)
    return str(found["broker"].get("observer_problem", "")) if found else ""


def is_complete(agent: Process) -> Callable[[], bool]:
    return lambda: bool(status(agent) and status(agent)["broker"]["observer_complete"])


def test_client_waits_while_the_agent_is_killed_and_the_port_stays_open(place):
    """The service manager holds the port. Clients that connect while the agent is away are served
    by the next one, without a refused connection."""
    with socket.create_server(("127.0.0.1", place.port)) as listening:
        agent = place.start(listening=listening)
        agent.says("proxy for clients at")
        seconds: list[float] = []

        def connect() -> None:
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", place.port), 60) as client:
                client.sendall(CONNECT)
                assert client.recv(4) == CONNACK
            seconds.append(time.monotonic() - began)

        for _ in range(3):
            kill(agent)
            waiting = threading.Thread(target=connect)
            waiting.start()
            agent = place.start(listening=listening)
            waiting.join()
        assert len(seconds) == 3
        sys.stdout.write(f"served after {', '.join(f'{each:.2f}' for each in seconds)} s\n")
        eventually(is_complete(agent), "complete")


@pytest.mark.long
def test_clients_are_served_while_the_disk_is_full_and_nobody_trusts_the_file(place):
    agent = place.start()
    agent.says("proxy for clients at")
    place.client("before").subscribe_qos2("before").kill()
    eventually(is_complete(agent), "complete")
    limit = (place.state / "proxy-sessions").stat().st_size
    everything = resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE)
    small = (limit, everything[1])
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, small)
    place.client("c").subscribe_qos2("t/1").kill()
    eventually(lambda: problem(agent).startswith("sessions of proxy clients cannot"), "incomplete")
    assert "File too large" in status(agent)["alarms"]["proxy sessions not saved"]
    assert agent.page("/readyz")[0] == 503
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, everything)
    eventually(is_complete(agent), "complete again, by the next attempt")
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, small)
    place.client("d").subscribe_qos2("t/2").kill()
    eventually(lambda: not is_complete(agent)(), "incomplete again")
    kill(agent)
    agent = place.start()
    agent.says("proxy for clients at")
    eventually(lambda: problem(agent).startswith("clients were served while"), "still incomplete")
    assert {"before", "t/1"} <= set(status(agent)["interest"]["local"])
    place.client("d").kill()


@pytest.mark.long
def test_clients_are_served_while_the_state_directory_is_unusable(place):
    place.state.write_text("a file in its place")
    agent = place.start()
    agent.says("alarm agent cannot start: cannot use the state directory")
    agent.says("proxy for clients at")
    agent.process.send_signal(signal.SIGHUP)
    client = place.client("c").subscribe_qos2("t/1")
    client.publish_guaranteed(2, "t/1", b"hello")
    assert client.wait_for(b"hello") == [("t/1", b"hello")]
    place.state.unlink()
    agent.says("alarm cleared agent cannot start")
    eventually(lambda: problem(agent).startswith("clients were served while"), "incomplete")
    assert agent.page("/readyz")[0] == 503
    again = place.client("c")
    again.publish_guaranteed(1, "t/1", b"again")
    assert again.wait_for(b"again") == [("t/1", b"again")]


@pytest.mark.long
@pytest.mark.parametrize("setting", ["link_port", "admin_port"])
def test_agent_starts_when_its_port_is_free_at_last(place, setting):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        agent = place.start(**{setting: occupied.getsockname()[1]})
        agent.says("alarm agent cannot start: cannot listen on")
        agent.says("proxy for clients at")
        agent.process.send_signal(signal.SIGHUP)
        place.client("c").subscribe_qos2("t/1").kill()
        incarnation = place.state / "incarnation"
        first = incarnation.read_text()
        eventually(lambda: incarnation.read_text() != first, "the second attempt")
    agent.says("agent up")
    assert agent.log.count("alarm agent cannot start") == 1  # always for the same reason
    assert "Traceback" not in agent.log


@pytest.mark.long
def test_agent_starts_when_the_port_of_the_proxy_is_free_at_last(place):
    """A service manager would not start it again after exit code 2."""
    with socket.create_server(("127.0.0.1", place.port)):
        agent = place.start()
        agent.says(f"alarm agent cannot start: cannot listen on 127.0.0.1:{place.port}")
        assert "[proxy] port" in agent.log
        agent.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert agent.process.poll() is None
    agent.says("alarm cleared agent cannot start")
    eventually(is_complete(agent), "complete")  # nobody was served unobserved
    client = place.client("c").subscribe_qos2("t/1")
    client.publish_guaranteed(1, "t/1", b"hello")
    assert client.wait_for(b"hello") == [("t/1", b"hello")]


def test_host_that_no_port_can_have_is_a_wrong_setting(place):
    agent = place.start(proxy_host="x" * 64)
    assert agent.wait() == 2
    assert "cannot listen on" in agent.log


def test_fallback_ends_at_once_and_the_next_agent_knows_that_it_served_clients(place):
    """The agent has never run, so there is no file of sessions that could be marked."""
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        agent = place.start(link_port=occupied.getsockname()[1])
        agent.says("proxy for clients at")
        place.client("c").subscribe_qos2("t/1").kill()
        eventually((place.state / "proxy-sessions").exists, "a file that says so")
        began = time.monotonic()
        agent.process.terminate()
        agent.wait()
        assert time.monotonic() - began < 4
    agent = place.start()
    agent.says("proxy for clients at")
    eventually(lambda: problem(agent).startswith("clients were served while"), "incomplete")


def write_settings(file: Path, text: str) -> None:
    file.write_text(f'[broker]\nobserver = "proxy"\n[proxy]\n{text}\n')


def test_sighup_applies_changed_settings_without_closing_connections(scene, tmp_path):
    broker, file, port = scene.broker(), tmp_path / "agent.toml", free_port()
    write_settings(file, f"port = {port}")
    agent = scene.agent(
        program=("-m", "hansa.cli", "agent", "--config", str(file)), broker_port=broker.port
    )
    agent.says("proxy for clients at")
    client = scene.client_of(GuaranteedClient, port, name="c").subscribe_qos2("t/1")
    eventually(lambda: "no_earlier_sessions" in problem(agent), "incomplete")
    write_settings(file, f"port = {port}\nno_earlier_sessions = true")
    agent.process.send_signal(signal.SIGHUP)
    eventually(is_complete(agent), "complete")
    write_settings(file, f'port = {port}\nno_earlier_sessions = true\ntls_key = "key.pem"')
    agent.process.send_signal(signal.SIGHUP)
    text = "the old settings stay in use: [proxy] tls_key needs tls_certificate"
    eventually(lambda: status(agent)["alarms"] == {"settings not reloaded": text}, "an alarm")
    write_settings(file, "port = 1\nno_earlier_sessions = true")
    agent.process.send_signal(signal.SIGHUP)
    agent.says("changed settings need a restart: [proxy] port")
    eventually(lambda: status(agent)["alarms"] == {}, "no alarm")
    client.publish_guaranteed(1, "t/1", b"hello")
    assert client.wait_for(b"hello") == [("t/1", b"hello")]
