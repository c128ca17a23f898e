"""Chains that a certificate authority did not allow. OpenSSL decides the same during a handshake,
but records of nodes come with chains that OpenSSL has never seen."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.identity.certified import now

from hansa.errors import InvalidCertificate
from hansa.identity import certificates
from hansa.identity.certificates import Claims
from hansa.identity.keys import node_of

FEDERATION = "plant"
ROOT_KEY = Ed25519PrivateKey.generate()
ROOT = certificates.issue_root(ROOT_KEY, FEDERATION, now())
TLS_PURPOSES = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


def key_usage(signs_certificates: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    no = dict.fromkeys((*names, "encipher_only", "decipher_only", "crl_sign"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs_certificates, **no)


def may_sign(path_length: int | None = None) -> tuple[x509.ExtensionType, ...]:
    return x509.BasicConstraints(True, path_length), key_usage(True)


@dataclass
class Signer:
    """An intermediate authority, or a node that plays one."""

    above: "Signer | None" = None
    extensions: tuple[x509.ExtensionType, ...] = field(default_factory=may_sign)
    root: x509.Certificate = ROOT
    root_key: Ed25519PrivateKey = ROOT_KEY
    certificate: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        issuer, issuer_key = (self.root, self.root_key) if self.above is None else (
            self.above.certificate, self.above.key
        )  # fmt: skip
        name = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()).digest.hex()
        uri = f"hansa://{FEDERATION}/{node_of(self.key):016x}"
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer.subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - certificates.CLOCK_TOLERANCE)
            .not_valid_after(now() + certificates.NODE_VALID)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False
            )
        )
        for extension in self.extensions:
            is_critical = not isinstance(extension, x509.ExtendedKeyUsage)
            builder = builder.add_extension(extension, is_critical)
        self.certificate = builder.sign(issuer_key, None)

    @property
    def chain(self) -> list[x509.Certificate]:
        return [self.certificate, *(self.above.chain if self.above else [])]


def node_below(signer: Signer) -> tuple[Ed25519PrivateKey, list[x509.Certificate]]:
    made = Signer(signer, NODE)
    return made.key, made.chain


def is_accepted(chain: list[x509.Certificate], root: x509.Certificate) -> bool:
    try:
        certificates.check_chain(chain, [root])
    except InvalidCertificate as error:
        assert "not signed by this federation's authority" in str(error)
        return False
    return True


def openssl_accepts(
    key: Ed25519PrivateKey, chain: list[x509.Certificate], root: x509.Certificate, path: Path
) -> bool:
    """Whether a TLS client that trusts the root accepts a server with this chain."""
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(secret + b"".join(each.public_bytes(Encoding.PEM) for each in chain))
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(path)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.load_verify_locations(cadata=root.public_bytes(Encoding.DER))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError:
            return False
    return True


def constrained(root_path_length: int | None) -> tuple[x509.Certificate, Ed25519PrivateKey]:
    """A root of a company, with or without a path length."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "company")])
    root = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - certificates.CLOCK_TOLERANCE)
        .not_valid_after(now() + certificates.AUTHORITY_VALID)
        .add_extension(x509.BasicConstraints(True, root_path_length), critical=True)
        .add_extension(key_usage(True), critical=True)
        .sign(key, None)
    )
    return root, key


NODE = (x509.BasicConstraints(False, None), key_usage(False), x509.ExtendedKeyUsage(TLS_PURPOSES))
NAMES = x509.NameConstraints([x509.UniformResourceIdentifier("office.example")], None)
MAIL = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])


@pytest.mark.parametrize(
    ("extensions", "is_allowed"),
    [
        pytest.param(may_sign(), True, id="authority"),
        pytest.param(may_sign(0), True, id="authority for nodes only"),
        pytest.param((x509.BasicConstraints(True, None),), True, id="authority without key usage"),
        pytest.param(NODE, False, id="node"),
        pytest.param((key_usage(True),), False, id="no basic constraints"),
        pytest.param(
            (x509.BasicConstraints(True, None), key_usage(False)), False, id="may not sign"
        ),
        pytest.param((*may_sign(), NAMES), False, id="constrained to other names"),
        pytest.param((*may_sign(), MAIL), False, id="for another purpose"),
        pytest.param(
            (*may_sign(), x509.ExtendedKeyUsage(TLS_PURPOSES)), True, id="for TLS"
        ),
    ],
)  # fmt: skip
def test_certificate_counts_if_its_signer_may_sign(extensions, is_allowed, tmp_path):
    key, chain = node_below(Signer(None, extensions))
    assert openssl_accepts(key, chain, ROOT, tmp_path / "chain.pem") == is_allowed
    assert is_accepted(chain, ROOT) == is_allowed


@pytest.mark.parametrize(
    ("root_length", "lengths", "is_allowed"),
    [
        (None, [None, None, None], True),
        (2, [1, 0], True),
        (1, [None, None], False),
        (0, [None], False),
        (None, [0, None], False),
        (None, [1, None, None], False),
        (None, [1, 5], True),
    ],
)
def test_chain_must_not_be_longer_than_its_authorities_allow(
    root_length, lengths, is_allowed, tmp_path
):
    """`lengths` are those of the intermediate authorities, the one below the root first."""
    root, root_key = constrained(root_length)
    signer = None
    for length in lengths:
        signer = Signer(signer, may_sign(length), root, root_key)
    assert signer is not None
    key, chain = node_below(signer)
    assert openssl_accepts(key, chain, root, tmp_path / "chain.pem") == is_allowed
    assert is_accepted(chain, root) == is_allowed


@pytest.mark.parametrize(
    ("extension", "is_allowed"), [(x509.ExtendedKeyUsage(TLS_PURPOSES), True), (MAIL, False)]
)
def test_certificate_of_a_node_must_be_for_tls(extension, is_allowed, tmp_path):
    made = Signer(None, (x509.BasicConstraints(False, None), extension))
    assert openssl_accepts(made.key, made.chain, ROOT, tmp_path / "chain.pem") == is_allowed
    assert is_accepted(made.chain, ROOT) == is_allowed


def test_critical_extension_that_is_not_known_is_refused(tmp_path):
    unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")
    made = Signer(None, (*NODE, unknown))
    assert not openssl_accepts(made.key, made.chain, ROOT, tmp_path / "chain.pem")
    assert not is_accepted(made.chain, ROOT)


def test_node_that_signs_another_certificate_makes_no_member():
    """With its own key, as a chain in a record."""
    key = Ed25519PrivateKey.generate()
    member = certificates.issue_node(ROOT, ROOT_KEY, key.public_key(), Claims(), now()).x509
    signer = Signer()
    signer.key, signer.certificate = key, member
    forged = Signer(signer, NODE)
    assert is_accepted([member], ROOT)
    assert not is_accepted(forged.chain, ROOT)
