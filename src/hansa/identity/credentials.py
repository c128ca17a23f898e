"""The certificate of a node and the roots that it trusts, in files of its state directory.

    key.pem            the private key, made on this machine
    certificate.pem    the node's certificate, then those between it and a root
    authority.pem      the roots of the federation
    revoked.pem        the revocation lists, optional
    issuer             HOST:PORT of the issuer that renews the certificate, optional

Files are replaced as a whole, so a running agent can load them again at any time.
"""

from collections.abc import Iterable, Sequence
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
from hansa.identity.revocation import Revocations
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
    revoked: Revocations

    @property
    def federation(self) -> str:
        return self.certificate.federation

    def check_peer(self, peer: NodeCertificate) -> None:
        """Raise InvalidCertificate for a peer that TLS accepted but the federation does not."""
        if "manager" in peer.claims.roles:
            raise InvalidCertificate("it is that of a manager, not of a node")
        self._check_member(peer)

    def check_manager(self, peer: NodeCertificate) -> None:
        """Raise InvalidCertificate unless a peer is a manager of this federation."""
        if "manager" not in peer.claims.roles:
            raise InvalidCertificate("it is that of a node, without the role manager")
        self._check_member(peer)

    def _check_member(self, peer: NodeCertificate) -> None:
        certificates.check_federation(peer, self.federation)
        if self.revoked.covers(peer.x509):
            raise InvalidCertificate("the certificate is revoked")
        self.check_authorities(peer.authorities)

    def check_authorities(self, authorities: Iterable[x509.Certificate]) -> None:
        """Raise InvalidCertificate if an authority between a certificate and a root is revoked."""
        if any(self.revoked.covers(each) for each in authorities):
            raise InvalidCertificate("the authority that issued the certificate is revoked")

    def check_peer_later(self, peer: NodeCertificate, now: datetime) -> None:
        """Raise InvalidCertificate if a peer that was accepted once is not a member any more."""
        self.check_peer(peer)
        for each in (peer.x509, *peer.authorities):
            certificates.check_dates(each, now)

    def expiry_warning(self, now: datetime, is_renewed: bool = False) -> str:
        """Return that the certificate must be renewed, empty if it need not yet. An agent that
        renews automatically does so before that."""
        certificate = self.certificate
        if any(self.revoked.covers(each) for each in self.chain):
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
        certificate = _check_own(chain, key_file, now)
        roots = load_roots(directory)
        certificates.check_chain(chain, roots)
    except InvalidCertificate as error:
        raise InvalidCertificate(f"{path}: {error}") from error
    revoked = load_revoked(directory, roots, now)
    return Credentials(directory, key_file, certificate, tuple(chain), roots, revoked)


def _check_own(chain: Sequence[x509.Certificate], key_file: Path, now: datetime) -> NodeCertificate:
    """Return the certificate of this node; raise InvalidCertificate if it is not one."""
    found = certificates.parse_chain(chain)
    for each in chain:
        certificates.check_dates(each, now)
    key = load_key(key_file)
    if key is None or key.public_key() != chain[0].public_key():
        raise InvalidCertificate(f"it belongs to another key than {key_file}: get a new one")
    return found


def load_roots(directory: Path) -> tuple[x509.Certificate, ...]:
    path = directory / AUTHORITY_FILE
    return tuple(certificates.load_certificates(_read(path), str(path)))


def install(directory: Path, bundle: Bundle, now: datetime) -> Credentials:
    """Check what an authority has signed, and write it into a state directory. If it is refused,
    the files there stay as they are. Of revocation lists the newest of each issuer is kept."""
    source = "the new certificate"
    chain = certificates.load_certificates(bundle.certificate, source)
    roots = tuple(certificates.load_certificates(bundle.roots, source))
    try:
        _check_own(chain, directory / KEY_FILE, now)
        certificates.check_chain(chain, roots)
    except InvalidCertificate as error:
        raise InvalidCertificate(f"{source}: {error}") from error
    if bundle.revoked:
        found = revocation.parse_lists(bundle.revoked, roots, "its revocation list")
        known = Revocations()
        with suppress(UsageError):  # lists of another federation are replaced
            known = load_revoked(directory, roots, now)
        bundle = replace(bundle, revoked=known.updated(found, now).pem)
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


def load_revoked(directory: Path, roots: Sequence[x509.Certificate], now: datetime) -> Revocations:
    """Return the revocation lists of a directory."""
    path = directory / REVOKED_FILE
    if not path.exists():
        return Revocations()
    return Revocations().updated(revocation.parse_lists(_read(path), roots, str(path)), now)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
