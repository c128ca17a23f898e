"""Restarts and crashes of a persistent broker, with and without its agent."""

import os
import signal
from collections.abc import Iterator

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.delivery.dedup.redelivery import RISES_MIN
from hansa.mqtt.types import Version
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation


@pytest.fixture
def line(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:3", 1), {}, persistent=True)) as live:
        yield live


def overlapping(line: Live) -> tuple[GuaranteedClient, GuaranteedClient]:
    """Return two subscribers with overlapping filters."""
    everything = line.client_of(GuaranteedClient, 1).subscribe_qos2("plant/#")
    line.wait_installed(1, "plant/#")
    some = line.client_of(GuaranteedClient, 2).subscribe_qos2("plant/+/temp")
    line.wait_installed(2, "plant/+/temp")
    return everything, some


def test_overlapping_filters_deliver_once_after_broker_restart(line):
    """After a restart Mosquitto queues one copy only, not that of the older subscription."""
    subscribers = overlapping(line)
    broker, agent = line.nodes[0].broker, line.nodes[0].agent
    names = [b"%d" % number for number in range(40)]
    publish(line.client_of(GuaranteedClient, 0), names[:10])
    for subscriber in subscribers:
        assert_in_order(subscriber, names[:10])

    os.kill(agent.pid, signal.SIGSTOP)
    publish(line.client_of(GuaranteedClient, 0), names[10:20])
    line.run(broker.stop())
    line.run(broker.start())
    publisher = line.client_of(GuaranteedClient, 0)
    publish(publisher, names[20:30])
    os.kill(agent.pid, signal.SIGCONT)
    line.wait_converged()
    publish(publisher, names[30:])
    for subscriber in subscribers:
        assert_in_order(subscriber, names)


def test_overlapping_filters_deliver_once_after_broker_restart_and_agent_crash(line):
    """Mosquitto sends its only copy with DUP."""
    subscribers = overlapping(line)
    broker, agent = line.nodes[0].broker, line.nodes[0].agent
    names = [b"%d" % number for number in range(20)]
    publish(line.client_of(GuaranteedClient, 0), names[:10])
    for subscriber in subscribers:
        assert_in_order(subscriber, names[:10])

    client_id = f"hansa-{line.nodes[0].status()['node']}-agent"
    agent.kill()
    line.run(agent.wait())
    line.run(broker.stop())
    line.run(broker.start())
    publish(line.client_of(GuaranteedClient, 0), names[10:])
    deaf = line.client(0, name=client_id, version=Version.V5, clean=False, session_expiry=3600)
    deaf.wait_for_all(names[10:])
    deaf.kill()
    line.run(line.federation.start_agent(0))
    line.wait_converged()
    for subscriber in subscribers:
        assert_in_order(subscriber, names)


def test_broker_that_restores_older_state_raises_alarm(line):
    """The session exists, so it is not lost; but packet ids step back."""
    subscriber = line.client_of(GuaranteedClient, 1).subscribe_qos2("plant/#")
    line.wait_installed(1, "plant/#")
    broker = line.nodes[0].broker
    names = [b"%d" % number for number in range(2 * RISES_MIN)]
    publish(line.client_of(GuaranteedClient, 0), names[:-20])
    assert_in_order(subscriber, names[:-20])
    os.kill(broker.process.pid, signal.SIGUSR1)
    eventually((broker.directory / "mosquitto.db").exists, "what it saves")
    publish(line.client_of(GuaranteedClient, 0), names[-20:])
    assert_in_order(subscriber, names)
    line.run(broker.kill())
    line.run(broker.start())
    line.wait_converged()
    assert "broker state rolled back" not in line.nodes[0].status()["alarms"]
    line.client_of(GuaranteedClient, 0).publish_guaranteed(1, "plant/line/temp", b"new")
    eventually(lambda: "broker state rolled back" in line.nodes[0].status()["alarms"], "the alarm")
    assert "broker session lost" not in line.nodes[0].status()["alarms"]
    assert line.counter(0, "alarms: broker state rolled back") == 1


def publish(publisher: GuaranteedClient, names: list[bytes]) -> None:
    for name in names:
        publisher.publish_guaranteed(1 + int(name) % 2, "plant/line/temp", name)


def assert_in_order(subscriber: GuaranteedClient, names: list[bytes]) -> None:
    """Each arrives once, and each QoS in order."""
    received = subscriber.read_until(len(names))
    assert sorted(received, key=lambda name: int(name) % 2) == names[::2] + names[1::2]
