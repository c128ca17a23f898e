"""Certificates of nodes: X.509 over the Ed25519 key of a node, with claims that Hansa checks.

    subject                  CN = node id
    subject alternative name URI hansa://<federation>/<node id>
    extension CLAIMS_OID     UTF8String with JSON: name, roles, may_publish, may_subscribe

An intermediate authority has the URI hansa://<federation>, and in the same extension what it may
grant. A node with wider claims than the authorities above it may grant is refused.

The node id must be that of the certificate's key: so an authority cannot give a node's id to
another key. OpenSSL checks signatures and dates of peers during the handshake; the functions here
check the same for our own files, with errors that say what to change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hansa.errors import InvalidCertificate, InvalidTopic
from hansa.protocol.model import NodeId, node_id
from hansa.protocol.settings import LABEL_BYTES_MAX
from hansa.protocol.topics import check_filter, covers

CLAIMS_OID = x509.ObjectIdentifier("2.25.16495064911747620016684374785585907930")
"""A UUID as object identifier (ITU-T X.667), which needs no registration."""

ROLES = ("relay", "core", "observe", "manager")
"""relay: forwards publications of others. core: may also become core of a group. observe: only
receives. manager: plans the links of nodes, and is no node."""

DEFAULT_ROLES = ("relay", "core")

NODE_VALID = timedelta(days=365)
AUTHORITY_VALID = timedelta(days=3650)

ROOT_PATH_LENGTH = 2
"""Authorities below a root: during a rotation the next root, and an intermediate below that."""

ISSUER = "issuer"
"""In place of the node id, in the certificate of an issuer that renews those of nodes."""

ISSUER_VALID = timedelta(days=2)
"""An issuer makes itself a new certificate every day."""

RENEWAL_DUE = timedelta(days=30)
"""Remaining validity from which on the agent asks for a renewal; a third of it if that is less."""

CLOCK_TOLERANCE = timedelta(minutes=5)
"""A new certificate is valid so much earlier: clocks of other machines may be behind."""

CLAIMS_BYTES_MAX = 1_024
"""With more, a certificate might not fit the bytes that a connection may send before it is
authenticated (`agent.links.admission`)."""

INTERMEDIATE_CLAIMS_BYTES_MAX = 512
"""For the same reason: the certificate of a node comes with that of the intermediate."""

UNREADABLE = (
    *(ValueError, UnsupportedAlgorithm, x509.InvalidVersion),
    *(x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
"""What `cryptography` raises for a certificate, request or list that it cannot read."""

_LINK_PURPOSES = frozenset((ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH))
"""Either side of a link may be the TLS server."""

_CHECKED_EXTENSIONS = (
    *(x509.BasicConstraints, x509.KeyUsage),
    *(x509.ExtendedKeyUsage, x509.SubjectAlternativeName),
)

_E = TypeVar("_E", bound=x509.ExtensionType)

_UTF8_STRING = 0x0C
_SHORT_LENGTH_MAX = 0x7F


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claims of a certificate besides federation and node."""

    name: str = ""
    """For the operator; the node announces its own name."""
    roles: tuple[str, ...] = DEFAULT_ROLES
    may_publish: tuple[str, ...] = ("#",)
    """Filters of the topics that clients behind the node may publish to."""
    may_subscribe: tuple[str, ...] = ("#",)
    """Filters that cover everything that clients behind the node may receive."""


Authorities = tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """A parsed certificate of a node."""

    federation: str
    node: NodeId
    claims: Claims
    serial: int
    not_before: datetime
    not_after: datetime
    x509: x509.Certificate
    authorities: Authorities = ()
    """The authorities between this certificate and a root."""

    @property
    def pem(self) -> bytes:
        return self.x509.public_bytes(Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The public key of the node."""
        key = self.x509.public_key()
        assert isinstance(key, Ed25519PublicKey)  # `parse_certificate` checks it
        return key.public_bytes_raw()


def check_claims(claims: Claims) -> None:
    """Raise InvalidCertificate for claims that no certificate may have."""
    for role in claims.roles:
        if role not in ROLES:
            raise InvalidCertificate(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    if not claims.roles:
        raise InvalidCertificate(f"a node needs a role: {', '.join(ROLES)}")
    if "observe" in claims.roles and len(claims.roles) > 1:
        raise InvalidCertificate("role observe excludes the others: an observer only receives")
    if "manager" in claims.roles and len(claims.roles) > 1:
        raise InvalidCertificate("role manager excludes the others: a manager is no node")
    for topic_filter in (*claims.may_publish, *claims.may_subscribe):
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            raise InvalidCertificate(str(error)) from error
    _check_size(claims, CLAIMS_BYTES_MAX)


def _check_size(claims: Claims, bytes_max: int) -> None:
    if len(msgspec.json.encode(claims)) > bytes_max:
        raise InvalidCertificate(
            f"name and filters need more than {bytes_max} bytes: use fewer or wider filters"
        )


def check_grant(claims: Claims, ceiling: Claims) -> None:
    """Raise InvalidCertificate for claims that an authority may not grant. Every authority may
    grant the role observe, and one that may grant core, relay: they are less."""
    may = {*ceiling.roles, "observe", *(("relay",) if "core" in ceiling.roles else ())}
    for role in claims.roles:
        if role not in may:
            raise InvalidCertificate(
                f"its authority may not grant the role {role}, only {', '.join(sorted(may))}"
            )
    claimed = [("subscribe", claims.may_subscribe, ceiling.may_subscribe)]
    if "observe" not in claims.roles:  # an observer publishes nothing
        claimed.append(("publish", claims.may_publish, ceiling.may_publish))
    for verb, filters, granted in claimed:
        for topic_filter in filters:
            if not any(covers(wide, topic_filter) for wide in granted):
                raise InvalidCertificate(
                    f"its authority may not grant to {verb} {topic_filter!r}, only"
                    f" {', '.join(granted) or 'nothing'}"
                )


def check_federation_name(federation: str) -> None:
    """Raise InvalidCertificate for a name that no federation may have."""
    if not 0 < len(federation.encode()) <= LABEL_BYTES_MAX:
        raise InvalidCertificate(
            f"a federation must have a name of at most {LABEL_BYTES_MAX} bytes, not {federation!r}"
        )


def check_new_federation_name(federation: str) -> None:
    """Raise InvalidCertificate for a name that no new federation may have: it is a part of URIs,
    and is written in settings, logs and commands."""
    check_federation_name(federation)
    if not federation.isprintable() or any(each.isspace() or each == "/" for each in federation):
        raise InvalidCertificate(
            "the name of a federation must have no blanks, slashes or control characters:"
            f" {federation!r}"
        )


# ---------------------------------------------------------------- signing


def issue_root(key: Ed25519PrivateKey, federation: str, now: datetime) -> x509.Certificate:
    """Return the root certificate of a federation, signed by itself."""
    check_federation_name(federation)
    name = _root_name(key.public_key())
    valid = now + AUTHORITY_VALID
    return _authority(key.public_key(), federation, now, valid, ROOT_PATH_LENGTH, name).sign(
        key, None
    )


def cross_sign(
    root: x509.Certificate, old_root: x509.Certificate, old_key: Ed25519PrivateKey, now: datetime
) -> x509.Certificate:
    """Return a certificate over the key of a new root, signed by the old one: so nodes that know
    only the old root accept certificates of the new one."""
    key = root.public_key()
    assert isinstance(key, Ed25519PublicKey)
    valid = now + AUTHORITY_VALID
    return _authority(
        key, federation_of(root), now, valid, ROOT_PATH_LENGTH, old_root.subject
    ).sign(old_key, None)


def issue_intermediate(
    root: x509.Certificate,
    root_key: Ed25519PrivateKey,
    public_key: Ed25519PublicKey,
    ceiling: Claims,
    now: datetime,
    valid: timedelta,
) -> x509.Certificate:
    """Return the certificate of an authority that may grant at most `ceiling` to nodes, and may
    make no other authority."""
    check_claims(ceiling)
    _check_size(ceiling, INTERMEDIATE_CLAIMS_BYTES_MAX)
    until = min(now + valid, root.not_valid_after_utc)
    return (
        _authority(public_key, federation_of(root), now, until, 0, root.subject)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()),
            critical=False,
        )
        .add_extension(x509.UnrecognizedExtension(CLAIMS_OID, _encode_claims(ceiling)), False)
        .sign(root_key, None)
    )


def _root_name(key: Ed25519PublicKey) -> x509.Name:
    """Authorities need different names, also roots that overlap during a rotation."""
    return _name(f"hansa ca {x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()[:16]}")


def _authority(
    public: Ed25519PublicKey,
    federation: str,
    now: datetime,
    until: datetime,
    path_length: int,
    issuer_name: x509.Name,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_root_name(public))
        .issuer_name(issuer_name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(_alternative_name(_uri(federation)), critical=False)
    )


def issue_node(
    issuer: x509.Certificate,
    issuer_key: Ed25519PrivateKey,
    public_key: Ed25519PublicKey,
    claims: Claims,
    now: datetime,
    valid: timedelta = NODE_VALID,
) -> NodeCertificate:
    """Return the certificate of a node over its public key."""
    check_claims(claims)
    federation = federation_of(issuer)
    node = node_id(public_key.public_bytes_raw())
    made = (
        x509.CertificateBuilder()
        .subject_name(_name(f"{node:016x}"))
        .issuer_name(issuer.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(min(now + valid, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(sorted(_LINK_PURPOSES, key=str)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(_alternative_name(f"{_uri(federation)}/{node:016x}"), critical=False)
        .add_extension(x509.UnrecognizedExtension(CLAIMS_OID, _encode_claims(claims)), False)
        .sign(issuer_key, None)
    )
    return parse_certificate(made)


def issue_issuer(
    root: x509.Certificate, root_key: Ed25519PrivateKey, public_key: Ed25519PublicKey, now: datetime
) -> x509.Certificate:
    """Return the certificate of an issuer that renews certificates of nodes. It is not a member: no
    node has the id `issuer`."""
    return (
        x509.CertificateBuilder()
        .subject_name(_name(ISSUER))
        .issuer_name(root.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(min(now + ISSUER_VALID, root.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        # It accepts connections, so it is the TLS client (`hansa.identity.tls`).
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()),
            critical=False,
        )
        .add_extension(_alternative_name(f"{_uri(federation_of(root))}/{ISSUER}"), critical=False)
        .sign(root_key, None)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _uri(federation: str) -> str:
    return f"hansa://{quote(federation, safe='')}"


def _alternative_name(uri: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


# ---------------------------------------------------------------- parsing


def load_certificates(pem: bytes, source: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except UNREADABLE as error:
        raise InvalidCertificate(f"{source} is no PEM file with certificates") from error


def load_chain(ders: Sequence[bytes]) -> list[x509.Certificate]:
    """Return the certificates of a chain, none for an empty one."""
    try:
        return [x509.load_der_x509_certificate(each) for each in ders]
    except UNREADABLE as error:
        raise InvalidCertificate("it cannot be read") from error


def parse_certificate(certificate: x509.Certificate) -> NodeCertificate:
    """Return the claims of a node's certificate; raise InvalidCertificate if it is none."""
    try:
        key = certificate.public_key()
        certificate.extensions  # noqa: B018 -- parses them
    except UNREADABLE as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidCertificate("the certificate's key is not Ed25519")
    federation, node_text = _parse_uri(certificate)
    node = node_id(key.public_bytes_raw())
    if node_text != f"{node:016x}":
        raise InvalidCertificate(
            f"the certificate names node {node_text!r}, its key is that of {node:016x}"
        )
    return NodeCertificate(
        federation,
        node,
        _parse_claims(certificate),
        certificate.serial_number,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        certificate,
    )


def parse_chain(chain: Sequence[x509.Certificate]) -> NodeCertificate:
    """Return the claims of the first certificate; raise InvalidCertificate if it is not that of a
    node, or claims more than the authorities in the rest of the chain may grant."""
    found = parse_certificate(chain[0])
    for authority in chain[1:]:
        federations = [federation for federation, _ in _names(authority)]
        if federations and found.federation not in federations:
            raise InvalidCertificate(f"its authority is not one of federation {found.federation!r}")
        if ceiling := ceiling_of(authority):
            check_grant(found.claims, ceiling)
    return replace(found, authorities=tuple(chain[1:]))


def check_issuer(certificate: x509.Certificate, federation: str) -> None:
    """Raise InvalidCertificate unless a certificate, whose chain TLS has checked, is that of the
    issuer of a federation."""
    if _parse_uri(certificate) != (federation, ISSUER):
        raise InvalidCertificate(f"the certificate is not that of the issuer of {federation!r}")


def federation_of(root: x509.Certificate) -> str:
    return _parse_uri(root)[0]


def is_cross_certificate(authority: x509.Certificate) -> bool:
    """Whether an authority of a chain is a root as the previous root has signed it (`cross_sign`),
    and not an intermediate, which may not have all rights of a root."""
    if any(not node for _, node in _names(authority)) and ceiling_of(authority) is None:
        constraints = _extension(authority, x509.BasicConstraints)
        return constraints is not None and bool(constraints.path_length)
    return False


def intermediate_key(authorities: Authorities) -> bytes:
    """Return the key of the intermediate that has issued a certificate, given the authorities
    between it and a root; empty if a root has."""
    if not authorities or is_cross_certificate(authorities[0]):
        return b""
    return authorities[0].public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _parse_uri(certificate: x509.Certificate) -> tuple[str, str]:
    """Return federation and node in the alternative name of a certificate."""
    found = _names(certificate)
    if len(found) != 1:
        raise InvalidCertificate(
            "the certificate needs exactly one URI hansa://<federation>/<node id> as subject"
            " alternative name"
        )
    return found[0]


def _names(certificate: x509.Certificate) -> list[tuple[str, str]]:
    """Return the federations and nodes in the alternative names of a certificate; no node for an
    authority, and often none at all for one of a company."""
    try:
        names = _extension(certificate, x509.SubjectAlternativeName)
        uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
        parts = [urlsplit(each) for each in uris if each.startswith("hansa://")]
    except UNREADABLE as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error
    return [(unquote(each.netloc), each.path.removeprefix("/")) for each in parts]


def _encode_claims(claims: Claims) -> bytes:
    text = msgspec.json.encode(claims)
    if len(text) > _SHORT_LENGTH_MAX:
        length = bytes((0x82,)) + len(text).to_bytes(2, "big")
    else:
        length = bytes((len(text),))
    return bytes((_UTF8_STRING,)) + length + text


def _parse_claims(certificate: x509.Certificate) -> Claims:
    """A certificate without claims, such as one of a company's authority, may relay and no more
    than that."""
    return ceiling_of(certificate) or Claims(roles=("relay",))


def ceiling_of(authority: x509.Certificate) -> Claims | None:
    """Return what an authority may grant, None if it is not restricted."""
    try:
        extension = authority.extensions.get_extension_for_oid(CLAIMS_OID).value
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise InvalidCertificate(f"the certificate cannot be read: {error}") from error
    assert isinstance(extension, x509.UnrecognizedExtension)
    try:
        claims = msgspec.json.decode(extension.value[extension.value.index(b"{") :], type=Claims)
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidCertificate(f"the claims of the certificate are invalid: {error}") from error
    check_claims(claims)
    return claims


# ---------------------------------------------------------------- checks


def check_dates(certificate: x509.Certificate, now: datetime) -> None:
    """Raise InvalidCertificate outside the time of validity."""
    if now < certificate.not_valid_before_utc:
        raise InvalidCertificate(
            f"the certificate is not valid before {_date(certificate.not_valid_before_utc)}: check"
            " the clock of this machine and of the authority's"
        )
    if now >= certificate.not_valid_after_utc:
        raise InvalidCertificate(
            f"the certificate expired at {_date(certificate.not_valid_after_utc)}: renew it with"
            " hansa ca renew"
        )


def validity(certificate: NodeCertificate) -> timedelta:
    """Return for how long a certificate was issued."""
    total = certificate.not_after - certificate.not_before
    return max(total - CLOCK_TOLERANCE, total / 2)


def renewal_time(certificate: NodeCertificate) -> datetime:
    """Return when an agent that renews its certificate does so: at two thirds of its validity."""
    return certificate.not_after - validity(certificate) / 3


def ends_soon(certificate: NodeCertificate, now: datetime, is_renewed: bool = False) -> bool:
    """Whether an operator should renew a certificate, or should have. One that the agent renews by
    itself gets half of the time that it has for that."""
    due = min(RENEWAL_DUE, validity(certificate) / (6 if is_renewed else 3))
    return certificate.not_after - now <= due


def check_federation(certificate: NodeCertificate, federation: str) -> None:
    """Raise InvalidCertificate for a certificate of another federation."""
    if certificate.federation != federation:
        raise InvalidCertificate(
            f"the certificate is for federation {certificate.federation!r}, not {federation!r}"
        )


def check_chain(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], below: int = 0
) -> None:
    """Raise InvalidCertificate unless a root signed the first certificate, or each is signed by
    the next one up to one that a root signed. OpenSSL checks the same for peers of links; records
    of other nodes bring chains that it has not seen. `below` is the number of authorities between
    a node and the issuer of the first certificate: 1 if that is an authority."""
    for certificate, issuer in zip(chain, [*chain[1:], None], strict=True):
        if not _is_for_links(certificate):
            break
        if any(is_issued_by(certificate, root, below) for root in roots):
            return
        if issuer is None or not is_issued_by(certificate, issuer, below):
            break
        below += issuer.subject != issuer.issuer  # RFC 5280, 4.2.1.9
    raise InvalidCertificate("the certificate is not signed by this federation's authority")


def is_issued_by(
    certificate: x509.Certificate, issuer: x509.Certificate, authorities_below: int = 0
) -> bool:
    """Whether an authority issued a certificate, and may do so with so many authorities between
    it and a node. Without these checks every node could issue certificates with its own."""
    try:
        constraints = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(issuer)
        usage = _extension(issuer, x509.KeyUsage)
    except (*UNREADABLE, InvalidSignature, TypeError, x509.ExtensionNotFound):
        return False
    length = constraints.path_length
    return (
        constraints.ca
        and (usage is None or usage.key_cert_sign)
        and (length is None or authorities_below <= length)
    )


def _is_for_links(certificate: x509.Certificate) -> bool:
    """Whether a certificate may be used for both sides of TLS, and has no critical extension that
    is not checked here, such as constraints of names."""
    try:
        purposes = _extension(certificate, x509.ExtendedKeyUsage)
        extensions = list(certificate.extensions)
    except UNREADABLE:
        return False
    return (purposes is None or _LINK_PURPOSES.issubset(purposes)) and all(
        isinstance(each.value, _CHECKED_EXTENSIONS) for each in extensions if each.critical
    )


def _extension(certificate: x509.Certificate, kind: type[_E]) -> _E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
