"""What an attacker who has the key of an intermediate authority cannot do to nodes."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from tests.identity.certified import certify, make_authority, now
from tests.identity.test_intermediate import (
    DAY,
    OF_SITE,
    SITE,
    again,
    issuing,
    rights_of,
    site_named,
    with_lists,
)

from hansa.errors import InvalidCertificate
from hansa.identity import certificates, revocation
from hansa.identity.authority import Bundle, CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import Credentials, install_files
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.renewal import check_renewed, request_renewal
from hansa.identity.tls import make_contexts
from hansa.protocol.membership.rights import Rights

ANOTHER = "the issuer is another authority than the one that has enrolled this node"
NOT_SIGNED = "is not signed by this federation's authority"


@pytest.fixture
def root(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca", "plant")


@pytest.fixture
def site(root: CertificateAuthority, tmp_path: Path) -> CertificateAuthority:
    root.issue_intermediate(tmp_path / "site", SITE, now())
    return CertificateAuthority(tmp_path / "site")


@pytest.fixture
def victim(site: CertificateAuthority, tmp_path: Path) -> Credentials:
    return certify(site, tmp_path / "victim", OF_SITE, 10 * DAY)


def public_key(node: Credentials) -> Ed25519PublicKey:
    key = load_key(node.key_file)
    assert key
    return key.public_key()


def private_key(authority: CertificateAuthority) -> Ed25519PrivateKey:
    key = load_key(authority.directory / KEY_FILE)
    assert key
    return key


def pem(*found: x509.Certificate) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def reply(
    authority: CertificateAuthority,
    node: Credentials,
    roots: list[x509.Certificate] | None = None,
    revoked: bytes = b"",
) -> Bundle:
    """Answer a renewal with what the authority has, except for roots and revocation lists."""
    at = now() + timedelta(seconds=1)
    _, bundle = authority.sign(public_key(node), OF_SITE, at, 10 * DAY)
    return replace(bundle, roots=pem(*roots) if roots else bundle.roots, revoked=revoked)


def renew(node: Credentials, bundle: Bundle) -> Credentials:
    """Install a reply as an agent does."""
    install_files(node.directory, check_renewed(bundle, node, now() + DAY))
    return again(node)


def test_root_that_no_known_root_has_signed_is_left_out(root, site, victim, tmp_path):
    rogue = make_authority(tmp_path / "rogue", "plant")
    member = certify(rogue, tmp_path / "member")
    found = renew(victim, reply(site, victim, [*rogue.roots, *root.roots]))
    assert found.certificate.serial != victim.certificate.serial
    assert found.roots == victim.roots
    assert NOT_SIGNED in str(rights_of(member, found))


def test_roots_stay_if_a_reply_has_none_that_is_known(root, site, victim, tmp_path):
    rogue = make_authority(tmp_path / "rogue", "plant")
    assert renew(victim, reply(site, victim, rogue.roots)).roots == tuple(root.roots)


def test_intermediate_does_not_make_a_root_of_itself(root, site, victim, tmp_path):
    """Its certificate is in the chain, and a known root has signed it, as a cross certificate."""
    key = private_key(site)
    itself = certificates.issue_root(key, "plant", now())
    assert itself.subject == site.signer.subject
    found = renew(victim, reply(site, victim, [itself, *root.roots]))
    assert found.roots == tuple(root.roots)
    cross = certificates.cross_sign(itself, site.signer, key, now())
    bundle = reply(site, victim, [itself, *root.roots])
    for more in (cross, itself):
        chain = bundle.certificate + pem(more)
        assert renew(victim, replace(bundle, certificate=chain)).roots == tuple(root.roots)


def test_root_with_the_name_of_the_next_one_is_left_out(root, site, victim):
    """The next root has another key. Its cross certificate is genuine."""
    root.renew_root(now())
    root.issue_intermediate(site.directory, SITE, now())
    key = Ed25519PrivateKey.generate()
    next_root = root.roots[0]
    fake = (
        x509.CertificateBuilder(next_root.subject, next_root.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now())
        .not_valid_after(now() + DAY)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .sign(key, None)
    )
    bundle = reply(CertificateAuthority(site.directory), victim, [fake, *root.roots])
    assert renew(victim, bundle).roots == tuple(root.roots)


def test_next_root_arrives_and_the_earlier_one_is_dropped(root, site, victim):
    old = root.roots
    root.renew_root(now())
    root.issue_intermediate(site.directory, SITE, now())
    both = renew(victim, reply(CertificateAuthority(site.directory), victim))
    assert both.roots == tuple(root.roots)
    root.drop_old_roots()
    root.issue_intermediate(site.directory, SITE, now())
    new = renew(both, reply(CertificateAuthority(site.directory), both))
    assert new.roots == tuple(root.roots)
    assert not set(new.roots) & set(old)


def test_later_root_is_not_dropped(root, site, victim):
    """Its lists would not count any more, such as one that revokes the intermediate."""
    old = list(root.roots)
    root.renew_root(now() + timedelta(seconds=1))
    certify(root, victim.directory, OF_SITE)  # an operator has installed it
    both = root.roots
    _, bundle = site.sign(public_key(victim), OF_SITE, now())
    install_files(victim.directory, replace(bundle, roots=pem(*both)))
    found = renew(again(victim), reply(site, victim, old))
    assert found.roots == tuple(both)
    root.revoke_intermediate("site", now())
    assert with_lists(found, root.revoked_pem).revoked.covers(site.signer)


def test_lists_of_other_roots_are_refused(root, site, victim, tmp_path):
    rogue = make_authority(tmp_path / "rogue", "plant")
    certify(rogue, tmp_path / "x")
    rogue.revoke("x", now())
    with pytest.raises(InvalidCertificate, match="the revocation list " + NOT_SIGNED):
        check_renewed(
            reply(site, victim, [*root.roots, *rogue.roots], rogue.revoked_pem),
            victim,
            now() + DAY,
        )


def test_list_that_would_not_count_with_the_new_roots_is_not_kept(root, site, victim, tmp_path):
    """The files could not be loaded again."""
    certify(root, tmp_path / "x")
    root.revoke("x", now())
    of_old_root = root.revoked_pem
    root.renew_root(now())
    root.issue_intermediate(site.directory, SITE, now())
    site = CertificateAuthority(site.directory)
    present = with_lists(renew(victim, reply(site, victim)), of_old_root)
    new = root.roots[:1]
    with pytest.raises(InvalidCertificate, match="the revocation list " + NOT_SIGNED):
        check_renewed(reply(site, present, new), present, now() + DAY)
    found = renew(present, reply(site, present, new, root.revoked_pem))
    assert (found.roots, found.revoked.number) == (tuple(new), 2)


def test_chain_that_is_not_valid_any_more_is_not_installed(site, victim):
    later = now() + timedelta(days=400)
    made = certificates.issue_node(
        site.signer, private_key(site), public_key(victim), OF_SITE, now(), 500 * DAY
    )
    bundle = Bundle(made.pem + pem(site.signer), pem(*site.roots))
    with pytest.raises(InvalidCertificate, match="the certificate expired"):
        check_renewed(bundle, victim, later)


@pytest.mark.parametrize("enrolled_by", ["root", "other"])
def test_intermediate_takes_over_no_node_of_another_authority(root, site, tmp_path, enrolled_by):
    root.issue_intermediate(tmp_path / "other", site_named("other"), now())
    owner = CertificateAuthority(tmp_path / enrolled_by) if enrolled_by == "other" else root
    victim = certify(owner, tmp_path / "victim", OF_SITE, 10 * DAY)
    with pytest.raises(InvalidCertificate, match=ANOTHER):
        check_renewed(reply(site, victim), victim, now() + DAY)
    with issuing(site) as issuer:  # refused before anything is asked
        with pytest.raises(InvalidCertificate, match=ANOTHER):
            request_renewal(make_contexts(victim), "127.0.0.1", issuer.port, now())


def test_certificate_of_another_intermediate_is_refused_in_a_renewal(root, site, victim, tmp_path):
    root.issue_intermediate(tmp_path / "other", site_named("other"), now())
    other = CertificateAuthority(tmp_path / "other")
    for authority in (other, root):
        with pytest.raises(InvalidCertificate, match=ANOTHER):
            check_renewed(reply(authority, victim), victim, now() + DAY)


def test_intermediate_of_another_federation_makes_no_members(root, tmp_path):
    """Such as one below the same root of a company."""
    judge = certify(root, tmp_path / "judge")
    key, own = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    office = certificates.issue_root(private_key(root), "office", now())
    authority = certificates.issue_intermediate(
        office, private_key(root), key.public_key(), SITE, now(), 9 * DAY
    )
    as_plant = certificates.issue_intermediate(
        root.roots[0], private_key(root), key.public_key(), SITE, now(), 9 * DAY
    )
    made = certificates.issue_node(as_plant, key, own.public_key(), OF_SITE, now())
    for chain, is_member in (((made.x509, as_plant), True), ((made.x509, authority), False)):
        certificates.check_chain(chain, judge.roots)  # the signatures are genuine
        found = rights_of(replace(judge, certificate=made, chain=chain), judge)
        assert isinstance(found, Rights) is is_member
    assert found == "certificate refused: its authority is not one of federation 'plant'"


def test_revocation_covers_all_names_and_rights_of_the_same_key(root, site):
    """Also certificates that were signed before, with more rights."""
    directory = site.directory
    narrower = Claims("site", SITE.roles, ("site/a/#",), SITE.may_subscribe)
    made = [site.signer]
    made += [root.issue_intermediate(directory, each, now()) for each in (narrower, OF_SITE)]
    assert root.revoke_intermediate(OF_SITE.name, now()) == 3
    (found,) = revocation.parse_lists(root.revoked_pem, root.roots, "the list")
    assert [found.covers(each) for each in made] == [True] * 3
