"""The certificate authority of a federation: a directory with its key and what it has signed.

    key.pem          private key of the root, mode 0600: its holder decides who is a member
    authority.pem    the roots: the current one first, then those of earlier keys
    cross.pem        during a rotation: the current root signed by the previous one
    intermediate.pem only of an intermediate authority: its certificate, then those between it and a
                     root; key.pem is its key
    issued/          every certificate of a node, by serial number; SERIAL.revoked.pem after its
                     revocation
    intermediates/   likewise, the certificates of intermediate authorities
    revoked.pem      the revocation list, without expired certificates; after the first revocation
                     by an intermediate its list beside that of the root
    audit.jsonl      one JSON object per line, see AUDIT_FILE
    issuer           where `hansa ca serve` renews certificates, for invitations

An intermediate authority signs, renews and revokes as the root does, but only what the root
allows: no other authorities, and no nodes with wider claims than its own certificate has. The
directory need not be on a node, or on a machine with a network at all.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity import certificates, revocation
from hansa.identity.certificates import NODE_VALID, UNREADABLE, Claims, NodeCertificate
from hansa.identity.keys import KEY_FILE, create_key, load_key, store_key
from hansa.identity.revocation import RevocationList, Revocations
from hansa.journal.disk import replace_file
from hansa.protocol.model import NodeId

AUTHORITY_FILE = "authority.pem"
REVOKED_FILE = "revoked.pem"
CROSS_FILE = "cross.pem"
INTERMEDIATE_FILE = "intermediate.pem"
ISSUED_DIRECTORY = "issued"
INTERMEDIATES_DIRECTORY = "intermediates"
REVOKED_SUFFIX = ".revoked.pem"
AUDIT_FILE = "audit.jsonl"
"""One JSON object per line: issued, revoked, root_renewed, intermediate_issued,
intermediate_revoked, enrolled, enrolment_refused, renewed, renewal_refused."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a node needs from its authority."""

    certificate: bytes
    """PEM: the node's certificate, then those between it and a root."""
    roots: bytes
    revoked: bytes = b""

    @property
    def pem(self) -> bytes:
        """All of it as one file."""
        return self.certificate + self.roots + self.revoked


class CertificateAuthority:
    """An authority whose key is at hand."""

    def __init__(self, directory: Path) -> None:
        """Open the directory; raise UsageError if it is not that of an authority."""
        self.directory = directory
        key = load_key(directory / KEY_FILE)
        if key is None:
            raise UsageError(
                f"{directory} holds no authority: make one with hansa ca init, or name its"
                " directory with --ca"
            )
        self._key = key
        self.roots = certificates.load_certificates(
            _read(directory / AUTHORITY_FILE), str(directory / AUTHORITY_FILE)
        )
        path = directory / INTERMEDIATE_FILE
        self.is_intermediate = path.exists()
        self._chain: list[x509.Certificate] = []
        """Of an intermediate: its certificate, and those between it and a root."""
        if self.is_intermediate:
            self._chain = certificates.load_certificates(_read(path), str(path))
        if self.signer.public_key() != key.public_key():
            named = INTERMEDIATE_FILE if self.is_intermediate else AUTHORITY_FILE
            raise InvalidCertificate(
                f"{directory / KEY_FILE} is not the key of the first certificate in {named}"
            )
        self.federation = certificates.federation_of(self.signer)

    @property
    def signer(self) -> x509.Certificate:
        """The certificate whose key signs: that of the intermediate, or the current root."""
        return self._chain[0] if self.is_intermediate else self.roots[0]

    @property
    def ceiling(self) -> Claims:
        """What the authority may grant at most, which is also what it grants by default."""
        return certificates.ceiling_of(self.signer) or Claims()

    @classmethod
    def create(cls, directory: Path, federation: str, now: datetime) -> "CertificateAuthority":
        """Make the authority of a new federation; an existing one is never overwritten."""
        certificates.check_new_federation_name(federation)
        if any((directory / name).exists() for name in (KEY_FILE, AUTHORITY_FILE)):
            raise UsageError(
                f"{directory} already holds a key or an authority: it is kept. Use it, or name"
                " another directory with --ca"
            )
        _make_directory(directory)
        _make_directory(directory / ISSUED_DIRECTORY)
        key = create_key(directory / KEY_FILE)
        root = certificates.issue_root(key, federation, now)
        _write(directory / AUTHORITY_FILE, root.public_bytes(Encoding.PEM))
        return cls(directory)

    # ------------------------------------------------------------ certificates of nodes

    def sign_request(
        self, request: bytes, claims: Claims, now: datetime, valid: timedelta = NODE_VALID
    ) -> tuple[NodeCertificate, Bundle]:
        """Sign a request; raise UsageError if it is invalid."""
        return self.sign(parse_request(request), claims, now, valid)

    def sign(
        self,
        public_key: Ed25519PublicKey,
        claims: Claims,
        now: datetime,
        valid: timedelta = NODE_VALID,
    ) -> tuple[NodeCertificate, Bundle]:
        """Sign a public key whose owner has proved to have the private key."""
        with self._locked():
            return self._sign(public_key, claims, now, valid)

    def _sign(
        self, public_key: Ed25519PublicKey, claims: Claims, now: datetime, valid: timedelta
    ) -> tuple[NodeCertificate, Bundle]:
        self.check_claims(claims, now)
        made = certificates.issue_node(self.signer, self._key, public_key, claims, now, valid)
        details = {"serial": f"{made.serial:x}", "until": made.not_after.isoformat()}
        self.record("issued", now, node=f"{made.node:016x}", name=claims.name, **details)
        _write(self.directory / ISSUED_DIRECTORY / f"{made.serial:x}.pem", made.pem)
        return made, self._bundle(made)

    def expiry_warning(self, now: datetime) -> str:
        """Return that an intermediate ends soon, and with it all that it issues; else nothing."""
        if not self.is_intermediate:
            return ""
        until = self.signer.not_valid_after_utc
        if until - now > certificates.NODE_VALID / 4:
            return ""
        return (
            f"this intermediate authority, and the certificates that it issues, end at"
            f" {until:%Y-%m-%d}: sign it again with hansa ca intermediate"
        )

    def check_claims(self, claims: Claims, now: datetime) -> None:
        """Raise InvalidCertificate if other nodes would refuse such a certificate of this
        authority."""
        certificates.check_claims(claims)
        if ceiling := certificates.ceiling_of(self.signer):
            certificates.check_grant(claims, ceiling)
        place = f"the authority in {self.directory}"
        again = "sign it again with hansa ca intermediate, with the root"
        try:
            for each in self._chain:
                certificates.check_dates(each, now)
        except InvalidCertificate as error:
            raise InvalidCertificate(f"{place}: {error}; {again}") from error
        if self.is_intermediate and self._lists(now).covers(self.signer):
            raise InvalidCertificate(f"{place} is revoked: make another one, with another key")

    def renew(
        self, node: str, now: datetime, valid: timedelta = NODE_VALID
    ) -> tuple[NodeCertificate, Bundle]:
        """Sign the newest certificate of a node again, with the same claims."""
        with self._locked():
            return self._sign_again(self._newest_unrevoked(self.find(node), node), now, valid)

    def renew_presented(
        self, presented: NodeCertificate, now: datetime
    ) -> tuple[NodeCertificate, Bundle]:
        """Return the next certificate of a node that has proved to own this one: the claims of its
        newest certificate, for as long as that was valid. The newest one is signed again in the
        second half of its validity, or if the root is another one; until then it is returned as it
        is, because a reply may have been lost."""
        certificates.check_federation(presented, self.federation)
        with self._locked():
            known = self.find(f"{presented.node:016x}")
            if presented.serial not in {each.serial for each in known}:
                raise UsageError("the authority did not issue this certificate: enrol the node")
            if presented.serial in self.revoked_serials:
                raise UsageError("the certificate is revoked")
            newest = self._newest_unrevoked(known, f"{presented.node:016x}")
            valid = certificates.validity(newest)
            is_of_signer = certificates.is_issued_by(newest.x509, self.signer)
            if is_of_signer and newest.not_after - now > valid / 2:
                return newest, self._bundle(newest)
            return self._sign_again(newest, now, valid)

    def _newest_unrevoked(self, known: list[NodeCertificate], node: str) -> NodeCertificate:
        newest = known[-1]
        if newest.serial in self.revoked_serials:
            raise UsageError(f"node {node} is revoked: enrol it anew instead")
        return newest

    def _sign_again(
        self, newest: NodeCertificate, now: datetime, valid: timedelta
    ) -> tuple[NodeCertificate, Bundle]:
        key = newest.x509.public_key()
        assert isinstance(key, Ed25519PublicKey)
        return self._sign(key, newest.claims, now, valid)

    def issue_issuer(self, key: Ed25519PublicKey, now: datetime) -> bytes:
        """Return the certificate of an issuer that renews those of nodes, and its chain."""
        made = certificates.issue_issuer(self.signer, self._key, key, now)
        return made.public_bytes(Encoding.PEM) + self._chain_pem

    def certificates_ending(self, now: datetime) -> list[NodeCertificate]:
        """Return the newest certificate of each node whose agent asks for a renewal, one per node;
        none of nodes that are revoked."""
        newest: dict[NodeId, NodeCertificate] = {each.node: each for each in self.issued()}
        revoked = self.revoked_serials
        return [
            each
            for each in newest.values()
            if each.serial not in revoked and certificates.ends_soon(each, now)
        ]

    def find(self, node: str) -> list[NodeCertificate]:
        """Return all certificates of a node, the oldest first, also those with other names than the
        given name or id; raise UsageError without any or if several nodes have the name."""
        issued = self.issued()
        found = {each.node for each in issued if node in (each.claims.name, f"{each.node:016x}")}
        if not found:
            raise UsageError(f"no certificate was issued to node {node!r}; see hansa ca show")
        if len(found) > 1:
            ids = ", ".join(sorted(f"{each:016x}" for each in found))
            raise UsageError(f"several nodes have the name {node!r}: use one of the ids {ids}")
        return [each for each in issued if each.node in found]

    def issued(self) -> list[NodeCertificate]:
        """Return all certificates, the oldest first."""
        paths = sorted((self.directory / ISSUED_DIRECTORY).glob("*.pem"))
        found = [
            certificates.parse_certificate(
                certificates.load_certificates(_read(path), str(path))[0]
            )
            for path in paths
        ]
        return sorted(found, key=lambda each: each.not_before)

    # ------------------------------------------------------------ revocation and rotation

    @property
    def revoked_pem(self) -> bytes:
        """The revocation lists that this authority knows, empty before the first revocation."""
        path = self.directory / REVOKED_FILE
        return _read(path) if path.exists() else b""

    @property
    def revoked(self) -> RevocationList:
        """The list of this authority."""
        own = RevocationList(chain=tuple(self._chain)).issuer
        return self._lists(self.signer.not_valid_before_utc).of(own)

    def _lists(self, now: datetime) -> Revocations:
        """Return the lists of this authority and of those above it."""
        pem, source = self.revoked_pem, str(self.directory / REVOKED_FILE)
        found = revocation.parse_lists(pem, self.roots, source) if pem else ()
        return Revocations().updated(found, now)

    @property
    def revoked_serials(self) -> frozenset[int]:
        """All certificates that were revoked, also those that have expired since and left the list:
        a revoked node must not be renewed."""
        marked = (
            path
            for name in (ISSUED_DIRECTORY, INTERMEDIATES_DIRECTORY)
            for path in (self.directory / name).glob(f"*{REVOKED_SUFFIX}")
        )
        serials = {int(path.name.removesuffix(REVOKED_SUFFIX), 16) for path in marked}
        return self.revoked.serials | serials

    def revoke(self, node: str, now: datetime) -> list[NodeCertificate]:
        """Revoke all certificates of a node; return them. Expired ones leave the list."""
        with self._locked():  # an issuer must not renew the node meanwhile
            return self._revoke(node, now)

    def _revoke(self, node: str, now: datetime) -> list[NodeCertificate]:
        found = self.find(node)
        self.record("revoked", now, node=f"{found[0].node:016x}", name=found[0].claims.name)
        self._revoke_serials({each.serial for each in found}, now)
        return found

    def _revoke_serials(self, serials: set[int], now: datetime) -> None:
        before = self.revoked
        alive = {each.serial for each in self.issued() if each.not_after > now}
        alive |= {e.serial_number for e in self.intermediates() if e.not_valid_after_utc > now}
        revoked = before.serials | serials
        self._write_revoked(revoked & alive, before.number + 1, now)
        for serial in revoked:
            self._mark_revoked(serial)

    def _mark_revoked(self, serial: int) -> None:
        """Remember a revocation when the certificate has expired and left the list."""
        for name in (ISSUED_DIRECTORY, INTERMEDIATES_DIRECTORY):
            path = self.directory / name / f"{serial:x}.pem"
            try:
                if path.exists():
                    path.rename(path.with_name(f"{serial:x}{REVOKED_SUFFIX}"))
            except OSError as error:
                raise UsageError(f"cannot rename {path}: {error.strerror}") from error

    # ------------------------------------------------------------ intermediate authorities

    def issue_intermediate(
        self, directory: Path, ceiling: Claims, now: datetime, valid: timedelta = NODE_VALID
    ) -> x509.Certificate:
        """Make a directory of an authority that may grant at most `ceiling`, or sign the key in
        such a directory again. Without its key, a copy of its certificate is enough."""
        self._require_root("make an intermediate authority")
        with self._locked():
            known = self.intermediates()
            public = _prepare_intermediate(directory, [each.public_key() for each in known])
            if public is None:
                raise UsageError(
                    f"{directory / INTERMEDIATE_FILE} is not of the authority in {self.directory}"
                )
            if any(self._is_revoked(e) and e.public_key() == public for e in known):
                raise UsageError(f"the key in {directory} is revoked: use a new directory")
            if any(name_of(e) == ceiling.name and e.public_key() != public for e in known):
                raise UsageError(
                    f"there is another intermediate {ceiling.name!r}: choose another name, or name"
                    " its directory with --out to sign it again"
                )
            made = certificates.issue_intermediate(
                self.roots[0], self._key, public, ceiling, now, valid
            )
            serial = f"{made.serial_number:x}"
            until = made.not_valid_after_utc.isoformat()
            details = {"name": ceiling.name, "serial": serial, "until": until}
            self.record("intermediate_issued", now, **details)
            pem = made.public_bytes(Encoding.PEM)
            _make_directory(self.directory / INTERMEDIATES_DIRECTORY)
            _write(self.directory / INTERMEDIATES_DIRECTORY / f"{serial}.pem", pem)
            self._hand_over(directory, pem, now)
        return made

    def _hand_over(self, directory: Path, pem: bytes, now: datetime) -> None:
        """Write the files of an intermediate; it keeps its own revocation list."""
        source = str(directory / REVOKED_FILE)
        lists = self._lists(now)
        if (directory / REVOKED_FILE).exists():
            own = revocation.parse_lists(_read(directory / REVOKED_FILE), self.roots, source)
            lists = lists.updated(own, now)
        if lists.lists:
            _write(directory / REVOKED_FILE, lists.pem)
        _write(directory / AUTHORITY_FILE, _pem(self.roots))
        _write(directory / INTERMEDIATE_FILE, pem + self._chain_pem)

    def intermediates(self) -> list[x509.Certificate]:
        """Return all certificates of intermediate authorities, the oldest first."""
        paths = sorted((self.directory / INTERMEDIATES_DIRECTORY).glob("*.pem"))
        found = [certificates.load_certificates(_read(each), str(each))[0] for each in paths]
        return sorted(found, key=lambda each: each.not_valid_before_utc)

    def revoke_intermediate(self, name: str, now: datetime) -> int:
        """Revoke an intermediate, and with it all that it has issued and will issue; return the
        number of its certificates: all of the same key, whatever names they have."""
        with self._locked():
            known = self.intermediates()
            keys = [each.public_key() for each in known if name_of(each) == name]
            if not keys:
                raise UsageError(f"there is no intermediate {name!r}; see hansa ca show")
            found = [each for each in known if each.public_key() in keys]
            self.record("intermediate_revoked", now, name=name)
            self._revoke_serials({each.serial_number for each in found}, now)
            return len(found)

    def _is_revoked(self, intermediate: x509.Certificate) -> bool:
        return intermediate.serial_number in self.revoked_serials

    def _require_root(self, what: str) -> None:
        if self.is_intermediate:
            raise UsageError(
                f"{self.directory} is an intermediate authority: only the root can {what}"
            )

    def renew_root(self, now: datetime) -> None:
        """Make a new key and root. Earlier roots stay trusted until they expire or are dropped, and
        nodes that know only the previous one accept certificates of the new one."""
        self._require_root("make a new root")
        with self._locked():
            self._renew_root(now)

    def _renew_root(self, now: datetime) -> None:
        old_roots, revoked, federation = self.roots, self.revoked, self.federation
        self.record("root_renewed", now)
        key = Ed25519PrivateKey.generate()
        root = certificates.issue_root(key, federation, now)
        cross = certificates.cross_sign(root, old_roots[0], self._key, now)
        _write(self.directory / CROSS_FILE, cross.public_bytes(Encoding.PEM))
        kept = [each for each in old_roots if each.not_valid_after_utc > now]
        # The roots first: after a crash in between, the error names both files.
        self._store_roots([root, *kept])
        store_key(self.directory / KEY_FILE, key)
        self._key = key
        self._write_revoked(revoked.serials, revoked.number + 1, now)

    def drop_old_roots(self) -> int:
        """Stop trusting earlier roots; return how many."""
        self._require_root("drop earlier roots")
        dropped = len(self.roots) - 1
        self._store_roots(self.roots[:1])
        (self.directory / CROSS_FILE).unlink(missing_ok=True)
        return dropped

    def record(self, event: str, now: datetime, **details: str) -> None:
        """Append an event to the audit log of the authority, before it takes effect."""
        entry = {"at": now.isoformat(timespec="seconds"), "event": event, **details}
        path = self.directory / AUDIT_FILE
        try:
            opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(opened, msgspec.json.encode(entry) + b"\n")
                os.fsync(opened)
            finally:
                os.close(opened)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process or thread signs or revokes."""
        try:
            opened = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageError(f"cannot use {self.directory}: {error.strerror}") from error
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)

    def _store_roots(self, roots: list[x509.Certificate]) -> None:
        self.roots = roots
        _write(self.directory / AUTHORITY_FILE, _pem(roots))

    def _write_revoked(
        self, serials: frozenset[int] | set[int], number: int, now: datetime
    ) -> None:
        made = revocation.issue_list(self.signer, self._key, serials, number, now)
        der, chain = made.public_bytes(Encoding.DER), tuple(self._chain)
        own = RevocationList(frozenset(serials), number, der, chain)
        _write(self.directory / REVOKED_FILE, self._lists(now).updated([own], now).pem)

    def _bundle(self, certificate: NodeCertificate) -> Bundle:
        return Bundle(certificate.pem + self._chain_pem, _pem(self.roots), self.revoked_pem)

    @property
    def _chain_pem(self) -> bytes:
        """The certificates between those that are issued and a root."""
        if self.is_intermediate:
            return _pem(self._chain)
        path = self.directory / CROSS_FILE
        return _read(path) if path.exists() else b""


def name_of(intermediate: x509.Certificate) -> str:
    """Return the name of an intermediate authority, for the operator."""
    ceiling = certificates.ceiling_of(intermediate)
    return ceiling.name if ceiling else ""


def _prepare_intermediate(directory: Path, known: list[object]) -> Ed25519PublicKey | None:
    """Return the key of an intermediate authority, a new one for a new directory, None if it is not
    known; raise UsageError if the directory is for something else."""
    path = directory / INTERMEDIATE_FILE
    if path.exists():
        key = certificates.load_certificates(_read(path), str(path))[0].public_key()
        return key if isinstance(key, Ed25519PublicKey) and key in known else None
    if (directory / KEY_FILE).exists():
        raise UsageError(
            f"{directory} holds the key of a node or of another authority: use a new directory"
        )
    _make_directory(directory)
    _make_directory(directory / ISSUED_DIRECTORY)
    return create_key(directory / KEY_FILE).public_key()


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise UsageError(f"cannot use {directory}: {error.strerror}") from error


def make_request(key: Ed25519PrivateKey) -> bytes:
    """Return a certificate request in PEM: it proves that the requester has the private key. The
    authority decides the claims."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(key, None)
        .public_bytes(Encoding.PEM)
    )


def check_renewal_request(pem: bytes, presented: NodeCertificate) -> None:
    """Raise UsageError unless a request is for the key of a certificate, and for nothing else."""
    if parse_request(pem).public_bytes_raw() != presented.key:
        raise InvalidCertificate("the request is for another key than that of the certificate")
    request = x509.load_pem_x509_csr(pem)
    try:
        asks_for_more = request.subject != x509.Name([]) or len(request.attributes) > 0
    except UNREADABLE:
        asks_for_more = True
    if asks_for_more:
        raise InvalidCertificate("the request asks for names or extensions: it must have none")


def parse_request(pem: bytes) -> Ed25519PublicKey:
    """Return the key of a request; raise UsageError if its signature or key is invalid."""
    try:
        request = x509.load_pem_x509_csr(pem)
        key = request.public_key()
        is_valid = request.is_signature_valid
    except (*UNREADABLE, InvalidSignature) as error:
        raise InvalidCertificate("this is no certificate request in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidCertificate("the key of the request is not Ed25519")
    if not is_valid:
        raise InvalidCertificate("the signature of the request is invalid")
    return key


def _pem(found: list[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
