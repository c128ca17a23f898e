"""Target `members`: what a compromised member sends with its own genuine keys and signatures.

Signatures, certificates and sealed boxes are valid, so the input passes the cryptography and
reaches the code behind it: records, certificates, unicast frames inside their boxes, interest
acknowledgements, publications with proofs. A part of the input is damaged afterwards.
"""

import random
import struct
import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.fuzz.structured import damage, make_value, types_of
from tests.fuzz.targets import LINK, Corpus, NodeUnderTest, encode_drawn
from tests.identity.certified import certify, make_authority, now

from hansa.identity.authority import CertificateAuthority
from hansa.identity.key_exchange import X25519KeyExchange
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.records import MemberAuthenticator
from hansa.protocol.events import ClockRead, FrameReceived, LinkOpened
from hansa.protocol.membership.authentication import RecordAuthentication
from hansa.protocol.membership.records import KIND_OF, NodeRecord, Record, make_node_record
from hansa.protocol.membership.set_digest import BucketDigest
from hansa.protocol.model import Identity, NodeId, Publication, node_id
from hansa.protocol.node import Node
from hansa.protocol.pair_authentication import PairAuthenticator
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import BULK_RESPONSE, encode
from hansa.protocol.wire.frames import (
    CoreAnnouncement,
    Hello,
    InterestAck,
    InterestAcks,
    SealedBulk,
    SealedUnicast,
    Unicast,
    Update,
)

CLOCK_MS = 10_000
HEADER = struct.Struct(">QQHQ")
NONCE = struct.Struct(">IQ")
DAMAGED = 0.2
"""Part of the frames whose bytes are damaged after they were signed or sealed."""


class Member:
    """One node with its certificate and keys."""

    def __init__(self, state: Path, name: str) -> None:
        authority = CertificateAuthority(state / "ca")
        self._credentials = certify(authority, state / name)
        key = load_key(state / name / KEY_FILE)
        assert key is not None
        self.authenticator = MemberAuthenticator(key, lambda: self._credentials, now)
        self.records = RecordAuthentication(ProtocolSettings().federation, self.authenticator)
        public = key.public_key().public_bytes_raw()
        self.exchange = X25519KeyExchange()
        identity = Identity(node_id(public), public, 1_000, name, (), 1.0)
        self.identity = identity.with_exchange_key(self.exchange.public_key)

    @property
    def node(self) -> NodeId:
        return self.identity.node

    def record(self, version: int, *links: NodeId) -> NodeRecord:
        made = make_node_record(
            self.identity,
            self.identity.incarnation,
            version,
            [(each, 1_000) for each in sorted(links)],
            self.authenticator.certificates,
        )
        return self.records.sign_node_record(made)


class MemberTarget(NodeUnderTest):
    """Frames of a member at a node that checks certificates."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        state = Path(self._directory.name)
        make_authority(state / "ca")
        self._own, self._member = Member(state, "own"), Member(state, "member")
        self._known = (self._own.node, self._member.node, 1, 2, 999, 1_000, 1_001)
        self._corpus = Corpus()
        self._records = types_of(Record)
        self._unicasts = types_of(Unicast)
        (self._ack,) = types_of(InterestAck)
        (self._publication,) = types_of(Publication)
        (self._announcement,) = types_of(CoreAnnouncement)
        self._number = 0
        super().__init__()

    def start(self) -> Node:
        own, member = self._own, self._member
        settings = ProtocolSettings(nodes_max=16, filters_max=64)
        node = Node(own.identity, settings, None, own.exchange, own.authenticator)
        node.handle(ClockRead(CLOCK_MS), 0.0)
        effects = node.handle(LinkOpened(LINK, True, True), 0.0)
        ours = next(each.frame for each in effects if hasattr(each, "frame"))
        assert isinstance(ours, Hello)
        hello = replace(ours, node=member.node, key=member.identity.key, name="member")
        node.handle(FrameReceived(LINK, hello), 0.0)
        node.handle(FrameReceived(LINK, Update((member.record(1, own.node),))), 0.0)
        assert node.sizes()["nodes"] == 2, "the member is not accepted"
        self._pair = PairAuthenticator(
            *(member.node, settings.federation, member.exchange),
            {own.node: own.record(1, member.node)},
            16,
        )
        self._version = 1
        return node

    def make(self, rng: random.Random) -> bytes:
        kinds = (self._sealed, self._sealed, self._update, self._other)
        data = encode_drawn(lambda: rng.choice(kinds)(rng))
        return damage(data, rng, self._corpus.inputs) if rng.random() < DAMAGED else data

    def _value(self, info: Any, rng: random.Random) -> Any:
        return make_value(info, rng, self._known)

    def _sealed(self, rng: random.Random) -> SealedUnicast:
        """Return a box with a unicast frame, or with damaged bytes of one."""
        value = self._value(rng.choice(self._unicasts), rng)
        if rng.random() < 0.9:
            value = replace(value, destination=self._own.node, source=self._member.node)
        inside = self._corpus.draw(rng, bytes(encode(value)))
        peer = self._pair.keys_for(self._own.node)
        assert peer is not None
        self._number += 1
        key_id = int.from_bytes(peer.outgoing.key_id, "big")
        header = HEADER.pack(self._own.node, self._member.node, key_id, self._number)
        box = peer.outgoing.cipher.seal(NONCE.pack(0, self._number), inside, header)
        kind = SealedBulk if inside[:1] == bytes((BULK_RESPONSE,)) else SealedUnicast
        return kind(self._own.node, self._member.node, key_id, self._number, box)

    def _update(self, rng: random.Random) -> Update:
        return Update(tuple(self._record(rng) for _ in range(rng.randrange(1, 4))))

    def _record(self, rng: random.Random) -> Record:
        """Return a record in the member's own name, signed by it, or of any node."""
        made = self._value(rng.choice(self._records), rng)
        if rng.random() < 0.8:
            self._version += 1
            version = rng.choice((self._version, made.version))
            made = replace(made, node=self._member.node, incarnation=1_000, version=version)
        if not isinstance(made, NodeRecord):
            stamp = (made.incarnation, made.version)
            digest = BucketDigest().changed(made.added, made.removed)
            kind = KIND_OF[type(made)]
            proof = self._member.records.sign_set(kind, made.node, stamp, digest)
            signed: Record = replace(made, signature=proof)
            return signed
        genuine = self._member.record(made.version, self._own.node)
        if rng.random() < 0.5:
            made = replace(genuine, name=made.name, addresses=made.addresses, links=made.links)
        if rng.random() < 0.5:
            certificates = [damage(each, rng, []) for each in genuine.certificates]
            rng.shuffle(certificates)
            made = replace(made, key=genuine.key, certificates=tuple(certificates))
        return self._member.records.sign_node_record(made)

    def _other(self, rng: random.Random) -> Any:
        """Return an acknowledgement, publication or announcement with its genuine proof."""
        member, own = self._member.node, self._own.node
        match rng.randrange(3):
            case 0:
                ack = replace(self._value(self._ack, rng), source=member, destination=own)
                return InterestAcks((self._pair.sign_ack(ack),))
            case 1:
                receivers = ((own, rng.choice((0, 1, 2, 1 << 40))),)
                made = replace(self._value(self._publication, rng), origin=member)
                if rng.random() < 0.8:
                    made = replace(made, qos=rng.choice((1, 2)), receivers=receivers)
                return self._pair.sign_publication(made)
            case _:
                made = self._value(self._announcement, rng)
                stamp = (made.incarnation, made.sequence)
                proof = self._member.records.sign_announcement(member, stamp)
                return replace(made, core=member, signature=proof)

    def close(self) -> None:
        self._directory.cleanup()
