"""TLS contexts of links: version 1.3 only, both sides with certificates of the federation.

The side that dials is the TLS *server*. The TLS client checks the server's certificate before it
sends its own; so an agent shows its certificate, with federation, name and topics, only to those
who have proved to be members, and not to everybody who connects to its port.
"""

import hashlib
import ssl
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from hansa.errors import InvalidCertificate
from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import NodeCertificate, load_chain, parse_chain
from hansa.identity.credentials import CERTIFICATE_FILE, Credentials

_EXPIRED, _NOT_YET_VALID = 10, 9
_UNTRUSTED = (2, 7, 18, 19, 20, 21, 27)
"""Results of OpenSSL's verification (X509_V_ERR_…)."""


@dataclass(frozen=True, slots=True)
class LinkContexts:
    """The contexts for links with the same credentials."""

    credentials: Credentials
    dialling: ssl.SSLContext
    accepting: ssl.SSLContext


def make_contexts(credentials: Credentials) -> LinkContexts:
    """Return the contexts of a node; raise InvalidCertificate if OpenSSL refuses the files."""
    dialling = _make_context(ssl.PROTOCOL_TLS_SERVER, credentials)
    dialling.num_tickets = 0  # sessions are not resumed
    return LinkContexts(credentials, dialling, _make_context(ssl.PROTOCOL_TLS_CLIENT, credentials))


def _make_context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node is identified by its key, whatever its address
    context.verify_mode = ssl.CERT_REQUIRED
    directory = credentials.directory
    try:
        context.load_cert_chain(directory / CERTIFICATE_FILE, credentials.key_file)
    except OSError as error:
        raise InvalidCertificate(f"cannot use {directory / CERTIFICATE_FILE}: {error}") from error
    _trust(context, credentials.roots)
    return context


def check_tls_peer(connection: ssl.SSLObject, credentials: Credentials) -> NodeCertificate:
    """Return the peer's certificate after a handshake; raise InvalidCertificate if the federation
    refuses it."""
    certificate = parse_chain(peer_chain(connection))
    credentials.check_peer(certificate)
    return certificate


def peer_chain(connection: ssl.SSLObject | ssl.SSLSocket) -> list[x509.Certificate]:
    """Return the certificate of the peer and the authorities between it and a root, as OpenSSL has
    checked them."""
    if sys.version_info >= (3, 13):
        found = connection.get_verified_chain()
    else:  # the method is there since 3.10, one layer below
        lower = connection._sslobj.get_verified_chain()  # type: ignore[union-attr]  # noqa: SLF001
        found = [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in lower]
    return load_chain(found[:-1])  # the root is last


def explain_handshake_error(error: ssl.SSLError) -> str:
    """Return why a handshake failed, without words that a peer chose."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "the peer's certificate has expired"
        if error.verify_code == _NOT_YET_VALID:
            return "the peer's certificate is not valid yet"
        if error.verify_code in _UNTRUSTED:
            return "the peer's certificate is not signed by this federation's authority"
        return f"the peer's certificate is refused: {error.verify_message}"
    reason = (error.reason or "").lower()
    if "alert" in reason:
        said = reason.rpartition("alert_")[2].replace("_", " ")
        return f"the peer refused our certificate or TLS version: {said}"
    if "did_not_return_a_certificate" in reason:
        return "the peer has no certificate"
    if "version" in reason or "protocol" in reason:
        return "the peer does not speak TLS 1.3"
    return f"no TLS handshake: {reason.replace('_', ' ') or 'connection closed'}"


def make_pinned_context() -> tuple[ssl.SSLContext, bytes]:
    """Return a server context with a new certificate that clients recognise by its fingerprint,
    and the fingerprint."""
    key, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "enrolment")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=400))
        .sign(key, None)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_key(context, key, certificate.public_bytes(Encoding.PEM))
    der = certificate.public_bytes(Encoding.DER)
    return context, hashlib.sha256(der).digest()


def make_issuer_context(authority: CertificateAuthority, now: datetime) -> ssl.SSLContext:
    """Return the context of an issuer that renews certificates. It accepts connections, so it is
    the TLS client, and strangers see no certificate."""
    key = Ed25519PrivateKey.generate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load_key(context, key, authority.issue_issuer(key.public_key(), now))
    _trust(context, authority.roots)
    return context


def _load_key(context: ssl.SSLContext, key: Ed25519PrivateKey, chain: bytes) -> None:
    """Use a key and its certificates, which are in no file."""
    with tempfile.TemporaryDirectory() as directory:  # OpenSSL loads keys from files only
        path = Path(directory) / "issuer.pem"
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain
        )
        context.load_cert_chain(path)


def _trust(context: ssl.SSLContext, roots: Iterable[x509.Certificate]) -> None:
    data = b"".join(each.public_bytes(Encoding.DER) for each in roots)
    context.load_verify_locations(cadata=data)
