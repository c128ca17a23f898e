"""The revocation list of a federation: an X.509 CRL, signed by a root."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from hansa.errors import InvalidCertificate
from hansa.identity.certificates import UNREADABLE


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The serial numbers of revoked certificates."""

    serials: frozenset[int] = frozenset()
    number: int = 0
    """Greater for a newer list."""
    der: bytes = b""
    """The signed list, to be passed on."""

    @property
    def pem(self) -> bytes:
        return x509.load_der_x509_crl(self.der).public_bytes(Encoding.PEM)


EMPTY = RevocationList()


def issue_list(
    root: x509.Certificate,
    key: Ed25519PrivateKey,
    serials: Iterable[int],
    number: int,
    now: datetime,
) -> x509.CertificateRevocationList:
    """Return a signed list. It is valid as long as its root: a node without a newer one uses it."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.subject)
        .last_update(now)
        .next_update(root.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, None)


def parse_list(data: bytes, roots: Sequence[x509.Certificate], source: str) -> RevocationList:
    """Return a list in PEM or DER; raise InvalidCertificate if no root has signed it."""
    load = x509.load_pem_x509_crl if data.startswith(b"-----") else x509.load_der_x509_crl
    try:
        found = load(data)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        is_signed = any(_is_signed_by(found, root) for root in roots)
        serials = frozenset(each.serial_number for each in found)
    except (*UNREADABLE, x509.ExtensionNotFound) as error:
        raise InvalidCertificate(f"{source} is no revocation list with a number") from error
    if not is_signed:
        raise InvalidCertificate(f"{source} is not signed by this federation's authority")
    return RevocationList(serials, number, found.public_bytes(Encoding.DER))


def _is_signed_by(found: x509.CertificateRevocationList, root: x509.Certificate) -> bool:
    key = root.public_key()
    return isinstance(key, Ed25519PublicKey) and found.is_signature_valid(key)
