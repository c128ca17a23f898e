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
    rights_of,
)

from hansa.identity import certificates
from hansa.identity.authority import Bundle, CertificateAuthority
from hansa.identity.credentials import Credentials, install_files
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.renewal import check_renewed
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
