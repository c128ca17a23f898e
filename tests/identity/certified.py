"""Certified nodes for tests."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import NODE_VALID, Claims
from hansa.identity.credentials import Credentials, install
from hansa.identity.keys import KEY_FILE, create_key, load_key


def now() -> datetime:
    return datetime.now(UTC)


def make_authority(directory: Path, federation: str = "hansa") -> CertificateAuthority:
    return CertificateAuthority.create(directory, federation, now())


def certify(
    authority: CertificateAuthority,
    state: Path,
    claims: Claims | None = None,
    valid: timedelta = NODE_VALID,
    at: datetime | None = None,
) -> Credentials:
    """Give a state directory a key, if it has none, and a certificate."""
    state.mkdir(parents=True, exist_ok=True)
    key = load_key(state / KEY_FILE) or create_key(state / KEY_FILE)
    at = at or now()
    _, bundle = authority.sign(key.public_key(), claims or Claims(state.name), at, valid)
    return install(state, bundle, at)


def write_https_certificate(path: Path) -> Path:
    """Write a key and a certificate for HTTPS on loopback, signed by itself, into one file."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=1))
        .not_valid_after(now() + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, None)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(Encoding.PEM))
    return path
