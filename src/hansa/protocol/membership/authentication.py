"""Authentication of records: which are genuine, and what their nodes may do.

Records are forwarded and sent again by nodes that did not write them. In a federation with
certificates the owner signs each one, so that no other node can change it (protocol.md, section
12). `Authenticator` is the port to keys and certificates; `PlainAuthenticator`, for federations
without certificates, accepts everything.

A signature covers a domain, the name of the federation, and:

    node record         all fields, as encoded
    set record          kind, node, incarnation, version, digest of the whole set at that version
    core announcement   core, incarnation, sequence number
"""

import hashlib
from typing import Protocol

import msgspec
from msgspec.structs import replace

from hansa.protocol.membership.records import NodeRecord, RecordKind, Stamp
from hansa.protocol.membership.rights import NO_RIGHTS, UNLIMITED, Rights
from hansa.protocol.membership.set_digest import BucketDigest, NoDigest, SetDigest
from hansa.protocol.model import NodeId

NODE_DOMAIN = b"hansa node record"
SET_DOMAIN = b"hansa set record"
CORE_DOMAIN = b"hansa core announcement"

FORGED = "forged record"
FORGED_ANNOUNCEMENT = "forged core announcement"
REPLACED_CERTIFICATE = "certificate refused: an older one than the known one"

VERIFIED_MAX = 8_192
"""Signatures remembered as verified; when full, all are forgotten."""

Proof = tuple[bytes, bytes]
"""A public key and a signature."""

_encode = msgspec.msgpack.Encoder().encode


class Authenticator(Protocol):
    """Signs as this node, and checks signatures and certificates of all nodes."""

    is_enforced: bool
    """Whether records must be signed."""

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """This node's certificate and those between it and a root."""

    def sign(self, domain: bytes, data: bytes) -> bytes: ...

    def verify(self, key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        """Whether the owner of a public key signed these bytes for this domain."""

    def check_certificates(
        self, node: NodeId, key: bytes, certificates: tuple[bytes, ...]
    ) -> Rights | str:
        """Return the rights of a node, or why its certificates are refused."""


class PlainAuthenticator:
    """Of a federation without certificates: records are not signed, and all nodes may do
    everything."""

    is_enforced = False
    certificates: tuple[bytes, ...] = ()

    def sign(self, domain: bytes, data: bytes) -> bytes:
        return b""

    def verify(self, key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        return True

    def check_certificates(
        self, node: NodeId, key: bytes, certificates: tuple[bytes, ...]
    ) -> Rights | str:
        return UNLIMITED


class RecordAuthentication:
    """Signs this node's records, checks those of others, and knows the rights of all nodes."""

    def __init__(self, federation: str, authenticator: Authenticator) -> None:
        self._federation = federation
        self._authenticator = authenticator
        self.is_enforced = authenticator.is_enforced
        self.empty_digest: SetDigest = BucketDigest() if self.is_enforced else NoDigest()
        self._rights: dict[NodeId, Rights] = {}
        self.leaves: dict[NodeId, None] = {}
        """The nodes that may not relay."""
        self._verified: dict[bytes, None] = {}

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """This node's certificates."""
        return self._authenticator.certificates

    # ------------------------------------------------------------ rights

    def rights_of(self, node: NodeId) -> Rights:
        """Return what a node may do; a node that is not known may do nothing."""
        return self._rights.get(node, NO_RIGHTS) if self.is_enforced else UNLIMITED

    def set_rights(self, node: NodeId, rights: Rights) -> None:
        self._rights[node] = rights
        self.leaves.pop(node, None)
        if not rights.may_relay:
            self.leaves[node] = None

    def may_relay(self, node: NodeId) -> bool:
        return node not in self.leaves

    def leaves_refused(self, topic: str) -> list[NodeId]:
        """Return the nodes that may not relay and may not receive a topic: copies of it must not
        reach them. A node that relays sees what it relays."""
        return [node for node in self.leaves if not self._rights[node].allows_receiving(topic)]

    def remove_node(self, node: NodeId) -> None:
        self._rights.pop(node, None)
        self.leaves.pop(node, None)

    def check_certificates(self, record: NodeRecord) -> Rights | str:
        """Return the rights that the certificates of a record give, or why they are refused."""
        found = self._authenticator.check_certificates(record.node, record.key, record.certificates)
        known = self._rights.get(record.node)
        if known is not None and isinstance(found, Rights) and found.issued_ms < known.issued_ms:
            return REPLACED_CERTIFICATE
        return found

    # ------------------------------------------------------------ signatures

    def sign_node_record(self, record: NodeRecord) -> NodeRecord:
        if not self.is_enforced:
            return record
        return replace(record, signature=self._sign(NODE_DOMAIN, self._node_data(record)))

    def is_genuine(self, record: NodeRecord) -> bool:
        """Whether the owner of its key has signed a node record."""
        return not self.is_enforced or self._verify(
            record.key, NODE_DOMAIN, self._node_data(record), record.signature
        )

    def sign_set(self, kind: RecordKind, node: NodeId, stamp: Stamp, digest: SetDigest) -> bytes:
        """Return the signature of this node over one of its sets."""
        if not self.is_enforced:
            return b""
        return self._sign(SET_DOMAIN, self._set_data(kind, node, stamp, digest))

    def is_genuine_set(
        self,
        row: tuple[RecordKind, NodeId],
        stamp: Stamp,
        digest: SetDigest,
        proof: tuple[bytes, bytes],
    ) -> bool:
        """Whether the owner of a set has signed it. `proof` is the owner's key and the
        signature."""
        return not self.is_enforced or self._verify(
            proof[0], SET_DOMAIN, self._set_data(*row, stamp, digest), proof[1]
        )

    def sign_announcement(self, core: NodeId, stamp: Stamp) -> bytes:
        """Return the signature of this node over a core announcement with this stamp."""
        if not self.is_enforced:
            return b""
        return self._sign(CORE_DOMAIN, _encode((self._federation, core, *stamp)))

    def is_genuine_announcement(self, core: NodeId, stamp: Stamp, proof: Proof) -> bool:
        """Whether a core has announced this stamp."""
        return not self.is_enforced or self._verify(
            proof[0], CORE_DOMAIN, _encode((self._federation, core, *stamp)), proof[1]
        )

    def _node_data(self, record: NodeRecord) -> bytes:
        return _encode((self._federation, replace(record, signature=b"")))

    def _set_data(self, kind: RecordKind, node: NodeId, stamp: Stamp, digest: SetDigest) -> bytes:
        return _encode((self._federation, kind, node, *stamp, digest.root))

    def _sign(self, domain: bytes, data: bytes) -> bytes:
        return self._authenticator.sign(domain, data)

    def _verify(self, key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        """Verify, once per signature: an announcement comes over every link."""
        fingerprint = hashlib.sha256(b"".join((key, signature, domain, data))).digest()
        if fingerprint in self._verified:
            return True
        if not self._authenticator.verify(key, domain, data, signature):
            return False
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[fingerprint] = None
        return True
