"""Certificates of nodes: claims, dates, federation, chain."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.errors import InvalidCertificate
from hansa.identity import certificates
from hansa.identity.certificates import CLAIMS_BYTES_MAX, Claims
from hansa.identity.keys import node_of, sign, verify

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ROOT_KEY = Ed25519PrivateKey.generate()
ROOT = certificates.issue_root(ROOT_KEY, "plant/ä", NOW)
KEY = Ed25519PrivateKey.generate()
CLAIMS = Claims("line-2", ("observe",), ("plant/b/#",), ("plant/a/#", "plant/+/x"))


def issue(claims: Claims = CLAIMS, **more: timedelta) -> certificates.NodeCertificate:
    return certificates.issue_node(ROOT, ROOT_KEY, KEY.public_key(), claims, NOW, **more)


def test_certificate_carries_federation_node_and_claims():
    made = issue()
    assert (made.federation, made.node, made.claims) == ("plant/ä", node_of(KEY), CLAIMS)
    assert certificates.parse_certificate(made.x509) == made
    assert made.not_after == NOW + timedelta(days=365)


def test_certificate_ends_with_its_issuer():
    assert issue(valid=timedelta(days=9_999)).not_after == ROOT.not_valid_after_utc


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        (Claims(roles=("king",)), "there is no role 'king'; there are relay, core, observe"),
        (Claims(roles=()), "a node needs a role: relay, core, observe"),
        (Claims(roles=("observe", "core")), "role observe excludes the others"),
        (Claims(may_publish=("a/#/b",)), "'a/#/b'"),
        (Claims(may_subscribe=("x" * CLAIMS_BYTES_MAX,)), "more than 1024 bytes"),
    ],
)
def test_invalid_claims_are_refused(claims, problem):
    with pytest.raises(InvalidCertificate) as refused:
        issue(claims)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (NOW - timedelta(hours=1), "the certificate is not valid before 2029-12-31 23:55 UTC"),
        (NOW + timedelta(days=365), "the certificate expired at 2031-01-01 00:00 UTC: renew it"),
    ],
)
def test_certificate_is_refused_outside_its_validity(now, problem):
    certificates.check_dates(issue().x509, NOW)
    with pytest.raises(InvalidCertificate) as refused:
        certificates.check_dates(issue().x509, now)
    assert str(refused.value).startswith(problem)


def test_certificate_of_another_federation_is_refused():
    certificates.check_federation(issue(), "plant/ä")
    with pytest.raises(InvalidCertificate) as refused:
        certificates.check_federation(issue(), "office")
    assert str(refused.value) == "the certificate is for federation 'plant/ä', not 'office'"


def test_certificate_of_another_authority_is_refused():
    other = certificates.issue_root(Ed25519PrivateKey.generate(), "plant/ä", NOW)
    certificates.check_chain([issue().x509], [other, ROOT])
    with pytest.raises(InvalidCertificate) as refused:
        certificates.check_chain([issue().x509], [other])
    assert "not signed by this federation's authority" in str(refused.value)


def test_chain_may_end_at_any_certificate_that_a_root_signed():
    new_key = Ed25519PrivateKey.generate()
    new = certificates.issue_root(new_key, "plant/ä", NOW)
    cross = certificates.cross_sign(new, ROOT, ROOT_KEY, NOW)
    leaf = certificates.issue_node(new, new_key, KEY.public_key(), CLAIMS, NOW).x509
    certificates.check_chain([leaf, cross], [ROOT])
    certificates.check_chain([leaf, cross], [new])
    for broken in ([leaf], [leaf, leaf], [leaf, ROOT]):
        with pytest.raises(InvalidCertificate):
            certificates.check_chain(broken, [ROOT])


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def raw_certificate(*uris: str, claims: bytes | None = None) -> x509.Certificate:
    """A certificate as another tool could make it."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(name_of("a"))
        .issuer_name(ROOT.subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if uris:
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if claims is not None:
        extension = x509.UnrecognizedExtension(certificates.CLAIMS_OID, claims)
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(ROOT_KEY, None)


URI = f"hansa://plant/{node_of(KEY):016x}"


def test_certificate_of_another_tool_without_claims_may_only_relay():
    found = certificates.parse_certificate(raw_certificate("https://a.example", URI))
    assert (found.federation, found.claims.roles) == ("plant", ("relay",))


@pytest.mark.parametrize(
    ("certificate", "problem"),
    [
        (raw_certificate(), "needs exactly one URI hansa://"),
        (raw_certificate("https://a.example"), "needs exactly one URI hansa://"),
        (raw_certificate(URI, "hansa://plant/1"), "needs exactly one URI hansa://"),
        (raw_certificate("hansa://plant/0000000000000001"), "names node '0000000000000001'"),
        (raw_certificate(URI, claims=b"\x0c\x00"), "the claims of the certificate are invalid"),
        (raw_certificate(URI, claims=b'{"roles": 1}'), "the claims of the certificate are invalid"),
        (raw_certificate(URI, claims=b'{"owner": true}'), "claims of the certificate are invalid"),
        (raw_certificate(URI, claims=b'{"roles": ["king"]}'), "there is no role 'king'"),
    ],
)
def test_certificate_that_is_no_nodes_is_refused(certificate, problem):
    with pytest.raises(InvalidCertificate) as refused:
        certificates.parse_certificate(certificate)
    assert problem in str(refused.value)


def test_manager_is_nothing_else():
    with pytest.raises(InvalidCertificate, match="role manager excludes the others"):
        certificates.check_claims(Claims(roles=("relay", "manager")))


def test_bytes_that_are_no_certificate_are_refused():
    for parse in (
        lambda data: certificates.load_chain([data]),
        lambda data: certificates.load_certificates(data, "x"),
    ):
        with pytest.raises(InvalidCertificate):
            parse(b"nonsense")


def test_signature_holds_for_its_key_domain_and_bytes_only():
    key, other = (each.public_key().public_bytes_raw() for each in (KEY, ROOT_KEY))
    signature = sign(KEY, b"record", b"data")
    assert verify(key, b"record", b"data", signature)
    assert not verify(other, b"record", b"data", signature)
    assert not verify(key, b"recor", b"ddata", signature)
    assert not verify(key, b"record", b"Data", signature)
    assert not verify(b"short", b"record", b"data", signature)
