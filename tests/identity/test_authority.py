"""The authority's directory: signing, renewal, revocation, rotation; the files of a node."""

import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity.authority import (
    AUDIT_FILE,
    AUTHORITY_FILE,
    REVOKED_FILE,
    CertificateAuthority,
    make_request,
    parse_request,
)
from hansa.identity.certificates import Claims, check_chain
from hansa.identity.credentials import (
    CERTIFICATE_FILE,
    Credentials,
    has_certificate,
    install,
    load_credentials,
    parse_bundle,
)
from hansa.identity.keys import KEY_FILE, create_key, load_key

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca", "plant", NOW)


def enrol(authority: CertificateAuthority, directory: Path, name: str = "") -> Credentials:
    """Give a new node a certificate."""
    directory.mkdir(exist_ok=True)
    key = load_key(directory / KEY_FILE) or create_key(directory / KEY_FILE)
    _, bundle = authority.sign_request(make_request(key), Claims(name), NOW)
    return install(directory, parse_bundle(bundle.pem, "bundle"), NOW)


def test_files_are_private(authority, tmp_path):
    enrol(authority, tmp_path / "a")
    authority.sign_request(make_request(create_key(tmp_path / "k")), Claims(), NOW)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 9
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {(tmp_path / "ca").stat().st_mode & 0o777} == {0o700}


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_refused_certificate_leaves_the_present_files_as_they_are(authority, tmp_path):
    enrol(authority, tmp_path / "a")
    before = files_in(tmp_path / "a")
    other = CertificateAuthority.create(tmp_path / "other", "office", NOW)
    key = create_key(tmp_path / "k")
    _, of_another_node = other.sign_request(make_request(key), Claims(), NOW)
    own = load_key(tmp_path / "a" / KEY_FILE)
    assert own is not None
    _, genuine = other.sign_request(make_request(own), Claims(), NOW)
    foreign = replace(genuine, roots=before[AUTHORITY_FILE])
    for bundle in (of_another_node, foreign):
        with pytest.raises(InvalidCertificate, match="the new certificate: "):
            install(tmp_path / "a", bundle, NOW)
        assert files_in(tmp_path / "a") == before


def test_older_revocation_list_does_not_replace_a_newer_one(authority, tmp_path):
    for name in ("b", "c"):
        enrol(authority, tmp_path / name, name)
    authority.revoke("b", NOW)
    enrol(authority, tmp_path / "a")
    key = load_key(tmp_path / "a" / KEY_FILE)
    assert key is not None
    _, old = authority.sign_request(make_request(key), Claims(), NOW)
    authority.revoke("c", NOW)
    newest = enrol(authority, tmp_path / "a").revoked
    assert len(newest.serials) == 2
    assert install(tmp_path / "a", old, NOW).revoked == newest


def test_authority_is_never_overwritten(authority, tmp_path):
    before = (tmp_path / "ca" / KEY_FILE).read_bytes()
    with pytest.raises(UsageError, match="already holds a key or an authority: it is kept"):
        CertificateAuthority.create(tmp_path / "ca", "plant", NOW)
    assert (tmp_path / "ca" / KEY_FILE).read_bytes() == before


def test_directory_without_authority_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no authority: make one with hansa ca init"):
        CertificateAuthority(tmp_path)


def test_authority_with_another_key_is_refused(authority, tmp_path):
    create_key(tmp_path / "ca" / KEY_FILE)
    with pytest.raises(InvalidCertificate, match="is not the key of the first certificate"):
        CertificateAuthority(tmp_path / "ca")


def test_enrolled_node_has_credentials(authority, tmp_path):
    assert not has_certificate(tmp_path / "a")
    made = enrol(authority, tmp_path / "a", "line-2")
    assert (made.federation, made.certificate.claims.name) == ("plant", "line-2")
    assert load_credentials(tmp_path / "a", tmp_path / "a" / KEY_FILE, NOW) == made
    assert has_certificate(tmp_path / "a")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda a, b: (a / KEY_FILE).write_bytes((b / KEY_FILE).read_bytes()), "another key than"),
        (lambda a, b: (a / KEY_FILE).unlink(), "another key than"),
        (lambda a, b: (a / CERTIFICATE_FILE).write_text("x"), "no PEM file with certificates"),
        (lambda a, b: (a / AUTHORITY_FILE).unlink(), "cannot read"),
        (lambda a, b: (a / AUTHORITY_FILE).write_bytes((b / AUTHORITY_FILE).read_bytes()),
         "not signed by this federation's authority"),
        (lambda a, b: (a / REVOKED_FILE).write_text("x"), "no revocation list"),
        (lambda a, b: (a / REVOKED_FILE).write_bytes((b / REVOKED_FILE).read_bytes()),
         "revoked.pem is not signed by this federation's authority"),
    ],
)  # fmt: skip
def test_unusable_files_are_named(authority, tmp_path, spoil, problem):
    enrol(authority, tmp_path / "a")
    other = CertificateAuthority.create(tmp_path / "other", "plant", NOW)
    enrol(other, tmp_path / "b", "b")
    other.revoke("b", NOW)
    enrol(other, tmp_path / "b")
    spoil(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError) as refused:
        load_credentials(tmp_path / "a", tmp_path / "a" / KEY_FILE, NOW)
    assert problem in str(refused.value)


def test_expired_certificate_is_refused_and_renewed(authority, tmp_path):
    enrol(authority, tmp_path / "a", "a")
    with pytest.raises(InvalidCertificate, match=r"expired at 2031-01-01 00:00 UTC: renew it"):
        load_credentials(tmp_path / "a", tmp_path / "a" / KEY_FILE, NOW + 366 * DAY)
    made, bundle = authority.renew("a", NOW + 366 * DAY)
    again = install(tmp_path / "a", bundle, NOW + 366 * DAY)
    assert (again.certificate, made.claims.name) == (made, "a")


def test_renewal_is_due_before_the_end(authority, tmp_path):
    made = enrol(authority, tmp_path / "a")
    assert made.expiry_warning(NOW + 300 * DAY) == ""
    assert "expires at 2031-01-01" in made.expiry_warning(NOW + 340 * DAY)
    assert "expired at 2031-01-01" in made.expiry_warning(NOW + 370 * DAY)


def test_revoked_node_is_refused(authority, tmp_path):
    a, b = enrol(authority, tmp_path / "a", "a"), enrol(authority, tmp_path / "b", "b")
    a.check_peer(b.certificate)
    assert authority.revoke("b", NOW) == [b.certificate]
    (tmp_path / "a" / REVOKED_FILE).write_bytes(authority.revoked_pem)
    a = load_credentials(tmp_path / "a", tmp_path / "a" / KEY_FILE, NOW)
    with pytest.raises(InvalidCertificate, match="the certificate is revoked"):
        a.check_peer(b.certificate)
    a.check_peer(a.certificate)
    with pytest.raises(UsageError, match="node b is revoked: enrol it anew instead"):
        authority.renew("b", NOW)
    anew = enrol(authority, tmp_path / "b", "b")
    a.check_peer(anew.certificate)


def test_manager_and_node_do_not_pass_for_each_other(authority, tmp_path):
    node, made = enrol(authority, tmp_path / "a"), create_key(tmp_path / "k")
    claims = Claims("manager", ("manager",))
    manager, _ = authority.sign_request(make_request(made), claims, NOW)
    node.check_manager(manager)
    with pytest.raises(InvalidCertificate, match="that of a manager, not of a node"):
        node.check_peer(manager)
    with pytest.raises(InvalidCertificate, match="without the role manager"):
        node.check_manager(node.certificate)


def test_own_revocation_is_reported(authority, tmp_path):
    enrol(authority, tmp_path / "a", "a")
    authority.revoke("a", NOW)
    (tmp_path / "a" / REVOKED_FILE).write_bytes(authority.revoked_pem)
    text = load_credentials(tmp_path / "a", tmp_path / "a" / KEY_FILE, NOW).expiry_warning(NOW)
    assert text == "the certificate of this node is revoked: other nodes refuse it"


def test_expired_certificates_leave_the_revocation_list(authority, tmp_path):
    a, b = enrol(authority, tmp_path / "a", "a"), enrol(authority, tmp_path / "b", "b")
    authority.revoke("a", NOW)
    assert authority.revoked.serials == {a.certificate.serial}
    assert authority.revoked.number == 1
    authority.renew("b", NOW + 400 * DAY)
    authority.revoke("b", NOW + 400 * DAY)
    assert authority.revoked.number == 2
    assert not authority.revoked.serials & {a.certificate.serial, b.certificate.serial}


def test_revocation_by_name_covers_certificates_with_other_names(authority, tmp_path):
    old, new = (enrol(authority, tmp_path / "a", name).certificate for name in ("old", "new"))
    other = enrol(authority, tmp_path / "b", "other").certificate
    assert {each.serial for each in authority.revoke("new", NOW)} == {old.serial, new.serial}
    assert authority.revoked.serials == {old.serial, new.serial}
    assert other.serial not in authority.revoked_serials


def test_revoked_node_is_not_renewed_after_its_certificate_has_expired(authority, tmp_path):
    a = enrol(authority, tmp_path / "a", "a").certificate
    authority.revoke("a", NOW)
    later = NOW + 400 * DAY
    enrol(authority, tmp_path / "b", "b")
    authority.revoke("b", later)  # the expired certificate of a leaves the list
    assert a.serial not in authority.revoked.serials
    assert authority.certificates_ending(later) == []
    with pytest.raises(UsageError, match="node a is revoked: enrol it anew instead"):
        authority.renew("a", later)
    key = load_key(tmp_path / "a" / KEY_FILE)
    assert key
    authority.sign(key.public_key(), Claims("a"), later)
    assert authority.renew("a", later)[0].node == a.node


def test_peer_that_expires_later_is_found(authority, tmp_path):
    a = enrol(authority, tmp_path / "a")
    a.check_peer_later(a.certificate, NOW)
    with pytest.raises(InvalidCertificate, match="expired"):
        a.check_peer_later(a.certificate, NOW + 366 * DAY)


def test_unknown_and_ambiguous_nodes_are_refused(authority, tmp_path):
    with pytest.raises(UsageError, match="no certificate was issued to node 'a'"):
        authority.revoke("a", NOW)
    for place in ("a", "b"):
        enrol(authority, tmp_path / place, "same")
    with pytest.raises(UsageError, match="several nodes have the name 'same': use one of the ids"):
        authority.revoke("same", NOW)


def test_root_rotation_keeps_old_and_new_nodes_together(authority, tmp_path):
    """Nodes that know only the old root accept those with certificates of the new one."""
    old = enrol(authority, tmp_path / "old", "old")
    authority.revoke("old", NOW)
    authority.renew_root(NOW)
    assert authority.revoked.serials == {old.certificate.serial}
    authority = CertificateAuthority(tmp_path / "ca")
    new = enrol(authority, tmp_path / "new", "new")
    assert len(new.roots) == 2
    chain = x509.load_pem_x509_certificates((tmp_path / "new" / CERTIFICATE_FILE).read_bytes())
    check_chain(chain, old.roots)
    assert authority.drop_old_roots() == 1
    last = enrol(authority, tmp_path / "new", "new")
    assert (last.roots, last.revoked.number) == (tuple(authority.roots), 2)
    assert (tmp_path / "new" / CERTIFICATE_FILE).read_bytes().count(b"BEGIN") == 1


def test_text_that_is_no_request_is_refused():
    with pytest.raises(InvalidCertificate, match="no certificate request in PEM"):
        parse_request(b"x")


def test_request_with_invalid_signature_or_other_key_is_refused(tmp_path):
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    other = builder.sign(generate_private_key(SECP256R1()), SHA256())
    with pytest.raises(InvalidCertificate, match="not Ed25519"):
        parse_request(other.public_bytes(Encoding.PEM))
    der = builder.sign(create_key(tmp_path / "k"), None).public_bytes(Encoding.DER)
    forged = x509.load_der_x509_csr(der[:-1] + bytes((der[-1] ^ 1,)))
    with pytest.raises(InvalidCertificate, match="signature of the request is invalid"):
        parse_request(forged.public_bytes(Encoding.PEM))


def test_bundle_needs_certificate_and_root(authority, tmp_path):
    enrol(authority, tmp_path / "a")
    with pytest.raises(InvalidCertificate, match="must hold the certificate of a node and its"):
        parse_bundle((tmp_path / "a" / CERTIFICATE_FILE).read_bytes(), "file")


def events(authority: CertificateAuthority) -> list[tuple[str, str | None]]:
    text = (authority.directory / AUDIT_FILE).read_text()
    return [(found["event"], found.get("name")) for found in map(json.loads, text.splitlines())]


def test_audit_log_names_every_certificate(authority, tmp_path):
    enrol(authority, tmp_path / "a", "line-2")
    authority.renew("line-2", NOW)
    authority.revoke("line-2", NOW)
    authority.renew_root(NOW)
    assert events(authority) == [
        ("issued", "line-2"),
        ("issued", "line-2"),
        ("revoked", "line-2"),
        ("root_renewed", None),
    ]
    assert (authority.directory / AUDIT_FILE).stat().st_mode & 0o777 == 0o600


def test_nothing_is_issued_that_cannot_be_recorded(authority, tmp_path):
    (authority.directory / AUDIT_FILE).mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        enrol(authority, tmp_path / "a")
    assert authority.issued() == []


@pytest.mark.parametrize(
    ("part", "replaced"),
    [
        (b"\x06\x03\x2b\x65\x70", b"\x06\x03\x2b\x65\x1f"),  # an unknown kind of key
        (b"\x02\x01\x00", b"\x02\x01\x20"),  # an unknown version
    ],
)
def test_request_that_cannot_be_read_is_refused(tmp_path, part, replaced):
    request = x509.load_pem_x509_csr(make_request(create_key(tmp_path / "k")))
    der = request.public_bytes(Encoding.DER).replace(part, replaced, 1)
    with pytest.raises(InvalidCertificate, match="this is no certificate request in PEM"):
        parse_request(
            ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode()
        )


def test_bundle_with_a_broken_certificate_is_refused(authority, tmp_path):
    _, bundle = authority.sign_request(make_request(create_key(tmp_path / "k")), Claims(), NOW)
    for broken in (bundle.pem.replace(b"-----END", b"----END", 1), b"-----BEGIN CERTIFICATE-----"):
        with pytest.raises(InvalidCertificate):
            parse_bundle(broken, "bundle")
