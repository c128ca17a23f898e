"""Links with TLS, over real TCP on loopback: who is accepted, who is not, and why."""

import asyncio
import gc
import random
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from tests.agent.links.listener import RecordingListener
from tests.agent.links.secure_end import SecureEnd
from tests.agent.waiting import until
from tests.identity.certified import certify, make_authority, now

from hansa.agent.links import security
from hansa.agent.links.admission import HELLO_BYTES, REFUSED_BYTES, TOO_MANY_BYTES
from hansa.agent.links.fragments import FRAGMENT_BYTES
from hansa.agent.links.link import Address, Link
from hansa.agent.links.security import REVOCATION_FRAME, LinkSecurity
from hansa.agent.links.stream import FRAGMENT_BIT, LENGTH_BYTES, LinkLimits, StreamLink
from hansa.agent.links.tcp import TcpLinks
from hansa.agent.links.tls import secure_protocol
from hansa.agent.sockets import ByteProtocol
from hansa.errors import InvalidFrame
from hansa.identity import certificates
from hansa.identity.authority import REVOKED_FILE, CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import CERTIFICATE_FILE, install
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.tls import explain_handshake_error, make_contexts
from hansa.protocol.model import LinkId
from hansa.protocol.wire import codec
from hansa.protocol.wire.codec import CONTROL_BYTES_MAX

CONTROL = bytes((codec.CONTROL,))
LIMITS = LinkLimits(1 << 20, 16 << 20)


class SecureSide(SecureEnd):
    """One end with certificates."""

    links: TcpLinks

    def __init__(self, state: Path | None, clock: Callable[[], datetime] = now) -> None:
        self.alarms: list[str] = []
        security = state and LinkSecurity(state, state / KEY_FILE, self.alarms.append, clock)
        super().__init__(security or None, RecordingListener())
        self.links = TcpLinks(self.listener, random.Random(1), count(1), LIMITS, self.admission)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca")


@pytest.fixture
def member(authority: CertificateAuthority, tmp_path: Path) -> Path:
    certify(authority, tmp_path / "a")
    return tmp_path / "a"


def public_key(state: Path) -> Ed25519PublicKey:
    key = load_key(state / KEY_FILE)
    assert key
    return key.public_key()


async def attempt(server: SecureSide, client: SecureSide) -> None:
    """Dial until the link is up or one side has given a reason."""
    await server.listen()
    client.dial(server.address)
    await until(
        lambda: (
            (server.listener.opened and client.listener.opened)
            or (client.failures and (server.refused or server.listener.closed))
        ),
        "link up, or refused",
    )
    await asyncio.gather(client.stop(), server.stop())


def test_members_exchange_frames_of_any_size(authority, member, tmp_path):
    peer = certify(authority, tmp_path / "b").certificate
    frames = [b"a", CONTROL * 300_000, b"c", CONTROL * CONTROL_BYTES_MAX, b"e"]

    async def run() -> tuple[SecureSide, SecureSide]:
        server, client = SecureSide(member), SecureSide(tmp_path / "b")
        await server.listen()
        client.dial(server.address)
        await until(lambda: server.listener.opened and client.listener.opened, "link up")
        client.listener.opened[0].send(frames)
        await until(lambda: len(server.listener.frames) == len(frames), "all frames")
        server.listener.opened[0].send(frames[::-1])
        await until(lambda: len(client.listener.frames) == len(frames), "all frames back")
        await until(lambda: not server.listener.opened[0].outstanding_bytes, "receipts")
        client.listener.opened[0].close("done")
        await until(lambda: server.listener.closed, "end")
        await asyncio.gather(client.stop(), server.stop())
        return server, client

    server, client = asyncio.run(run())
    assert (server.listener.frames, client.listener.frames) == (frames, frames[::-1])
    (seen,) = {link.expected_node for link in server.listener.opened[:1]}
    assert (seen, server.listener.opened[0].certificate) == (peer.node, peer)
    assert server.listener.closed[0] == "closed by the other side"


YESTERDAY, TOMORROW = now() - timedelta(days=1), now() + timedelta(days=1)


@pytest.mark.parametrize(
    ("make", "server_says", "client_says"),
    [
        (lambda authority, path: certify(make_authority(path.parent / "other"), path),
         "the peer's certificate is not signed by this federation's authority", "unknown ca"),
        (lambda authority, path: certify(
            authority, path, valid=timedelta(hours=1), at=YESTERDAY),
         "the peer's certificate has expired", "certificate expired"),
        (lambda authority, path: certify(authority, path, at=TOMORROW),
         "the peer's certificate is not valid yet", "bad certificate"),
    ],
)  # fmt: skip
def test_peer_without_valid_certificate_is_refused_with_reason(
    authority, member, tmp_path, make, server_says, client_says
):
    made = make(authority, tmp_path / "b")
    at = made.certificate.not_before + timedelta(minutes=10)

    async def run() -> tuple[SecureSide, SecureSide]:
        server, client = SecureSide(member), SecureSide(tmp_path / "b", lambda: at)
        await attempt(server, client)
        return server, client

    server, client = asyncio.run(run())
    assert (server.listener.opened, client.listener.opened) == ([], [])
    assert set(server.refused) == {server_says}
    assert server.admission.counters["refused: not authenticated"] == len(server.refused)
    prefix = "the peer refused our certificate or TLS version: "
    assert {said.removeprefix(prefix) for said in client.failures} == {client_says}


def test_member_of_another_federation_with_the_same_root_is_refused(authority, member, tmp_path):
    """As with the authority of a company that certifies nodes of several federations."""
    root_key = load_key(authority.directory / KEY_FILE)
    assert root_key
    office = certificates.issue_root(root_key, "office", now())
    certify(authority, tmp_path / "b")
    made = certificates.issue_node(office, root_key, public_key(tmp_path / "b"), Claims(), now())
    (tmp_path / "b" / CERTIFICATE_FILE).write_bytes(made.pem)

    async def run() -> SecureSide:
        server, client = SecureSide(member), SecureSide(tmp_path / "b")
        await attempt(server, client)
        return server

    (said,) = set(asyncio.run(run()).refused)
    assert said.endswith("the certificate is for federation 'office', not 'hansa'")


def test_revoked_member_is_refused(authority, member, tmp_path):
    certify(authority, tmp_path / "b", Claims("b"))
    authority.revoke("b", now())
    (member / REVOKED_FILE).write_bytes(authority.revoked_pem)

    async def run() -> SecureSide:
        server, client = SecureSide(member), SecureSide(tmp_path / "b")
        await attempt(server, client)
        return server

    server = asyncio.run(run())
    assert set(server.refused) == {"the peer's certificate is refused: the certificate is revoked"}
    assert server.listener.opened == []


def test_dialler_refuses_a_listener_that_is_no_member(authority, member, tmp_path):
    certify(authority, tmp_path / "b", Claims("b"))
    authority.revoke("b", now())
    (member / REVOKED_FILE).write_bytes(authority.revoked_pem)

    async def run() -> SecureSide:
        server, client = SecureSide(tmp_path / "b"), SecureSide(member)
        await attempt(server, client)
        return client

    client = asyncio.run(run())
    assert set(client.failures) == {"the peer's certificate is refused: the certificate is revoked"}
    assert client.listener.opened == []


def test_plain_and_secure_agents_do_not_link(member):
    async def run(server: SecureSide, client: SecureSide) -> tuple[SecureSide, SecureSide]:
        await server.listen()
        client.dial(server.address)
        plain, secure = (server, client) if client.security else (client, server)
        await until(lambda: secure.refused or secure.failures, "a reason")
        await asyncio.gather(client.stop(), server.stop())
        assert (secure.listener.opened, secure.listener.frames) == ([], [])
        return plain, secure

    _, secure = asyncio.run(run(SecureSide(member), SecureSide(None)))
    assert secure.listener.opened == []
    _, secure = asyncio.run(run(SecureSide(None), SecureSide(member)))
    assert secure.failures


async def talk(port: int, data: bytes) -> bytes:
    """Send bytes to a port and return everything that it answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        answer = await reader.read()
    except ConnectionError:
        answer = b""
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no TLS handshake: http request"),
        (bytes(HELLO_BYTES + 1), "the peer does not speak TLS 1.3"),
        (b"\x16\x03\x03\x40\x00" + bytes(HELLO_BYTES), TOO_MANY_BYTES),
    ],
)
def test_stranger_learns_nothing(member, data, reason):
    """The answer is a ClientHello and an alert: no certificate, no name."""

    async def run() -> tuple[SecureSide, bytes]:
        server = SecureSide(member)
        await server.listen()
        answer = await talk(server.address.port, data)
        await server.stop()
        return server, answer

    server, answer = asyncio.run(run())
    node = certificates.load_certificates((member / "certificate.pem").read_bytes(), "a")[0]
    assert node.subject.rfc4514_string().encode()[3:] not in answer
    assert b"hansa" not in answer
    assert len(answer) < 700
    assert (server.listener.opened, len(server.refused)) == ([], 1)
    assert server.refused[0].startswith(reason)


def test_stranger_with_tls_server_and_own_certificate_sees_no_certificate(member, tmp_path):
    """A stranger that plays the dialler gets an alert in place of the agent's certificate."""
    certify(make_authority(tmp_path / "other"), tmp_path / "b")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "b" / "certificate.pem", tmp_path / "b" / "key.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(tmp_path / "b" / "authority.pem")

    def steal(port: int) -> tuple[str, bytes | None]:
        with socket.create_connection(("127.0.0.1", port)) as raw:
            with context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False) as tls:
                try:
                    tls.do_handshake()
                except ssl.SSLError as error:
                    return explain_handshake_error(error), None
                return "", tls.getpeercert(binary_form=True)

    async def run() -> tuple[str, bytes | None]:
        server = SecureSide(member)
        await server.listen()
        found = await asyncio.to_thread(steal, server.address.port)
        await server.stop()
        return found

    said, certificate = asyncio.run(run())
    assert (said.endswith("unknown ca"), certificate) == (True, None)


def test_tls_1_2_is_refused(authority, member, tmp_path):
    certify(authority, tmp_path / "b")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tmp_path / "b" / "certificate.pem", tmp_path / "b" / "key.pem")

    def shake(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as raw:
            with pytest.raises(ssl.SSLError):
                context.wrap_socket(raw, server_side=True)

    async def run() -> SecureSide:
        server = SecureSide(member)
        await server.listen()
        await asyncio.to_thread(shake, server.address.port)
        await until(lambda: server.refused, "refused")
        await server.stop()
        return server

    assert asyncio.run(run()).listener.opened == []


def words(*numbers: int) -> bytes:
    """Return lengths as they precede frames."""
    return b"".join(each.to_bytes(LENGTH_BYTES, "big") for each in numbers)


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        (words(HELLO_BYTES) * HELLO_BYTES, False),  # as much as may arrive
        (words(1 << 20) * HELLO_BYTES, False),
        # The first piece of a large frame, and more: the last frames of a refused neighbour.
        (words(FRAGMENT_BIT | FRAGMENT_BYTES, 1 << 20) + words(1_000) * REFUSED_BYTES, True),
    ],
)
def test_member_that_sends_more_than_a_hello_does_not_stop_the_agent(
    authority, member, tmp_path, data, is_refused
):
    """The link has no room for the rest of what TLS has read. It was asked for room endlessly."""
    peer = make_contexts(certify(authority, tmp_path / "b")).dialling
    peer.verify_mode = ssl.CERT_NONE

    def send(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 20) as raw:
            with peer.wrap_socket(raw, server_side=True) as tls, suppress(OSError):
                tls.sendall(data)
                while tls.recv(1 << 16):
                    pass

    class Refusing(RecordingListener):
        def link_opened(self, link: Link) -> None:
            super().link_opened(link)
            if is_refused:
                link.allow_last_frames()

    async def run() -> SecureSide:
        server = SecureSide(member)
        server.links = TcpLinks(
            Refusing(admits=False), random.Random(1), count(1), LIMITS, server.admission
        )
        await server.listen()
        await asyncio.wait_for(asyncio.to_thread(send, server.address.port), 20)
        await until(lambda: server.admission.counters[f"refused: {TOO_MANY_BYTES}"], "refused")
        await server.links.stop()
        return server

    assert asyncio.run(run()).admission.counters == {f"refused: {TOO_MANY_BYTES}": 1}


def test_connection_without_handshake_is_evicted_like_one_without_hello(member, monkeypatch):
    monkeypatch.setattr("hansa.agent.links.admission.PENDING_MAX", 2)

    async def run() -> SecureSide:
        server = SecureSide(member)
        await server.listen()
        open_connections = [
            await asyncio.open_connection("127.0.0.1", server.address.port) for _ in range(3)
        ]
        await until(lambda: server.refused, "the oldest one evicted")
        for _, writer in open_connections:
            writer.close()
        await server.stop()
        return server

    server = asyncio.run(run())
    assert "connections without hello, one evicted" in server.refused[0]


def test_replaced_files_are_used_without_restart(authority, member, tmp_path):
    """A node that is revoked while linked is closed, and the new list is in force at once."""
    certify(authority, tmp_path / "b", Claims("b"))

    async def run() -> SecureSide:
        server, client = SecureSide(member), SecureSide(tmp_path / "b")
        assert server.security
        await server.listen()
        client.dial(server.address)
        await until(lambda: server.listener.opened and client.listener.opened, "link up")
        server.security.links = lambda: server.listener.opened
        server.security.check()
        assert server.listener.closed == []
        authority.revoke("b", now())
        install(member, authority.sign(public_key(member), Claims("a"), now())[1], now())
        server.security.check()
        await until(lambda: server.listener.closed and server.refused, "closed, and kept out")
        await asyncio.gather(client.stop(), server.stop())
        return server

    server = asyncio.run(run())
    assert server.listener.closed == ["not a member any more: the certificate is revoked"]
    assert server.security and server.security.status()["revoked"] == 1
    assert server.alarms == ["", ""]


def test_unusable_new_files_raise_an_alarm_and_the_old_ones_stay_in_use(member):
    side = SecureSide(member)
    assert side.security
    before = side.security.contexts
    (member / "authority.pem").write_text("nonsense")
    side.security.check()
    assert side.security.contexts is before
    assert side.alarms[0].startswith("the new files are not used: ")


def test_expired_peer_is_closed(authority, member, tmp_path):
    peer = certify(authority, tmp_path / "b").certificate
    clock = [now()]
    side = SecureSide(member, lambda: clock[0])
    assert side.security

    class ClosingLink:
        certificate = peer
        reason = ""

        def close(self, reason: str) -> None:
            self.reason = reason

    link = ClosingLink()
    side.security.links = lambda: [link]  # type: ignore[list-item]
    side.security.check()
    assert link.reason == ""
    clock[0] += timedelta(days=400)
    side.security.check()
    assert link.reason.startswith("not a member any more: the certificate expired at ")
    assert "renew it with hansa ca renew" in side.alarms[-1]


@pytest.mark.parametrize("is_revoked", [False, True])
def test_link_continues_with_the_renewed_certificate_of_the_neighbours_record(
    authority, member, tmp_path, is_revoked
):
    """When the certificate of the handshake has expired. A revoked one has no successor."""
    peer = certify(authority, tmp_path / "b", Claims("b"), timedelta(hours=1)).certificate
    renewed, _ = authority.renew("b", now())
    clock = [now()]
    side = SecureSide(member, lambda: clock[0])
    assert side.security

    class OpenLink:
        certificate = peer
        is_ordered = True
        is_admitted = False
        reason = ""

        def close(self, reason: str) -> None:
            self.reason = reason

    link = OpenLink()
    side.security.links = lambda: [link]  # type: ignore[list-item]
    records = {peer.node: (renewed.x509.public_bytes(Encoding.DER),)}
    side.security.known_certificates = lambda node: records.get(node, ())
    if is_revoked:
        authority.revoke("b", now())
        (member / REVOKED_FILE).write_bytes(authority.revoked_pem)
    clock[0] += timedelta(hours=2)
    side.security.check()
    if is_revoked:
        assert link.reason == "not a member any more: the certificate is revoked"
    else:
        assert (link.reason, link.certificate) == ("", renewed)


def test_root_is_rotated_node_by_node(authority, member, tmp_path):
    """A node with a certificate of the new root links to one that knows only the old root."""
    authority.renew_root(now())
    certify(authority, tmp_path / "b")

    async def run(server: SecureSide, client: SecureSide) -> None:
        await attempt(server, client)
        assert server.listener.opened and client.listener.opened

    asyncio.run(run(SecureSide(member), SecureSide(tmp_path / "b")))
    asyncio.run(run(SecureSide(tmp_path / "b"), SecureSide(member)))


def test_newer_revocation_list_of_a_neighbour_is_used_and_passed_on(authority, member, tmp_path):
    peer = certify(authority, tmp_path / "b", Claims("b")).certificate
    side = SecureSide(member)
    assert side.security

    class NeighbourLink:
        certificate, is_admitted = peer, True
        reason = ""

        def __init__(self) -> None:
            self.sent: list[bytes] = []

        def send(self, frames: list[bytes]) -> None:
            self.sent += frames

        def close(self, reason: str) -> None:
            self.reason = reason

    near, revoked = NeighbourLink(), NeighbourLink()
    near.certificate = certify(authority, tmp_path / "c", Claims("c")).certificate
    side.security.links = lambda: [near, revoked]  # type: ignore[list-item]
    side.security.send_revocations(near)  # type: ignore[arg-type]
    assert near.sent == []
    certify(authority, tmp_path / "d", Claims("d"))
    authority.revoke("d", now())
    older = REVOCATION_FRAME + authority.revoked.der
    authority.revoke("b", now())
    newer = REVOCATION_FRAME + authority.revoked.der
    side.security.receive_revocations(newer)
    assert (near.sent, near.reason) == ([newer], "")
    assert (revoked.sent, revoked.reason) == (
        [],
        "not a member any more: the certificate is revoked",
    )
    assert (member / REVOKED_FILE).read_bytes() == authority.revoked_pem
    side.security.receive_revocations(newer)
    side.security.receive_revocations(older)
    assert near.sent == [newer]
    restarted = SecureSide(member).security
    assert restarted and restarted.status()["revoked"] == 2


def test_removed_or_older_list_readmits_no_node(authority, member, tmp_path):
    """A backup, or an operator who tidies up, must not do what an attacker cannot."""
    for name in ("b", "c"):
        certify(authority, tmp_path / name, Claims(name))
    authority.revoke("c", now())
    older = authority.revoked_pem
    authority.revoke("b", now())
    (member / REVOKED_FILE).write_bytes(authority.revoked_pem)
    security = SecureSide(member).security
    assert security
    (member / REVOKED_FILE).unlink()
    security.check()
    assert security.status()["revoked"] == 2
    (member / REVOKED_FILE).write_bytes(older)
    security.check()
    assert security.status()["revoked"] == 2


def test_list_of_a_replaced_authority_counts_no_longer(authority, member, tmp_path):
    certify(authority, tmp_path / "b", Claims("b"))
    authority.revoke("b", now())
    (member / REVOKED_FILE).write_bytes(authority.revoked_pem)
    security = SecureSide(member).security
    assert security and security.status()["revoked"] == 1
    (member / REVOKED_FILE).unlink()
    certify(make_authority(tmp_path / "other"), member)
    security.check()
    assert security.status()["revoked"] == 0


def test_revocation_list_that_no_root_signed_is_an_invalid_frame(member, tmp_path):
    side = SecureSide(member)
    assert side.security
    other = make_authority(tmp_path / "other")
    certify(other, tmp_path / "x", Claims("x"))
    other.revoke("x", now())
    for data in (other.revoked.der, b"nonsense"):
        with pytest.raises(InvalidFrame):
            side.security.receive_revocations(REVOCATION_FRAME + data)
    assert side.security.status()["revoked"] == 0


def test_revocation_list_is_used_if_it_cannot_be_saved(authority, member, tmp_path, monkeypatch):
    certify(authority, tmp_path / "b", Claims("b"))
    authority.revoke("b", now())
    side = SecureSide(member)
    assert side.security

    def fail(path: Path, data: bytes) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(security, "replace_file", fail)
    side.security.receive_revocations(REVOCATION_FRAME + authority.revoked.der)
    assert side.security.status()["revoked"] == 1
    assert not (member / REVOKED_FILE).exists()


class SinkTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


def feed(protocol: ByteProtocol, data: bytes) -> None:
    room = memoryview(protocol.get_buffer(-1))
    room[: len(data)] = data
    protocol.buffer_updated(len(data))


def test_damaged_handshakes_are_refused_without_a_fault(authority, member, tmp_path):
    """Bytes of a member's handshake, each time with one byte changed, cut or inserted: nothing is
    raised. The few bytes that TLS does not protect, in headers of records, change nothing."""
    peer = certify(authority, tmp_path / "b").certificate
    server, client = SecureSide(member), SecureSide(tmp_path / "b")
    rng, count = random.Random(7), 300

    async def run() -> None:
        for number in range(count):
            here, there = SinkTransport(), SinkTransport()
            accepting = secure_protocol(new_link(server, None), server.admission)
            dialling = secure_protocol(new_link(client, Address("a", 1)), client.admission)
            accepting.connection_made(here)
            dialling.connection_made(there)
            feed(dialling, here.written)
            flight = bytearray(there.written)
            at = rng.randrange(len(flight))
            match number % 3:
                case 0:
                    flight[at] ^= 1 << rng.randrange(8)
                case 1:
                    del flight[at]
                case _:
                    flight[at:at] = rng.randbytes(3)
            feed(accepting, bytes(flight))
            accepting.connection_lost(None)

    asyncio.run(run())
    assert {link.certificate for link in server.listener.opened} <= {peer}
    assert len(server.listener.opened) < count // 20
    assert len(server.refused) == count - len(server.listener.opened)


def new_link(side: SecureSide, dialled: Address | None) -> StreamLink:
    return StreamLink(LinkId(1), side.listener, LIMITS, "a:1", dialled, side.admission)


def test_refused_connections_keep_no_memory_until_garbage_collection(member):
    def tls_states() -> int:
        return sum(isinstance(each, ssl.SSLObject) for each in gc.get_objects())

    async def run() -> None:
        server = SecureSide(member)
        await server.listen()
        for _ in range(5):
            with socket.create_connection((server.address.host, server.address.port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        await until(lambda: len(server.refused) == 5, "all refused")
        await until(lambda: tls_states() == before, "TLS states freed")
        await server.stop()

    gc.collect()
    before = tls_states()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
