"""Intermediate authorities: they enrol, renew and revoke, within what the root allows."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from tests.identity.certified import certify, make_authority, now

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity import certificates, revocation
from hansa.identity.authority import (
    AUTHORITY_FILE,
    INTERMEDIATE_FILE,
    REVOKED_FILE,
    CertificateAuthority,
)
from hansa.identity.certificates import Claims
from hansa.identity.credentials import Credentials, install, load_credentials
from hansa.identity.enrolment import Invitation, InvitationTerms, join_with_token, parse_token
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.records import MemberAuthenticator
from hansa.identity.renewal import Issuer, request_renewal
from hansa.identity.tls import check_tls_peer, make_contexts
from hansa.protocol.membership.rights import Rights

DAY = timedelta(days=1)
SITE = Claims("site", ("relay",), ("site/#",), ("site/#", "all/#"))
OF_SITE = Claims("a", ("relay",), ("site/a/#",), ("all/a",))


@pytest.fixture
def root(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca", "plant")


@pytest.fixture
def site(root: CertificateAuthority, tmp_path: Path) -> CertificateAuthority:
    root.issue_intermediate(tmp_path / "site", SITE, now())
    return CertificateAuthority(tmp_path / "site")


def site_named(name: str) -> Claims:
    return Claims(name, SITE.roles, SITE.may_publish, SITE.may_subscribe)


def again(credentials: Credentials) -> Credentials:
    return load_credentials(credentials.directory, credentials.key_file, now())


def with_lists(credentials: Credentials, pem: bytes) -> Credentials:
    (credentials.directory / REVOKED_FILE).write_bytes(pem)
    return again(credentials)


def handshake(one: Credentials, other: Credentials) -> None:
    """Connect two nodes as links do, and let both check their peer."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = make_contexts(one).dialling.wrap_bio(to_server, to_client, server_side=True)
    client = make_contexts(other).accepting.wrap_bio(to_client, to_server)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    assert check_tls_peer(server, one) == other.certificate
    assert check_tls_peer(client, other) == one.certificate


def rights_of(member: Credentials, judge: Credentials) -> Rights | str:
    """Return what a node concludes from the certificates in the record of another one."""
    key = load_key(judge.key_file)
    assert key
    found = member.certificate
    ders = tuple(each.public_bytes(Encoding.DER) for each in member.chain)
    return MemberAuthenticator(key, lambda: judge, now).check_certificates(
        found.node, found.key, ders
    )


def test_nodes_of_an_intermediate_and_of_the_root_accept_each_other(root, site, tmp_path):
    a, b = certify(site, tmp_path / "a", OF_SITE), certify(root, tmp_path / "b")
    assert (a.federation, a.certificate.claims, len(a.chain)) == ("plant", OF_SITE, 2)
    handshake(a, b)
    handshake(b, a)
    handshake(a, certify(site, tmp_path / "c", OF_SITE))
    found = rights_of(a, b)
    assert isinstance(found, Rights)
    assert (found.may_publish, found.may_be_core) == (("site/a/#",), False)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        (Claims("x", ("core",), ("site/a",), ("site/a",)), "the role core"),
        (Claims("x", ("relay",), ("#",), ("site/a",)), "to publish '#'"),
        (Claims("x", ("relay",), ("site/+",), ("+/a",)), "to subscribe '+/a'"),
        (Claims("x", ("observe",), ("#",), ("#",)), "to subscribe '#'"),
    ],
)
def test_intermediate_grants_no_more_than_the_root_allows(site, root, tmp_path, claims, problem):
    """Neither with our program nor with another one that uses its key."""
    with pytest.raises(InvalidCertificate, match="its authority may not grant") as refused:
        certify(site, tmp_path / "a", claims)
    assert problem in str(refused.value)
    node = certify(root, tmp_path / "b")
    key = load_key(site.directory / KEY_FILE)
    assert key
    forged = certificates.issue_node(
        site.signer, key, Ed25519PrivateKey.generate().public_key(), claims, now()
    )
    chain = (forged.x509, site.signer)
    certificates.check_chain(chain, node.roots)  # the signatures are genuine
    member = replace(node, certificate=forged, chain=chain)
    assert problem in str(rights_of(member, node))
    with pytest.raises(InvalidCertificate, match="its authority may not grant"):
        certificates.parse_chain(chain)


def test_an_observer_may_always_be_granted(site, tmp_path):
    made = certify(site, tmp_path / "a", Claims("x", ("observe",), may_subscribe=("site/a/#",)))
    assert made.certificate.claims.roles == ("observe",)


def test_restricted_chain_is_refused_by_tls(site, root, tmp_path):
    """A node of an intermediate that has exceeded its right, with a genuine handshake."""
    victim, member = certify(root, tmp_path / "victim"), certify(root, tmp_path / "member")
    key = load_key(site.directory / KEY_FILE)
    own = load_key(member.key_file)
    assert key and own
    forged = certificates.issue_node(site.signer, key, own.public_key(), Claims(), now())
    chain = forged.pem + site.signer.public_bytes(Encoding.PEM)
    (member.directory / "certificate.pem").write_bytes(chain)
    with pytest.raises(InvalidCertificate, match="its authority may not grant the role core"):
        handshake(victim, member)


def test_intermediate_makes_no_other_authority(site, root, tmp_path):
    for action in (
        lambda: site.issue_intermediate(tmp_path / "lower", Claims("lower"), now()),
        lambda: site.renew_root(now()),
        lambda: site.drop_old_roots(),
    ):
        with pytest.raises(UsageError, match="is an intermediate authority: only the root can"):
            action()
    key = load_key(site.directory / KEY_FILE)
    assert key
    lower_key = Ed25519PrivateKey.generate()
    lower = certificates.issue_intermediate(
        site.signer, key, lower_key.public_key(), SITE, now(), DAY
    )
    node = certificates.issue_node(
        lower, lower_key, Ed25519PrivateKey.generate().public_key(), OF_SITE, now()
    )
    with pytest.raises(InvalidCertificate, match="not signed by this federation's authority"):
        certificates.check_chain([node.x509, lower, site.signer], root.roots)


def test_revoked_intermediate_ends_all_that_it_issued(root, site, tmp_path):
    a, b = certify(site, tmp_path / "a", OF_SITE), certify(root, tmp_path / "b")
    of_root = certify(root, tmp_path / "c")
    assert root.revoke_intermediate("site", now()) == 1
    b = with_lists(b, root.revoked_pem)
    said = "the authority that issued the certificate is revoked"
    with pytest.raises(InvalidCertificate, match=said):
        b.check_peer(a.certificate)
    with pytest.raises(InvalidCertificate, match=said):
        handshake(b, a)
    assert rights_of(a, b) == f"certificate refused: {said}"
    handshake(b, of_root)
    a = with_lists(a, root.revoked_pem)
    assert "is revoked: other nodes refuse it" in a.expiry_warning(now())
    with pytest.raises(UsageError, match=r"the key in .* is revoked: use a new directory"):
        root.issue_intermediate(site.directory, SITE, now())


def test_revoked_intermediate_that_knows_it_signs_nothing(root, site, tmp_path):
    root.revoke_intermediate("site", now())
    (site.directory / REVOKED_FILE).write_bytes(root.revoked_pem)
    with pytest.raises(InvalidCertificate, match="is revoked: make another one"):
        certify(site, tmp_path / "a", OF_SITE)


def test_list_of_an_intermediate_revokes_only_what_it_issued(root, site, tmp_path):
    a, b = certify(site, tmp_path / "a", OF_SITE), certify(site, tmp_path / "b", OF_SITE)
    c = certify(root, tmp_path / "c")
    key = load_key(site.directory / KEY_FILE)
    assert key
    serials = {a.certificate.serial, c.certificate.serial}
    made = revocation.issue_list(site.signer, key, serials, 7, now())
    pem = made.public_bytes(Encoding.PEM) + site.signer.public_bytes(Encoding.PEM)
    judge = with_lists(c, pem)
    with pytest.raises(InvalidCertificate, match="^the certificate is revoked$"):
        judge.check_peer(a.certificate)
    judge.check_peer(b.certificate)
    judge.check_peer(c.certificate)


def test_intermediate_revokes_and_renews_its_nodes_only(root, site, tmp_path):
    a, c = certify(site, tmp_path / "a", OF_SITE), certify(root, tmp_path / "c")
    with pytest.raises(UsageError, match="no certificate was issued to node 'c'"):
        site.revoke("c", now())
    made, bundle = site.renew("a", now())
    assert made.claims == OF_SITE
    assert len(install(a.directory, bundle, now()).chain) == 2
    assert {each.serial for each in site.revoke("a", now())} == {a.certificate.serial, made.serial}
    judge = with_lists(c, site.revoked_pem)
    for certificate in (a.certificate, made):
        with pytest.raises(InvalidCertificate, match="^the certificate is revoked$"):
            judge.check_peer(certificate)
    with pytest.raises(UsageError, match="node a is revoked: enrol it anew instead"):
        site.renew("a", now())
    assert CertificateAuthority(site.directory).revoked.number == 1


def test_lists_of_root_and_intermediate_are_kept_side_by_side(root, site, tmp_path):
    certify(site, tmp_path / "a", OF_SITE)
    certify(root, tmp_path / "b")
    site.revoke("a", now())
    root.revoke("b", now())
    node = certify(root, tmp_path / "c")
    assert len(node.revoked.lists) == 1
    _, bundle = root.renew("c", now())
    install(node.directory, replace(bundle, revoked=site.revoked_pem), now())
    assert [each.number for each in again(node).revoked.lists] == [1, 1]
    assert len(again(node).revoked.serials) == 2
    _, bundle = root.renew("c", now())  # with the list of the root
    assert install(node.directory, bundle, now()).revoked == again(node).revoked
    assert len(again(node).revoked.lists) == 2


def test_list_of_a_revoked_or_expired_intermediate_is_dropped(root, site, tmp_path):
    certify(site, tmp_path / "a", OF_SITE)
    site.revoke("a", now())
    root.revoke_intermediate("site", now())
    node = with_lists(certify(root, tmp_path / "b"), root.revoked_pem + site.revoked_pem)
    assert [each.chain for each in node.revoked.lists] == [()]
    found = list(revocation.parse_lists(site.revoked_pem, root.roots, "the list"))
    assert len(revocation.Revocations().updated(found, now()).lists) == 1
    assert revocation.Revocations().updated(found, now() + 400 * DAY).lists == ()


def test_lists_of_strangers_and_nodes_are_refused(root, site, tmp_path):
    stranger = make_authority(tmp_path / "other", "plant")
    stranger.issue_intermediate(tmp_path / "theirs", SITE, now())
    theirs = CertificateAuthority(tmp_path / "theirs")
    certify(theirs, tmp_path / "x", OF_SITE)
    theirs.revoke("a", now())
    node = certify(root, tmp_path / "a")
    own = load_key(node.key_file)
    root_key = load_key(root.directory / KEY_FILE)
    assert own and root_key
    by_node = revocation.issue_list(node.chain[0], own, {1}, 9, now())
    of_node = by_node.public_bytes(Encoding.PEM) + node.certificate.pem
    old = revocation.issue_list(root.roots[0], root_key, {1}, 9, now())
    as_intermediate = old.public_bytes(Encoding.PEM) + root.roots[0].public_bytes(Encoding.PEM)
    long = theirs.revoked_pem + 4 * site.signer.public_bytes(Encoding.PEM)
    for pem in (theirs.revoked_pem, of_node, as_intermediate, long):
        with pytest.raises(InvalidCertificate, match="not signed by this federation's authority"):
            revocation.parse_list(pem, root.roots, "the list")


def test_number_of_lists_is_bounded(root, tmp_path, monkeypatch):
    monkeypatch.setattr(revocation, "LISTS_MAX", 2)
    found: list[revocation.RevocationList] = []
    for name in ("a", "b", "c"):
        root.issue_intermediate(tmp_path / name, site_named(name), now())
        authority = CertificateAuthority(tmp_path / name)
        certify(authority, tmp_path / f"node-{name}", OF_SITE)
        authority.revoke("a", now())
        found += revocation.parse_lists(authority.revoked_pem, root.roots, name)
    kept = revocation.Revocations().updated(found, now()).lists
    assert {each.issuer for each in kept} == {found[0].issuer, found[1].issuer}


def test_intermediate_is_signed_again_with_the_same_key(root, site, tmp_path):
    a = certify(site, tmp_path / "a", OF_SITE)
    made = root.issue_intermediate(site.directory, SITE, now() + DAY)
    assert made.public_key() == site.signer.public_key()
    later = certify(CertificateAuthority(site.directory), tmp_path / "b", OF_SITE, at=now() + DAY)
    certificates.check_chain(a.chain, later.roots)
    assert root.revoke_intermediate("site", now()) == 2
    judge = with_lists(certify(root, tmp_path / "c"), root.revoked_pem)
    for each in (a, later):
        with pytest.raises(InvalidCertificate, match="authority that issued"):
            judge.check_peer(each.certificate)


def test_copy_without_the_key_is_enough_to_sign_again(root, site, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / INTERMEDIATE_FILE).write_bytes((site.directory / INTERMEDIATE_FILE).read_bytes())
    made = root.issue_intermediate(copy, SITE, now())
    assert made.public_key() == site.signer.public_key()
    assert sorted(each.name for each in copy.iterdir()) == [AUTHORITY_FILE, INTERMEDIATE_FILE]


def test_directory_of_something_else_is_not_made_an_intermediate(root, site, tmp_path):
    node = certify(root, tmp_path / "a")
    with pytest.raises(UsageError, match="holds the key of a node or of another authority"):
        root.issue_intermediate(node.directory, SITE, now())
    with pytest.raises(UsageError, match="there is another intermediate 'site'"):
        root.issue_intermediate(tmp_path / "second", SITE, now())
    other = make_authority(tmp_path / "other", "office")
    with pytest.raises(UsageError, match="is not of the authority in"):
        other.issue_intermediate(site.directory, SITE, now())
    with pytest.raises(InvalidCertificate, match="more than 512 bytes"):
        root.issue_intermediate(tmp_path / "big", Claims("x" * 600), now())


def test_expired_intermediate_signs_nothing_and_warns_before(root, site, tmp_path):
    assert site.expiry_warning(now()) == ""
    assert root.expiry_warning(now()) == ""
    assert "sign it again with hansa ca intermediate" in site.expiry_warning(now() + 300 * DAY)
    with pytest.raises(InvalidCertificate, match="expired at .* sign it again with hansa ca"):
        certify(site, tmp_path / "a", OF_SITE, at=now() + 366 * DAY)
    made = certify(site, tmp_path / "b", OF_SITE, at=now(), valid=3000 * DAY)
    assert made.certificate.not_after <= site.signer.not_valid_after_utc


def test_root_is_replaced_while_intermediates_work(root, site, tmp_path):
    """A node that knows only the old root accepts one whose intermediate the new root has
    signed."""
    old = certify(site, tmp_path / "old", OF_SITE)
    root.renew_root(now())
    root.issue_intermediate(site.directory, SITE, now())
    new = certify(CertificateAuthority(site.directory), tmp_path / "new", OF_SITE)
    assert (len(old.roots), len(new.roots), len(new.chain)) == (1, 2, 3)
    handshake(old, new)
    handshake(new, old)
    assert isinstance(rights_of(new, old), Rights)
    CertificateAuthority(site.directory).revoke(f"{new.certificate.node:016x}", now())
    pem = CertificateAuthority(site.directory).revoked.pem
    assert with_lists(old, pem).revoked.serials == {new.certificate.serial}
    root.drop_old_roots()
    assert (
        root.issue_intermediate(site.directory, SITE, now()).public_key()
        == new.chain[1].public_key()
    )


@contextmanager
def in_thread(target: object) -> Iterator[None]:
    thread = threading.Thread(target=target, daemon=True)  # type: ignore[arg-type]
    thread.start()
    try:
        yield
    finally:
        thread.join(20)
        assert not thread.is_alive()


def test_node_is_invited_by_the_intermediate(site, tmp_path):
    terms = InvitationTerms(OF_SITE, 30 * DAY, 20.0)
    invitation = Invitation(site, terms, "127.0.0.1", 0)
    token = parse_token(invitation.token("127.0.0.1", invitation.port))
    (tmp_path / "a").mkdir()
    with in_thread(invitation.serve):
        joined = join_with_token(tmp_path / "a", token, now())
    invitation.close()
    assert (joined.certificate.claims, joined.certificate.authorities) == (OF_SITE, (site.signer,))


@contextmanager
def issuing(authority: CertificateAuthority) -> Iterator[Issuer]:
    issuer = Issuer(authority.directory, "127.0.0.1", 0)
    with in_thread(issuer.serve):
        try:
            yield issuer
        finally:
            issuer.stop()
    issuer.close()


def test_certificate_is_renewed_by_the_intermediate(tmp_path):
    past = now() - 20 * DAY
    root = CertificateAuthority.create(tmp_path / "ca", "plant", past)
    root.issue_intermediate(tmp_path / "site", SITE, past)
    site = CertificateAuthority(tmp_path / "site")
    node = certify(site, tmp_path / "a", OF_SITE, 30 * DAY, past)
    other = certify(root, tmp_path / "b", OF_SITE, 30 * DAY, past)
    with issuing(site) as issuer:
        bundle = request_renewal(make_contexts(node), "127.0.0.1", issuer.port, now())
        with pytest.raises(InvalidCertificate, match="the issuer is another authority than the"):
            request_renewal(make_contexts(other), "127.0.0.1", issuer.port, now())
    renewed = install(node.directory, bundle, now())
    assert renewed.certificate.not_after > node.certificate.not_after
    assert renewed.certificate.authorities == (site.signer,)


def test_renewal_by_a_revoked_intermediate_is_refused(root, site, tmp_path):
    node = certify(site, tmp_path / "a", OF_SITE)
    root.revoke_intermediate("site", now())
    node = with_lists(node, root.revoked_pem)
    with issuing(site) as issuer:
        with pytest.raises(InvalidCertificate, match="authority that issued the certificate is"):
            request_renewal(make_contexts(node), "127.0.0.1", issuer.port, now())


def test_certificate_of_an_intermediate_is_not_that_of_a_node(site):
    with pytest.raises(InvalidCertificate, match="the certificate names node ''"):
        certificates.parse_certificate(site.signer)


def test_widest_chain_fits_the_bytes_before_authentication(root, tmp_path):
    filters = ("x" * 400,)
    root.issue_intermediate(tmp_path / "site", Claims("s", may_publish=filters), now())
    site = CertificateAuthority(tmp_path / "site")
    root.renew_root(now())
    root.issue_intermediate(site.directory, Claims("s", may_publish=filters), now())
    site = CertificateAuthority(site.directory)
    claims = Claims("n" * 400, may_publish=filters, may_subscribe=())
    made = certify(site, tmp_path / "a", claims)
    size = sum(len(each.public_bytes(Encoding.DER)) for each in made.chain)
    assert (len(made.chain), size < 4_096 - 600) == (3, True), size
