"""Which records and certificates a member accepts."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from tests.identity.certified import certify, make_authority, now

from hansa.identity import records
from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims, issue_node
from hansa.identity.credentials import Credentials
from hansa.identity.keys import load_key
from hansa.identity.records import MemberAuthenticator
from hansa.identity.revocation import RevocationList, Revocations
from hansa.protocol.membership.rights import UNLIMITED, Rights


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca")


def member(credentials: Credentials, at: datetime | None = None) -> MemberAuthenticator:
    key = load_key(credentials.key_file)
    assert key is not None
    return MemberAuthenticator(key, lambda: credentials, lambda: at or now())


def check(judge: MemberAuthenticator, other: MemberAuthenticator, of: Credentials) -> Rights | str:
    return judge.check_certificates(of.certificate.node, of.certificate.key, other.certificates)


def test_members_verify_each_others_signatures(authority, tmp_path):
    one, two = (certify(authority, tmp_path / name) for name in ("one", "two"))
    signature = member(one).sign(b"d", b"data")
    assert member(two).verify(one.certificate.key, b"d", b"data", signature)
    assert not member(two).verify(two.certificate.key, b"d", b"data", signature)
    assert not member(two).verify(one.certificate.key, b"e", b"data", signature)


def test_rights_are_those_of_the_certificate(authority, tmp_path):
    judge = member(certify(authority, tmp_path / "judge"))
    everything = certify(authority, tmp_path / "all")
    watcher = certify(
        authority, tmp_path / "watcher", Claims("w", ("observe",), ("#",), ("plant/a/#",))
    )
    found = check(judge, member(everything), everything)
    assert isinstance(found, Rights) and found.issued_ms > 0
    assert replace(found, issued_ms=0) == UNLIMITED
    found = check(judge, member(watcher), watcher)
    assert isinstance(found, Rights)
    assert replace(found, issued_ms=0) == Rights(False, False, (), ("plant/a/#",))


def test_refused_certificates(authority, tmp_path):
    judge_files = certify(authority, tmp_path / "judge")
    judge, one = member(judge_files), certify(authority, tmp_path / "one")
    stranger = certify(make_authority(tmp_path / "other"), tmp_path / "stranger")
    node, key = one.certificate.node, one.certificate.key

    def refused(certificates: tuple[bytes, ...], by: MemberAuthenticator = judge) -> str:
        found = by.check_certificates(node, key, certificates)
        assert isinstance(found, str)
        return found

    assert refused(()) == "certificate refused: there is none"
    assert refused((b"x",)) == "certificate refused: it cannot be read"
    (genuine,) = member(one).certificates
    version = genuine.replace(b"\xa0\3\2\1\2", b"\xa0\3\2\1\x12", 1)
    assert refused((version,)) == "certificate refused: it cannot be read"
    assert refused(judge.certificates) == "certificate refused: it is that of another node"
    assert "not signed by this federation's authority" in refused(member(stranger).certificates)
    late = member(judge_files, at=now() + timedelta(days=400))
    assert "expired" in refused(member(one).certificates, late)
    revoked = Revocations((RevocationList(frozenset({one.certificate.serial}), 1),))
    after = member(replace(judge_files, revoked=revoked))
    assert refused(member(one).certificates, after) == (
        "certificate refused: the certificate is revoked"
    )


def test_certificate_of_a_node_is_no_authority(authority, tmp_path):
    """Else every member could enrol others."""
    judge = member(certify(authority, tmp_path / "judge"))
    one = certify(authority, tmp_path / "one")
    own_key = load_key(one.key_file)
    assert own_key is not None
    new = Ed25519PrivateKey.generate().public_key()
    forged = issue_node(one.certificate.x509, own_key, new, Claims("x"), now())
    chain = (forged.x509.public_bytes(Encoding.DER), *member(one).certificates)
    assert judge.check_certificates(forged.node, forged.key, chain) == (
        "certificate refused: the certificate is not signed by this federation's authority"
    )


def test_checked_chains_are_forgotten_when_too_many(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "CHAINS_MAX", 1)
    judge = member(certify(authority, tmp_path / "judge"))
    for name in ("one", "two", "one"):
        files = certify(authority, tmp_path / name)
        assert isinstance(check(judge, member(files), files), Rights)


def test_renewed_root_is_accepted_with_the_certificate_that_the_old_root_signed(
    authority, tmp_path
):
    old = certify(authority, tmp_path / "old")
    authority.renew_root(now())
    new = certify(authority, tmp_path / "new")
    assert len(member(new).certificates) == 2
    assert isinstance(check(member(old), member(new), new), Rights)
    assert isinstance(check(member(new), member(old), old), Rights)
    late = member(old, at=now() + timedelta(days=5_000))
    assert isinstance(check(late, member(new), new), str)
