"""Authenticator of a member: signs records with the node's key, checks those of other members.

The signatures over a chain of certificates are checked once, and again when the roots change. Dates
and revocation are cheap, so they are checked at every call.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from hansa.errors import InvalidCertificate
from hansa.identity.certificates import (
    NodeCertificate,
    check_chain,
    load_chain,
    parse_chain,
)
from hansa.identity.credentials import Credentials
from hansa.identity.keys import sign, verify
from hansa.protocol.membership.rights import Rights
from hansa.protocol.model import NodeId

CHAINS_MAX = 8_192
"""Checked chains of certificates that are remembered; when full, all are forgotten."""

REFUSED = "certificate refused: "


class MemberAuthenticator:
    """Implements `protocol.membership.authentication.Authenticator`."""

    is_enforced = True

    def __init__(
        self,
        key: Ed25519PrivateKey,
        credentials: Callable[[], Credentials],
        clock: Callable[[], datetime],
    ) -> None:
        """`credentials` returns the present ones: they are loaded again while the agent runs."""
        self._key = key
        self._credentials = credentials
        self._clock = clock
        self._checked: dict[bytes, NodeCertificate] = {}
        self._checked_roots: tuple[x509.Certificate, ...] = ()

    @property
    def certificates(self) -> tuple[bytes, ...]:
        return tuple(each.public_bytes(Encoding.DER) for each in self._credentials().chain)

    def sign(self, domain: bytes, data: bytes) -> bytes:
        return sign(self._key, domain, data)

    def verify(self, key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        return verify(key, domain, data, signature)

    def check_certificates(
        self, node: NodeId, key: bytes, certificates: tuple[bytes, ...]
    ) -> Rights | str:
        try:
            certificate = self._check_chain(certificates)
            self._credentials().check_peer_later(certificate, self._clock())
        except InvalidCertificate as error:
            return f"{REFUSED}{error}"
        if certificate.node != node or certificate.key != key:
            return f"{REFUSED}it is that of another node"
        return rights_in(certificate)

    def _check_chain(self, certificates: tuple[bytes, ...]) -> NodeCertificate:
        """Return the first certificate of a chain that leads to a root."""
        roots = self._credentials().roots
        if roots != self._checked_roots or len(self._checked) >= CHAINS_MAX:
            self._checked, self._checked_roots = {}, roots
        fingerprint = hashlib.sha256(b"".join(certificates)).digest()
        found = self._checked.get(fingerprint)
        if found is None:
            if not certificates:
                raise InvalidCertificate("there is none")
            chain = load_chain(certificates)
            found = parse_chain(chain)
            check_chain(chain, roots)
            self._checked[fingerprint] = found
        return found


def rights_in(certificate: NodeCertificate) -> Rights:
    claims = certificate.claims
    is_observer = "observe" in claims.roles
    return Rights(
        may_relay=not is_observer,  # a core relays, too
        may_be_core="core" in claims.roles,
        may_publish=() if is_observer else claims.may_publish,
        may_subscribe=claims.may_subscribe,
        issued_ms=int(certificate.not_before.timestamp() * 1000),
    )
