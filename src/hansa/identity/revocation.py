"""Revocation lists: X.509 CRLs, one of the root, and one of each intermediate that has revoked a
node.

The list of the root counts for all certificates. That of an intermediate counts for those that the
intermediate has issued, and comes with its certificates, because agents need not know it. Lists are
passed on as they are: that of the root in DER, that of an intermediate in PEM with its chain.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hansa.errors import InvalidCertificate
from hansa.identity.certificates import UNREADABLE, check_chain, is_issued_by

LISTS_MAX = 64
"""Lists of intermediates that a node keeps; further ones are refused."""

CHAIN_MAX = 3
"""Certificates that come with a list."""

_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The serial numbers of revoked certificates."""

    serials: frozenset[int] = frozenset()
    number: int = 0
    """Greater for a newer list of the same issuer."""
    der: bytes = b""
    """The signed list."""
    chain: tuple[x509.Certificate, ...] = ()
    """The intermediate that signed it, and those between it and a root; empty for a root."""

    @property
    def issuer(self) -> bytes:
        """The key of the intermediate, empty for all roots: these continue each other's list."""
        return _key_bytes(self.chain[0]) if self.chain else b""

    @property
    def pem(self) -> bytes:
        made = x509.load_der_x509_crl(self.der).public_bytes(Encoding.PEM)
        return made + b"".join(each.public_bytes(Encoding.PEM) for each in self.chain)

    @property
    def data(self) -> bytes:
        """The list as it is passed on."""
        return self.pem if self.chain else self.der

    def covers(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate is revoked by this list."""
        if certificate.serial_number not in self.serials:
            return False
        return not self.chain or is_issued_by(certificate, self.chain[0])


EMPTY = RevocationList()


@dataclass(frozen=True, slots=True)
class Revocations:
    """The newest list of each issuer, that of the root first."""

    lists: tuple[RevocationList, ...] = ()

    @property
    def serials(self) -> frozenset[int]:
        return frozenset().union(*(each.serials for each in self.lists))

    @property
    def number(self) -> int:
        """That of the root's list; 0 without one."""
        return self.of(b"").number

    @property
    def pem(self) -> bytes:
        return b"".join(each.pem for each in self.lists)

    def of(self, issuer: bytes) -> RevocationList:
        """Return the list of an issuer, an empty one without any."""
        return next((each for each in self.lists if each.issuer == issuer), EMPTY)

    def covers(self, certificate: x509.Certificate) -> bool:
        return any(each.covers(certificate) for each in self.lists)

    def updated(self, found: Iterable[RevocationList], now: datetime) -> "Revocations":
        """Return these lists, with those of `found` that are newer. Lists of intermediates that are
        revoked or expired are left out: nothing that these have issued is valid."""
        newest = {each.issuer: each for each in self.lists}
        for each in found:
            is_known = each.issuer in newest
            of_others = len(newest) - (b"" in newest)
            if not is_known and each.chain and of_others >= LISTS_MAX:
                continue
            if not is_known or each.number > newest[each.issuer].number:
                newest[each.issuer] = each
        root = newest.get(b"", EMPTY)
        kept = (
            each
            for each in newest.values()
            if not any(root.covers(a) or a.not_valid_after_utc <= now for a in each.chain)
        )
        return Revocations(tuple(sorted(kept, key=lambda each: each.issuer)))


def issue_list(
    issuer: x509.Certificate,
    key: Ed25519PrivateKey,
    serials: Iterable[int],
    number: int,
    now: datetime,
) -> x509.CertificateRevocationList:
    """Return a signed list. It is valid as long as its issuer: a node without a newer one uses
    it."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now)
        .next_update(issuer.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, None)


def parse_list(data: bytes, roots: Sequence[x509.Certificate], source: str) -> RevocationList:
    """Return a list in PEM, with the chain of an intermediate, or in DER; raise InvalidCertificate
    if neither a root nor an intermediate below one has signed it."""
    is_pem = data.startswith(b"-----")
    load = x509.load_pem_x509_crl if is_pem else x509.load_der_x509_crl
    try:
        found = load(data)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        chain = _chain_after(data) if is_pem else ()
        is_signed = _is_signed(found, chain, roots)
        serials = frozenset(each.serial_number for each in found)
        der = found.public_bytes(Encoding.DER)
    except (*UNREADABLE, x509.ExtensionNotFound) as error:
        raise InvalidCertificate(f"{source} is no revocation list with a number") from error
    if not is_signed:
        raise InvalidCertificate(f"{source} is not signed by this federation's authority")
    return RevocationList(serials, number, der, chain)


def parse_lists(
    pem: bytes, roots: Sequence[x509.Certificate], source: str
) -> Iterator[RevocationList]:
    """Yield the lists of a file."""
    _, *found = pem.split(_BEGIN)
    if not found:
        raise InvalidCertificate(f"{source} is no revocation list with a number")
    for each in found:
        yield parse_list(_BEGIN + each, roots, source)


def _chain_after(pem: bytes) -> tuple[x509.Certificate, ...]:
    rest = pem.partition(_END)[2]
    return tuple(x509.load_pem_x509_certificates(rest)) if rest.strip() else ()


def _is_signed(
    found: x509.CertificateRevocationList,
    chain: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
) -> bool:
    if not chain:
        return any(_is_signed_by(found, root) for root in roots)
    is_root = _key_bytes(chain[0]) in {_key_bytes(each) for each in roots}
    if is_root or len(chain) > CHAIN_MAX or not _is_signed_by(found, chain[0]):
        return False
    try:
        check_chain(chain, roots, below=1)
        usage = chain[0].extensions.get_extension_for_class(x509.KeyUsage).value
        limits = chain[0].extensions.get_extension_for_class(x509.BasicConstraints).value
    except (InvalidCertificate, x509.ExtensionNotFound):
        return False
    return limits.ca and usage.crl_sign


def _is_signed_by(found: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    key = issuer.public_key()
    return isinstance(key, Ed25519PublicKey) and found.is_signature_valid(key)


def _key_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
