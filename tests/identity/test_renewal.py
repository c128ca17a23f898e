"""Renewal: a real issuer and real nodes, on loopback."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.agent.hostile.tls_peer import dialling_context
from tests.identity.certified import certify, make_authority, now

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity import certificates, exchange
from hansa.identity.authority import AUDIT_FILE, CertificateAuthority, make_request
from hansa.identity.certificates import Claims, NodeCertificate
from hansa.identity.credentials import Credentials, install_files, load_credentials
from hansa.identity.exchange import IssuerReply, receive_message, send_message
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.renewal import (
    REPORTS_MAX,
    Issuer,
    RenewalRefused,
    RenewalRequest,
    check_renewed,
    request_renewal,
)
from hansa.identity.tls import make_contexts

CLAIMS = Claims("line-2", ("observe",), (), ("plant/a/#",))
DAY = timedelta(days=1)


class RunningIssuer:
    """An issuer served in a thread, whose clock the test sets."""

    def __init__(self, directory: Path, interval_s: float = 0.0) -> None:
        self.issuer = Issuer(directory, "127.0.0.1", 0, interval_s)
        self.port = self.issuer.port
        self.now = now()
        self.renewed: list[NodeCertificate] = []
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self.issuer.serve(
            lambda: self.now,
            lambda remote, made: self.renewed.append(made),
            lambda remote, reason: self.refused.append(reason),
        )
        self.issuer.close()

    def stop(self) -> None:
        self.issuer.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca", "plant")


@pytest.fixture
def running(authority: CertificateAuthority) -> Iterator[RunningIssuer]:
    running = RunningIssuer(authority.directory)
    yield running
    running.stop()


@pytest.fixture
def member(authority: CertificateAuthority, tmp_path: Path) -> Credentials:
    """A node whose certificate has passed two thirds of its validity of 60 days."""
    return certify(authority, tmp_path / "node", CLAIMS, 60 * DAY, now() - 41 * DAY)


def ask(running: RunningIssuer, member: Credentials) -> Credentials:
    """Renew as an agent does; return what is then installed."""
    bundle = request_renewal(make_contexts(member), "127.0.0.1", running.port, now())
    install_files(member.directory, bundle)
    return load_credentials(member.directory, member.key_file, now())


def audit(authority: CertificateAuthority) -> list[dict[str, str]]:
    lines = (authority.directory / AUDIT_FILE).read_text().splitlines()
    return [msgspec.json.decode(line) for line in lines]


def send_raw(running: RunningIssuer, state: Path, request: bytes) -> IssuerReply:
    """Send a request of any content with the certificate of a node."""
    context = dialling_context(state)
    with socket.create_connection(("127.0.0.1", running.port), 20) as raw:
        with context.wrap_socket(raw, server_side=True) as connection:
            send_message(connection, RenewalRequest(request))
            data = receive_message(connection, 100_000)
    return msgspec.msgpack.decode(data, type=IssuerReply)


def test_renewed_certificate_has_the_same_claims_key_and_validity(running, authority, member):
    made = ask(running, member).certificate
    running.stop()
    assert [made] == running.renewed
    assert (made.node, made.key, made.claims) == (
        member.certificate.node,
        member.certificate.key,
        CLAIMS,
    )
    assert certificates.validity(made) == 60 * DAY
    assert made.not_after > now() + 59 * DAY
    assert [(each["event"], each["node"]) for each in audit(authority)[1:]] == [
        ("issued", f"{made.node:016x}"),
        ("renewed", f"{made.node:016x}"),
    ]
    assert {path.stat().st_mode & 0o777 for path in member.directory.iterdir()} == {0o600}


def test_claims_are_those_that_the_authority_signed_last(running, authority, member):
    """A node that was given fewer rights cannot renew its former ones."""
    narrower = Claims("line-2", ("observe",), (), ("plant/a/b",))
    certify(authority, member.directory.parent / "copy", narrower)  # another node: no effect
    key = load_key(member.key_file)
    assert key
    authority.sign(key.public_key(), narrower, now() - 40 * DAY, 60 * DAY)
    assert ask(running, member).certificate.claims == narrower


def test_lost_reply_is_repeated_and_nothing_more_is_signed(running, authority, member):
    first = request_renewal(make_contexts(member), "127.0.0.1", running.port, now())
    second = request_renewal(make_contexts(member), "127.0.0.1", running.port, now())
    assert first == second
    assert len(authority.issued()) == 2


def test_node_gets_a_certificate_of_the_new_root(running, authority, member):
    ask(running, member)
    authority.renew_root(now())
    present = load_credentials(member.directory, member.key_file, now())
    made = ask(running, present)
    assert certificates.is_issued_by(made.certificate.x509, authority.roots[0])
    assert set(made.roots) == set(authority.roots)


def test_revoked_node_is_refused(running, authority, member):
    authority.revoke("line-2", now())
    with pytest.raises(RenewalRefused, match="^the certificate is revoked$"):
        ask(running, member)
    running.stop()
    assert running.refused == [f"node {member.certificate.node:016x}: the certificate is revoked"]
    assert running.issuer.counters == {"refused": 1}
    last = audit(authority)[-1]
    assert (last["event"], last["address"]) == ("renewal_refused", "127.0.0.1")
    assert len(authority.issued()) == 1


def test_certificate_that_the_authority_does_not_know_is_refused(running, authority, member):
    """Such as one that was issued after the copy of a lost authority was made."""
    for path in (authority.directory / "issued").iterdir():
        path.unlink()
    key = load_key(member.key_file)
    assert key
    authority.sign(key.public_key(), CLAIMS, now())
    with pytest.raises(RenewalRefused, match="the authority did not issue this certificate"):
        ask(running, member)


@pytest.mark.parametrize(
    ("valid", "age", "reason"),
    [
        (10 * DAY, 11 * DAY, "the peer's certificate has expired"),
        (10 * DAY, -2 * DAY, "the peer's certificate is not valid yet"),
    ],
)
def test_certificate_outside_its_dates_is_refused(running, authority, tmp_path, valid, age, reason):
    member = certify(authority, tmp_path / "node", CLAIMS, valid, now() - age)
    with pytest.raises(UsageError):
        ask(running, member)
    running.stop()
    assert running.refused == [reason]


def test_member_of_another_federation_is_refused_and_sees_no_certificate(running, tmp_path):
    stranger = certify(make_authority(tmp_path / "other"), tmp_path / "node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node" / "certificate.pem", stranger.key_file)
    with socket.create_connection(("127.0.0.1", running.port), 20) as raw:
        with pytest.raises(ssl.SSLError, match="(?i)unknown.ca"):
            context.wrap_socket(raw, server_side=True)
    running.stop()
    assert running.refused == [
        "the peer's certificate is not signed by this federation's authority"
    ]


def test_request_for_another_key_is_refused(running, authority, member):
    reply = send_raw(running, member.directory, make_request(Ed25519PrivateKey.generate()))
    assert reply == IssuerReply("the request is for another key than that of the certificate")
    assert len(authority.issued()) == 1


@pytest.mark.parametrize("has_subject", [True, False])
def test_request_that_asks_for_names_or_rights_is_refused(running, authority, member, has_subject):
    key = load_key(member.key_file)
    assert key
    name = [x509.NameAttribute(NameOID.COMMON_NAME, "core")] if has_subject else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(name))
    if not has_subject:
        claims = x509.UnrecognizedExtension(certificates.CLAIMS_OID, b"{}")
        builder = builder.add_extension(claims, critical=False)
    request = builder.sign(key, None).public_bytes(Encoding.PEM)
    reply = send_raw(running, member.directory, request)
    assert reply == IssuerReply("the request asks for names or extensions: it must have none")
    assert len(authority.issued()) == 1


def test_request_that_is_none_is_refused(running, member):
    assert send_raw(running, member.directory, b"x").problem == (
        "this is no certificate request in PEM"
    )


def test_node_may_ask_once_in_a_while(authority, member):
    running = RunningIssuer(authority.directory, interval_s=60.0)
    try:
        ask(running, member)
        with pytest.raises(RenewalRefused, match="a node may ask once in 60 s"):
            ask(running, member)
        other = certify(
            authority, member.directory.parent / "b", CLAIMS, 60 * DAY, now() - 41 * DAY
        )
        ask(running, other)
    finally:
        running.stop()


def test_another_member_cannot_pass_for_the_issuer(authority, member, tmp_path):
    """Its certificate is that of a node."""
    liar = make_contexts(certify(authority, tmp_path / "liar"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connected:
                liar.accepting.wrap_socket(connected).close()

        thread = threading.Thread(target=answer)
        thread.start()
        port = listening.getsockname()[1]
        with pytest.raises(InvalidCertificate, match="not that of the issuer of 'plant'"):
            request_renewal(make_contexts(member), "127.0.0.1", port, now())
        thread.join(30)


def test_issuer_that_does_not_answer_is_no_refusal(member):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UsageError, match="no answer: ") as raised:
        request_renewal(make_contexts(member), "127.0.0.1", port, now())
    assert not isinstance(raised.value, RenewalRefused)


def test_idle_connections_keep_no_member_out_and_are_bounded(running, member):
    with ExitStack() as idle:
        for _ in range(4 * exchange.CONNECTIONS_MAX):
            idle.enter_context(socket.create_connection(("127.0.0.1", running.port)))
        ask(running, member)
        mine = [each for each in threading.enumerate() if each.name.endswith("(_serve_one)")]
        assert len(mine) <= exchange.CONNECTIONS_MAX


def test_flood_of_refusals_is_counted_and_reported_within_bounds(running, authority, member):
    count = REPORTS_MAX + 10
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", running.port), 20) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                while raw.recv(4_096):
                    pass
    running.stop()
    assert len(running.refused) == REPORTS_MAX
    assert running.issuer.counters == {"refused": count, "refusals not reported": 10}
    assert len(audit(authority)) == 1 + REPORTS_MAX


@pytest.mark.parametrize("newer", [True, False])
def test_revocation_list_is_taken_only_if_it_is_newer(running, authority, member, tmp_path, newer):
    certify(authority, tmp_path / "b", Claims("b"))
    authority.revoke("b", now())
    bundle = request_renewal(make_contexts(member), "127.0.0.1", running.port, now())
    assert bundle.revoked == authority.revoked_pem
    install_files(member.directory, bundle)
    present = load_credentials(member.directory, member.key_file, now())
    if newer:
        certify(authority, tmp_path / "c", Claims("c"))
        authority.revoke("c", now())
    _, again = authority.renew("line-2", now())
    assert check_renewed(again, present, now()).revoked == (authority.revoked_pem if newer else b"")


def test_reply_for_another_node_or_with_the_present_certificate_is_refused(authority, member):
    other = Ed25519PrivateKey.generate()
    _, bundle = authority.sign(other.public_key(), CLAIMS, now())
    with pytest.raises(InvalidCertificate, match="for another key"):
        check_renewed(bundle, member, now())
    made, bundle = authority.renew(f"{member.certificate.node:016x}", now())
    install_files(member.directory, bundle)
    present = load_credentials(member.directory, member.key_file, now())
    assert present.certificate == made
    with pytest.raises(InvalidCertificate, match="not newer than the present one"):
        check_renewed(bundle, present, now())


def test_revocation_waits_for_a_renewal_in_progress(authority, member, monkeypatch):
    """Otherwise the renewed certificate would not be on the list."""
    is_signing, may_sign = threading.Event(), threading.Event()
    issue = certificates.issue_node

    def slow(*given: object) -> NodeCertificate:
        is_signing.set()
        assert may_sign.wait(30)
        return issue(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(certificates, "issue_node", slow)
    opened = CertificateAuthority(authority.directory)
    renewing = threading.Thread(target=opened.renew_presented, args=(member.certificate, now()))
    revoked: list[list[NodeCertificate]] = []
    revoking = threading.Thread(target=lambda: revoked.append(authority.revoke("line-2", now())))
    renewing.start()
    assert is_signing.wait(30)
    revoking.start()
    revoking.join(0.2)
    assert revoking.is_alive()
    may_sign.set()
    for each in (renewing, revoking):
        each.join(30)
    assert len(revoked[0]) == 2


def test_key_file_that_is_gone_is_reported(member):
    contexts = make_contexts(member)
    (member.directory / KEY_FILE).unlink()
    with pytest.raises(UsageError, match="key.pem is missing"):
        request_renewal(contexts, "127.0.0.1", 1, now())


def test_issuer_needs_an_authority(tmp_path):
    with pytest.raises(UsageError, match="holds no authority"):
        Issuer(tmp_path, "127.0.0.1", 0)
