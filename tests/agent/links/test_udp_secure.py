"""Links over UDP with certificates, on loopback: who is accepted, and what an attacker can do."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.agent.links.listener import RecordingListener
from tests.agent.links.secure_end import SecureEnd
from tests.agent.links.test_udp import Stranger
from tests.agent.waiting import until
from tests.identity.certified import certify, make_authority, now

from hansa.agent.links.datagrams import (
    ACCEPT,
    CLOSE,
    CONFIRM,
    DATA,
    FRAGMENT,
    HANDSHAKE,
    HEADER_BYTES,
    OFFER,
    OPEN,
)
from hansa.agent.links.link import Address
from hansa.agent.links.security import CHECKS_PER_RECHECK, LinkSecurity
from hansa.agent.links.udp import UdpLinks
from hansa.agent.links.udp_link import NOT_SEALED
from hansa.errors import InvalidCertificate
from hansa.identity.authority import REVOKED_FILE, CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.keys import KEY_FILE
from hansa.protocol.model import NodeId
from hansa.protocol.wire import codec
from hansa.testbed.datagram_relay import DatagramRelay

CONTROL = bytes((codec.CONTROL,))
REFUSED = f"refused: {NOT_SEALED}"


class SecureSide(SecureEnd):
    """One end; without a state directory it has no certificate."""

    links: UdpLinks

    def __init__(self, state: Path | None, admits: bool = True) -> None:
        security = state and LinkSecurity(state, state / KEY_FILE, lambda text: None)
        super().__init__(security or None, RecordingListener(admits))
        self.links = UdpLinks(self.listener, random.Random(1), count(1), self.admission)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca")


@pytest.fixture
def members(authority: CertificateAuthority, tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        certify(authority, tmp_path / name, Claims(name))
    return tmp_path / "a", tmp_path / "b"


def linked(
    members: tuple[Path, Path], work: Callable[[SecureSide, SecureSide], Coroutine[Any, Any, None]]
) -> tuple[SecureSide, SecureSide]:
    """Run a function with two linked members; the second one dialled."""

    async def whole() -> tuple[SecureSide, SecureSide]:
        server, client = SecureSide(members[0]), SecureSide(members[1])
        await server.listen()
        client.dial(server.address)
        await until(lambda: server.listener.opened and client.listener.opened, "link up")
        await work(server, client)
        await asyncio.gather(client.stop(), server.stop())
        return server, client

    return asyncio.run(whole())


def attempt(server: SecureSide, client: SecureSide) -> None:
    """Dial until a reason is known; no link must open."""

    async def whole() -> None:
        await server.listen()
        client.dial(server.address)
        await until(lambda: server.refused and client.failures, "refused")
        await asyncio.gather(client.stop(), server.stop())

    asyncio.run(whole())
    assert (server.listener.opened, client.listener.opened) == ([], [])


def test_members_exchange_frames_and_know_each_other(members):
    large = CONTROL * 300_000

    async def work(server: SecureSide, client: SecureSide) -> None:
        client.listener.opened[0].send([b"a", large])
        await until(lambda: len(server.listener.frames) == 2, "both frames")
        server.listener.opened[0].send([b"back"])
        await until(lambda: client.listener.frames, "an answer")
        client.listener.opened[0].close("enough")
        await until(lambda: server.listener.closed, "closed")

    server, client = linked(members, work)
    assert (server.listener.frames, client.listener.frames) == ([b"a", large], [b"back"])
    assert server.listener.closed[0] == "closed by the other side: enough"
    for side, name in ((server, "b"), (client, "a")):
        certificate = side.listener.opened[0].certificate
        assert certificate
        assert certificate.claims.name == name
        assert side.listener.opened[0].expected_node == certificate.node


def test_link_opens_despite_one_third_packet_loss(members):
    async def whole() -> list[bytes]:
        server, client = SecureSide(members[0]), SecureSide(members[1])
        await server.listen()
        relay = DatagramRelay(server.address.port, 0.001, 0.33)
        client.dial(Address("127.0.0.1", await relay.start()))
        await until(lambda: server.listener.opened and client.listener.opened, "link up")

        def has_arrived() -> bool:
            client.listener.opened[-1].send([b"hello"])
            return b"hello" in server.listener.frames

        await until(has_arrived, "a frame")
        await asyncio.gather(client.stop(), server.links.stop())
        for link in server.listener.opened:  # the closing datagram may be lost
            link.close("test over")
        await relay.stop()
        return server.listener.frames

    assert b"hello" in asyncio.run(whole())


def test_member_of_another_authority_is_refused_with_the_reason(members, tmp_path):
    certify(make_authority(tmp_path / "other-ca"), tmp_path / "other")
    server, client = SecureSide(members[0]), SecureSide(tmp_path / "other")
    attempt(server, client)
    said = "the peer's certificate is not signed by this federation's authority"
    assert set(server.refused) == {said}
    assert client.failures[0].endswith("unknown ca")
    assert server.admission.counters["refused: not authenticated"] == len(server.refused)


@pytest.mark.parametrize("revoking", ["listener", "dialler"])
def test_revoked_member_is_refused(authority, members, revoking):
    """By the side that knows of it, whichever dialled."""
    name, where = ("b", members[0]) if revoking == "listener" else ("a", members[1])
    authority.revoke(name, now())
    (where / REVOKED_FILE).write_bytes(authority.revoked_pem)
    server, client = SecureSide(members[0]), SecureSide(members[1])
    attempt(server, client)
    said = server.refused if revoking == "listener" else client.failures
    assert said[0] == "the peer's certificate is refused: the certificate is revoked"


def test_quarantined_member_is_refused(members):
    server, client = SecureSide(members[0]), SecureSide(members[1])

    def refuse(node: NodeId) -> None:
        raise InvalidCertificate("in quarantine")

    assert server.security
    server.security.check_quarantine = refuse
    attempt(server, client)
    assert server.refused[0] == "in quarantine"


def test_plain_and_secure_agents_do_not_link(members, monkeypatch):
    monkeypatch.setattr("hansa.agent.links.admission.HELLO_S", 0.5)

    async def whole(server: SecureSide, client: SecureSide) -> None:
        await server.listen()
        client.dial(server.address)
        secure = server if server.security else client
        await until(lambda: secure.refused or secure.failures, "a reason")
        await asyncio.gather(client.stop(), server.stop())
        assert (secure.listener.opened, secure.listener.frames) == ([], [])

    asyncio.run(whole(SecureSide(members[0]), SecureSide(None)))
    asyncio.run(whole(SecureSide(None, admits=False), SecureSide(members[0])))


def test_stranger_that_confirms_its_address_learns_nothing_more(members):
    async def whole() -> tuple[SecureSide, bytes]:
        server = SecureSide(members[0])
        await server.listen()
        stranger = Stranger(server.address.port)
        with stranger.socket:
            offer = await stranger.ask(OPEN + b"12345678" + bytes(8))
            assert offer[:1] == OFFER
            session = offer[1:]
            assert await stranger.ask(CONFIRM + session) == ACCEPT + session
            heard = await stranger.ask(DATA + session + b"\x00\x05hello")
            assert heard[:HEADER_BYTES] == HANDSHAKE + session
            stranger.socket.send(HANDSHAKE + session + bytes(4) + b"GET / HTTP/1.1")
            await until(lambda: server.refused, "refused")
            answer = await stranger.ask(HANDSHAKE + session + bytes(4) + b"?")
            while answer != CLOSE + session:  # the session is gone
                heard += answer
                answer = await stranger.ask(HANDSHAKE + session + bytes(4) + b"?")
        await server.stop()
        return server, heard

    server, heard = asyncio.run(whole())
    assert b"hansa" not in heard
    assert (server.listener.opened, server.listener.frames) == ([], [])
    assert server.refused == ["no TLS handshake: http request"]


def test_injected_altered_and_repeated_datagrams_are_refused_and_the_link_stands(members):
    """The attacker sees every datagram and sends from the neighbour's own address."""

    async def work(server: SecureSide, client: SecureSide) -> None:
        (link,) = client.listener.opened
        sent: list[bytes] = []
        endpoint = link._endpoint  # type: ignore[attr-defined]  # noqa: SLF001
        send = endpoint.send

        def send_and_record(data: bytes) -> None:
            sent.append(data)
            send(data)

        object.__setattr__(endpoint, "send", send_and_record)
        link.send([b"secret frame"])
        await until(lambda: server.listener.frames, "the frame")
        (datagram,) = sent
        assert b"secret" not in datagram
        header = datagram[:HEADER_BYTES]
        forged = [
            datagram,
            datagram[:-1] + bytes((datagram[-1] ^ 1,)),
            FRAGMENT + datagram[1:],
            header + b"\x00\x05hello",
            CLOSE + header[1:] + b"over",
            CLOSE + header[1:],
            HANDSHAKE + header[1:] + bytes(4) + b"\x15\x03\x03\x00\x02\x02\x28",
            HANDSHAKE + header[1:],
        ]
        for each in forged:
            send(each)
        await until(lambda: server.admission.counters[REFUSED] == 6, "all but the handshake")
        link.send([b"another"])
        await until(lambda: len(server.listener.frames) == 2, "the next frame")
        assert not server.listener.opened[0].closed.is_set()

    server, _ = linked(members, work)
    assert server.listener.frames == [b"secret frame", b"another"]
    assert len(server.listener.opened) == 1
    assert server.listener.offences == []


def test_revocation_list_is_sent_again_each_minute_because_datagrams_are_lost(authority, members):
    certify(authority, members[0].parent / "c", Claims("c"))
    authority.revoke("c", now())
    (members[0] / REVOKED_FILE).write_bytes(authority.revoked_pem)

    async def work(server: SecureSide, client: SecureSide) -> None:
        assert server.security
        server.security.links = lambda: server.listener.opened
        for _ in range(CHECKS_PER_RECHECK):
            server.security.check()
        await until(lambda: client.listener.frames, "the list")

    _, client = linked(members, work)
    assert client.listener.frames[0][:1] == bytes((codec.FORMAT_VERSION << 4 | 3,))
