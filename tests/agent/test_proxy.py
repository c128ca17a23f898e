"""Clients behind the proxy, at a broker without a log.

Two real Mosquittos that log nothing. The agent of the first has a proxy for its clients; the agent
of the second is configured with the filters of its clients.
"""

import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.conftest import Brokers

from hansa.agent.broker.proxy.connection import WITHOUT_CONNECT
from hansa.agent.broker.proxy.server import UNFINISHED
from hansa.agent.broker.settings import ProxySettings
from hansa.testbed.mosquitto import free_port

CONNECT = bytes.fromhex("100d00044d5154540402000000017a")
PAYLOADS = {b"QoS 0", b"QoS 1", b"QoS 2"}


class Pair:
    """The broker with the proxy, and the remote one: it publishes to `t/#` and subscribes to
    `far`."""

    def __init__(self, scene: Scene, broker: Brokers, directory: Path) -> None:
        self._scene = scene
        self._directory = directory
        silent = ("log_type none", "allow_anonymous true")
        self.near = broker(*silent, "persistence true", f"persistence_location {directory}/")
        self.near_port = int(self.near.rpartition(":")[2])
        self.far_port = int(broker(*silent).rpartition(":")[2])
        self.proxy_port, self._link_port = free_port(), free_port()
        static = {"broker_observer": "static", "broker_filters": "far"}
        self.far_agent = scene.agent(broker_port=self.far_port, link_port=self._link_port, **static)
        self.publisher = scene.client_of(GuaranteedClient, self.far_port)
        self.agent = self.start_agent()

    def start_agent(self, **more: Any) -> Process:
        settings = {
            "state": self._directory / "state",
            "broker_port": self.near_port,
            "broker_observer": "proxy",
            "proxy_port": self.proxy_port,
            "proxy_no_earlier_sessions": "true",
            "link_neighbours": f"127.0.0.1:{self._link_port}",
        }
        agent = self._scene.agent(**{**settings, **more})
        agent.says("proxy for clients at")
        return agent

    def client(self, name: str, **options: Any) -> GuaranteedClient:
        return self._scene.client_of(GuaranteedClient, self.proxy_port, name=name, **options)

    def status(self, agent: Process | None = None) -> Any:
        code, text = (agent or self.agent).page("/status")
        return json.loads(text) if code == 200 else None

    def wait_for_local(self, *filters: str) -> None:
        def is_settled() -> bool:
            found = self.status()
            return bool(
                found
                and sorted(found["interest"]["local"]) == sorted(filters)
                and found["interest"]["installed"]
                and len(found["reachable_nodes"]) == 2
            )

        eventually(is_settled, f"{filters} installed, not {self.status()}")

    def publish(self, topic: str) -> None:
        for qos in range(3):
            self.publisher.publish_guaranteed(qos, topic, b"QoS %d" % qos)


@pytest.fixture
def pair(scene: Scene, broker: Brokers, tmp_path: Path) -> Pair:
    return Pair(scene, broker, tmp_path)


def test_clients_of_the_proxy_receive_and_publish_every_qos(pair):
    client = pair.client("c").subscribe_qos2("t/#")
    pair.wait_for_local("t/#")
    pair.publish("t/1")
    assert {payload for _, payload in client.wait_for_all(PAYLOADS)} == PAYLOADS
    pair.publisher.subscribe_qos2("far")
    eventually(lambda: pair.status(pair.far_agent)["interest"]["installed"], "the far interest")
    client.publish_guaranteed(2, "far", b"from the proxy")
    assert pair.publisher.wait_for(b"from the proxy") == [("far", b"from the proxy")]
    assert pair.status()["broker"]["proxy"] == {
        "address": f"127.0.0.1:{pair.proxy_port}",
        "clients": 1,
    }
    assert pair.agent.page("/readyz")[0] == 200


def test_subscription_ends_with_a_clean_session(pair):
    client = pair.client("c").subscribe_qos2("t/1", "t/2")
    pair.wait_for_local("t/1", "t/2")
    client.unsubscribe("t/1")
    pair.wait_for_local("t/2")
    client.kill()
    pair.wait_for_local()


def test_persistent_session_survives_kill_9_of_the_agent(pair):
    """The client subscribes once and never again; its agent is killed while it is away."""
    options = {"clean": False, "session_expiry": 3600}
    pair.client("c", **options).subscribe_qos2("t/1").kill()
    pair.wait_for_local("t/1")
    pair.agent.process.send_signal(signal.SIGKILL)
    pair.agent.wait()
    pair.agent = pair.start_agent()
    pair.wait_for_local("t/1")
    pair.publish("t/1")
    client = pair.client("c", **options)
    expected = {b"QoS 1", b"QoS 2"}  # brokers do not queue QoS 0 for clients that are away
    assert expected <= {payload for _, payload in client.wait_for_all(expected)}
    assert pair.status()["broker"]["observer_complete"] is True


def test_restart_of_the_proxy_changes_nothing_but_the_connections(pair):
    """Clients reconnect; a publication of that time reaches the session that lasts."""
    options = {"clean": False, "session_expiry": 3600}
    pair.client("c", **options).subscribe_qos2("t/1")
    pair.client("clean").subscribe_qos2("t/2")
    pair.wait_for_local("t/1", "t/2")
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.publisher.publish_guaranteed(1, "t/1", b"meanwhile")
    pair.agent = pair.start_agent()
    client = pair.client("c", **options)
    pair.client("clean").subscribe_qos2("t/2")
    pair.wait_for_local("t/1", "t/2")
    assert client.wait_for(b"meanwhile") == [("t/1", b"meanwhile")]
    assert pair.status()["broker"]["observer_complete"] is True


def test_granted_persistent_subscription_is_on_disk_before_the_client_knows(pair):
    for number in range(5):
        options = {"clean": False, "session_expiry": 3600}
        pair.client(f"c{number}", **options).subscribe_qos2(f"t/{number}")
        pair.agent.process.send_signal(signal.SIGKILL)
        pair.agent.wait()
        pair.agent = pair.start_agent()
        pair.wait_for_local(*(f"t/{n}" for n in range(number + 1)))


def test_first_run_is_incomplete_unless_operator_declares_no_sessions(pair):
    pair.agent.process.terminate()
    pair.agent.wait()
    fresh = {"state": pair._directory / "fresh", "proxy_no_earlier_sessions": "false"}  # noqa: SLF001
    pair.agent = pair.start_agent(**fresh)
    client = pair.client("c", clean=False, session_expiry=3600).subscribe_qos2("t/1")
    eventually(lambda: pair.status()["interest"]["wide"] == ["#"], "wide interest")
    assert "no_earlier_sessions" in pair.status()["broker"]["observer_problem"]
    client.kill()
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(**fresh)
    eventually(lambda: pair.status()["interest"]["wide"] == ["#"], "still wide interest")


def test_client_is_disconnected_while_the_broker_is_away(pair, broker):
    broker.stop(pair.near)
    with socket.create_connection(("127.0.0.1", pair.proxy_port)) as client:
        client.sendall(CONNECT)
        assert client.recv(1) == b""
    assert pair.agent.process.poll() is None


def test_large_messages_pass_in_both_directions(pair):
    payload = bytes(range(256)) * 2_000
    one, two = pair.client("one").subscribe_qos2("x"), pair.client("two")
    for number in range(10):
        two.publish_guaranteed(1, "x", b"%d" % number + payload)
    assert one.read_until(10) == [b"%d" % number + payload for number in range(10)]


def test_client_that_does_not_read_does_not_make_the_agent_grow(pair):
    slow = pair.client("slow").subscribe_qos2("x")
    writer = pair.client("writer")
    before = _resident_bytes(pair.agent)
    for _ in range(20):
        writer.publish("x", *[bytes(50_000)] * 20)
        writer.publish_guaranteed(1, "y", b"")
    assert _resident_bytes(pair.agent) - before < 20 << 20
    slow.kill()


def _make_certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [*"openssl req -x509 -nodes -newkey ed25519 -subj /CN=localhost -days 1".split(),
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


def _resident_bytes(agent: Process) -> int:
    text = Path(f"/proc/{agent.process.pid}/status").read_text()
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) << 10
    )


def test_tls_ends_at_the_proxy(pair, tmp_path):
    key, certificate = _make_certificate(tmp_path)
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(proxy_tls_certificate=certificate, proxy_tls_key=key)
    context = ssl.create_default_context(cafile=certificate)
    plain = socket.create_connection(("127.0.0.1", pair.proxy_port))
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
        encrypted.sendall(CONNECT)
        assert encrypted.recv(4) == bytes.fromhex("20020000")


@pytest.mark.parametrize(("has_tls", "count"), [(False, 2_000), (True, 700)])
def test_client_is_served_beside_unfinished_connections(pair, tmp_path, has_tls, count):
    """They have sent a ClientHello, or completed TLS without a CONNECT. All come from the host of
    the client, so that nothing but their age differs."""
    key, certificate = _make_certificate(tmp_path)
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(
        proxy_tls_certificate=certificate, proxy_tls_key=key, proxy_handshake_timeout=60
    )
    context = ssl.create_default_context(cafile=certificate)
    hello = _client_hello(context)
    before = _resident_bytes(pair.agent)
    with contextlib.ExitStack() as idle:
        for _ in range(count):
            raw = socket.create_connection(("127.0.0.1", pair.proxy_port), 60)
            idle.enter_context(contextlib.closing(raw))
            if has_tls:
                wrapped = context.wrap_socket(raw, server_hostname="127.0.0.1")
                idle.enter_context(contextlib.closing(wrapped))
            else:
                raw.sendall(hello)
        eventually(lambda: pair.status()["counters"]["proxy connections"] == count, "all accepted")
        began = time.monotonic()
        plain = socket.create_connection(("127.0.0.1", pair.proxy_port), 60)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(CONNECT)
            assert client.recv(4) == bytes.fromhex("20020000")
            took = time.monotonic() - began
            files = len(list(Path(f"/proc/{pair.agent.process.pid}/fd").iterdir()))
            grown = _resident_bytes(pair.agent) - before
            counters = pair.status()["counters"]
    sys.stdout.write(f"served in {took:.3f} s, {files} files, {grown >> 10} kB more\n")
    unfinished_max = ProxySettings().unfinished_max
    assert files < unfinished_max * (2 if has_tls else 1) + 100
    reason = WITHOUT_CONNECT if has_tls else UNFINISHED
    assert 0 < counters[reason] <= count + 1 - unfinished_max
    assert f"{reason} closed=" in pair.agent.log


def _client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def test_filter_of_a_client_that_leaves_at_once_is_known(pair):
    """The client sends CONNECT and SUBSCRIBE together and closes before any answer."""
    connect = bytes.fromhex("100d00044d51545404000000000171")
    subscribe = bytes.fromhex("820800010003742f3101")
    with socket.create_connection(("127.0.0.1", pair.proxy_port)) as client:
        client.sendall(connect + subscribe)
        assert client.recv(4) == bytes.fromhex("20020000")
    pair.wait_for_local("t/1")


def test_plain_connections_to_the_tls_port_leave_nothing_behind(pair, tmp_path):
    key, certificate = _make_certificate(tmp_path)
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(proxy_tls_certificate=certificate, proxy_tls_key=key)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", pair.proxy_port)) as client:
            client.sendall(CONNECT)
            client.settimeout(10)
            with contextlib.suppress(ConnectionError):
                client.recv(100)
    pair.agent.process.terminate()
    assert pair.agent.wait() == 0
    assert "Traceback" not in pair.agent.log
