"""A peer that requests too much or announces too many nodes and filters: memory stays bounded, and
other nodes are still accepted."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.hostile.raw_peer import (
    RawPeer,
    assert_delivers,
    counted,
    guaranteed_client,
    has_member,
    unharmed,
    wait_counted,
)
from tests.agent.live import Live, eventually

from hansa.protocol.membership.records import InterestRecord, NodeRecord, RecordKind
from hansa.protocol.model import NodeId, node_id
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import Fetch, Summary, Update
from hansa.testbed.federation import LocalNode

SETTINGS = ProtocolSettings()


@pytest.fixture
def peer(live: Live) -> Iterator[RawPeer]:
    """A member of the federation whose only link is to the middle agent."""
    with RawPeer(live.nodes[1].link_port) as made:
        made.hello().announce_self()
        eventually(lambda: has_member(live.nodes[0], made), "the peer is a member")
        yield made


HUB_LINKS = 500
"""Forged nodes behind each forged hub: a record has at most 1,024 links."""


def made_up(peer: RawPeer, count: int) -> list[NodeRecord]:
    """Records of forged nodes: hubs linked to the peer, the others to a hub."""
    keys = [os.urandom(32) for _ in range(count)]
    one = peer.record(links=((peer.node, 100),), version=1)
    found: list[NodeRecord] = []
    for at in range(0, count, HUB_LINKS):
        some = keys[at : at + HUB_LINKS]
        hub, *others = (node_id(key) for key in some)
        links = tuple(sorted((node, 100) for node in (peer.node, *others)))
        found.append(replace(one, node=hub, key=some[0], links=links))
        found += [replace(one, node=node_id(key), key=key, links=((hub, 100),)) for key in some[1:]]
    return found


def announce(peer: RawPeer, crowd: list[NodeRecord]) -> None:
    """Announce the forged nodes as members behind the peer."""
    assert peer.agent is not None
    hubs = crowd[::HUB_LINKS]
    links = sorted([(peer.agent.node, 100), *((each.node, 100) for each in hubs)])
    peer.send(Update((peer.record(links=tuple(links)),)))
    for at in range(0, len(crowd), HUB_LINKS):
        peer.send(Update(tuple(crowd[at : at + HUB_LINKS])))


def sizes(node: LocalNode) -> dict[str, int]:
    found: Any = node.status()["sizes"]
    return dict(found)


def wishes(node: NodeId, incarnation: int, filters: list[str]) -> list[Update]:
    """A whole interest, in parts of 1,000 filters."""
    parts = [tuple(filters[at : at + 1_000]) for at in range(0, len(filters), 1_000)]
    return [
        Update((InterestRecord(node, incarnation, 1, 1, part, (), number, len(parts)),))
        for number, part in enumerate(parts)
    ]


def test_repeated_row_requests_use_bounded_memory(live: Live, peer: RawPeer):
    middle = live.nodes[1]
    filters = [f"crowd/{number}/" + "x" * 200 for number in range(4_000)]
    with unharmed(live):
        peer.send(*wishes(peer.node, peer.incarnation, filters))
        eventually(lambda: in_force(middle, peer.node), "a row of 800 kB", 120)
        row = (RecordKind.INTEREST, peer.node)
        before = counted(middle, "allowance")
        peer.send(Fetch((row,) * 24_576))
        for _ in range(100):
            peer.send(Fetch((row,) * 200))
            peer.send(Summary(()))
        wait_counted(middle, "records requested beyond the allowance of a link", before + 1)
    peer.send(Update((InterestRecord(peer.node, peer.incarnation, 2, 2, ()),)))
    eventually(lambda: not interest(middle, peer.node), "the filters are gone", 120)


def interest(node: LocalNode, other: NodeId) -> list[str]:
    found: Any = node.status()["interest"]
    return list(found["remote"].get(f"{other:016x}", ()))


def in_force(node: LocalNode, other: NodeId) -> bool:
    found: Any = node.status()["interest"]
    return f"{other:016x}" in found["in_force"]


def test_forged_nodes_do_not_displace_subscribers(live: Live, peer: RawPeer):
    """1,100 forged subscribers come first; a copy lists at most 1,024."""
    first, topic = live.nodes[0], "crowd/shared"
    with unharmed(live):
        crowd = made_up(peer, 1_100)
        announce(peer, crowd)
        for at in range(0, len(crowd), 500):
            some = crowd[at : at + 500]
            wish = [InterestRecord(each.node, each.incarnation, 1, 0, (topic,)) for each in some]
            peer.send(Update(tuple(wish)))
        eventually(lambda: sizes(first)["nodes"] >= 1_100, "the crowd is known", 120)
        eventually(lambda: in_force(first, crowd[-1].node), "and wants the topic", 120)
        subscriber = guaranteed_client(live, 2).subscribe_qos2(topic)
        last = NodeId(int(str(live.nodes[2].status()["node"]), 16))
        eventually(lambda: topic in interest(first, last), "the real one wants it, too", 120)
        found: Any = live.nodes[2].status()["interest"]
        assert not found["installed"], "the crowd has confirmed nothing"
        payloads = [b"%d" % number for number in range(20)]
        guaranteed_client(live, 0).publish_guaranteed(1, topic, *payloads)
        assert sorted(subscriber.read_until(20)) == sorted(payloads)


def test_forged_nodes_do_not_displace_nodes_of_other_neighbours(live: Live, peer: RawPeer):
    middle = live.nodes[1]
    with unharmed(live):
        announce(peer, made_up(peer, SETTINGS.nodes_per_neighbour_max + 500))
        wait_counted(middle, "nodes_per_neighbour_max", 400)
        with RawPeer(live.nodes[0].link_port) as newcomer:
            newcomer.hello().announce_self()
            eventually(lambda: has_member(live.nodes[2], newcomer), "a newcomer is a member", 120)


@pytest.mark.long
def test_filters_of_forged_nodes_are_bounded(live: Live):
    """50,000 filters of five nodes: one neighbour may bring 20,000."""
    middle = live.nodes[1]
    with unharmed(live), RawPeer(middle.link_port) as peer:
        peer.hello().announce_self()
        crowd = made_up(peer, 5)
        announce(peer, crowd)
        for place, each in enumerate(crowd):
            filters = [f"crowd/{place}/sensor/{number}/temperature" for number in range(10_000)]
            peer.send(*wishes(each.node, each.incarnation, filters))
        wait_counted(middle, "filters_per_neighbour_max", 15)
        alarms: Any = middle.status()["alarms"]
        assert "filters_per_neighbour_max" in alarms["filters refused"]
        assert_delivers(live, 0, 2, "crowd/filters")
