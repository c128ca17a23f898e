"""Section 11 of docs/protocol.md: proof of the source, with a hostile relay.

The relay 2 is the best path from 1 to 3. Another path, 1-4-5-3, is longer.
"""

import pytest
from msgspec.structs import replace
from tests.protocol.federation import link_of, restart, sent, settled, views
from tests.protocol.simulated_keys import simulated_keys
from tests.protocol.wire_of_nodes import Wire

from hansa.identity.key_exchange import X25519KeyExchange
from hansa.protocol.effects import Deliver, Duplicate, Effect, Ignored, PeerMisbehaved, Send
from hansa.protocol.events import FrameReceived
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.pair_authentication import PairAuthenticator
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    UNICASTS,
    AnyFrame,
    InterestAck,
    InterestAcks,
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedValuesFrame,
    SealedBulk,
    SealedUnicast,
    Update,
)

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
LINE = "1-2 2-3"
RING = "1-2 2-3 1-4 4-5 5-3"
RELAYED = (SealedUnicast, InterestAcks, Publication)


def proven(links: str, *subscriptions: tuple[int, str]) -> Wire:
    """Converged nodes with keys and interest, and an empty log."""
    return settled(links, *subscriptions, keys=simulated_keys())


def counted(wire: Wire, place: int, reason: str) -> int:
    return views(wire)[place].counters.get(reason, 0)


def forge(wire: Wire, place: int, frame: AnyFrame | Publication, sender: int = 2) -> list[Effect]:
    """Let a place receive a frame from a hostile neighbour."""
    return wire.give(place, FrameReceived(link_of(wire, place, sender), frame))


def alter_payload(
    source: int, target: int, frame: AnyFrame | Publication
) -> AnyFrame | Publication:
    """Node 2 alters the payload of everything that it forwards."""
    is_altered = source == 2 and isinstance(frame, Publication)
    return replace(frame, payload=b"altered") if is_altered else frame


# ---------------------------------------------------------------- keys


def test_11_1_every_run_of_a_node_has_a_key_of_its_own():
    """11.1 Records carry it; nodes without certificates have none."""
    wire = proven(LINE)
    known = wire.nodes[1].membership.known
    first = [known[NodeId(place)].exchange_key for place in (1, 2, 3)]
    assert len({*first, b""}) == 4
    wire.stop(3)
    wire.run(0.1)
    restart(wire, 3, "2-3")
    wire.run(1.0)
    assert known[THREE].exchange_key not in (b"", first[2])
    assert Wire(LINE).nodes[1].membership.known[TWO].exchange_key == b""


# ---------------------------------------------------------------- unicast frames


@pytest.mark.parametrize("keys", [X25519KeyExchange, simulated_keys()], ids=["X25519", "simulated"])
def test_11_2_relays_carry_sealed_frames_that_they_cannot_read(keys):
    """11.2 All unicast frames of guaranteed delivery and retained values are sealed."""
    wire = settled(LINE, (3, "g"), keys=keys)
    wire.stored = {1: {}, 3: {}}
    wire.is_lost = lambda *arrow: isinstance(arrow[2], Publication)
    wire.publish(1, "g", b"secret", qos=1, retain=True)
    wire.run(5.0)
    assert wire.deliveries() == {3: [b"secret"]}
    assert wire.nodes[1].delivery.acknowledged_by_all == 1
    assert [frame for kind in UNICASTS for _, _, frame in sent(wire, kind)] == []
    sealed = sent(wire, SealedUnicast)
    assert {(frame.source, frame.destination) for _, _, frame in sealed} == {(1, 3), (3, 1)}
    assert {source for source, _, _ in sealed} == {1, 2, 3}
    assert any(isinstance(frame, SealedBulk) for _, _, frame in sealed)
    if keys is X25519KeyExchange:
        assert not any(b"secret" in encode(frame) for _, _, frame in sealed)


FORGED: list[AnyFrame] = [
    Receipt(ONE, THREE, 1, 1, 1),
    PendingNotice(ONE, THREE, 1, 9),
    RepairResponse(ONE, THREE, 1, 0, 9, 9, ()),
    RetainedValuesFrame(
        ONE, THREE, (encode(Publication(THREE, 0, 0, 0, "g", b"f", True, version=9)),)
    ),
]


@pytest.mark.parametrize("frame", FORGED, ids=lambda frame: type(frame).__name__)
def test_11_2_frame_that_is_not_sealed_is_refused_at_the_first_hop(frame):
    """11.2 Its sender misbehaves: an honest relay would have refused it."""
    wire = proven(RING, (1, "g"), (3, "g"))
    reason = "unicast that is not sealed as agreed"
    assert forge(wire, 1, frame) == [PeerMisbehaved(link_of(wire, 1, 2), reason)]
    relayed = replace(frame, destination=NodeId(5))
    assert forge(wire, 1, relayed) == [PeerMisbehaved(link_of(wire, 1, 2), reason)]
    assert sent(wire, type(frame)) == []


def test_11_2_sealed_frame_is_refused_without_certificates():
    """11.2 There are no keys to open it with."""
    wire = Wire(LINE)
    frame = SealedUnicast(ONE, THREE, 1, 1, b"box")
    reason = "unicast that is not sealed as agreed"
    assert forge(wire, 1, frame) == [PeerMisbehaved(link_of(wire, 1, 2), reason)]


def test_11_2_forged_receipt_clears_nothing():
    """11.2 The relay cannot make a seal of 3: the publication stays pending and arrives."""
    wire = proven(RING, (3, "g"))
    wire.is_lost = lambda source, target, frame: isinstance(frame, RELAYED)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(0.1)
    for box in (b"", encode(Receipt(ONE, THREE, 1, 1, 1)), bytes(60)):
        forged = SealedUnicast(ONE, THREE, key_id(wire, THREE, ONE), 1 << 20, box)
        assert forge(wire, 1, forged) == [Ignored("forged unicast")]
        other = replace(forged, key_id=forged.key_id ^ 1)
        assert forge(wire, 1, other) == [Ignored("sealed unicast for other exchange keys")]
    assert wire.nodes[1].delivery.acknowledged_by_all == 0
    wire.is_lost = lambda *_: False
    wire.run(10.0)
    assert wire.deliveries() == {3: [b"x"]}
    assert wire.nodes[1].delivery.acknowledged_by_all == 1


def test_11_2_neighbour_that_forges_its_own_frame_misbehaves():
    """11.2 No relay is between two neighbours, so nobody else can have altered it."""
    wire = proven(LINE, (3, "g"))
    forged = SealedUnicast(ONE, TWO, key_id(wire, TWO, ONE), 1 << 20, bytes(40))
    assert forge(wire, 1, forged) == [PeerMisbehaved(link_of(wire, 1, 2), "forged unicast")]


def test_11_2_relay_checks_where_a_sealed_frame_comes_from():
    """11.2 Rules 3.8 and 3.9 apply: side of the map, hop limit."""
    wire = proven("1-2 2-3 2-4", (3, "g"))
    frame = SealedUnicast(THREE, ONE, 1, 1, b"box")
    assert forge(wire, 2, frame, 4) == [Ignored("origin not behind this neighbour")]
    assert forge(wire, 2, replace(frame, hops=64), 1) == [Ignored("unicast past the hop limit")]
    (send,) = forge(wire, 2, replace(frame, hops=3), 1)
    assert send == Send(link_of(wire, 2, 3), replace(frame, hops=4))


def authenticator(wire: Wire, place: int) -> PairAuthenticator:
    """Return what a node seals and signs with."""
    keys, known = wire.keys[place], wire.nodes[place].membership.known
    assert keys is not None
    return PairAuthenticator(NodeId(place), wire.settings.federation, keys, known, 8)


def key_id(wire: Wire, source: NodeId, destination: NodeId) -> int:
    """Return the id of two exchange keys; every node can compute it."""
    sealed = authenticator(wire, source).seal(Receipt(destination, source, 1, 1, 1))
    assert sealed is not None
    return sealed.key_id


# ---------------------------------------------------------------- replay


def test_11_3_replayed_frames_are_ignored():
    """11.3 Each number counts once; what the protocol sends again is sealed anew."""
    wire = proven(LINE, (3, "g"))
    wire.publish(1, "g", b"x", qos=1)
    wire.run(1.0)
    replayed = [frame for source, _, frame in sent(wire, SealedUnicast) if source == 2]
    assert replayed
    for frame in replayed:
        assert forge(wire, int(frame.destination), frame) == [Ignored("replayed unicast")]


def test_11_3_frames_for_an_earlier_run_are_ignored():
    """11.3 A frame that was sealed before a restart proves nothing after it."""
    wire = proven(LINE, (3, "g"))
    wire.publish(1, "g", b"x", qos=1)
    wire.run(1.0)
    old = [frame for source, _, frame in sent(wire, SealedUnicast) if source == 2]
    wire.stop(1)
    wire.run(0.1)
    restart(wire, 1, "1-2")
    wire.run(1.0)
    for frame in old:
        (ignored,) = forge(wire, int(frame.destination), frame)
        assert ignored == Ignored("sealed unicast for other exchange keys")


def test_11_3_sinkhole_does_not_stop_guaranteed_delivery():
    """11.3 Frames that are sent again take another path (3.10), sealed anew."""
    wire = proven(RING, (3, "g"))
    wire.is_lost = lambda source, target, frame: source == 2 and isinstance(frame, RELAYED)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(10.0)
    assert wire.deliveries() == {3: [b"x"]}
    assert wire.nodes[1].delivery.acknowledged_by_all == 1


# ---------------------------------------------------------------- restarts


def test_11_4_restarted_node_is_sent_everything_again():
    """11.4 Frames sealed for its earlier key were lost; nobody waits for a timer."""
    wire = proven(LINE, (1, "g"), (3, "g"))
    restarted = replace(
        wire.nodes[1].membership.known[THREE], incarnation=2, exchange_key=b"k" * 32
    )
    forge(wire, 1, Update((restarted,)))
    wire.run(0.05)
    acks = [frame for source, _, frame in sent(wire, InterestAcks) if source == 1]
    assert [entry.destination for frame in acks for entry in frame.entries] == [THREE]


# ---------------------------------------------------------------- interest acknowledgements


def test_11_5_forged_acknowledgement_does_not_install_an_interest():
    """11.5 The owner asks until the node itself acknowledges."""
    wire = proven(RING)
    wire.is_lost = lambda source, target, frame: isinstance(frame, InterestAcks)
    wire.subscribe(1, "g")
    wire.run(0.5)
    for mac, reason in (
        (b"", "interest ack without proof of its source"),
        (key_id(wire, THREE, ONE).to_bytes(2, "big") + bytes(10), "forged interest ack"),
    ):
        ack = InterestAck(ONE, 1, 1, THREE, 1, 1, 0, mac=mac)
        assert forge(wire, 1, InterestAcks((ack,))) == [Ignored(reason)]
    assert not wire.nodes[1].is_interest_installed()
    wire.is_lost = lambda *_: False
    wire.run(5.0)
    assert wire.nodes[1].is_interest_installed()


def test_11_5_relays_forward_acknowledgements_with_their_proof():
    """11.5 Only the owner of the interest checks it."""
    wire = proven(LINE, (1, "g"))
    assert wire.nodes[1].is_interest_installed()
    assert all(view.counters == {} for view in views(wire).values())


# ---------------------------------------------------------------- publications


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("links", [LINE, RING])
def test_11_6_altered_publication_is_detected_and_repaired(links, qos):
    """11.6 Sealed frames still pass the relay, so it is repaired also without another path."""
    wire = proven(links, (3, "g"))
    wire.alter = alter_payload
    for number in range(3):
        wire.publish(1, "g", b"%d" % number, qos=qos)
        wire.run(0.02)
    wire.run(10.0)
    assert wire.deliveries() == {3: [b"0", b"1", b"2"]}
    assert counted(wire, 3, "altered publication") >= 1
    assert wire.nodes[1].delivery.acknowledged_by_all == 3


def test_11_6_first_altered_copy_is_repaired_at_once():
    """11.6 The receiver asks the origin without waiting for its reminder."""
    wire = proven(LINE, (3, "g"))
    wire.publish(1, "g", b"before", qos=1)
    wire.run(1.0)
    wire.alter = alter_payload
    wire.publish(1, "g", b"x", qos=1)
    wire.run(0.2)
    assert wire.deliveries() == {3: [b"before", b"x"]}


def test_11_6_forged_copies_cause_one_request_at_a_time():
    """11.6 Nothing is missing, so it is not repeated."""
    wire = proven(LINE, (3, "g"))
    wire.publish(1, "g", b"x", qos=1)
    wire.run(1.0)
    wire.log.clear()
    copy = Publication(ONE, 1, 2, 1, "g", b"forged", receivers=((THREE, 1),))
    mac = key_id(wire, ONE, THREE).to_bytes(2, "big") + bytes(10)
    for _ in range(5):
        assert forge(wire, 3, replace(copy, macs=mac)) == [Ignored("altered publication")]
    wire.run(20.0)
    assert [source for source, _, _ in sent(wire, SealedUnicast)] == [3, 2]
    assert wire.effects(3, Deliver) == []


def test_11_6_altered_copy_is_not_forwarded_and_does_not_hide_the_genuine_one():
    """11.6 The receiver 2 forwards the genuine copy to 3, which comes second."""
    wire = proven(LINE, (2, "g"), (3, "g"))
    genuine = authenticator(wire, 1).sign_publication(
        Publication(ONE, 1, 1, 1, "g", b"x", receivers=((TWO, 0), (THREE, 0)))
    )
    altered = replace(genuine, payload=b"altered")
    misbehaved = PeerMisbehaved(link_of(wire, 2, 1), "altered publication")
    assert forge(wire, 2, altered, 1) == [misbehaved]
    forge(wire, 2, genuine, 1)
    wire.run(0.1)
    assert wire.deliveries() == {2: [b"x"], 3: [b"x"]}


def test_11_6_copy_for_an_earlier_run_is_forwarded_and_not_accepted():
    """11.6 It may be valid for other receivers; this one gets it from the journal."""
    wire = proven(LINE, (2, "g"), (3, "g"))
    genuine = authenticator(wire, 1).sign_publication(
        Publication(ONE, 1, 1, 1, "g", b"x", receivers=((TWO, 0), (THREE, 0)))
    )
    outdated = replace(genuine, macs=b"old key here" + genuine.macs[12:])
    effects = forge(wire, 2, outdated, 1)
    assert Ignored("publication without proof of its origin") in effects
    wire.run(0.1)
    assert wire.deliveries() == {3: [b"x"]}


def test_11_6_forged_origin_is_refused():
    """11.6 A relay cannot publish at QoS 1 or 2 in the name of another node."""
    wire = proven(RING, (3, "g"))
    copy = Publication(ONE, 1, 1, 1, "g", b"forged", receivers=((THREE, 0),))
    for macs, reason in (
        (b"", "publication without proof of its origin"),
        (key_id(wire, ONE, THREE).to_bytes(2, "big") + bytes(10), "altered publication"),
    ):
        assert forge(wire, 3, replace(copy, macs=macs))[-1] == Ignored(reason)
    wire.publish(1, "g", b"x", qos=1)
    wire.run(10.0)
    assert wire.deliveries() == {3: [b"x"]}


def test_11_6_replayed_publication_is_a_duplicate():
    """11.6 Its number was accepted before."""
    wire = proven(LINE, (3, "g"))
    wire.publish(1, "g", b"x", qos=1)
    wire.run(1.0)
    (copy,) = (send.frame for send in wire.effects(2, Send) if isinstance(send.frame, Publication))
    assert forge(wire, 3, copy) == [Duplicate(ONE, 1)]
    assert wire.deliveries() == {3: [b"x"]}
