"""The certificate of the proxy, and the name that a TLS client asks for."""

import asyncio
import datetime
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from hansa.agent.broker.proxy.tls import ServerCertificate, find_server_name, peek_server_name
from hansa.agent.broker.settings import ProxySettings
from hansa.errors import UsageError


def write_certificate(path: Path, days: float = 90, number: int = 1) -> None:
    """Write a certificate for localhost with its key into one file."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), number)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, None)
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, *form)
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))


def client_hello(name: str | None) -> bytes:
    """Return the first message of a client that asks for a name."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", ["mtls.example", None])
def test_name_is_found_as_soon_as_the_message_is_complete(name):
    hello = client_hello(name)
    for size in (0, 1, 5, len(hello) // 2, len(hello) - 1):
        assert find_server_name(hello[:size]) is None
    assert find_server_name(hello) == (name or "")


def test_bytes_that_are_not_tls_have_no_name():
    assert find_server_name(bytes.fromhex("100d00044d5154540402000000017a")) == ""


def test_name_is_read_without_taking_the_bytes():
    async def work() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            hello = client_hello("one.example")
            theirs.sendall(hello[:100])
            reading = asyncio.create_task(peek_server_name(ours))
            await asyncio.sleep(0)
            theirs.sendall(hello[100:])
            assert await asyncio.wait_for(reading, 20) == "one.example"
            assert ours.recv(1 << 16) == hello

    asyncio.run(work())


def test_client_that_leaves_has_no_name():
    async def work() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            theirs.close()
            assert await asyncio.wait_for(peek_server_name(ours), 20) == ""

    asyncio.run(work())


class TestCertificate:
    @pytest.fixture
    def alarm(self) -> list[str]:
        return []

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "proxy.pem"

    def load(self, path: Path, alarm: list[str]) -> ServerCertificate:
        return ServerCertificate(ProxySettings(tls_certificate=str(path)), alarm.append)

    def test_changed_files_are_used(self, path, alarm):
        write_certificate(path)
        certificate = self.load(path, alarm)
        first = certificate.context
        certificate.check()
        assert certificate.context is first
        write_certificate(path, days=91, number=1 << 40)
        certificate.check()
        assert certificate.context is not first
        assert set(alarm) == {""}

    def test_unusable_files_leave_the_certificate_in_use(self, path, alarm):
        write_certificate(path)
        certificate = self.load(path, alarm)
        first = certificate.context
        path.write_text("")
        certificate.check()
        assert certificate.context is first
        assert "the new files are not used" in alarm[-1]
        path.unlink()
        certificate.check()
        assert "the new files are not used" in alarm[-1]
        write_certificate(path)
        certificate.check()
        assert alarm[-1] == ""

    def test_certificate_that_expires_soon_raises_the_alarm(self, path, alarm):
        write_certificate(path, days=3)
        self.load(path, alarm)
        assert "valid until" in alarm[-1]

    def test_missing_file_is_refused(self, path, alarm):
        with pytest.raises(UsageError, match="tls_certificate"):
            self.load(path, alarm)
