"""Every strategy, live: subscribed publications arrive once, also after a link or a node is lost.

With --long more tests run with every strategy: test_federation, test_clients, as_one and
tests/testbed/chaos.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Client, Live, assert_each_once, eventually, wait_until_reachable
from tests.agent.strategies import SETTING
from tests.agent.test_broker import status

from hansa.mqtt import packets
from hansa.protocol.routing import STRATEGIES
from hansa.simulator.topologies import Topology
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.mosquitto import free_port

DIAMOND = Topology("diamond", 4, ((0, 1), (0, 2), (1, 3), (2, 3)))
"""Two disjoint paths from 0 to 3."""

VALUE = b"1: value"


@pytest.fixture(scope="module", params=STRATEGIES)
def diamond(request: pytest.FixtureRequest, mosquitto: str) -> Iterator[Live]:
    settings = {SETTING: request.param}
    with Live(LocalFederation(DIAMOND, settings, link_profile=LinkProfile(can_cut=True))) as live:
        yield live


def fifty_arrive(publisher: Client, subscribers: list[Client], name: bytes) -> None:
    payloads = [b"%s %d" % (name, number) for number in range(50)]
    assert_each_once(publisher, subscribers, "t/a", payloads)


def test_subscribed_publications_arrive_once_despite_faults(diamond):
    """One test, because each step takes seconds: undisturbed, with a link cut, without a node."""
    subscribers = [diamond.subscriber(number, "t/#") for number in (0, 3)]
    for number in range(4):
        publisher = diamond.client(number)
        fifty_arrive(publisher, subscribers, b"rest %d" % number)
    publisher = diamond.client(0)

    diamond.federation.cut_link(1, 3)
    eventually(lambda: len(diamond.nodes[3].status()["neighbours"]) == 1, "the cut is noticed")
    wait_until_reachable(publisher, subscribers, "t/a")
    fifty_arrive(publisher, subscribers, b"cut")
    diamond.federation.restore_link(1, 3)
    diamond.wait_converged()

    guaranteed = diamond.client_of(GuaranteedClient, 2).subscribe_qos2("sure/#")
    diamond.wait_installed(2, "sure/#")
    agent = diamond.nodes[2].agent
    os.kill(agent.pid, signal.SIGKILL)
    diamond.run(agent.wait())
    eventually(lambda: len(diamond.nodes[3].status()["neighbours"]) == 1, "the death is noticed")
    wait_until_reachable(publisher, subscribers, "t/a")
    fifty_arrive(publisher, subscribers, b"death")
    expected = publish_guaranteed(diamond)
    diamond.run(diamond.federation.start_agent(2))
    assert_all_have_come(guaranteed, expected)
    late = diamond.client_of(GuaranteedClient, 2).subscribe_qos2("sure/1")
    assert late.read_until(1) == [VALUE]
    diamond.wait_converged()
    wait_until_reachable(publisher, subscribers, "t/a")
    fifty_arrive(publisher, subscribers, b"healed")


def publish_guaranteed(diamond: Live) -> dict[int, list[bytes]]:
    """Publish at QoS 1 and 2, and a retained value; return the further expected payloads by QoS."""
    publisher = diamond.client_of(GuaranteedClient, 0)
    expected = {qos: [b"%d: %d" % (qos, number) for number in range(20)] for qos in (1, 2)}
    for qos, payloads in expected.items():
        publisher.publish_guaranteed(qos, f"sure/{qos}", *payloads)
    publisher.publish_as(packets.PublishPacket("sure/1", VALUE, 1, retain=True))
    return expected


def assert_all_have_come(subscriber: GuaranteedClient, expected: dict[int, list[bytes]]) -> None:
    """In order within each QoS; at QoS 2 exactly once despite the crash. A retained value may
    arrive before pending publications: its owner sends it to each node that becomes reachable."""
    received = subscriber.read_until(41)
    last = {VALUE, expected[1][-1], expected[2][-1]}
    while not last <= {*received}:  # a crash may duplicate QoS 1
        received = subscriber.read_until(len(received) + 1)
    guaranteed = [each for each in received if each[:1] == b"1" and each != VALUE]
    assert list(dict.fromkeys(guaranteed)) == expected[1]
    assert [each for each in received if each[:1] == b"2"] == expected[2]


def test_different_strategies_refuse_link_with_reason_on_both_sides(scene):
    port = free_port()
    one = scene.agent(
        broker_port=scene.broker().port, link_port=port, protocol_strategy="paths", name="one"
    )
    two = scene.agent(
        broker_port=scene.broker().port,
        link_neighbours=f"127.0.0.1:{port}",
        protocol_strategy="tree-flood",
        name="two",
    )
    for agent, ours, theirs in (
        (one, "strategy=paths of one", "strategy=tree-flood of two"),
        (two, "strategy=tree-flood of two", "strategy=paths of one"),
    ):
        reason = f"settings differ: {theirs} meets {ours}"
        agent.says(f"link refused reason='{reason}'")
        eventually(lambda: status(agent)["refused"] == [reason], "the page says so, too")  # noqa: B023
        assert "neighbour up" not in agent.log
        assert agent.process.poll() is None
