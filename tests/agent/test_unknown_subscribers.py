"""Clients that subscribed before the agent started miss nothing, whatever the broker logged.

The cases are those of Mosquitto's operators: log settings enabled with SIGHUP, a restart with
persistence, logrotate, and the configuration in deploy/. Two brokers, two agents; a client that the
agent cannot know gets publications of every QoS from the other broker.
"""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Client, eventually
from tests.agent.process import Process, Scene

from hansa.mqtt import packets
from hansa.testbed.mosquitto import free_port
from hansa.testbed.probes.advice import LOG_SETTINGS

DEPLOY = Path(__file__).parents[2] / "deploy"
ALARM = "observer incomplete"


class Broker:
    """A Mosquitto whose configuration changes."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self.port = free_port()
        self.log_file = directory / "broker.log"
        self._config = directory / "broker.conf"
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, *lines: str, observed: bool = True) -> None:
        logs = LOG_SETTINGS if observed else ()
        own = (f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root")
        more = (f"log_dest file {self.log_file}", "sys_interval 1")
        self.write_configuration("\n".join((*own, *more, *logs, *lines)) + "\n")

    def write_configuration(self, text: str) -> None:
        self._config.write_text(text)

    def start(self) -> "Broker":
        with (self._directory / "broker.out").open("ab") as out:
            command = [self._program, "-c", str(self._config)]
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        eventually(self._answers, "the broker answers")
        return self

    def _answers(self) -> bool:
        try:
            Client(self.port).close()
        except OSError:
            return False
        return True

    def reload(self) -> None:
        """Send SIGHUP, and wait until the broker has handled it: it answers a client then."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)
        Client(self.port).close()
        Client(self.port).close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


@pytest.fixture
def observed(mosquitto: str, tmp_path: Path) -> Iterator[Broker]:
    directory = tmp_path / "observed"
    directory.mkdir()
    broker = Broker(mosquitto, directory)
    broker.configure()
    yield broker
    broker.stop()


class Pair:
    """The observed broker with its agent, and another pair that publishes."""

    def __init__(self, scene: Scene, broker: Broker) -> None:
        self._scene = scene
        self._broker = broker
        self.far = scene.broker("sys_interval 1")
        self._link_port = free_port()
        self.far_agent = scene.agent(
            broker_port=self.far.port, broker_log_file=self.far.log_file, link_port=self._link_port
        )
        self.publisher = scene.client_of(GuaranteedClient, self.far.port)
        self.agent = self.start_agent()

    def start_agent(self, **more: Any) -> Process:
        settings = {
            "broker_port": self._broker.port,
            "broker_log_file": self._broker.log_file,
            "link_neighbours": f"127.0.0.1:{self._link_port}",
        }
        return self._scene.agent(**{**settings, **more})

    def wait_until_linked(self) -> None:
        """Wait until all interest is installed."""

        def is_linked(agent: Process) -> bool:
            found = status(agent)
            return bool(
                found and len(found["reachable_nodes"]) == 2 and found["interest"]["installed"]
            )

        eventually(lambda: is_linked(self.agent), "linked")
        eventually(lambda: is_linked(self.far_agent), "linked")

    def publish(self, topic: str) -> set[bytes]:
        """Publish once per QoS at the other broker; return the expected payloads."""
        for qos in range(3):
            self.publisher.publish_guaranteed(qos, topic, b"QoS %d" % qos)
        return {b"QoS 0", b"QoS 1", b"QoS 2"}

    def assert_arrives(self, client: GuaranteedClient, topic: str) -> None:
        self.wait_until_linked()
        expected = self.publish(topic)
        assert {payload for _, payload in client.wait_for_all(expected)} == expected
        client.forget()


def status(agent: Process) -> Any:
    code, text = agent.page("/status")
    return json.loads(text) if code == 200 else None


def wait_until_settled(agent: Process, *, is_complete: bool) -> Any:
    """Wait until the agent is complete or has reported why not; return its status."""

    def settled() -> Any:
        found = status(agent)
        if not found or found["broker"]["observer_complete"] is not is_complete:
            return None
        return found if bool(found["interest"]["wide"]) is not is_complete else None

    try:
        return eventually(settled, f"observed: {is_complete}")
    except AssertionError:
        print(agent.log, status(agent))  # noqa: T201
        raise


def assert_incomplete(agent: Process, *reasons: str) -> None:
    """The agent reports the gap in /status, /readyz, /metrics and its alarm."""
    found = wait_until_settled(agent, is_complete=False)
    assert found["interest"]["wide"] == ["#"]
    eventually(
        lambda: any(each in status(agent)["broker"]["observer_problem"] for each in reasons),
        f"{reasons}, not {found['broker']}",
    )
    alarm = status(agent)["alarms"][ALARM]
    assert any(reason in alarm for reason in reasons)
    assert "asks other brokers for #" in alarm
    code, text = agent.page("/readyz")
    assert (code, json.loads(text)["ready"]) == (503, False)
    assert json.loads(text)["problem"].startswith(ALARM)
    metrics = agent.page("/metrics")[1]
    assert re.search(r"^hansa_broker_observed\{.*\} 0$", metrics, re.M)
    assert re.search(rf'^hansa_alarm_active\{{.*alarm="{ALARM}".*\}} 1$', metrics, re.M)


def assert_complete(agent: Process, *local: str) -> None:
    wait_until_settled(agent, is_complete=True)
    eventually(lambda: set(status(agent)["interest"]["local"]) == set(local), f"{local} wanted")
    found = status(agent)
    assert (found["alarms"], found["interest"]["wide"]) == ({}, [])
    assert agent.page("/readyz")[0] == 200
    assert re.search(r"^hansa_broker_observed\{.*\} 1$", agent.page("/metrics")[1], re.M)


def wait_for_samples(agent: Process, broker: Broker, count: int, holds: Callable[[], bool]) -> None:
    """Run a check before and after each of several samples of the broker's counters."""
    watch = Client(broker.port).subscribe("$SYS/broker/uptime")
    for _ in range(count):
        watch.received.clear()
        watch.wait_for_any()
        assert holds(), agent.log
    watch.close()


COUNTED = "subscriptions that the agent does not know"


def test_agent_is_incomplete_if_log_was_enabled_by_sighup(scene, observed):
    observed.configure(observed=False)
    observed.start()
    early = [
        scene.client_of(GuaranteedClient, observed.port, name=f"early-{n}").subscribe_qos2(
            f"early/{n}", f"also/{n}"
        )
        for n in range(3)
    ]
    observed.configure()
    observed.reload()
    pair = Pair(scene, observed)
    assert_incomplete(pair.agent, f"counts 6 {COUNTED}", "reload (SIGHUP)")
    for n, client in enumerate(early):
        pair.assert_arrives(client, f"early/{n}")
    eventually(lambda: f"counts 6 {COUNTED}" in status(pair.agent)["alarms"][ALARM], "counted")
    wait_for_samples(
        pair.agent, observed, 3, lambda: status(pair.agent)["broker"]["observer_complete"] is False
    )
    assert "observer complete" not in pair.agent.log

    for n, client in enumerate(early):  # they reconnect, and the broker logs their subscriptions
        client.close()
        early[n] = scene.client_of(GuaranteedClient, observed.port, name=f"early-{n}")
        early[n].subscribe_qos2(f"early/{n}", f"also/{n}")
    names = [f"{word}/{n}" for n in range(3) for word in ("early", "also")]
    assert_complete(pair.agent, *names)
    for n, client in enumerate(early):
        pair.assert_arrives(client, f"early/{n}")
    far = status(pair.far_agent)["interest"]["remote"]
    eventually(
        lambda: "#" not in str(status(pair.far_agent)["interest"]["remote"]), f"narrow, not {far}"
    )


@pytest.mark.parametrize("leaves", [True, False])
def test_single_unknown_subscriber_is_detected(leaves, scene, observed):
    """The agent reads retained values with short-lived MQTT 5 clients. The unknown subscription
    must not be attributed to such a client."""
    observed.configure(observed=False)
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")
    observed.configure()
    observed.reload()
    pair = Pair(scene, observed)
    scene.client(pair.far.port).subscribe("wanted/far/#")  # makes the agent read retained values
    assert_incomplete(pair.agent, f"counts 1 {COUNTED}", "reload (SIGHUP)")
    pair.assert_arrives(early, "early/1")
    wait_for_samples(
        pair.agent, observed, 3, lambda: status(pair.agent)["broker"]["observer_complete"] is False
    )
    assert "observer complete" not in pair.agent.log
    if leaves:
        early.close()
        assert_complete(pair.agent)
    else:
        early.unsubscribe("early/1")
        early.subscribe_qos2("early/2")
        assert_complete(pair.agent, "early/2")


def test_sessions_restored_by_persistent_broker_are_detected(scene, observed, tmp_path):
    observed.configure("persistence true", f"persistence_location {tmp_path}/observed/")
    observed.start()
    away = scene.client_of(
        GuaranteedClient, observed.port, name="away", clean=False, session_expiry=3600
    )
    away.subscribe_qos2("away/1").close()
    observed.stop()
    observed.log_file.unlink()  # no log shows the filters of the restored session
    observed.start()
    pair = Pair(scene, observed)
    assert_incomplete(pair.agent, "restored sessions", f"counts 1 {COUNTED}")
    pair.wait_until_linked()
    expected = pair.publish("away/1")
    back = scene.client_of(
        GuaranteedClient, observed.port, name="away", clean=False, session_expiry=3600
    )
    back.wait_for_all(expected - {b"QoS 0"})  # QoS 0 is not queued for a disconnected client
    back.forget()
    pair.assert_arrives(back, "away/1")
    assert (
        status(pair.agent)["broker"]["observer_complete"] is False
    )  # a resumed session logs nothing
    back.subscribe_qos2("away/1")
    assert_complete(pair.agent, "away/1")
    pair.assert_arrives(back, "away/1")


def test_complete_agent_knows_restored_sessions(scene, observed, tmp_path):
    observed.configure("persistence true", f"persistence_location {tmp_path}/observed/")
    observed.start()
    pair = Pair(scene, observed)
    assert_complete(pair.agent)
    away = scene.client_of(
        GuaranteedClient, observed.port, name="away", clean=False, session_expiry=3600
    )
    away.subscribe_qos2("away/1").close()
    eventually(lambda: status(pair.agent)["interest"]["local"] == ["away/1"], "seen")
    observed.stop()
    observed.start()
    eventually(lambda: pair.agent.log.count("broker connected") == 2, "connected again")
    eventually(lambda: pair.agent.log.count("observer complete") == 2, "complete again")
    assert_complete(pair.agent, "away/1")
    assert "alarm" not in pair.agent.log
    pair.wait_until_linked()
    expected = pair.publish("away/1")
    back = scene.client_of(
        GuaranteedClient, observed.port, name="away", clean=False, session_expiry=3600
    )
    back.wait_for_all(expected - {b"QoS 0"})


def rotate(log_file: Path) -> None:
    """Rotate like logrotate, before the broker reopens its log."""
    for number in (2, 1):
        for suffix in ("", ".gz"):
            old = log_file.with_name(f"{log_file.name}.{number}{suffix}")
            if old.exists():
                old.rename(log_file.with_name(f"{log_file.name}.{number + 1}{suffix}"))
    log_file.rename(log_file.with_name(f"{log_file.name}.1"))


def compress(log_file: Path) -> None:
    """Compress like logrotate, after the broker reopened its log."""
    plain = log_file.with_name(f"{log_file.name}.1")
    packed = log_file.with_name(f"{plain.name}.gz")
    with plain.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    os.utime(packed, (plain.stat().st_mtime, plain.stat().st_mtime))
    plain.unlink()


def test_agent_is_incomplete_if_logrotate_keeps_no_old_logs(scene, observed):
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")
    rotate(observed.log_file)
    observed.reload()
    observed.log_file.with_name(f"{observed.log_file.name}.1").unlink()
    pair = Pair(scene, observed)  # with a fresh state directory
    assert_incomplete(pair.agent, "does not reach back", f"counts 1 {COUNTED}")
    pair.assert_arrives(early, "early/1")
    early.close()
    assert_complete(pair.agent)


def test_agent_is_complete_from_rotated_logs(scene, observed):
    """Rotated logs are read, too."""
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")
    for _ in range(2):
        rotate(observed.log_file)
        observed.reload()
        compress(observed.log_file)
    rotate(observed.log_file)
    observed.reload()
    pair = Pair(scene, observed)
    assert_complete(pair.agent, "early/1")
    pair.assert_arrives(early, "early/1")


def test_complete_agent_needs_only_newer_log(scene, observed, tmp_path):
    """A broker may run for longer than its logs are kept."""
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")
    pair = Pair(scene, observed)
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(state=tmp_path / "kept")
    assert_complete(pair.agent, "early/1")
    lines = observed.log_file.read_text().splitlines(keepends=True)
    observed.log_file.write_text("".join(lines[-3:]))  # in place: the broker continues to append
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(state=tmp_path / "kept")
    assert_complete(pair.agent, "early/1")
    pair.assert_arrives(early, "early/1")
    assert "alarm" not in pair.agent.log


def test_agent_is_complete_with_configuration_in_deploy(scene, observed, tmp_path):
    text = (DEPLOY / "mosquitto.conf").read_text()
    assert "\nlistener 1883\n" in text
    assert "\nlog_dest file /var/log/mosquitto/mosquitto.log\n" in text
    text = text.replace("listener 1883", f"listener {observed.port} 127.0.0.1\nuser root")
    text = text.replace("/var/log/mosquitto/mosquitto.log", str(observed.log_file))
    text = text.replace("persistence_location ./", f"persistence_location {tmp_path}/observed/")
    observed.write_configuration(text)
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")
    pair = Pair(scene, observed)
    assert_complete(pair.agent, "early/1")
    pair.assert_arrives(early, "early/1")


def test_broker_without_counters_is_complete_only_with_log_and_persistence_file(scene, observed):
    """Without $SYS the log since the start decides; the broker may have restored sessions."""
    directory = observed.log_file.parent
    observed.configure("sys_interval 0", "persistence true", f"persistence_location {directory}/")
    observed.start()
    away = scene.client_of(
        GuaranteedClient, observed.port, name="away", clean=False, session_expiry=3600
    )
    away.subscribe_qos2("away/1").close()
    observed.stop()
    observed.log_file.unlink()
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")
    pair = Pair(scene, observed)
    assert_incomplete(pair.agent, "may have restored sessions")
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(broker_persistence_file=directory / "mosquitto.db")
    assert_complete(pair.agent, "early/1", "away/1")
    pair.assert_arrives(early, "early/1")
    blind = pair.start_agent(broker_log_file="")
    assert_incomplete(blind, "publishes no counters")


def test_filters_when_unknown_are_configurable(scene, observed):
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("plant/#")
    pair = Pair(scene, observed)
    pair.agent.process.terminate()
    pair.agent.wait()
    pair.agent = pair.start_agent(broker_log_file="", broker_filters_when_unknown="plant/+,x")
    found = wait_until_settled(pair.agent, is_complete=False)
    assert found["interest"]["wide"] == ["plant/+", "x"]
    pair.assert_arrives(early, "plant/1")


def test_retained_values_are_cleared_when_wide_interest_ends(scene, observed):
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/#")
    observed.log_file.write_text("")  # in place: the subscription is not in the log
    pair = Pair(scene, observed)
    pair.publisher.publish_as(
        packets.PublishPacket("early/kept", b"kept", 1, retain=True),
        packets.PublishPacket("other/kept", b"kept", 1, retain=True),
    )
    assert_incomplete(pair.agent, "does not reach back", f"counts 1 {COUNTED}")

    own_id = f"hansa-{status(pair.agent)['node']}-test"  # clients of the agent announce no interest

    def retained() -> set[str]:
        reader = Client(observed.port, own_id).subscribe("early/#", "other/#")
        reader.silent()
        reader.close()
        return {each.topic for each in reader.received}

    eventually(lambda: retained() == {"early/kept", "other/kept"}, "stored here")
    early.subscribe_qos2("early/#")
    assert_complete(pair.agent, "early/#")
    eventually(lambda: retained() == {"early/kept"}, "cleared here")


def test_wide_interest_serves_share_group_once(scene, observed):
    observed.start()
    scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/#")
    observed.log_file.write_text("")
    pair = Pair(scene, observed)
    assert_incomplete(pair.agent, "does not reach back", f"counts 1 {COUNTED}")
    workers = [
        scene.client_of(GuaranteedClient, observed.port).subscribe_qos2("$share/g/jobs")
        for _ in range(2)
    ]
    eventually(lambda: "$share/g/jobs" in status(pair.agent)["interest"]["local"], "known")
    pair.wait_until_linked()
    pair.publisher.publish_guaranteed(2, "jobs", *(b"%d" % number for number in range(20)))

    def taken() -> list[bytes]:
        for worker in workers:
            worker.read_for(0.2)
        return [each.payload for worker in workers for each in worker.received]

    eventually(lambda: len(taken()) >= 20, "all jobs")
    assert sorted(taken()) == sorted(b"%d" % number for number in range(20))


@pytest.mark.long
def test_agent_is_complete_without_retained_counters(scene, observed):
    """Mosquitto retains counters for 60 s, and publishes them when they change."""
    observed.start()
    early = scene.client_of(GuaranteedClient, observed.port, name="early").subscribe_qos2("early/1")

    def is_expired() -> bool:
        client = Client(observed.port).subscribe("$SYS/broker/shared_subscriptions/count")
        is_silent = client.silent()
        client.close()
        return is_silent

    eventually(is_expired, "no counter is retained", 120)
    pair = Pair(scene, observed)
    assert_complete(pair.agent, "early/1")
    pair.assert_arrives(early, "early/1")
