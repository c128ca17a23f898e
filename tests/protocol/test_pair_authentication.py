"""Seals and MACs between two nodes; the rules are tested in test_spec_proof.py."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace
from tests.protocol.arbitrary import unproven_publications

from hansa.errors import InvalidFrame
from hansa.identity.key_exchange import X25519KeyExchange
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.pair_authentication import (
    ALTERED_PUBLICATION,
    FORGED_ACK,
    FORGED_UNICAST,
    REPLAY_WINDOW,
    REPLAYED_UNICAST,
    UNKNOWN_KEY,
    UNPROVEN_ACK,
    UNPROVEN_PUBLICATION,
    KeyExchange,
    PairAuthenticator,
    ReplayWindow,
)
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    Fetch,
    InterestAck,
    Receipt,
    RepairResponse,
    RetainedVersions,
    SealedBulk,
    SealedUnicast,
)
from hansa.simulator.world.key_exchange import SimulatedKeyExchange

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
RECEIPT = Receipt(TWO, ONE, 1, 5, 5, via=(THREE,))
ACK = InterestAck(TWO, 7, 3, ONE, 1, 5, 0)
PUBLICATION = Publication(
    *(ONE, 1, 5, 1, "a/b", b"payload"),
    receivers=((THREE, 4), (TWO, 3)),
    properties=b"\1",
    version=9,
)
REAL, SIMULATED = "X25519", "simulated"


def make_keys(kind: str, number: int) -> KeyExchange:
    return X25519KeyExchange() if kind == REAL else SimulatedKeyExchange(str(number))


class Pair:
    """Nodes 1 and 2, which know each other's records."""

    def __init__(self, kind: str = SIMULATED, peers_max: int = 8) -> None:
        self.keys = {node: make_keys(kind, node) for node in (ONE, TWO)}
        self.nodes = {node: _record(node, keys.public_key) for node, keys in self.keys.items()}
        self.one, self.two = (self.authenticator(node, peers_max) for node in (ONE, TWO))

    def authenticator(self, node: NodeId, peers_max: int = 8) -> PairAuthenticator:
        return PairAuthenticator(node, "hansa", self.keys[node], self.nodes, peers_max)

    def restart(self, node: NodeId) -> PairAuthenticator:
        self.keys[node] = SimulatedKeyExchange(f"{node} again")
        self.nodes[node] = _record(node, self.keys[node].public_key)
        return self.authenticator(node)

    def sealed(self, frame=RECEIPT) -> SealedUnicast:
        sealed = self.one.seal(frame)
        assert sealed is not None
        return sealed


def _record(node: NodeId, exchange_key: bytes) -> NodeRecord:
    return NodeRecord(node, 1, 1, 1, b"", "", (), 1.0, (), exchange_key)


def refusal(authenticator: PairAuthenticator, sealed: SealedUnicast) -> str:
    with pytest.raises(InvalidFrame) as refused:
        authenticator.open(sealed)
    return str(refused.value)


# ---------------------------------------------------------------- unicast frames


@pytest.mark.parametrize("kind", [REAL, SIMULATED])
def test_destination_opens_a_sealed_frame(kind):
    pair = Pair(kind)
    sealed = pair.sealed()
    assert (sealed.destination, sealed.source, sealed.via) == (TWO, ONE, (THREE,))
    assert pair.two.open(sealed) == RECEIPT


def test_sealed_frame_shows_nothing_of_its_content():
    pair = Pair(REAL)
    response = RepairResponse(TWO, ONE, 1, 0, 5, 0, (encode(PUBLICATION),))
    sealed = pair.sealed(response)
    assert isinstance(sealed, SealedBulk)
    assert b"payload" not in encode(sealed)
    assert pair.two.open(sealed) == response


def test_equal_frames_are_sealed_differently():
    pair = Pair(REAL)
    boxes = {pair.sealed().box for _ in range(3)}
    assert len(boxes) == 3


@pytest.mark.parametrize("kind", [REAL, SIMULATED])
@pytest.mark.parametrize(
    "changes",
    [{"number": 99}, {"box": b"x" * 40}, {"box": b""}],
    ids=lambda changes: next(iter(changes)),
)
def test_altered_sealed_frame_is_refused(kind, changes):
    pair = Pair(kind)
    assert refusal(pair.two, replace(pair.sealed(), **changes)) == FORGED_UNICAST


def test_frame_of_another_direction_is_refused():
    pair = Pair()
    reflected = replace(pair.sealed(), destination=ONE, source=TWO)
    assert refusal(pair.one, reflected) == UNKNOWN_KEY


def test_relay_may_change_hops_and_path():
    pair = Pair()
    assert pair.two.open(replace(pair.sealed(), hops=9, via=())) == RECEIPT


def test_refused_frame_does_not_make_the_genuine_one_a_replay():
    pair = Pair()
    sealed = pair.sealed()
    assert refusal(pair.two, replace(sealed, box=b"forged")) == FORGED_UNICAST
    assert pair.two.open(sealed) == RECEIPT
    assert refusal(pair.two, sealed) == REPLAYED_UNICAST


def test_frame_for_an_earlier_run_of_the_destination_is_refused():
    pair = Pair()
    sealed = pair.sealed()
    assert refusal(pair.restart(TWO), sealed) == UNKNOWN_KEY


def test_frame_of_an_earlier_run_of_the_source_is_refused():
    pair = Pair()
    sealed = pair.sealed()
    pair.one = pair.restart(ONE)
    assert refusal(pair.two, sealed) == UNKNOWN_KEY
    assert pair.two.open(pair.sealed()) == RECEIPT


def test_federations_do_not_share_keys():
    pair = Pair()
    other = PairAuthenticator(TWO, "other", pair.keys[TWO], pair.nodes, 8)
    assert refusal(other, pair.sealed()) == FORGED_UNICAST


@pytest.mark.parametrize("exchange_key", [b"", bytes(32)], ids=["none", "low order"])
def test_nothing_is_sealed_for_a_node_without_a_usable_key(exchange_key):
    pair = Pair(REAL)
    sealed = pair.sealed()
    pair.nodes[TWO] = _record(TWO, exchange_key)
    assert pair.one.seal(RECEIPT) is None
    assert pair.one.seal(replace(RECEIPT, destination=THREE)) is None
    assert pair.one.sign_ack(ACK) == ACK
    pair.nodes[ONE] = _record(ONE, exchange_key)
    assert refusal(pair.two, sealed) == UNKNOWN_KEY


def test_forgotten_peer_repeats_no_nonce():
    pair = Pair(peers_max=1)
    numbers = [pair.sealed().number]
    pair.nodes[THREE] = _record(THREE, SimulatedKeyExchange("3").public_key)
    numbers.append(pair.sealed(replace(RECEIPT, destination=THREE)).number)
    numbers.append(pair.sealed().number)
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (Receipt(TWO, THREE, 1, 5, 5), "sealed unicast in the name of another node"),
        (Receipt(ONE, ONE, 1, 5, 5), "sealed unicast with another frame inside"),
        (Fetch(()), "sealed unicast with another frame inside"),
    ],
)
def test_member_can_seal_only_its_own_unicast_frames(inner, reason):
    pair = Pair()
    sealed = pair.sealed()
    number = sealed.number + 1
    peer = pair.one.keys_for(TWO)
    assert peer is not None
    header = b"".join(
        (*(n.to_bytes(8, "big") for n in (TWO, ONE)), peer.outgoing.key_id)
    ) + number.to_bytes(8, "big")
    box = peer.outgoing.cipher.seal(bytes(4) + number.to_bytes(8, "big"), encode(inner), header)
    assert refusal(pair.two, replace(sealed, number=number, box=box)) == reason


def test_versions_may_be_sent_in_the_name_of_the_owner():
    pair = Pair()
    versions = RetainedVersions(TWO, THREE, (("a", 5),))
    assert pair.two.open(pair.sealed(versions)) == versions


# ---------------------------------------------------------------- replay window


def test_bulk_response_that_many_frames_overtake_is_opened():
    pair = Pair()
    response = RepairResponse(TWO, ONE, 1, 0, 5, 0, (encode(PUBLICATION),))
    bulk, early = pair.sealed(response), pair.sealed()
    for _ in range(REPLAY_WINDOW):
        last = pair.sealed()
    assert pair.two.open(last) == RECEIPT
    assert refusal(pair.two, early) == REPLAYED_UNICAST
    assert pair.two.open(bulk) == response
    assert refusal(pair.two, bulk) == REPLAYED_UNICAST


def test_relay_cannot_replay_a_frame_as_one_of_the_other_kind():
    pair = Pair()
    receipt, bulk = pair.sealed(), pair.sealed(RepairResponse(TWO, ONE, 1, 0, 5, 0, ()))
    for sealed, kind in ((receipt, SealedBulk), (bulk, SealedUnicast)):
        pair.two.open(sealed)
        assert refusal(pair.two, kind(*astuple(sealed))) == FORGED_UNICAST


@given(st.lists(st.integers(1, 3 * REPLAY_WINDOW), max_size=50))
def test_window_accepts_each_number_once_and_none_that_is_too_old(numbers):
    window = ReplayWindow()
    seen: set[int] = set()
    for number in numbers:
        is_new = number not in seen and number > max(seen, default=0) - REPLAY_WINDOW
        assert window.is_new(number) == is_new
        if is_new:
            window.add(number)
            seen.add(number)


def test_window_refuses_the_number_that_is_never_used():
    assert not ReplayWindow().is_new(0)


def test_window_stays_small():
    window = ReplayWindow()
    for number in (1, 5_000, 1 << 60, (1 << 60) + REPLAY_WINDOW - 1):
        window.add(number)
    assert window.bits.bit_length() == REPLAY_WINDOW


# ---------------------------------------------------------------- interest acknowledgements


@pytest.mark.parametrize("kind", [REAL, SIMULATED])
def test_acknowledgement_proves_its_source(kind):
    pair = Pair(kind)
    signed = pair.one.sign_ack(ACK)
    assert pair.two.ack_refusal(replace(signed, hops=3, via=(THREE,))) is None
    for changes in ({"version": 4}, {"incarnation": 8}, {"epoch": 2}, {"sequence": 6}):
        assert pair.two.ack_refusal(replace(signed, **changes)) == FORGED_ACK
    assert pair.two.ack_refusal(ACK) == UNPROVEN_ACK
    assert pair.restart(TWO).ack_refusal(signed) == UNPROVEN_ACK


def test_mac_of_a_publication_is_none_of_an_acknowledgement():
    pair = Pair()
    mac = pair.one.sign_publication(PUBLICATION).macs[12:]
    assert pair.two.ack_refusal(replace(ACK, mac=mac)) == FORGED_ACK


# ---------------------------------------------------------------- publications


@pytest.mark.parametrize("kind", [REAL, SIMULATED])
def test_receiver_accepts_what_the_origin_sent(kind):
    pair = Pair(kind)
    signed = pair.one.sign_publication(PUBLICATION)
    forwarded = replace(signed, hops=5, target_groups=(1, 2))
    assert pair.two.publication_refusal(forwarded) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 2},
        {"sequence": 6},
        {"qos": 2},
        {"topic": "a/c"},
        {"payload": b"Payload"},
        {"retain": True},
        {"properties": b"\2"},
        {"version": 8},
        {"receivers": ((THREE, 4), (TWO, 2))},
        {"topic": "a/b\1", "properties": b""},
        {"properties": b"\1p", "payload": b"ayload"},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_altered_publication_is_refused(changes):
    pair = Pair()
    altered = replace(pair.one.sign_publication(PUBLICATION), **changes)
    assert pair.two.publication_refusal(altered) == ALTERED_PUBLICATION


def test_change_for_one_receiver_does_not_concern_another():
    pair = Pair()
    signed = pair.one.sign_publication(PUBLICATION)
    altered = replace(signed, receivers=((THREE, 1), (TWO, 3)))
    assert pair.two.publication_refusal(altered) is None


def test_publication_for_others_is_not_checked():
    pair = Pair()
    others = replace(PUBLICATION, receivers=((THREE, 4),))
    assert pair.two.publication_refusal(others) is None


@pytest.mark.parametrize("macs", [b"", bytes(12), bytes(24)], ids=len)
def test_publication_without_a_mac_proves_nothing(macs):
    unproven = replace(PUBLICATION, macs=macs)
    assert Pair().two.publication_refusal(unproven) == UNPROVEN_PUBLICATION


def test_publication_of_an_unknown_origin_proves_nothing():
    pair = Pair()
    signed = pair.one.sign_publication(PUBLICATION)
    assert pair.two.publication_refusal(replace(signed, origin=THREE)) == UNPROVEN_PUBLICATION


@given(unproven_publications, unproven_publications)
def test_different_publications_have_different_macs(first, second):
    pair = Pair()
    one, two = (
        replace(each, origin=ONE, receivers=((TWO, 3),), hops=0, target_groups=())
        for each in (first, second)
    )
    macs = {pair.one.sign_publication(each).macs for each in (one, two)}
    assert len(macs) == (1 if one == two else 2)


def test_keys_of_all_pairs_and_directions_differ():
    names = [SimulatedKeyExchange(str(number)) for number in range(3)]
    nodes = {NodeId(n): _record(NodeId(n), keys.public_key) for n, keys in enumerate(names)}
    made = [PairAuthenticator(NodeId(n), "hansa", keys, nodes, 8) for n, keys in enumerate(names)]
    found = []
    for source, target in product(range(3), repeat=2):
        if source != target:
            peer = made[source].keys_for(NodeId(target))
            assert peer is not None
            found.append(peer.outgoing.mac_key)
    assert len(set(found)) == 6
