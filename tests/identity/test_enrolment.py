"""Invitations: a real issuer and a real node, on loopback."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.identity.certified import make_authority, now

from hansa.errors import UsageError
from hansa.identity import enrolment, exchange
from hansa.identity.authority import AUDIT_FILE, CertificateAuthority, make_request
from hansa.identity.certificates import Claims, NodeCertificate
from hansa.identity.credentials import install
from hansa.identity.enrolment import (
    Invitation,
    InvitationTerms,
    Token,
    parse_token,
    redeem,
)
from hansa.identity.keys import KEY_FILE, create_key, node_of

CLAIMS = Claims("line-2", ("observe",), (), ("plant/a/#",))


class Issuer:
    """An invitation served in a thread."""

    def __init__(self, authority: CertificateAuthority, open_s: float = 30.0) -> None:
        terms = InvitationTerms(CLAIMS, timedelta(days=9), open_s)
        self.invitation = Invitation(authority, terms, "127.0.0.1", 0)
        self.token = parse_token(self.invitation.token("127.0.0.1", self.invitation.port))
        self.refused: list[str] = []
        self.made: list[NodeCertificate | None] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self.made.append(self.invitation.serve(on_refused=self._note_refused))
        self.invitation.close()

    def _note_refused(self, remote: str, reason: str) -> None:
        self.refused.append(reason)

    def wait(self) -> NodeCertificate | None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.made[0]


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca", "plant")


@pytest.fixture
def issuer(authority: CertificateAuthority) -> Iterator[Issuer]:
    issuer = Issuer(authority)
    yield issuer
    if not issuer.made:  # a test of refusals: let the right node in, to end the thread
        redeem(issuer.token, make_request(Ed25519PrivateKey.generate()))
    issuer.wait()


def test_invited_node_gets_the_claims_of_the_invitation(issuer, tmp_path):
    state = tmp_path / "node"
    state.mkdir()
    key = create_key(state / KEY_FILE)
    made = install(state, redeem(issuer.token, make_request(key)), now())
    assert issuer.wait() == made.certificate
    assert (made.federation, made.certificate.node) == ("plant", node_of(key))
    assert made.certificate.claims == CLAIMS
    assert made.certificate.not_after - made.certificate.not_before < timedelta(days=10)


def test_token_is_void_after_use(issuer, tmp_path):
    request = make_request(create_key(tmp_path / "k"))
    redeem(issuer.token, request)
    issuer.wait()
    with pytest.raises(UsageError, match="does not answer: .*is hansa invite still running"):
        redeem(issuer.token, request)


def test_token_is_void_after_its_time(authority, tmp_path):
    issuer = Issuer(authority, open_s=0.05)
    assert issuer.wait() is None
    with pytest.raises(UsageError, match="does not answer"):
        redeem(issuer.token, make_request(create_key(tmp_path / "k")))
    assert authority.issued() == []


def test_wrong_secret_is_refused_and_the_invitation_stays_open(issuer, authority, tmp_path):
    request = make_request(create_key(tmp_path / "k"))
    forged = msgspec.structs.replace(issuer.token, secret=bytes(16))
    with pytest.raises(UsageError, match="refuses: the request does not match the invitation"):
        redeem(forged, request)
    assert authority.issued() == []
    redeem(issuer.token, request)
    issuer.wait()
    assert issuer.refused == ["the request does not match the invitation"]
    entries = (authority.directory / AUDIT_FILE).read_text().splitlines()
    found = [(each["event"], each.get("address")) for each in map(msgspec.json.decode, entries)]
    here = "127.0.0.1"
    assert found == [("enrolment_refused", here), ("issued", None), ("enrolled", here)]


def test_altered_request_is_refused(issuer, authority, tmp_path):
    """A man in the middle that replaces the key has no valid HMAC for it."""
    original, other = (make_request(create_key(tmp_path / name)) for name in "ab")
    proof = enrolment._proof  # noqa: SLF001
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((issuer.token.host, issuer.token.port)) as raw:
        with client.wrap_socket(raw) as connection:
            forged = enrolment.EnrolmentRequest(other, proof(issuer.token.secret, original))
            exchange.send_message(connection, forged)
            reply = exchange.receive_message(connection, 10_000)
    assert "does not match the invitation" in msgspec.msgpack.decode(reply)[0]
    assert authority.issued() == []


def test_other_issuer_than_the_tokens_gets_no_request(issuer, tmp_path):
    forged = msgspec.structs.replace(issuer.token, fingerprint=bytes(32))
    with pytest.raises(UsageError, match="is not the issuer of this token"):
        redeem(forged, make_request(create_key(tmp_path / "k")))


def test_strangers_do_not_end_an_invitation(issuer):
    """Garbage, a hang-up and a message that is too long are refused; the next one is served."""
    address = (issuer.token.host, issuer.token.port)
    with socket.create_connection(address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):
            stranger.recv(100)
    socket.create_connection(address).close()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address) as raw, client.wrap_socket(raw) as connection:
        connection.sendall(b"\xff\xff\xff\xff")
        with suppress(ConnectionError):
            connection.recv(100)
    redeem(issuer.token, make_request(Ed25519PrivateKey.generate()))
    issuer.wait()
    assert len(issuer.refused) == 3
    assert any("the limit is 4096" in each for each in issuer.refused)


def test_idle_connections_do_not_keep_the_node_out(issuer):
    address = (issuer.token.host, issuer.token.port)
    with ExitStack() as idle:
        for _ in range(exchange.CONNECTIONS_MAX + 5):
            idle.enter_context(socket.create_connection(address))
        redeem(issuer.token, make_request(Ed25519PrivateKey.generate()))
        assert issuer.wait() is not None


@pytest.mark.parametrize(
    "text", ["", "x", "????", "aGFuc2E", Token("a", 1, b"", b"").encode()[:-3]]
)
def test_text_that_is_no_token_is_refused(text):
    with pytest.raises(UsageError, match="neither a file nor a token of hansa invite"):
        parse_token(text)


def test_port_in_use_is_reported(authority):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        terms = InvitationTerms(CLAIMS, timedelta(days=9), 1.0)
        with pytest.raises(UsageError, match="cannot listen on 127.0.0.1:"):
            Invitation(authority, terms, "127.0.0.1", taken.getsockname()[1])
