"""Retained values written at mixed QoS: every broker ends with the value that the origin holds.

One federation of two serves all tests. Each test writes many topics twice, one pair of QoS levels
per group of topics, and then compares what both brokers really store.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, product

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import Live

from hansa.mqtt.packets import PublishPacket
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation

ORIGIN, RECEIVER = 0, 1
PAIRS = list(product(range(3), range(3)))
REPAIRED_S = 60.0
"""Seconds until brokers must agree."""


@pytest.fixture(scope="module")
def running_pair(mosquitto: str) -> Iterator[Live]:
    live = Live(
        LocalFederation(
            parse_topology("line:2", 1), {}, link_profile=LinkProfile(relays_brokers=True)
        )
    )
    with live:
        yield live


@pytest.fixture
def pair(running_pair: Live) -> Iterator[Live]:
    running_pair.wait_converged()
    yield running_pair
    running_pair.hang_up()


def stored(live: Live, number: int, topic_filter: str) -> dict[str, bytes]:
    """Read what a broker stores, by a client that its agent does not count as a subscriber."""
    name = f"hansa-{live.nodes[number].status()['node']}-test"
    reader = live.client_of(GuaranteedClient, number, name=name).subscribe_qos2(topic_filter)
    reader.unsubscribe(topic_filter)
    reader.read_for(0.1)
    reader.close()
    return {each.topic: each.payload for each in reader.received if each.retain}


def write_pairs(live: Live, root: str, is_enough: Callable[[int], bool]) -> dict[str, bytes]:
    """Write topics twice, each write acknowledged before the next; return the last values."""
    publisher = live.client_of(GuaranteedClient, ORIGIN)
    last: dict[str, bytes] = {}
    for number in count():
        if is_enough(number):
            break
        for (first, second), payload in product(PAIRS, (b"new", b"")):
            topic = f"{root}/{first}{second}/{'set' if payload else 'delete'}/{number}"
            publisher.publish_as(PublishPacket(topic, b"old", first, retain=True))
            publisher.publish_as(PublishPacket(topic, payload, second, retain=True))
            last[topic] = payload
    return {topic: payload for topic, payload in last.items() if payload}


def assert_same_values(live: Live, root: str, expected: dict[str, bytes]) -> None:
    deadline = time.monotonic() + REPAIRED_S
    found = [stored(live, number, f"{root}/#") for number in (ORIGIN, RECEIVER)]
    while found != [expected, expected]:
        assert time.monotonic() < deadline, [differences(each, expected) for each in found]
        time.sleep(0.1)
        found = [stored(live, number, f"{root}/#") for number in (ORIGIN, RECEIVER)]


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> dict[str, object]:
    topics = sorted({*found, *expected})
    return {t: found.get(t) for t in topics if found.get(t) != expected.get(t)}


def test_deletion_at_qos_1_does_not_overtake_a_value_at_qos_2(pair):
    subscriber = pair.client_of(GuaranteedClient, RECEIVER).subscribe_qos2("issue/#")
    pair.wait_installed(RECEIVER, "issue/#")
    publisher = pair.client_of(GuaranteedClient, ORIGIN)
    for number in range(60):
        publisher.publish_as(PublishPacket(f"issue/{number}", b"value", 2, retain=True))
        publisher.publish_as(PublishPacket(f"issue/{number}", b"", 1, retain=True))
    subscriber.read_until(120)
    assert_same_values(pair, "issue", {})


def subscribe(live: Live, root: str) -> GuaranteedClient:
    subscriber = live.client_of(GuaranteedClient, RECEIVER).subscribe_qos2(f"{root}/#")
    live.wait_installed(RECEIVER, f"{root}/#")
    return subscriber


def test_retained_order_holds_for_all_pairs_of_qos(pair):
    subscribe(pair, "pairs")
    assert_same_values(pair, "pairs", write_pairs(pair, "pairs", lambda n: n == 10))


def test_receiver_has_last_value_of_client_that_awaits_no_acknowledgement(pair):
    """A broker stores the writes of such a client in the order in which handshakes end."""
    subscribe(pair, "pipelined")
    publisher = pair.client_of(GuaranteedClient, ORIGIN)
    topics = [
        (f"pipelined/{first}{second}{len(payload)}/{number}", first, second, payload)
        for (first, second), payload in product(PAIRS, (b"new", b""))
        for number in range(5)
    ]
    for topic, first, second, payload in topics:
        publisher.publish_as(
            PublishPacket(topic, b"old", first, retain=True),
            PublishPacket(topic, payload, second, retain=True),
        )
    expected = stored(pair, ORIGIN, "pipelined/#")
    assert b"old" in expected.values(), "the broker stores QoS 2 last"
    assert_same_values(pair, "pipelined", expected)


def kill_receiver(live: Live) -> None:
    agent = live.nodes[RECEIVER].agent
    assert agent is not None
    agent.kill()
    live.run(agent.wait())
    live.run(live.federation.start_agent(RECEIVER))
    live.wait_converged()


def suspend_receiver(live: Live) -> None:
    agent = live.nodes[RECEIVER].agent
    assert agent is not None
    agent.send_signal(signal.SIGSTOP)
    time.sleep(1.0)  # duration of the fault, not a wait
    agent.send_signal(signal.SIGCONT)
    live.wait_converged()


def cut_receiver_from_its_broker(live: Live) -> None:
    async def reset() -> None:
        live.federation.broker_relays[RECEIVER].reset()

    live.run(reset())
    live.wait_converged()


FAULTS = {
    "kill -9": kill_receiver,
    "suspended": suspend_receiver,
    "connection to the broker reset": cut_receiver_from_its_broker,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.long)])
def test_retained_order_holds_during_faults_of_receiving_agent(pair, fault, times):
    root = f"fault-{list(FAULTS).index(fault)}-{times}"
    subscribe(pair, root)
    over = threading.Event()
    expected: list[dict[str, bytes]] = []

    def write() -> None:
        expected.append(write_pairs(pair, root, lambda n: over.is_set() or n == 20 * times))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(times):
            FAULTS[fault](pair)
    finally:
        over.set()
        writer.join()
    assert_same_values(pair, root, expected[0])
