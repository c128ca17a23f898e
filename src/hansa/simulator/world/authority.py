"""A simulated certificate authority: signatures and certificates that cost almost nothing.

A signature is a keyed hash whose secret the authority derives from the public key of the signer. A
simulated node gets only its own `SimulatedAuthenticator`, so it cannot sign as another one; it can
check every signature, because the authority does that.
"""

import hashlib

import msgspec

from hansa.protocol.membership.rights import UNLIMITED, Rights
from hansa.protocol.model import NodeId
from hansa.protocol.wire.bounds import SIGNATURE_BYTES

_AUTHORITY = b"authority"


class SimulatedAuthority:
    """Issues certificates, and knows the secrets of all keys."""

    def __init__(self, seed: int) -> None:
        self._secret = hashlib.sha256(f"{seed} authority".encode()).digest()
        self.revoked: set[NodeId] = set()
        """Nodes whose certificates are refused."""

    def enrol(
        self, node: NodeId, key: bytes, rights: Rights = UNLIMITED
    ) -> "SimulatedAuthenticator":
        """Return the authenticator of a node with a new certificate."""
        content = msgspec.msgpack.encode((node, key, rights))
        return SimulatedAuthenticator(
            self, key, (content, self.sign(_AUTHORITY, b"certificate", content))
        )

    def sign(self, key: bytes, domain: bytes, data: bytes) -> bytes:
        """Return the signature of the owner of a key."""
        secret = hashlib.blake2b(self._secret + key, digest_size=32).digest()
        text = bytes((len(domain),)) + domain + data
        return hashlib.blake2b(text, key=secret, digest_size=SIGNATURE_BYTES).digest()

    def rights_in(self, node: NodeId, key: bytes, certificates: tuple[bytes, ...]) -> Rights | str:
        if len(certificates) != 2:
            return "certificate refused: there is none"
        content, signature = certificates
        if signature != self.sign(_AUTHORITY, b"certificate", content):
            return "certificate refused: it is not signed by the authority"
        owner, owner_key, rights = msgspec.msgpack.decode(
            content, type=tuple[NodeId, bytes, Rights]
        )
        if (owner, owner_key) != (node, key):
            return "certificate refused: it is that of another node"
        return "certificate refused: it is revoked" if node in self.revoked else rights


class SimulatedAuthenticator:
    """The authenticator of one simulated node."""

    is_enforced = True

    def __init__(
        self, authority: SimulatedAuthority, key: bytes, certificates: tuple[bytes, ...]
    ) -> None:
        self._authority = authority
        self._key = key
        self.certificates = certificates

    def sign(self, domain: bytes, data: bytes) -> bytes:
        return self._authority.sign(self._key, domain, data)

    def sign_as(self, key: bytes, domain: bytes, data: bytes) -> bytes:
        """Sign with the key of a node that the owner of this object invented."""
        return self._authority.sign(key, domain, data)

    def verify(self, key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        return signature == self._authority.sign(key, domain, data)

    def check_certificates(
        self, node: NodeId, key: bytes, certificates: tuple[bytes, ...]
    ) -> Rights | str:
        return self._authority.rights_in(node, key, certificates)
