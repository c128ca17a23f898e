"""Forged, well-formed frames from a peer with one link: each is refused and counted, no agent ends,
and no acknowledged publication is lost."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from msgspec.structs import replace
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.hostile.raw_peer import (
    RawPeer,
    agent_pid,
    assert_delivers,
    counted,
    framed,
    guaranteed_client,
    has_member,
    unharmed,
    wait_counted,
    wait_for_path,
)
from tests.agent.live import Live, eventually

from hansa.mqtt import packets
from hansa.protocol.clock import AHEAD
from hansa.protocol.membership.origins import WRONG_SIDE
from hansa.protocol.membership.overlay import CONTESTED
from hansa.protocol.membership.record_checks import WRONG_KEY
from hansa.protocol.membership.records import InterestRecord, NodeRecord
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.clock import VERSIONS_PER_MS
from hansa.protocol.wire.frames import (
    CoreAnnouncement,
    Goodbye,
    InterestAck,
    InterestAcks,
    PendingNotice,
    Receipt,
    RepairResponse,
    Summary,
    Update,
)
from hansa.testbed.federation import LocalNode

COUNT = 20
DAY_MS = 86_400_000


def id_of(node: LocalNode) -> NodeId:
    return NodeId(int(str(node.status()["node"]), 16))


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def peer(live: Live) -> Iterator[RawPeer]:
    """A member of the federation whose only link is to the middle agent."""
    with RawPeer(live.nodes[1].link_port) as made:
        made.hello().announce_self()
        eventually(lambda: has_member(live.nodes[0], made), "the peer is a member")
        yield made


def records(peer: RawPeer) -> dict[NodeId, NodeRecord]:
    """Ask the agent for all records, and return those of nodes."""
    peer.send(Summary(()))

    def found() -> dict[NodeId, NodeRecord]:
        updates = [each for each in list(peer.received) if isinstance(each, Update)]
        rows = [row for update in updates for row in update.records]
        return {row.node: row for row in rows if isinstance(row, NodeRecord)}

    eventually(lambda: len(found()) >= 4, "records of all nodes")
    return found()


@contextmanager
def hanging(node: LocalNode) -> Iterator[None]:
    """Suspend the agent of a node meanwhile."""
    pid = agent_pid(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pending(node: LocalNode, receiver: NodeId) -> int:
    """Return how many positions of an agent's journal a receiver has not acknowledged."""
    delivery: Any = node.status()["delivery"]
    return int(delivery["pending"].get(f"{receiver:016x}", 0))


def path(
    live: Live, topic: str, source: int = 0, target: int = 2
) -> tuple[GuaranteedClient, GuaranteedClient]:
    """Return a publisher and a subscriber with a working path between them."""
    subscriber = guaranteed_client(live, target).subscribe_qos2(topic)
    publisher = guaranteed_client(live, source)
    wait_for_path(publisher, subscriber, topic)
    return publisher, subscriber


# ---------------------------------------------------------------- 1, 2, 4: contested ids


def test_goodbye_with_a_record_of_the_agent_before_hello_ends_nothing(live: Live):
    first, last = live.nodes[0], id_of(live.nodes[2])
    publisher, subscriber = path(live, "forged/goodbye")
    payloads = [b"%d" % number for number in range(COUNT)]
    with unharmed(live):
        with hanging(live.nodes[2]), RawPeer(first.link_port) as stranger:
            publisher.publish_guaranteed(1, "forged/goodbye", *payloads)
            eventually(lambda: pending(first, last) >= COUNT, "all are pending")
            rival = [0, id_of(first), wall_ms(), 1, 0, bytes(32), "", [], 1.0, []]
            old_goodbye = b"\x10" + msgspec.msgpack.encode([2, "same id", rival])
            stranger.send_bytes(framed(old_goodbye))
            wait_counted(first, "Goodbye before hello")
        assert sorted(subscriber.read_until(COUNT)) == sorted(payloads)


@pytest.mark.parametrize("started", ["later", "earlier"])
def test_forged_records_of_all_agents_end_none_of_them(live: Live, peer: RawPeer, started: str):
    ids = {node.name: id_of(node) for node in live.nodes}
    known = records(peer)
    born = 0 if started == "earlier" else wall_ms()
    with unharmed(live):
        forged = [
            replace(known[node], incarnation=wall_ms() + 60_000, first_incarnation=born, links=())
            for node in ids.values()
        ]
        before = [counted(node, CONTESTED) for node in live.nodes]
        peer.send(Update(tuple(forged)))
        peer.send(Update(tuple(InterestRecord(n, wall_ms() + 60_000, 1, 1, ()) for n in known)))
        for node, count in zip(live.nodes, before, strict=True):
            wait_counted(node, CONTESTED, count + 1)
            wait_for_alarm(node)
        assert_delivers(live, 0, 2, f"forged/records/{started}")
        for node in live.nodes:
            wait_for_members(node, 4)


def wait_for_alarm(node: LocalNode) -> None:
    def is_raised() -> bool:
        alarms: Any = node.status()["alarms"]
        return "incarnation raised" in alarms

    eventually(is_raised, f"the alarm of {node.name}")


def wait_for_members(node: LocalNode, count: int) -> None:
    eventually(lambda: len(members(node)) == count, f"{count} members at {node.name}")


def members(node: LocalNode) -> list[str]:
    found: Any = node.status()["reachable_nodes"]
    return list(found)


def test_record_from_far_future_excludes_no_node(live: Live, peer: RawPeer):
    victim = id_of(live.nodes[2])
    record = records(peer)[victim]
    with unharmed(live):
        before = counted(live.nodes[1], AHEAD)
        for incarnation in ((1 << 64) - 1, wall_ms() + 2 * DAY_MS):
            peer.send(Update((replace(record, incarnation=incarnation, links=()),)))
            peer.send(CoreAnnouncement(victim, incarnation, 1, 0))
        peer.send(Update((replace(record, version=1 << 62),)))
        wait_counted(live.nodes[1], AHEAD, before + 4)
        wait_counted(live.nodes[1], "version out of bounds")
        assert f"{victim:016x}" in members(live.nodes[0])
        assert_delivers(live, 0, 2, "forged/future")


def test_id_that_does_not_follow_from_its_key_is_refused(live: Live, peer: RawPeer):
    with unharmed(live):
        peer.send(Update((replace(peer.record(), node=NodeId(7)),)))
        wait_counted(live.nodes[1], WRONG_KEY)
        with RawPeer(live.nodes[1].link_port) as other:
            other.hello(node=NodeId(0))
            assert other.wait_for(Goodbye).reason == WRONG_KEY


# ---------------------------------------------------------------- 5, 10, 19: unicast frames


def test_forged_receipts_clear_nothing(live: Live, peer: RawPeer):
    first, last = live.nodes[0], id_of(live.nodes[2])
    publisher, subscriber = path(live, "forged/receipt")
    payloads = [b"%d" % number for number in range(COUNT)]
    with unharmed(live), RawPeer(first.link_port) as leaf:
        leaf.hello().announce_self()
        with hanging(live.nodes[2]):
            publisher.publish_guaranteed(1, "forged/receipt", *payloads)
            eventually(lambda: pending(first, last) >= COUNT, "all are pending")
            delivery: Any = first.status()["delivery"]
            epoch, position = delivery["epoch"], delivery["position"]
            before = counted(first, WRONG_SIDE)
            forged = [
                Receipt(id_of(first), last, epoch, position, position),
                Receipt(id_of(first), last, epoch, position + 1, position + 1),
                Receipt(id_of(first), last, epoch + 1, 1, 1),
            ]
            leaf.send(*forged)
            wait_counted(first, WRONG_SIDE, before + 3)
            relayed = counted(live.nodes[1], WRONG_SIDE)
            peer.send(*forged)
            wait_counted(live.nodes[1], WRONG_SIDE, relayed + 3)
            assert pending(first, last) >= COUNT
            # Also when the receiver is out of reach: its pending queue stays.
            eventually(lambda: f"{last:016x}" not in members(first), "the receiver is lost")
            leaf.send(*forged)
            wait_counted(first, WRONG_SIDE, before + 6)
            assert pending(first, last) >= COUNT
        assert sorted(subscriber.read_until(COUNT)) == sorted(payloads)
    wait_for_members(first, 4)


def test_receipt_for_unsent_bytes_is_refused(live: Live, peer: RawPeer):
    """The peer may acknowledge only bytes that it was sent."""
    middle = live.nodes[1]
    publisher, _ = path(live, "forged/other", 1, 0)
    peer.send(Update((InterestRecord(peer.node, peer.incarnation, 1, 0, ("forged/own",)),)))
    wait_in_force(middle, peer)
    publisher.publish_guaranteed(1, "forged/own", b"for the peer")
    eventually(lambda: pending(middle, peer.node) > 0, "pending")
    before: Any = middle.status()["delivery"]
    publisher.publish_guaranteed(1, "forged/other", b"for another node")
    with unharmed(live):
        epoch, position = before["epoch"], before["position"]
        peer.send(Receipt(id_of(middle), peer.node, epoch, position + 1, position + 1))
        wait_counted(middle, "receipt for a position that was not sent")
        peer.send(Receipt(id_of(middle), peer.node, wall_ms() + 2 * DAY_MS, 1, 1))
        wait_counted(middle, "epoch ahead of the clock")
        assert pending(middle, peer.node) > 0
        peer.send(Receipt(id_of(middle), peer.node, epoch, position, position))
        eventually(lambda: pending(middle, peer.node) == 0, "acknowledged")


def wait_in_force(node: LocalNode, peer: RawPeer) -> None:
    def is_in_force() -> bool:
        found: Any = node.status()["interest"]
        return f"{peer.node:016x}" in found["in_force"]

    eventually(is_in_force, "the peer's interest is in force")


def interest(node: LocalNode, other: NodeId) -> list[str]:
    found: Any = node.status()["interest"]
    return list(found["remote"].get(f"{other:016x}", ()))


def test_forged_pending_notices_stop_no_delivery(live: Live, peer: RawPeer):
    middle, first = id_of(live.nodes[1]), id_of(live.nodes[0])
    publisher, subscriber = path(live, "forged/owed", 0, 1)
    payloads = [b"%d" % number for number in range(COUNT)]
    with unharmed(live):
        before = counted(live.nodes[1], WRONG_SIDE)
        peer.send(
            PendingNotice(middle, first, wall_ms() + (1 << 40), 1),
            PendingNotice(middle, first, wall_ms(), 1 << 62),
            RepairResponse(middle, first, wall_ms(), 0, 1 << 62, 1 << 62, ()),
        )
        wait_counted(live.nodes[1], WRONG_SIDE, before + 3)
        peer.send(PendingNotice(middle, peer.node, wall_ms() + (1 << 40), 1))
        peer.send(PendingNotice(middle, peer.node, wall_ms(), 1 << 62))
        wait_counted(live.nodes[1], "epoch ahead of the clock")
        wait_counted(live.nodes[1], "pending notice with a position out of bounds")
        publisher.publish_guaranteed(1, "forged/owed", *payloads)
        assert sorted(subscriber.read_until(COUNT)) == sorted(payloads)


def versions(peer: RawPeer, node: NodeId) -> list[int]:
    """The versions of a node's interest that the peer was sent."""
    return [
        row.version
        for update in list(peer.received)
        if isinstance(update, Update)
        for row in update.records
        if isinstance(row, InterestRecord) and row.node == node
    ]


def test_forged_confirmations_install_nothing(live: Live, peer: RawPeer):
    first, last = live.nodes[0], id_of(live.nodes[2])
    with unharmed(live):
        with hanging(live.nodes[2]):
            guaranteed_client(live, 0).subscribe_qos2("forged/confirm")
            eventually(lambda: "forged/confirm" in interest(live.nodes[1], id_of(first)), "known")
            version = max(eventually(lambda: versions(peer, id_of(first)), "a record at the peer"))
            incarnation = int(str(first.status()["incarnation"]))
            before = counted(live.nodes[1], WRONG_SIDE)
            peer.send(
                InterestAcks((InterestAck(id_of(first), incarnation, version, last, 1, 1, 0),)),
                InterestAcks(
                    (InterestAck(id_of(first), incarnation, version, peer.node, 1, 1, 0),)
                ),
            )
            wait_counted(live.nodes[1], WRONG_SIDE, before + 1)
            found: Any = first.status()["interest"]
            assert f"{last:016x}" not in members(first) or not found["installed"]
        wait_for_members(first, 4)


# ---------------------------------------------------------------- 7, 9, 11: publications, interest


def test_forged_origins_are_refused(live: Live, peer: RawPeer):
    first, middle = id_of(live.nodes[0]), id_of(live.nodes[1])
    _, subscriber = path(live, "forged/origin", 0, 1)
    with unharmed(live):
        before = counted(live.nodes[1], WRONG_SIDE)
        incarnation = int(str(live.nodes[0].status()["incarnation"]))
        delivery: Any = live.nodes[0].status()["delivery"]
        peer.send(
            Publication(first, incarnation, 1 << 20, 0, "forged/origin", b"forged"),
            Publication(
                *(first, delivery["epoch"], delivery["position"] + 1, 2),
                *("forged/origin", b"forged"),
                receivers=((middle, delivery["position"]),),
            ),
        )
        wait_counted(live.nodes[1], WRONG_SIDE, before + 2)
        subscriber.read_for(0.3)
        assert subscriber.received == []
        assert_delivers(live, 0, 1, "forged/origin")


def test_publication_to_unsubscribed_topic_is_not_injected(live: Live, peer: RawPeer):
    middle = id_of(live.nodes[1])
    with unharmed(live):
        uninvited = Publication(
            peer.node, wall_ms(), 1, 2, "never/announced", b"x", receivers=((middle, 0),)
        )
        peer.send(uninvited)
        wait_counted(live.nodes[1], "publication to a topic that was never announced here")
        delivery: Any = live.nodes[1].status()["delivery"]
        assert delivery["inbox"] == 0


def test_retained_value_from_the_future_does_not_win(live: Live, peer: RawPeer):
    topic = "forged/retained"
    publisher, subscriber = path(live, topic, 0, 1)
    ahead = (wall_ms() + 3_600_000) * VERSIONS_PER_MS
    with unharmed(live):
        forged = Publication(
            peer.node, peer.incarnation, 1, 0, topic, b"forged", True, version=ahead
        )
        peer.send(forged)
        wait_counted(live.nodes[1], "retained version ahead of the clock")
        publisher.publish_as(packets.PublishPacket(topic, b"real", 1, retain=True))
        eventually(lambda: b"real" in read(subscriber), "delivered")

        def is_stored() -> bool:
            return read(guaranteed_client(live, 1).subscribe_qos2(topic)) == [b"real"]

        eventually(is_stored, "the owner's value is stored")
        publisher.publish_as(packets.PublishPacket(topic, b"", 1, retain=True))


def read(client: GuaranteedClient) -> list[bytes]:
    client.read_for(0.2)
    return [each.payload for each in client.received]


@pytest.mark.parametrize("name", ["$SYS/#", "$share/g/$SYS/#"])
def test_interest_in_topics_of_one_broker_is_refused(live: Live, peer: RawPeer, name: str):
    with unharmed(live):
        before = counted(live.nodes[1], "interest in topics of one broker")
        peer.send(Update((InterestRecord(peer.node, peer.incarnation, 1, 0, (name,)),)))
        wait_counted(live.nodes[1], "interest in topics of one broker", before + 1)
        assert interest(live.nodes[0], peer.node) == []


def test_high_sequence_numbers_do_not_cause_false_duplicates(live: Live, peer: RawPeer):
    topic = "forged/numbers"
    publisher, subscriber = path(live, topic)
    first = id_of(live.nodes[0])
    incarnation = int(str(live.nodes[0].status()["incarnation"]))
    payloads = [b"%d" % number for number in range(50)]
    with unharmed(live):
        before = counted(live.nodes[1], WRONG_SIDE)
        for claimed in (incarnation, wall_ms() + DAY_MS // 2, wall_ms() + DAY_MS // 2 + 1):
            peer.send(
                *(
                    Publication(first, claimed, (1 << 40) + number, 0, topic, b"")
                    for number in range(4_096)
                )
            )
        wait_counted(live.nodes[1], WRONG_SIDE, before + 3 * 4_096)
        publisher.publish(topic, *payloads)
        assert sorted(subscriber.read_until(50)) == sorted(payloads)


def test_metrics_show_the_reasons(live: Live, peer: RawPeer):
    peer.send(Update((replace(peer.record(), node=NodeId(7)),)))
    wait_counted(live.nodes[1], WRONG_KEY)
    with urlopen(f"{live.nodes[1].admin_url}/metrics") as page:
        assert WRONG_KEY in page.read().decode()
