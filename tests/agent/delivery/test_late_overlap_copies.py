"""Overlap copies that the broker queued for filters that were removed meanwhile.

Two filters match, so the broker queues two copies of every publication for a suspended agent. A
third filter then replaces both. The agent reads copies one by one, so most of them arrive after
both filters were removed, without the copy that would decide which one counts.
"""

import os
import signal

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

COUNT = 600
ORIGIN, RECEIVER = 0, 1


@pytest.fixture
def slow(mosquitto):
    with Live(
        LocalFederation(parse_topology("line:2", 1), {"HANSA_DELIVERY_IN_FLIGHT_MAX": "1"})
    ) as made:
        yield made


@pytest.mark.long
def test_publications_queued_for_removed_filters_arrive_once_in_order(slow):
    subscriber = slow.client_of(GuaranteedClient, RECEIVER).subscribe_qos2("late/+", "+/copies")
    slow.wait_installed(RECEIVER, "late/+", "+/copies")
    publisher = slow.client_of(GuaranteedClient, ORIGIN)
    agent = slow.nodes[ORIGIN].agent
    assert agent is not None
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        payloads = [b"%d" % number for number in range(COUNT)]
        publisher.publish_guaranteed(2, "late/copies", *payloads)
        subscriber.subscribe_qos2("late/#")
        subscriber.unsubscribe("late/+", "+/copies")
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    assert subscriber.read_until(COUNT, pause=1.0, patience=60.0) == payloads
    assert slow.counter(ORIGIN, "overlap copies") == COUNT
