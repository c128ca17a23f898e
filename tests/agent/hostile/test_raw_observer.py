"""A member with the role observe for `plant/a/#` that speaks the protocol as it likes, not as an
honest agent does: it reads exactly that, writes nothing, and becomes core of nothing."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.hostile.raw_peer import RawPeer, counted, guaranteed_client
from tests.agent.hostile.tls_peer import dialling_context
from tests.agent.live import Live, eventually
from tests.identity.certified import certify

from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import Credentials
from hansa.identity.key_exchange import X25519KeyExchange
from hansa.identity.keys import load_key
from hansa.identity.records import MemberAuthenticator
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.membership.authentication import RecordAuthentication
from hansa.protocol.membership.records import ClaimsRecord, InterestRecord, NodeRecord, RecordKind
from hansa.protocol.membership.set_digest import BucketDigest
from hansa.protocol.model import NodeId, Publication, group_id
from hansa.protocol.pair_authentication import PairAuthenticator
from hansa.protocol.wire.codec import decode, encode
from hansa.protocol.wire.frames import (
    CoreAnnouncement,
    Fetch,
    MeshMembership,
    RetainedRequest,
    RetainedValuesFrame,
    SealedUnicast,
    Unicast,
    Update,
)
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation, LocalNode

PLANT_A = Claims("observer", ("observe",), ("#",), ("plant/a/#",))
CANARY = b"canary"
"""In topics and payloads beyond the observer's; filters of clients do not contain it."""

WIDE = ("#", "plant/#", "plant/+/canary", "$share/g/#", "+/+/+", "plant/a/#")


class RawObserver(RawPeer):
    """The observer, linked to one agent."""

    def __init__(self, port: int, member: Credentials) -> None:
        key = load_key(member.key_file)
        assert key is not None
        authenticator = MemberAuthenticator(key, lambda: member, lambda: datetime.now(UTC))
        self.signing = RecordAuthentication(member.federation, authenticator)
        self.exchange = X25519KeyExchange()
        self.known: dict[NodeId, NodeRecord] = {}
        self._federation = member.federation
        context = dialling_context(member.directory)
        super().__init__(port, "observer", member.certificate.key, context=context)

    def join(self, *links: tuple[NodeId, int]) -> None:
        """Become a member; `links` are false ones."""
        self.hello()
        assert self.agent is not None
        record = self.record(
            links=tuple(sorted(((self.agent.node, 100), *links))),
            exchange_key=self.exchange.public_key,
            certificates=self.signing.certificates,
        )
        self.send(Update((self.signing.sign_node_record(record),)))

    def announce(self, kind: RecordKind, names: tuple[str, ...]) -> None:
        """Announce a set of filters or groups with a genuine signature."""
        stamp = (self.incarnation, 1)
        digest = BucketDigest().changed(names, ())
        signature = self.signing.sign_set(kind, self.node, stamp, digest)
        record = InterestRecord if kind is RecordKind.INTEREST else ClaimsRecord
        made = record(self.node, self.incarnation, 1, 1, names, signature=signature)
        self.send(Update((made,)))

    def join_meshes(self, groups: tuple[str, ...]) -> None:
        """Claim to be a member of the meshes of groups, at every core that was announced."""
        heard = [each for each in list(self.received) if isinstance(each, CoreAnnouncement)]
        for each in {announced.core: announced for announced in heard}.values():
            members = tuple(group_id(group) for group in groups)
            self.send(
                MeshMembership(each.core, each.sequence, groups),
                replace(each, distance=each.distance + 100, members=members, claims=None),
            )

    def fetch_records(self, nodes: list[NodeId]) -> None:
        """Get the records of nodes, which have their exchange keys."""
        self.send(Fetch(tuple((RecordKind.NODE, node) for node in nodes)))

        def is_known() -> bool:
            updates = [each for each in list(self.received) if isinstance(each, Update)]
            records = [record for update in updates for record in update.records]
            self.known |= {each.node: each for each in records if isinstance(each, NodeRecord)}
            return self.known.keys() >= set(nodes)

        eventually(is_known, "the records of all nodes")
        self.known[self.node] = self.record(exchange_key=self.exchange.public_key)
        self.pairs = self._pairs()

    def _pairs(self) -> PairAuthenticator:
        return PairAuthenticator(self.node, self._federation, self.exchange, self.known, 100)

    def send_sealed(self, frame: RetainedRequest) -> None:
        sealed = self.pairs.seal(frame)
        assert sealed is not None
        self.send(sealed)

    def opened(self) -> list[Unicast]:
        """Return what others have sealed for the observer."""
        pairs = self._pairs()  # with a new window against replays
        sealed = [each for each in list(self.received) if isinstance(each, SealedUnicast)]
        return [pairs.open(each) for each in sealed if each.destination == self.node]

    def opened_bytes(self) -> bytes:
        return b"".join(encode(each) for each in self.opened())

    def retained_values(self) -> list[bytes]:
        frames = [each for each in self.opened() if isinstance(each, RetainedValuesFrame)]
        return [value for frame in frames for value in frame.publications]

    def publications(self) -> list[Publication]:
        return [each for each in list(self.received) if isinstance(each, Publication)]


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:3", 1), {})) as live:
        yield live


@pytest.fixture
def observer(live: Live, tmp_path: Path) -> Iterator[RawObserver]:
    authority = CertificateAuthority(live.federation.directory / "ca")
    member = certify(authority, tmp_path / "observer", PLANT_A)
    with RawObserver(live.nodes[0].link_port, member) as made:
        yield made


def id_of(node: LocalNode) -> NodeId:
    return NodeId(int(str(node.status()["node"]), 16))


def interest_at(node: LocalNode, peer: RawPeer) -> set[str]:
    interest: Any = node.status()["interest"]
    return set(interest["remote"].get(f"{peer.node:016x}", ()))


def test_wide_interest_of_a_raw_observer_gets_exactly_its_topics(live, observer):
    """With false links to all nodes, as if every shortest path led through it."""
    reader = live.subscriber(2, "plant/#")
    observer.join(*((id_of(node), 1) for node in live.nodes[1:]))
    observer.announce(RecordKind.INTEREST, WIDE)
    eventually(
        lambda: all("plant/a/#" in interest_at(node, observer) for node in live.nodes),
        "the part of its interest that its certificate allows",
    )
    publishers = [guaranteed_client(live, number) for number in (0, 1)]
    for publisher in publishers:
        for qos in (0, 1, 2):
            publisher.publish_guaranteed(qos, "plant/b/canary", CANARY)
            publisher.publish_guaranteed(qos, "plant/canary", CANARY)
        kept = PublishPacket("plant/b/retained/canary", CANARY, 1, retain=True)
        publisher.publish_as(kept, PublishPacket("plant/a/retained", b"readable", 1, retain=True))

    def is_read() -> bool:
        observer.join_meshes(("plant/a/#", "plant/#", "#", "plant/b/#"))
        publishers[0].publish("plant/b/canary", CANARY)
        publishers[0].publish("plant/a/1", b"readable")
        publishers[1].publish("plant/a", b"readable")
        return {each.topic for each in observer.publications()} == {"plant/a/1", "plant/a"}

    eventually(is_read, "its own topics")
    ids = [id_of(node) for node in live.nodes]
    observer.fetch_records(ids)
    for node in ids:  # with genuine proofs
        observer.send_sealed(RetainedRequest(node, observer.node, tuple(range(64))))
        topics = tuple((f"plant/{rest}", 0) for rest in ("b/retained/canary", "a/retained"))
        observer.send_sealed(RetainedRequest(node, observer.node, (), topics))
    opened = eventually(observer.retained_values, "the values that it may read")
    values = [each for each in map(decode, opened) if isinstance(each, Publication)]
    assert {each.topic for each in values} == {"plant/a/retained"}
    assert eventually(is_read, "still the same")
    reader.wait_for(CANARY)  # clients with the right to it get it
    assert not observer.closed.is_set()
    assert CANARY not in observer.received_bytes
    assert CANARY not in observer.opened_bytes()


def test_raw_observer_writes_nothing(live, observer):
    """In its own name, in the names of others, at any QoS, and retained values."""
    reader = live.subscriber(2, "up/#")
    observer.join()
    first = id_of(live.nodes[0])
    incarnation = int(str(live.nodes[0].status()["incarnation"]))
    now = time.time_ns() // 1_000_000
    receivers = ((id_of(live.nodes[2]), 0),)
    for number in range(1, 4):
        for retain in (False, True):
            for qos in (0, 1, 2):
                more = {"receivers": receivers, "macs": bytes(12)} if qos else {}
                own, other = (observer.node, observer.incarnation), (first, incarnation)
                for origin, epoch in (own, other):
                    observer.send(
                        Publication(
                            *(origin, epoch, number * 100, qos, f"up/{qos}", CANARY, retain),
                            version=now << 16 if retain else 0,
                            **more,  # type: ignore[arg-type]
                        )
                    )
    publisher = live.client(1)
    publisher.publish("up/end", b"end")
    assert reader.wait_for(b"end") == [("up/end", b"end")]
    assert live.client(2).subscribe("up/#").silent(), "a retained value of the observer"
    refused = "publication outside the certificate of its origin"
    eventually(lambda: any(counted(node, refused) for node in live.nodes), "refused publications")


def test_raw_observer_becomes_core_of_nothing(live, observer):
    """Claims with genuine signatures and the smallest distance."""
    reader = live.subscriber(2, "group/#")
    observer.join()
    stamp = (observer.incarnation, 1)
    observer.announce(RecordKind.CLAIMS, ("group/#", "plant/#", ""))
    for sequence in range(1, 4):
        stamp = (observer.incarnation, sequence)
        signature = observer.signing.sign_announcement(observer.node, stamp)
        observer.send(CoreAnnouncement(observer.node, *stamp, 0, signature=signature))
        observer.send(MeshMembership(id_of(live.nodes[0]), sequence, ("group/#", "plant/#")))
    publisher = live.client(0)

    def arrives() -> bool:
        publisher.publish("group/1", CANARY)
        return bool(reader.hears(CANARY))

    eventually(arrives, "publications arrive past the observer")
    own = f"{observer.node:016x}"
    for node in live.nodes:
        groups: Any = node.status()["groups"]
        assert own not in {group["core"] for group in groups.values()}
    assert CANARY not in observer.received_bytes
