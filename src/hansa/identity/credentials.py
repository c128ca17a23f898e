"""The certificate of a node and the roots that it trusts, in files of its state directory.

    key.pem            the private key, made on this machine
    certificate.pem    the node's certificate, then those between it and a root
    authority.pem      the roots of the federation
    revoked.pem        the revocation list, optional
    issuer             HOST:PORT of the issuer that renews the certificate, optional

Files are replaced as a whole, so a running agent can load them again at any time.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity import certificates, revocation
from hansa.identity.authority import AUTHORITY_FILE, REVOKED_FILE, Bundle
from hansa.identity.certificates import NodeCertificate
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.revocation import RevocationList
from hansa.journal.disk import replace_file

CERTIFICATE_FILE = "certificate.pem"
ISSUER_FILE = "issuer"

_CRL_MARK = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a node proves its membership with, and checks that of others."""

    directory: Path
    key_file: Path
    certificate: NodeCertificate
    chain: tuple[x509.Certificate, ...]
    """The certificate, then those between it and a root."""
    roots: tuple[x509.Certificate, ...]
    revoked: RevocationList

    @property
    def federation(self) -> str:
        return self.certificate.federation

    def check_peer(self, peer: NodeCertificate) -> None:
        """Raise InvalidCertificate for a peer that TLS accepted but the federation does not."""
        certificates.check_federation(peer, self.federation)
        if peer.serial in self.revoked.serials:
            raise InvalidCertificate("the certificate is revoked")

    def check_peer_later(self, peer: NodeCertificate, now: datetime) -> None:
        """Raise InvalidCertificate if a peer that was accepted once is not a member any more."""
        self.check_peer(peer)
        certificates.check_dates(peer.x509, now)

    def expiry_warning(self, now: datetime, is_renewed: bool = False) -> str:
        """Return that the certificate must be renewed, empty if it need not yet. An agent that
        renews automatically does so before that."""
        certificate = self.certificate
        if certificate.serial in self.revoked.serials:
            return "the certificate of this node is revoked: other nodes refuse it"
        if not certificates.ends_soon(certificate, now, is_renewed):
            return ""
        verb = "expires" if certificate.not_after > now else "expired"
        return (
            f"the certificate of this node {verb} at {certificate.not_after:%Y-%m-%d %H:%M} UTC:"
            f" renew it with hansa ca renew {certificate.node:016x}, and install the result with"
            " hansa join"
        )


def has_certificate(directory: Path) -> bool:
    """Whether a node with this state directory has a certificate."""
    return (directory / CERTIFICATE_FILE).exists()


def load_credentials(directory: Path, key_file: Path, now: datetime) -> Credentials:
    """Load and check the files; raise InvalidCertificate or UsageError with what to change."""
    path = directory / CERTIFICATE_FILE
    chain = certificates.load_certificates(_read(path), str(path))
    try:
        certificate = _check_own(chain[0], key_file, now)
        roots = load_roots(directory)
        certificates.check_chain(chain, roots)
    except InvalidCertificate as error:
        raise InvalidCertificate(f"{path}: {error}") from error
    revoked = _load_revoked(directory, roots)
    return Credentials(directory, key_file, certificate, tuple(chain), roots, revoked)


def _check_own(certificate: x509.Certificate, key_file: Path, now: datetime) -> NodeCertificate:
    """Return the certificate of this node; raise InvalidCertificate if it is not one."""
    found = certificates.parse_certificate(certificate)
    certificates.check_dates(certificate, now)
    key = load_key(key_file)
    if key is None or key.public_key() != certificate.public_key():
        raise InvalidCertificate(f"it belongs to another key than {key_file}: get a new one")
    return found


def load_roots(directory: Path) -> tuple[x509.Certificate, ...]:
    path = directory / AUTHORITY_FILE
    return tuple(certificates.load_certificates(_read(path), str(path)))


def install(directory: Path, bundle: Bundle, now: datetime) -> Credentials:
    """Check what an authority has signed, and write it into a state directory. If it is refused,
    the files there stay as they are. A revocation list that is not newer is left out."""
    source = "the new certificate"
    chain = certificates.load_certificates(bundle.certificate, source)
    roots = tuple(certificates.load_certificates(bundle.roots, source))
    try:
        _check_own(chain[0], directory / KEY_FILE, now)
        certificates.check_chain(chain, roots)
    except InvalidCertificate as error:
        raise InvalidCertificate(f"{source}: {error}") from error
    if bundle.revoked:
        number = revocation.parse_list(bundle.revoked, roots, "its revocation list").number
        with suppress(UsageError):  # a list of another federation is replaced
            if number <= _load_revoked(directory, roots).number:
                bundle = replace(bundle, revoked=b"")
    install_files(directory, bundle)
    return load_credentials(directory, directory / KEY_FILE, now)


def install_files(directory: Path, bundle: Bundle) -> None:
    """Write what an authority has signed."""
    files = {AUTHORITY_FILE: bundle.roots, REVOKED_FILE: bundle.revoked}
    # The certificate last: with it, the agent uses TLS.
    for name, data in {**files, CERTIFICATE_FILE: bundle.certificate}.items():
        if data:
            try:
                replace_file(directory / name, data)
            except OSError as error:
                raise UsageError(f"cannot write {directory / name}: {error.strerror}") from error


def save_issuer(directory: Path, address: str) -> None:
    """Remember where the certificate is renewed."""
    try:
        replace_file(directory / ISSUER_FILE, f"{address}\n".encode())
    except OSError as error:
        raise UsageError(f"cannot write {directory / ISSUER_FILE}: {error.strerror}") from error


def load_issuer(directory: Path) -> str:
    """Return where the certificate is renewed, empty if that is not known."""
    try:
        return (directory / ISSUER_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def parse_bundle(pem: bytes, source: str) -> Bundle:
    """Split a file made by `hansa ca sign`: certificate, intermediates, roots, revocation list."""
    body, mark, revoked = pem.partition(_CRL_MARK)
    chain, roots = b"", b""
    for each in certificates.load_certificates(body, source):
        try:
            is_root = each.subject == each.issuer
        except certificates.UNREADABLE as error:
            raise InvalidCertificate(f"{source}: a certificate cannot be read") from error
        if is_root:
            roots += each.public_bytes(Encoding.PEM)
        else:
            chain += each.public_bytes(Encoding.PEM)
    if not chain or not roots:
        raise InvalidCertificate(f"{source} must hold the certificate of a node and its roots")
    return Bundle(chain, roots, mark + revoked)


def _load_revoked(directory: Path, roots: tuple[x509.Certificate, ...]) -> RevocationList:
    path = directory / REVOKED_FILE
    if not path.exists():
        return revocation.EMPTY
    return revocation.parse_list(_read(path), roots, str(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
