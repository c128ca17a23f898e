"""An agent at brokers with TLS, access rules, MQTT 3.1.1 only, and bridges."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agent.broker.access_control import access_control
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Client, LoopThread, eventually
from tests.agent.process import Process, Scene

from hansa.cli.main import main
from hansa.mqtt.types import Version
from hansa.testbed.mosquitto import Mosquitto, free_port, make_configuration


def status(agent: Process) -> dict[str, Any]:
    code, page = agent.page("/status")
    found: dict[str, Any] = json.loads(page) if code == 200 else {}
    return found


def local(agent: Process) -> set[str]:
    return set(status(agent).get("interest", {}).get("local", ()))


def is_installed(agent: Process, *filters: str) -> bool:
    found = status(agent)  # one snapshot: a later one may have filters that are not installed yet
    has_peers = len(found.get("reachable_nodes", ())) > 1
    interest = found.get("interest", {})
    return has_peers and interest["installed"] and set(filters) <= set(interest["local"])


def pair(scene: Scene, one: Mosquitto, two: Mosquitto, **settings: object) -> list[Process]:
    """Two linked agents."""
    port = free_port()
    first = scene.agent(
        broker_port=one.port, broker_log_file=one.log_file, link_port=port, **settings
    )
    second = scene.agent(
        broker_port=two.port,
        broker_log_file=two.log_file,
        link_neighbours=f"127.0.0.1:{port}",
        **settings,
    )
    eventually(lambda: is_installed(first) and is_installed(second), "linked")
    return [first, second]


# ---------------------------------------------------------------- TLS


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A directory with two authorities and a certificate of the first for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2")
        openssl(tmp_path, "req", "-x509", *new, *made, "-subj", f"/CN={name}")
    openssl(tmp_path, "req", *new, "-keyout", "b.key", "-out", "b.csr", "-subj", "/CN=broker")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl(tmp_path, "x509", "-req", "-in", "b.csr", *signed, "-out", "b.pem", "-days", "2")
    return tmp_path


def test_agent_connects_to_broker_over_tls(scene, certificates):
    lines = (f"certfile {certificates}/b.pem", f"keyfile {certificates}/b.key")
    broker = scene.broker(*lines)
    settings = {"broker_port": broker.port, "broker_tls": "true"}
    right = scene.agent(
        broker_tls_ca=certificates / "ca.pem", broker_log_file=broker.log_file, **settings
    )
    right.says(f"broker connected address=127.0.0.1:{broker.port}")
    right.says("observer complete")
    reasons = {
        "another authority": scene.agent(broker_tls_ca=certificates / "other.pem", **settings),
        "another name": scene.agent(
            broker_tls_ca=certificates / "ca.pem", broker_host="localhost", **settings
        ),
        "no TLS": scene.agent(broker_port=broker.port),
    }
    reasons["another authority"].says("certificate verify failed")
    reasons["another name"].says("certificate is not valid for 'localhost'")
    reasons["no TLS"].says("broker lost, still trying")
    for agent in reasons.values():
        assert agent.log.count("broker lost") == 1
        assert "Traceback" not in agent.log
        assert agent.page("/readyz")[0] == 503


def test_invalid_ca_file_is_reported(scene, tmp_path):
    (tmp_path / "empty.pem").write_text("nothing\n")
    for name in ("empty.pem", "missing.pem"):
        agent = scene.agent(broker_tls="true", broker_tls_ca=tmp_path / name)
        assert agent.wait() == 2
        assert agent.log.startswith(f"hansa: [broker] tls_ca {tmp_path}/{name}: ")
        assert agent.log.count("\n") == 1


# ---------------------------------------------------------------- access rules


def test_publication_refused_by_a_broker_is_reported_and_others_are_delivered(scene, tmp_path):
    strict, other = scene.broker(*access_control(tmp_path)), scene.broker()
    one, _two = pair(scene, strict, other)
    subscriber = scene.client(other.port).subscribe("secret/x", "open/#")
    one.says("subscription denied: the broker refuses 'secret/x' (code 0x87)")
    assert status(one)["counters"]["subscriptions denied"] == 1
    publisher = scene.client(strict.port)
    publisher.publish("secret/x", b"no")

    def crossed() -> bool:
        publisher.publish("open/a", b"yes")
        return not subscriber.silent(0.1)

    eventually(crossed, "what is allowed crosses")
    assert {p.topic for p in subscriber.received} == {"open/a"}


def test_alarm_for_refused_publication_has_topic_qos_and_reason(scene, tmp_path):
    rules = tmp_path / "acl"
    rules.write_text("topic read #\ntopic read $SYS/#\ntopic write open/#\n")
    strict, other = scene.broker(f"acl_file {rules}"), scene.broker()
    one, _two = pair(scene, strict, other)
    scene.client(strict.port).subscribe("closed/#")
    eventually(lambda: is_installed(one, "closed/#"), "interest in force")
    publisher = scene.client_of(GuaranteedClient, other.port)
    publisher.publish_guaranteed(1, "closed/a", b"1")
    publisher.publish_guaranteed(2, "closed/b", b"2")
    refused = "the broker refuses it (0x87 not authorized)"
    advice = "(allow the agent's user to publish to them, in the broker's access list)"
    text = f"{refused}: 'closed/a' at QoS 1, 'closed/b' at QoS 2 {advice}"
    one.says(f"alarm publications dropped: {text}")
    found = status(one)
    assert found["alarms"]["publications dropped"] == text
    assert found["counters"][f"dropped: {refused}"] == 2
    assert found["counters"]["alarms: publications dropped"] == 1


def test_doctor_raises_no_alarm_in_running_agent(scene, capsys):
    broker = scene.broker("max_queued_messages 100", "sys_interval 1")
    agent = scene.agent(broker_port=broker.port, broker_log_file=broker.log_file)
    agent.says("observer complete")
    assert main(["doctor", f"127.0.0.1:{broker.port}", "--queue"]) == 0
    assert "the broker kept 100 and dropped the rest" in " ".join(capsys.readouterr().out.split())
    counts = scene.client(broker.port).subscribe("$SYS/broker/publish/messages/dropped")

    def is_counted() -> bool:
        counts.silent(0.1)
        return bool(counts.received) and int(counts.received[-1].payload) > 1_000

    eventually(is_counted, "the broker counts what it dropped")
    counts.received.clear()
    counts.subscribe("$SYS/broker/uptime")

    def has_reported() -> bool:
        counts.silent(0.1)
        return len(counts.received) > 2  # later bursts count; the agent gets them as well

    eventually(has_reported, "more bursts")
    assert status(agent)["alarms"] == {}
    assert not [name for name in status(agent)["counters"] if name.startswith("alarms")]


# ---------------------------------------------------------------- MQTT 3.1.1


class OldBroker:
    """A proxy in front of Mosquitto that refuses MQTT 5."""

    def __init__(self, port: int, behind: int) -> None:
        self.port = port
        self._behind = behind
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        first = await reader.read(1 << 16)
        if first[8] != Version.V311:
            writer.write(b"\x20\x02\x00\x01")  # unacceptable protocol version
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self._behind)
        forth.write(first)
        await asyncio.gather(copy(reader, forth), copy(back, writer))


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # either side may close
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


def counts(agent: Process) -> tuple[int, int]:
    """Publications of clients, and echoes of the agent's own."""
    counters = status(agent)["counters"]
    return counters["captured"], counters["echoes"]


def test_two_brokers_of_3_1_1_exchange_each_publication_once(scene, tmp_path):
    """Both brokers echo the agents' publications: without a check they would loop."""
    brokers = [scene.broker(), scene.broker()]
    fronts = [OldBroker(free_port(), broker.port) for broker in brokers]
    thread = LoopThread()
    try:
        for front in fronts:
            thread.run(front.start())
        ports = iter(fronts)
        port = free_port()
        agents = [
            scene.agent(broker_port=next(ports).port, broker_log_file=brokers[0].log_file,
                        link_port=port),
            scene.agent(broker_port=next(ports).port, broker_log_file=brokers[1].log_file,
                        link_neighbours=f"127.0.0.1:{port}"),
        ]  # fmt: skip
        subscribers = [scene.client(broker.port).subscribe("t/#") for broker in brokers]
        eventually(lambda: all(is_installed(agent, "t/#") for agent in agents), "installed")
        for broker in brokers:
            payloads = [b"%d-%d" % (broker.port, each % 7) for each in range(50)]
            scene.client(broker.port).publish("t/x", *payloads, b"end %d" % broker.port)
            for subscriber in subscribers:
                seen = subscriber.wait_for(b"end %d" % broker.port)
                assert [payload for _, payload in seen] == [*payloads, b"end %d" % broker.port]
        for agent in agents:
            # A subscriber may receive the last one before the agent receives its echo.
            eventually(lambda: counts(agent) == (51, 51), f"not {counts(agent)}")  # noqa: B023
    finally:
        for front in fronts:
            thread.run(front.stop())
        thread.close()


# ---------------------------------------------------------------- two clients with one id


async def displacing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An MQTT 5 broker that displaces the agent's client after each connection."""
    connect = await reader.read(1 << 16)
    writer.write(b"\x20\x03\x00\x00\x00")
    if b"-agent" in connect:
        writer.write(b"\xe0\x01\x8e")
    while await reader.read(1 << 16):
        pass
    writer.close()


def test_client_with_agent_id_raises_alarm(scene):
    """Mosquitto 2.0.11 does not report why it closed the connection."""
    thread = LoopThread()
    port = free_port()
    server = thread.run(asyncio.start_server(displacing, "127.0.0.1", port))
    try:
        agent = scene.agent(broker_port=port, broker_observer="static")
        agent.says("alarm broker session taken over: another client has the agent's client id")
        assert "broker session taken over" in status(agent)["alarms"]
        assert status(agent)["counters"]["alarms: broker session taken over"] == 1
        agent.close()
    finally:
        server.close()
        thread.close()


# ---------------------------------------------------------------- beacons


def test_announcements_of_clients_stay_at_their_broker(scene):
    """As in the papers: beacons, and NEW_REGULAR_TOPIC for the first subscription or
    publication."""
    brokers = [scene.broker(), scene.broker()]
    one, two = pair(scene, *brokers, broker_observer="beacon", broker_beacon_interval=20)
    everything = scene.client(brokers[0].port).subscribe("#")
    everything.publish("NEW_REGULAR_TOPIC", b"subscribe #")
    subscriber = scene.client(brokers[1].port).subscribe("b/1", "n/+", "NEW_REGULAR_TOPIC")
    subscriber.publish("federator/beacon/b/1", b"")
    subscriber.publish("NEW_REGULAR_TOPIC", b"subscribe n/+", b"publish p/1")
    eventually(lambda: is_installed(two, "b/1", "n/+") and is_installed(one, "#"), "installed")
    publisher = scene.client(brokers[0].port)
    for topic in ("b/1", "n/1", "unwanted", "NEW_REGULAR_TOPIC", "n/end"):
        publisher.publish(topic, b"subscribe end" if topic == "n/end" else topic.encode())
    seen = subscriber.wait_for(b"subscribe end")
    own = [("NEW_REGULAR_TOPIC", b"subscribe n/+"), ("NEW_REGULAR_TOPIC", b"publish p/1")]
    assert seen == [*own, ("b/1", b"b/1"), ("n/1", b"n/1"), ("n/end", b"subscribe end")]
    subscriber.publish("p/1", b"end")
    topics = {topic for topic, _ in everything.wait_for(b"end")}
    assert "p/1" in topics
    assert "federator/beacon/b/1" not in topics
    assert local(two) == {"b/1", "n/+"}
    assert local(one) == {"#", "NEW_REGULAR_TOPIC"}


# ---------------------------------------------------------------- earlier subscriptions


def test_persistent_session_is_known_after_agent_restart(scene, tmp_path):
    """Without a log file the agent has only its saved state."""
    broker = scene.broker("sys_interval 1")
    settings = {"broker_port": broker.port, "state": tmp_path / "state"}
    agent = scene.agent(**settings)
    agent.says("observer complete")
    ann = scene.client(broker.port, "ann", clean=False).subscribe("lasting/#")
    eventually(lambda: local(agent) == {"lasting/#"}, "seen")
    ann.close()
    bob = scene.client(broker.port, "bob").subscribe("clean/#")
    eventually(lambda: local(agent) == {"lasting/#", "clean/#"}, "kept, and the other seen")
    agent.process.terminate()
    agent.wait()
    bob.kill()
    again = scene.agent(**settings)
    again.says("broker connected")
    eventually(lambda: status(again), "a page")
    assert local(again) >= {"lasting/#"}
    assert status(again)["broker"]["observer_complete"] is False


@pytest.mark.skipif(shutil.which("stdbuf") is None, reason="stdbuf (coreutils) is not installed")
def test_earlier_subscriptions_are_read_from_tree_after_signal(scene, mosquitto, tmp_path):
    port, pid_file, output = free_port(), tmp_path / "pid", tmp_path / "output"
    config = tmp_path / "conf"
    config.write_text(make_configuration(port, tmp_path / "log", (f"pid_file {pid_file}",)))
    command = ["stdbuf", "-oL", mosquitto, "-c", str(config)]
    with output.open("wb") as out, subprocess.Popen(command, stdout=out) as broker:
        try:
            eventually(pid_file.exists, "broker up")
            scene.client(port, "ann").subscribe("before/#", "be fore/+")
            agent = scene.agent(
                broker_port=port, broker_pid_file=pid_file, broker_output_file=output
            )
            agent.says("observer complete")
            assert local(agent) == {"before/#", "be fore/+"}
        finally:
            broker.terminate()


def test_disconnection_without_unsubscribe_ends_interest(scene):
    broker = scene.broker("sys_interval 1")  # only the counts show when an MQTT 5 session ends
    agent = scene.agent(broker_port=broker.port, broker_log_file=broker.log_file)
    agent.says("observer complete")
    leave: list[Callable[[Client], None]] = [Client.close, Client.kill]
    for version in Version:
        for each in leave:
            client = scene.client(broker.port, "ann", version=version).subscribe("gone/#")
            eventually(lambda: local(agent) == {"gone/#"}, "seen")
            each(client)
            eventually(lambda: not local(agent), f"{version} {each.__name__} noticed")


def test_bridge_of_broker_is_reported(scene):
    far = scene.broker()
    broker = scene.broker("connection leftover", f"address 127.0.0.1:{far.port}", "topic # both")
    agent = scene.agent(broker_port=broker.port)
    agent.says("leftover' state=up: messages loop if it leads to a node")
    beside_the_other_end = scene.agent(broker_port=far.port)
    beside_the_other_end.says("bridge at the broker")
