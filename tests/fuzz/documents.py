"""Target `documents`: requests, certificates, revocation lists, bundles and tokens, damaged.

Agents get revocation lists and certificates from neighbours, issuers get requests, and nodes get
bundles. A refusal is UsageError, of which InvalidCertificate is a kind.
"""

import base64
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.fuzz.structured import damage
from tests.identity.certified import certify, make_authority, now

from hansa.errors import UsageError
from hansa.identity.authority import check_renewal_request, make_request, parse_request
from hansa.identity.certificates import check_chain, load_chain, parse_chain
from hansa.identity.credentials import parse_bundle
from hansa.identity.enrolment import Token, parse_token
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.revocation import parse_list


class DocumentTarget:
    """Decoders of what authorities and nodes hand to each other."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            state = Path(directory)
            authority = make_authority(state / "ca")
            certify(authority, state / "other")
            authority.revoke("other", now())
            made = certify(authority, state / "node")
            key = load_key(state / "node" / KEY_FILE)
            assert key is not None
            self._request = x509.load_pem_x509_csr(make_request(key))
            _, self._bundle = authority.sign(key.public_key(), made.certificate.claims, now())
        self._made = made
        self._token = Token("127.0.0.1", 1, bytes(32), bytes(16), "a:1", "b:2").encode()

    def run(self, rng: random.Random) -> None:
        kinds = (self._ask, self._certify, self._revoke, self._install, self._invite)
        with suppress(UsageError):
            rng.choice(kinds)(lambda data: damage(data, rng, []))

    def _ask(self, change: Callable[[bytes], bytes]) -> None:
        der = change(self._request.public_bytes(Encoding.DER))
        text = base64.encodebytes(der)
        pem = b"-----BEGIN CERTIFICATE REQUEST-----\n%b-----END CERTIFICATE REQUEST-----\n" % text
        with suppress(UsageError):
            check_renewal_request(pem, self._made.certificate)
        parse_request(change(pem))

    def _certify(self, change: Callable[[bytes], bytes]) -> None:
        der = change(self._made.chain[0].public_bytes(Encoding.DER))
        chain = load_chain([der])
        parse_chain(chain)
        check_chain(chain, self._made.roots)

    def _revoke(self, change: Callable[[bytes], bytes]) -> None:
        parse_list(change(self._made.revoked.lists[0].data), self._made.roots, "a list")

    def _install(self, change: Callable[[bytes], bytes]) -> None:
        parse_bundle(change(self._bundle.pem), "a bundle")

    def _invite(self, change: Callable[[bytes], bytes]) -> None:
        parse_token(change(self._token.encode()).decode("latin-1"))

    def close(self) -> None: ...
