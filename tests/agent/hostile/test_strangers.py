"""Connections without hello use few resources and block no other connection (finding 18)."""

import http.client
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.agent.hostile.raw_peer import (
    RawPeer,
    assert_delivers,
    counted,
    framed,
    has_neighbour,
    unharmed,
    wait_counted,
)
from tests.agent.live import Live, eventually

from hansa.agent.links.admission import (
    EVICTED,
    HELLO_BYTES,
    HELLO_S,
    NO_HELLO,
    PENDING_MAX,
    TOO_MANY_BYTES,
)
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import Summary

IDLE = 2_000
LINKED_WITHIN_S = 20.0
"""A rejected connection would be closed after HELLO_S; busy cores answer /status late."""


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files for the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < IDLE + 256:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 256), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_neither_fill_memory_nor_block_new_ones(live: Live, many_files: None):
    node = live.nodes[0]
    with ExitStack() as stack, unharmed(live):
        for _ in range(IDLE):
            idle = socket.create_connection(("127.0.0.1", node.link_port), 10)
            stack.enter_context(idle)
        began = time.monotonic()
        peer = stack.enter_context(RawPeer(node.link_port)).hello()
        eventually(lambda: has_neighbour(node, peer), "the newcomer is linked")
        assert time.monotonic() - began < LINKED_WITHIN_S
        wait_counted(node, EVICTED, IDLE - PENDING_MAX)
        wait_counted(node, "closed before hello accepted", PENDING_MAX - 1)
    assert_delivers(live, 0, 2, "idle")


def test_connection_that_sends_only_garbage_is_closed(live: Live):
    node = live.nodes[1]
    before = counted(node, NO_HELLO)
    with unharmed(live), RawPeer(node.link_port) as peer:
        began = time.monotonic()
        while not peer.closed.is_set() and time.monotonic() < began + 4 * HELLO_S:
            peer.send(Summary(()))  # prevents the idle timeout
            time.sleep(0.2)
        peer.wait_closed(1)
    assert counted(node, NO_HELLO) == before + 1


def test_unadmitted_connection_cannot_fill_buffer(live: Live):
    node = live.nodes[1]
    with unharmed(live, 4 << 20), ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(node.link_port)) for _ in range(50)]
        for peer in peers:
            peer.send_bytes(framed(bytes(1 << 20))[: 1 << 19])
        for peer in peers:
            peer.wait_closed()
        wait_counted(node, TOO_MANY_BYTES, len(peers))


def test_refusals_are_metrics(live: Live):
    node = live.nodes[2]
    with unharmed(live), RawPeer(node.link_port) as peer:
        peer.send_bytes(framed(encode(Summary(()))) * HELLO_BYTES)
        wait_counted(node, TOO_MANY_BYTES)
    page = http.client.HTTPConnection("127.0.0.1", node.admin_port)
    page.request("GET", "/metrics")
    text = page.getresponse().read().decode()
    page.close()
    (line,) = [each for each in text.splitlines() if f'event="refused: {TOO_MANY_BYTES}"' in each]
    assert line.startswith("hansa_events_total{")
    assert line.endswith(" 1")
