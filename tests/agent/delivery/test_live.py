"""QoS 1 and 2 in a live ring of three: once and in order, despite crashes and partitions."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live, eventually

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

COUNT = 200
ORIGIN, RECEIVER, OTHER = 0, 1, 2


@pytest.fixture(scope="module")
def running(mosquitto: str) -> Iterator[Live]:
    live = Live(
        LocalFederation(parse_topology("ring:3", 1), {}, link_profile=LinkProfile(can_cut=True))
    )
    with live:
        yield live


@pytest.fixture
def live(running: Live) -> Iterator[Live]:
    running.wait_converged()
    yield running
    running.hang_up()


def clients(live: Live, topic: str) -> tuple[GuaranteedClient, GuaranteedClient]:
    """Return a publisher at the origin and a subscriber at the receiver."""
    subscriber = live.client_of(GuaranteedClient, RECEIVER).subscribe_qos2(topic)
    live.wait_installed(RECEIVER, topic)
    return live.client_of(GuaranteedClient, ORIGIN), subscriber


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def kill(live: Live, number: int) -> None:
    agent = live.nodes[number].agent
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    live.run(agent.wait())


@pytest.mark.parametrize("qos", [1, 2])
def test_each_publication_arrives_once_in_order_with_its_qos(live, qos):
    topic = f"plain/{qos}"
    publisher, subscriber = clients(live, topic)
    publisher.publish_guaranteed(qos, topic, *numbers(0, COUNT))
    assert subscriber.read_until(COUNT) == numbers(0, COUNT)
    assert {each.qos for each in subscriber.received} == {qos}


@pytest.mark.parametrize(
    ("rest", "size", "reason"),
    [
        ("a", 2 << 20, "larger than packet_bytes_max"),
        ("b", 1 << 20, "larger than packet_bytes_max"),
        ("/" * 199, 1, "topic with too many levels"),
    ],
    ids=["more than the agent reads", "a little more than it carries", "too deep"],
)
def test_publication_that_agent_does_not_carry_raises_alarm(live, rest, size, reason):
    publisher, subscriber = clients(live, "much/#")
    before = live.counter(ORIGIN, f"dropped: {reason}")
    publisher.publish_guaranteed(1, f"much/{rest}", bytes(size))
    publisher.publish_guaranteed(1, "much/a", b"end")
    assert subscriber.read_until(1) == [b"end"]
    eventually(lambda: live.counter(ORIGIN, f"dropped: {reason}") == before + 1, "counted")
    alarms: Any = live.nodes[ORIGIN].status()["alarms"]
    assert reason in alarms["publications dropped"]


def test_subscribers_at_all_brokers_get_publications_of_two_origins(live):
    subscribers = [live.client_of(GuaranteedClient, n).subscribe_qos2("all/+") for n in range(3)]
    for number in range(3):
        live.wait_installed(number, "all/+")
    for origin in (ORIGIN, OTHER):
        publisher = live.client_of(GuaranteedClient, origin)
        publisher.publish_guaranteed(2, f"all/{origin}", *numbers(0, COUNT))
    for subscriber in subscribers:
        subscriber.read_until(2 * COUNT)
        for origin in (ORIGIN, OTHER):
            topic = f"all/{origin}"
            came = [each.payload for each in subscriber.received if each.topic == topic]
            assert came == numbers(0, COUNT)


@pytest.mark.parametrize("victim", [ORIGIN, RECEIVER], ids=["origin", "receiver"])
@pytest.mark.parametrize("qos", [1, 2])
def test_killed_agent_loses_and_reorders_nothing(live, victim, qos):
    topic = f"killed/{victim}/{qos}"
    publisher, subscriber = clients(live, topic)
    publisher.publish_guaranteed(qos, topic, *numbers(0, COUNT))
    kill(live, victim)
    publisher.publish_guaranteed(qos, topic, *numbers(COUNT, 2 * COUNT))
    live.run(live.federation.start_agent(victim))
    publisher.publish_guaranteed(qos, topic, *numbers(2 * COUNT, 3 * COUNT))
    came = subscriber.read_until(3 * COUNT)
    if qos == 1:  # ignore duplicates, also before the last one
        while b"%d" % (3 * COUNT - 1) not in came:
            came = subscriber.read_until(len(came) + 1)
        came = list(dict.fromkeys(came))
    assert came == numbers(0, 3 * COUNT)


def test_partition_delays_and_loses_nothing(live):
    publisher, subscriber = clients(live, "parted")
    for other in (ORIGIN, OTHER):
        live.federation.cut_link(RECEIVER, other)

    def alone() -> bool:
        members = live.nodes[ORIGIN].status()["reachable_nodes"]
        assert isinstance(members, list)
        return len(members) == 2

    eventually(alone, "the receiver out of reach")
    publisher.publish_guaranteed(2, "parted", *numbers(0, COUNT))
    for other in (ORIGIN, OTHER):
        live.federation.restore_link(RECEIVER, other)
    publisher.publish_guaranteed(2, "parted", *numbers(COUNT, 2 * COUNT))
    assert subscriber.read_until(2 * COUNT) == numbers(0, 2 * COUNT)
    assert live.counter(RECEIVER, "repaired") >= COUNT


def test_publications_wait_in_inbox_while_broker_is_down(live):
    publisher, subscriber = clients(live, "slow")
    broker = live.nodes[RECEIVER].broker.process
    assert broker is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        publisher.publish_guaranteed(2, "slow", *numbers(0, COUNT))
        eventually(lambda: _inbox(live) == COUNT, "all in the inbox")
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert subscriber.read_until(COUNT) == numbers(0, COUNT)
    eventually(lambda: _inbox(live) == 0, "an empty inbox")


def _inbox(live: Live) -> object:
    delivery = live.nodes[RECEIVER].status()["delivery"]
    assert isinstance(delivery, dict)
    return delivery["inbox"]


def test_lost_session_raises_alarm_and_delivery_continues(live):
    live.client_of(GuaranteedClient, ORIGIN).subscribe_qos2("kept")
    live.wait_installed(ORIGIN, "kept")  # so that the receiver's agent subscribes at its broker
    broker = live.nodes[RECEIVER].broker
    live.run(broker.stop())
    live.run(broker.start())
    eventually(lambda: live.counter(RECEIVER, "broker sessions lost") == 1, "the loss counted")
    assert "broker session lost" in str(live.nodes[RECEIVER].status()["alarms"])
    publisher, subscriber = clients(live, "forgotten")
    publisher.publish_guaranteed(2, "forgotten", *numbers(0, COUNT))
    assert subscriber.read_until(COUNT) == numbers(0, COUNT)
