"""The raw peer becomes a neighbour and a member, and stays one."""

import time

from tests.agent.hostile.raw_peer import (
    RawPeer,
    assert_delivers,
    framed,
    has_member,
    has_neighbour,
    unharmed,
    wait_counted,
)
from tests.agent.live import Live, eventually

from hansa.protocol.wire.frames import Heartbeat, Summary


def test_peer_with_a_valid_hello_is_linked_and_stays_linked(live: Live):
    node = live.nodes[1]
    with unharmed(live), RawPeer(node.link_port) as peer:
        peer.hello().announce_self()
        eventually(lambda: has_member(node, peer), "the peer is a member")
        began = time.monotonic()
        while time.monotonic() < began + 4:  # longer than the heartbeat limit
            assert has_neighbour(node, peer)
            time.sleep(0.2)
        peer.wait_for(Heartbeat)
        assert_delivers(live, 0, 2, "raw/peer")
    eventually(lambda: not has_neighbour(node, peer), "the peer is gone")


def test_frames_before_hello_are_counted(live: Live):
    with unharmed(live), RawPeer(live.nodes[0].link_port) as peer:
        peer.send(Summary(()))
        wait_counted(live.nodes[0], "Summary before hello")


def test_bytes_that_are_no_frame_close_the_connection(live: Live):
    with unharmed(live), RawPeer(live.nodes[0].link_port) as peer:
        peer.send_bytes(b"\xff" * 8)
        peer.wait_closed()
    with RawPeer(live.nodes[0].link_port) as peer:
        peer.send_bytes(framed(b"\x10nonsense") * 3)
        wait_counted(live.nodes[0], "invalid frames", 3)
        peer.wait_closed()
