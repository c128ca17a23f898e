"""Section 12 of docs/protocol.md, rule by rule: signed records."""

from collections import defaultdict
from dataclasses import replace as replace_fields
from typing import Any

import pytest
from msgspec.structs import replace
from tests.protocol.federation import (
    LINE,
    cores,
    link_of,
    managers,
    publish,
    restart,
    sent,
    settled,
    views,
)
from tests.protocol.wire_of_nodes import Wire, key

from hansa.protocol.effects import (
    Duplicate,
    Ignored,
    PeerMisbehaved,
    PublishRetained,
    ReadRetained,
    Send,
)
from hansa.protocol.events import CertificatesChanged, FrameReceived, PeersRestored
from hansa.protocol.forwarding.engine import MAY_NOT_PUBLISH
from hansa.protocol.interest.local import NOT_ALLOWED
from hansa.protocol.membership import database
from hansa.protocol.membership.authentication import (
    FORGED,
    FORGED_ANNOUNCEMENT,
    REPLACED_CERTIFICATE,
    RecordAuthentication,
)
from hansa.protocol.membership.origins import WRONG_SIDE
from hansa.protocol.membership.overlay import OTHERS_INTEREST
from hansa.protocol.membership.record_checks import MAY_NOT_BE_CORE
from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
    SetRecord,
)
from hansa.protocol.membership.rights import OUTSIDE_CERTIFICATE, UNLIMITED, Rights
from hansa.protocol.model import Identity, NodeId, Publication
from hansa.protocol.routing import STRATEGIES
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    MeshMembership,
    RepairResponse,
    RetainedRequest,
    RetainedValuesFrame,
    Update,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def signed(links: str, *subscriptions: tuple[int, str], **settings: Any) -> Wire:
    """Converged nodes with certificates that allow everything."""
    return settled(links, *subscriptions, rights={}, **settings)


def receive(
    wire: Wire, place: int, sender: int, frame: AnyFrame | Publication
) -> list[Ignored | PeerMisbehaved]:
    """Let a node receive a frame from a neighbour; return its refusals."""
    effects = wire.give(place, FrameReceived(link_of(wire, place, sender), frame))
    return [effect for effect in effects if isinstance(effect, Ignored | PeerMisbehaved)]


def records_of(wire: Wire, place: int, node: NodeId) -> list[Record]:
    return wire.nodes[place].membership.records_of(node)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 9},
        {"version": 9, "incarnation": 2},
        {"version": 9, "links": ((NodeId(3), 5),)},
        {"version": 9, "exchange_key": b"x" * 32},
        {"version": 9, "signature": b""},
        {"version": 9, "signature": b"x" * 64},
    ],
)
def test_12_1_forged_node_record_is_refused_at_the_first_hop(change):
    """12.1 A record without a valid signature is refused and its sender reported as misbehaving."""
    wire = signed(LINE)
    node_record = records_of(wire, 2, NodeId(4))[0]
    before = views(wire)
    wire.log.clear()
    assert receive(wire, 2, 3, Update((replace(node_record, **change),))) == [
        PeerMisbehaved(link_of(wire, 2, 3), FORGED)
    ]
    wire.run(0.5)
    assert sent(wire, Update) == []
    assert {place: (view.reachable, view.digest) for place, view in views(wire).items()} == {
        place: (view.reachable, view.digest) for place, view in before.items()
    }
    assert wire.nodes[2].counters[FORGED] == 1


def test_12_1_forged_record_of_the_receiver_has_no_effect():
    """12.1 This holds also for records of the receiver itself."""
    wire = signed(LINE)
    own = records_of(wire, 2, TWO)[0]
    forged = replace(own, incarnation=5, first_incarnation=5)
    assert receive(wire, 2, 3, Update((forged,))) == [PeerMisbehaved(link_of(wire, 2, 3), FORGED)]
    interest = InterestRecord(TWO, 5, 1, 1, ("a",))
    assert receive(wire, 2, 3, Update((interest,)))[0].reason.startswith("record of this node")
    wire.run(2)
    assert records_of(wire, 1, TWO)[0].incarnation == 1


def test_12_1_copy_of_a_node_is_still_recognised():
    """12.1 (2.7) A copy signs with the same key: its record is genuine."""
    wire = signed(LINE)
    wire.start(9, Identity(TWO, key(2), incarnation=5))
    wire.join("9-4")
    wire.run(3)
    assert records_of(wire, 1, TWO)[0].incarnation > 5


def author(wire: Wire, place: int) -> RecordAuthentication:
    """Return what signs as the node of a place."""
    identity = Identity(NodeId(place), key(place), incarnation=1)
    return RecordAuthentication(wire.settings.federation, wire.enrol(identity, place))


def signed_record(wire: Wire, place: int, certificates: tuple[bytes, ...]) -> NodeRecord:
    """Return the record of a new node, genuine but for its certificates."""
    record = NodeRecord(
        NodeId(place), 1, 1, 1, key(place), "", (), 1.0, (), certificates=certificates
    )
    return author(wire, place).sign_node_record(record)


def test_12_1_record_with_a_refused_certificate_is_ignored():
    """12.1 A record whose certificate is refused is ignored and counted."""
    wire = signed("1-2 2-3")
    own, foreign = author(wire, 7).certificates, author(wire, 8).certificates
    for certificates in ((), foreign, (own[0], foreign[1])):
        refused = receive(wire, 2, 3, Update((signed_record(wire, 7, certificates),)))
        assert [effect.reason.partition(":")[0] for effect in refused] == ["certificate refused"]
    assert NodeId(7) not in wire.nodes[2].membership.known
    assert receive(wire, 2, 3, Update((signed_record(wire, 7, own),))) == []
    assert NodeId(7) in wire.nodes[2].membership.known


def test_12_1_node_cannot_go_back_to_an_earlier_certificate():
    """12.1 ... or issued before the one that is known."""
    wire = signed("1-2 2-3")
    wire.rights = {7: replace_fields(UNLIMITED, issued_ms=5)}
    newer = signed_record(wire, 7, author(wire, 7).certificates)
    assert receive(wire, 2, 3, Update((newer,))) == []
    wire.rights = {7: replace_fields(UNLIMITED, issued_ms=4)}
    older = author(wire, 7).sign_node_record(
        replace(newer, version=2, certificates=author(wire, 7).certificates)
    )
    assert receive(wire, 2, 3, Update((older,))) == [Ignored(REPLACED_CERTIFICATE)]


def test_12_1_records_from_disk_are_checked():
    """12.1 Records from a node's own disk are checked like others."""
    wire = signed("1-2 2-3", (3, "g"))
    stored = records_of(wire, 2, THREE)
    assert [type(record) for record in stored] == [NodeRecord, InterestRecord]
    wire.start(8)
    wire.give(8, PeersRestored((*stored, replace(records_of(wire, 2, ONE)[0], version=9))))
    assert dict(wire.nodes[8].status().interest) == {3: views(wire)[2].interest[THREE]}
    assert wire.nodes[8].counters == {FORGED: 1}


def test_12_2_forged_sets_are_refused_and_change_nothing():
    """12.2 A receiver computes the digest that the set would have, and changes nothing if the
    signature does not fit."""
    wire = signed(LINE, (4, "a"), (4, "b"))
    _, interest = records_of(wire, 2, NodeId(4))
    assert isinstance(interest, InterestRecord)
    version = interest.version
    forgeries = [
        replace(interest, added=("a", "b", "c"), version=version + 1, base=version + 1),
        replace(interest, added=("c",), version=version + 1, base=version),
        replace(interest, added=("c",), version=1, base=0, incarnation=2),
        replace(interest, version=version + 1, base=version + 1),  # signed for another version
        replace(interest, version=version + 1, base=version + 1, signature=b""),
    ]
    before = views(wire)[2]
    for forged in forgeries:
        refusal = [PeerMisbehaved(link_of(wire, 2, 3), FORGED)]
        assert receive(wire, 2, 3, Update((forged,))) == refusal
    after = views(wire)[2]
    assert (after.interest, after.digest) == (before.interest, before.digest)


def test_12_2_claims_in_announcements_are_checked():
    """12.2 The same holds for claims in announcements."""
    wire = signed(LINE, (4, "g"))
    announcement = CoreAnnouncement(
        *(NodeId(4), 1, 1, 1, (), ClaimsRecord(NodeId(4), 1, 9, 9, ("h",))),
        signature=author(wire, 4).sign_announcement(NodeId(4), (1, 1)),
    )
    assert receive(wire, 2, 3, announcement) == [PeerMisbehaved(link_of(wire, 2, 3), FORGED)]
    assert cores(wire)[2] == 4 and "h" not in wire.nodes[2].status().groups


def test_12_2_any_holder_sends_a_set_on_with_its_signature(monkeypatch):
    """12.2 One signature serves a change, a whole set and its parts, from whichever node holds the
    set."""
    monkeypatch.setattr(database, "PART_BYTES", 40)
    names = [f"plant/line/{n}" for n in range(9)]
    wire = signed("1-2", *((1, name) for name in names))
    wire.unsubscribe(1, names[3])
    wire.run(2)
    wire.start(3)
    wire.join("3-2")
    wire.run(1)
    assert set(wire.nodes[3].status().interest[ONE].filters) == {*names} - {names[3]}
    parts = [r for *_, u in sent(wire, Update) for r in u.records if isinstance(r, SetRecord)]
    assert max(record.parts for record in parts) > 1
    assert not any(node.counters[FORGED] for node in wire.nodes.values())


def test_12_2_false_parts_of_one_neighbour_do_not_spoil_those_of_another(monkeypatch):
    """12.2 Parts of a set are collected per neighbour."""
    monkeypatch.setattr(database, "PART_BYTES", 20)
    wire = signed("1-2 2-3 3-1", (1, "plant/line/1"), (1, "plant/line/2"))
    node_record, *whole = records_of(wire, 3, ONE)
    assert len(whole) == 2
    wire.start(4)
    wire.join("4-2 4-3")
    wire.is_lost = lambda source, target, frame: target == 4 and "plant" in str(frame)
    wire.run(0.5)
    wire.is_lost = lambda *_: False
    false_part = replace(whole[1], added=("plant/line/9",))
    assert receive(wire, 4, 2, Update((node_record, whole[0]))) == []
    assert receive(wire, 4, 3, Update((whole[0], false_part))) == [
        PeerMisbehaved(link_of(wire, 4, 3), FORGED)
    ]
    assert receive(wire, 4, 2, Update((whole[1],))) == []
    assert set(wire.nodes[4].status().interest[ONE].filters) == {"plant/line/1", "plant/line/2"}


def test_12_2_restarted_node_and_its_former_claims_are_no_forgery():
    """12.2 A holder of claims that a restart has voided (3.7) drops them with their signature."""
    wire = signed(LINE, (4, "g"), (1, "g"))
    wire.stop(4)
    wire.run(0.5)
    restart(wire, 4, "4-3")
    wire.subscribe(4)  # its clients have no interest
    wire.run(2)
    assert set(cores(wire).values()) == {1}
    assert not any(node.counters[FORGED] for node in wire.nodes.values())
    assert len({view.digest for view in views(wire).values()}) == 1


def test_12_3_forged_announcement_is_refused():
    """12.3 A core signs the stamp of each announcement."""
    wire = signed(LINE, (4, "g"))
    route = wire.nodes[2].status().cores[NodeId(4)]
    forged = CoreAnnouncement(NodeId(4), 1, route.sequence + 1, 0, signature=b"x" * 64)
    refusal = [PeerMisbehaved(link_of(wire, 2, 1), FORGED_ANNOUNCEMENT)]
    assert receive(wire, 2, 1, forged) == refusal
    assert receive(wire, 2, 1, replace(forged, core=TWO, incarnation=9)) == refusal
    assert wire.nodes[2].status().cores[NodeId(4)] == route
    assert publish(wire, 1) == {4: [b"x"]}


def test_12_3_announcements_are_forwarded_with_the_signature_of_the_core():
    """12.3 Every node forwards the signature with it."""
    wire = signed(LINE, (4, "g"))
    wire.subscribe(4, "h")
    wire.run(0.5)
    last = {(a, b): frame for a, b, frame in sent(wire, CoreAnnouncement) if frame.core == 4}
    stamp = (last[4, 3].incarnation, last[4, 3].sequence)
    signature = author(wire, 4).sign_announcement(NodeId(4), stamp)
    assert {pair: frame.signature for pair, frame in last.items()} == dict.fromkeys(
        [(4, 3), (3, 2), (2, 1)], signature
    )


# ---------------------------------------------------------------- roles and topics

OBSERVER = Rights(may_relay=False, may_be_core=False, may_publish=(), may_subscribe=("plant/a/#",))
RELAY = Rights(may_be_core=False)


def reasons(wire: Wire, place: int) -> set[str]:
    return {*wire.nodes[place].counters}


def test_12_4_only_nodes_with_the_right_become_core():
    """12.4 Only a node whose certificate allows it becomes core."""
    wire = settled(LINE, (3, "g"), (1, "g"), rights={1: RELAY})
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 3)
    assert managers(wire) == dict.fromkeys((1, 2, 3, 4), 2)
    assert publish(wire, 4) == {1: [b"x"], 3: [b"x"]}


def test_12_4_another_node_is_core_if_no_interested_node_may():
    """12.4 If no interested node may, the smallest reachable node that may is core for them."""
    wire = settled(LINE, (1, "g"), (4, "g"), rights={1: RELAY, 4: RELAY})
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 2)
    assert publish(wire, 3) == {1: [b"x"], 4: [b"x"]}
    wire.stop(2)
    wire.run(2)
    assert cores(wire) == {1: None, 3: 3, 4: 3}
    assert publish(wire, 3) == {4: [b"x"]}


def test_12_4_core_claims_more_groups_than_one_node_may_have_filters():
    """12.4 … for all of them, also if they have more filters together than one node may have."""
    wire = Wire("1-2 1-3 1-4", rights=dict.fromkeys((2, 3, 4), RELAY), filters_per_node_max=2)
    groups = [(place, f"{place}/{number}") for place in (2, 3, 4) for number in (1, 2)]
    for place, group in groups:
        wire.subscribe(place, group)
    wire.run(2)
    for place, group in groups:
        assert cores(wire, group) == dict.fromkeys((1, 2, 3, 4), 1)
        assert publish(wire, 2 if place > 2 else 3, group) == {place: [b"x"]}
    assert reasons(wire, 2) == set()


def test_12_4_node_without_the_right_is_core_of_nothing_even_alone():
    """12.4 ... and of nothing, not even the management group of its own part."""
    wire = Wire("1-2", rights={1: RELAY, 2: RELAY})
    wire.subscribe(1, "g")
    wire.run(3)
    assert cores(wire) == {1: None, 2: None}
    assert sent(wire, CoreAnnouncement) == []


@pytest.mark.parametrize("strategy", ["tree-flood", "tree-subscriptions"])
def test_12_4_root_of_a_tree_is_a_node_that_may_be_core(strategy):
    """12.4 The root of a tree (8.3) counts as its core."""
    wire = settled(LINE, (4, "g"), rights={1: RELAY}, strategy=strategy)
    assert managers(wire) == dict.fromkeys((1, 2, 3, 4), 2)
    assert publish(wire, 1) == {4: [b"x"]}


def test_12_4_claims_and_announcements_of_other_nodes_are_refused():
    """12.4 Claims and announcements of a node without the right are refused and counted."""
    wire = settled(LINE, (3, "g"), rights={4: RELAY})
    four = NodeId(4)
    signature = author(wire, 4).sign_announcement(four, (1, 1))
    announcement = CoreAnnouncement(four, 1, 1, 0, signature=signature)
    assert receive(wire, 3, 4, announcement) == [Ignored(MAY_NOT_BE_CORE)]
    claims = ClaimsRecord(four, 1, 1, 0, ("g",))
    assert receive(wire, 3, 4, Update((claims,))) == [Ignored(MAY_NOT_BE_CORE)]
    assert cores(wire) == dict.fromkeys((1, 2, 3, 4), 3)


def test_12_4_rights_of_other_nodes_are_known():
    """12.4 Shells read what the certificate of a node allows."""
    wire = settled("1-2 2-3", rights={3: OBSERVER})
    found = [wire.nodes[1].membership.rights_of(NodeId(node)) for node in (2, 3)]
    assert found == [UNLIMITED, OBSERVER]


def test_12_5_no_path_passes_a_node_that_may_not_relay():
    """12.5 Of the links of a node that may not relay only one counts, that to its smallest
    neighbour that may."""
    wire = settled("1-2 2-3 3-4 4-1", (1, "g"), (3, "plant/a/1"), rights={2: OBSERVER})
    assert wire.nodes[1].status().reachable == (1, 2, 3, 4)
    assert publish(wire, 3) == {1: [b"x"]}
    assert (3, 2) not in wire.copies() and (2, 1) not in wire.copies()
    wire.cut("3-4")
    wire.run(0.5)
    assert {p: v.reachable for p, v in views(wire).items()} == {
        1: (1, 2, 4),
        2: (1, 2, 4),
        3: (3,),
        4: (1, 2, 4),
    }
    wire.stop(1)
    wire.run(0.5)
    assert {p: v.reachable for p, v in views(wire).items()} == {2: (2, 3), 3: (2, 3), 4: (4,)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_12_5_observer_receives_and_forwards_nothing(strategy):
    """12.5 It forwards no publications, whatever the strategy."""
    wire = settled(
        "1-2 1-3 2-3", (1, "#"), (2, "#"), (3, "#"), rights={3: OBSERVER}, strategy=strategy
    )
    assert publish(wire, 1, "plant/a/1") == {2: [b"x"], 3: [b"x"]}
    assert not any(source == 3 for source, _ in wire.copies())
    assert publish(wire, 2, "plant/a/2", qos=1) == {1: [b"x"], 3: [b"x"]}
    assert not any(source == 3 for source, _ in wire.copies())


def test_12_5_observer_forwards_nothing_on_the_fast_path():
    """12.5 ... also when publications are handled in batches."""
    wire = settled("1-2 1-3 2-3", (1, "#"), (2, "#"), (3, "#"), rights={3: OBSERVER})
    outgoing: dict[Any, list[Any]] = defaultdict(list)
    delivered: list[Any] = []
    copies = [encode(Publication(ONE, 1, n, 0, "plant/a/1", b"x")) for n in (1, 2, 3)]
    link = link_of(wire, 3, 1)
    wire.nodes[3].forward_batch(link, iter(copies), outgoing, delivered, [], wire.now)
    assert len(delivered) == 3 and not any(outgoing.values())


@pytest.mark.parametrize("qos", [0, 1])
def test_12_6_publication_outside_the_certificate_does_not_leave_its_node(qos):
    """12.6 A publication to a topic that its origin may not publish to stays at its broker."""
    limited = Rights(may_publish=("plant/a/#",))
    wire = settled(LINE, (4, "#"), rights={1: limited})
    assert publish(wire, 1, "plant/b", qos) == {}
    assert reasons(wire, 1) == {MAY_NOT_PUBLISH}
    assert publish(wire, 1, "plant/a/1", qos) == {4: [b"x"]}
    assert publish(wire, 2, "plant/b", qos) == {4: [b"x"]}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_12_6_forged_publication_is_dropped_at_the_first_hop(qos):
    """12.6 Every node drops copies of such publications."""
    wire = settled(LINE, (4, "#"), rights={1: Rights(may_publish=("plant/a/#",))})
    wire.log.clear()
    previous = ((NodeId(4), 0),) if qos else ()
    copy = Publication(ONE, 1, 1, qos, "plant/b", b"x", receivers=previous)
    assert receive(wire, 2, 1, copy) == [Ignored(OUTSIDE_CERTIFICATE)]
    wire.run(1)
    assert wire.copies() == [] and wire.deliveries() == {}


def test_12_6_publication_of_an_unknown_origin_is_dropped():
    """12.6 A node without a record may publish nothing."""
    wire = signed(LINE, (4, "#"))
    copy = Publication(NodeId(99), 1, 1, 0, "plant/b", b"x")
    assert receive(wire, 2, 1, copy) == [Ignored(WRONG_SIDE)]


def test_12_6_repaired_publication_outside_the_certificate_is_accepted_but_not_delivered():
    """12.6 A receiver that gets one from the journal of its origin counts it as accepted, so that
    later ones follow."""
    limited = Rights(may_publish=("plant/a/#",))
    wire = settled("1-2", (2, "#"), rights={1: limited})
    first = Publication(ONE, 1, 1, 1, "plant/b", b"bad", receivers=((TWO, 0),))
    second = Publication(ONE, 1, 2, 1, "plant/a/1", b"good", receivers=((TWO, 1),))
    wire.log.clear()
    assert receive(wire, 2, 1, first) == [Ignored(OUTSIDE_CERTIFICATE)]
    receive(wire, 2, 1, second)
    response = RepairResponse(TWO, ONE, 1, 0, 2, 0, (encode(first), encode(second)))
    assert receive(wire, 2, 1, response) == [Ignored(OUTSIDE_CERTIFICATE)]
    assert wire.deliveries() == {2: [b"good"]}


def test_12_6_retained_value_outside_the_certificate_is_refused():
    """12.6 The same holds for retained values."""
    wire = settled("1-2", (2, "#"), rights={1: Rights(may_publish=("plant/a/#",))})
    values = [
        Publication(ONE, 0, 0, 0, topic, b"x", retain=True, version=1 << 16)
        for topic in ("plant/b", "plant/a/1")
    ]
    wire.log.clear()
    frame = RetainedValuesFrame(TWO, ONE, tuple(map(encode, values)))
    assert receive(wire, 2, 1, frame) == [Ignored(OUTSIDE_CERTIFICATE)]
    assert [e.publication.topic for e in wire.effects(2, PublishRetained)] == ["plant/a/1"]


def test_12_6_flows_of_one_origin_do_not_serve_another():
    """12.6 The fast path decides per origin, too."""
    rights = {1: Rights(may_publish=("plant/a/#",))}
    wire = settled("1-2 3-2 2-4", (2, "#"), (4, "#"), rights=rights)
    node, now = wire.nodes[2], wire.now
    outgoing: dict[Any, list[Any]] = defaultdict(list)

    def forward(origin: int, sequence: int, topic: str) -> list[object]:
        copy = encode(Publication(NodeId(origin), 1, sequence, 0, topic, b"x"))
        notes: list[Any] = []
        node.forward_batch(link_of(wire, 2, origin), iter([copy] * 2), outgoing, [], notes, now)
        return notes

    assert forward(3, 1, "plant/b") == [Duplicate(THREE, 1)]
    assert forward(3, 2, "plant/b") == [Duplicate(THREE, 2)]
    assert forward(1, 1, "plant/b") == [Ignored(OUTSIDE_CERTIFICATE)] * 2
    assert forward(1, 2, "plant/a/1") == [Duplicate(ONE, 2)]
    assert [len(frames) for frames in outgoing.values()] == [3]


def test_12_7_interest_is_narrowed_to_the_certificate():
    """12.7 A node announces what its clients subscribe to, narrowed to what it may receive."""
    wire = settled(LINE, (1, "#"), (1, "+/a/1"), (1, "plant/b"), rights={1: OBSERVER})
    assert wire.nodes[4].status().interest[ONE].filters == ("plant/a/#",)
    assert reasons(wire, 1) == {NOT_ALLOWED}
    assert publish(wire, 4, "plant/a/1") == {1: [b"x"]}
    assert publish(wire, 4, "plant/b") == {}
    wire.unsubscribe(1, "#", "plant/b")
    wire.run(2)
    assert wire.nodes[4].status().interest[ONE].filters == ("plant/a/1",)


def test_12_7_interest_outside_the_certificate_has_no_effect():
    """12.7 Other nodes store filters outside the certificate, count them, and ignore them."""
    wire = settled(LINE, (2, "x"), rights={1: OBSERVER})
    overlay = author(wire, 1)
    digest = overlay.empty_digest.changed(("#", "plant/a/1"), ())
    signature = overlay.sign_set(RecordKind.INTEREST, ONE, (1, 1), digest)
    record = InterestRecord(ONE, 1, 1, 0, ("#", "plant/a/1"), signature=signature)
    assert receive(wire, 2, 1, Update((record,))) == [Ignored(OTHERS_INTEREST)]
    wire.run(0.5)
    assert wire.nodes[4].status().interest[ONE].filters == ("#", "plant/a/1")
    for qos in (0, 1):
        wire.log.clear()
        wire.publish(4, "plant/b", b"x", qos)
        wire.publish(4, "plant/a/1", b"y", qos)
        wire.run(0.2)
        sends = [e.frame for e in wire.effects(4, Send) if isinstance(e.frame, Publication)]
        assert [frame.topic for frame in sends] == ["plant/a/1"]


def test_12_7_observer_that_joins_a_foreign_mesh_gets_no_other_topics():
    """12.7 Copies outside the certificate of an observer are not sent to it, whatever groups it
    joins."""
    wire = settled(LINE, (3, "#"), rights={1: OBSERVER})
    receive(wire, 2, 1, MeshMembership(THREE, 1, ("#",)))
    wire.run(0.2)
    wire.log.clear()
    wire.publish(4, "plant/b", b"x")
    wire.publish(4, "plant/a/1", b"y")
    wire.run(0.2)
    copies = [
        effect.frame.topic
        for effect in wire.effects(2, Send)
        if isinstance(effect.frame, Publication) and effect.link == link_of(wire, 2, 1)
    ]
    assert copies == ["plant/a/1"]


def test_12_7_retained_values_outside_the_certificate_are_not_sent():
    """12.7 Requests for retained values outside the certificate are not answered."""
    wire = settled("1-2", (1, "#"), rights={1: OBSERVER})
    wire.stored[2] = {}
    for topic in ("plant/a/1", "plant/b"):
        wire.publish(2, topic, b"x", retain=True)
    wire.run(0.2)
    wire.log.clear()
    request = RetainedRequest(TWO, ONE, (), (("plant/a/1", 0), ("plant/b", 0)))
    receive(wire, 2, 1, request)
    assert wire.effects(2, ReadRetained) == [ReadRetained(ONE, ("plant/a/1",))]


def renew(wire: Wire, place: int, rights: Rights) -> None:
    """Give a running node another certificate."""
    identity = Identity(NodeId(place), key(place), incarnation=1)
    wire.rights = {**(wire.rights or {}), place: rights}
    wire.authenticators[place].certificates = wire.enrol(identity, place).certificates
    wire.give(place, CertificatesChanged())
    wire.run(2)


def test_12_8_new_certificate_changes_the_rights_of_a_node_everywhere():
    """12.8 A node with a new certificate has its rights everywhere when its record has arrived."""
    wire = settled(LINE, (1, "plant/#"), (4, "#"), rights={})
    assert cores(wire, "plant/#") == dict.fromkeys((1, 2, 3, 4), 1)
    renew(wire, 1, replace_fields(OBSERVER, issued_ms=1))
    assert cores(wire, "plant/a/#") == dict.fromkeys((1, 2, 3, 4), 2)
    assert wire.nodes[3].status().interest[ONE].filters == ("plant/a/#",)
    assert publish(wire, 3, "plant/b") == {4: [b"x"]}
    assert publish(wire, 3, "plant/a/1") == {1: [b"x"], 4: [b"x"]}
    assert publish(wire, 1, "plant/a/1") == {}
    renew(wire, 1, Rights(issued_ms=2))
    assert wire.nodes[3].status().interest[ONE].filters == ("plant/#",)
    assert publish(wire, 3, "plant/b") == {1: [b"x"], 4: [b"x"]}
    assert publish(wire, 1, "plant/a/1") == {4: [b"x"]}


def test_12_8_interest_follows_the_certificate_that_arrives():
    """12.8 ... also if the node does not narrow its interest."""
    wire = settled("1-2 2-3", (1, "plant/#"), rights={})
    record = records_of(wire, 2, ONE)[0]
    assert isinstance(record, NodeRecord)
    wire.rights = {1: replace_fields(OBSERVER, issued_ms=1)}
    newer = author(wire, 1).sign_node_record(
        replace(record, version=99, certificates=author(wire, 1).certificates)
    )
    receive(wire, 2, 1, Update((newer,)))
    assert publish(wire, 2, "plant/a/1") == {} and wire.copies() == []
    assert wire.nodes[2].receivers_in_force("plant/a/1") == []


def test_12_8_member_whose_certificate_is_not_valid_any_more_is_excluded():
    """12.8 A node whose certificate is not valid any more is unreachable at once, and its state is
    deleted."""
    wire = settled(LINE, (4, "g"), (1, "h"), rights={})
    wire.publish(3, "g", b"x", 1)
    wire.authority.revoked.add(NodeId(4))
    for place in (1, 2, 3):
        wire.give(place, CertificatesChanged())
    for place in (1, 2, 3):
        status = wire.nodes[place].status()
        assert status.reachable == (1, 2, 3)
        assert NodeId(4) not in status.interest and NodeId(4) not in status.cores
        assert wire.nodes[place].counters["certificate refused"] == 1
    wire.run(1)
    assert wire.nodes[1].status().reachable == (1, 2, 3)
    assert publish(wire, 2, "h") == {1: [b"x"]}
    wire.authority.revoked.clear()
    renew(wire, 4, Rights(issued_ms=5))
    wire.cut("4-3")
    wire.cut("3-4")
    wire.join("4-3")
    wire.run(3)
    assert wire.nodes[1].status().reachable == (1, 2, 3, 4)
    assert publish(wire, 2, "g") == {4: [b"x"]}


def test_12_8_node_whose_own_certificate_is_refused_keeps_its_rights():
    """12.8 A node does not judge itself: others exclude it."""
    wire = signed("1-2", (1, "g"))
    wire.authority.revoked.add(ONE)
    renew(wire, 1, replace_fields(OBSERVER, issued_ms=7))
    assert wire.nodes[1].status().interest[ONE].filters == ("g",)
    assert wire.nodes[2].counters["certificate refused"] > 0
