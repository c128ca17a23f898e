"""A peer that floods an agent: the limits slow it down, and other links keep their publications."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.agent.hostile.conftest import PLAIN_LINKS
from tests.agent.hostile.idle import connect_idle, idle_connections, is_open
from tests.agent.hostile.raw_peer import (
    Frame,
    RawPeer,
    assert_delivers,
    counted,
    framed,
    guaranteed_client,
    has_member,
    has_neighbour,
    unharmed,
)
from tests.agent.live import Live, eventually

from hansa.protocol.model import NodeId
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import PendingNotice, Update
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

FLOOD_S = 6.0
PER_SECOND = 300
IDLE_CONNECTIONS = 2_000
BATCH = 500

LIMITS = {"HANSA_LINK_LIMITS_RECORDS": "200", "HANSA_LINK_LIMITS_UNICASTS": "200"}
"""So low that a peer in Python exceeds them on a busy machine."""


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    topology = parse_topology("line:3", 1)
    with Live(LocalFederation(topology, LIMITS, link_profile=PLAIN_LINKS)) as live:
        yield live


MakeFrame = Callable[[RawPeer, NodeId], Frame]


def own_record(peer: RawPeer, target: NodeId) -> Frame:
    """A record that is new each time, so that every node handles it."""
    return Update((peer.record(),))


def unicast(peer: RawPeer, target: NodeId) -> Frame:
    """A frame that the agent in the middle forwards."""
    return PendingNotice(target, peer.node, peer.incarnation, 1)


@contextmanager
def flooding(peer: RawPeer, target: NodeId, make: MakeFrame) -> Iterator[list[int]]:
    """Send frames as fast as the agent reads them; yield the number sent so far."""
    sent, is_over = [0], threading.Event()

    def run() -> None:
        while not is_over.is_set() and not peer.closed.is_set():
            peer.send_bytes(framed(*[encode(make(peer, target)) for _ in range(BATCH)]))
            sent[0] += BATCH

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        peer.close()  # ends a blocked send
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("make", [own_record, unicast])
def test_other_links_keep_their_publications_during_a_flood(live: Live, make: MakeFrame):
    """Acceptance test 20: 300 publications per second from node 0 to node 2 arrive while a peer
    floods node 1, which forwards them."""
    target = NodeId(int(str(live.nodes[2].status()["node"]), 16))
    live.subscriber(2, "flood/#")  # waits until the interest is installed
    subscriber = guaranteed_client(live, 2)
    subscriber.subscribe("flood/#")
    publisher = live.client(0)
    with unharmed(live), RawPeer(live.nodes[1].link_port) as peer:
        peer.hello().announce_self()
        eventually(lambda: has_member(live.nodes[0], peer), "the peer is a member")
        payloads = [b"%d" % number for number in range(round(FLOOD_S * PER_SECOND))]
        with flooding(peer, target, make) as sent:
            eventually(lambda: counted(live.nodes[1], "[link.limits]") > 0, "the limits act", 120)
            began = time.monotonic()
            for number, payload in enumerate(payloads):
                publisher.publish("flood/x", payload)
                time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))

            def has_most() -> bool:
                subscriber.read_for(0.2)
                received = {each.payload for each in subscriber.received}
                return len(received & set(payloads)) >= 0.9 * len(payloads)

            eventually(has_most, "nine of ten publications")
            assert sent[0] > 0


@pytest.mark.long
def test_newcomer_is_linked_beside_2000_idle_connections(live: Live):
    """Acceptance test 19, without certificates; `test_members_only.py` has it with them. The
    newcomer is linked before the agent closes a connection that was opened before: within 5 s."""
    port = live.nodes[1].link_port
    with unharmed(live), idle_connections(port, IDLE_CONNECTIONS), connect_idle(port) as idle:
        with RawPeer(port) as newcomer:
            newcomer.hello().announce_self()
            eventually(lambda: has_neighbour(live.nodes[1], newcomer), "the newcomer is linked")
            assert is_open(idle)
            eventually(lambda: has_member(live.nodes[2], newcomer), "the newcomer is a member")
    assert_delivers(live, 0, 2, "idle/after")
