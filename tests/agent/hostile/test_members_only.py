"""A live federation with certificates: strangers, impostors, renewal under load, revocation."""

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.hostile.idle import connect_idle, idle_connections, is_open
from tests.agent.hostile.raw_peer import RawPeer, has_neighbour, unharmed
from tests.agent.hostile.tls_peer import dialling_context, read_hello, state_of
from tests.agent.live import PATIENCE, Live, eventually
from tests.identity.certified import certify, make_authority

from hansa.agent.links.stream import LENGTH
from hansa.identity.authority import REVOKED_FILE, CertificateAuthority
from hansa.identity.certificates import Claims, NodeCertificate
from hansa.identity.credentials import install
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.tls import explain_handshake_error
from hansa.protocol.model import NodeId
from hansa.protocol.wire.codec import encode
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation, LocalNode
from hansa.testbed.mosquitto import terminate_process

log = logging.getLogger("tests")

NOT_AUTHENTICATED = "refused: not authenticated"


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:3", 1), {})) as live:
        yield live


@pytest.fixture
def authority(live: Live) -> CertificateAuthority:
    return CertificateAuthority(live.federation.directory / "ca")


def neighbours(node: LocalNode) -> int:
    found = node.status()["neighbours"]
    assert isinstance(found, dict)
    return len(found)


def is_linked(node: LocalNode) -> bool:
    try:
        return neighbours(node) == 1
    except OSError:  # not started yet
        return False


def refusal(live: Live, state: Path) -> str:
    """Dial node 0 as a member would, with the certificate in a directory; return the alert."""
    with socket.create_connection(("127.0.0.1", live.nodes[0].link_port), PATIENCE) as raw:
        try:
            with dialling_context(state).wrap_socket(raw, server_side=True) as connection:
                while connection.recv(1 << 16):
                    pass
        except ssl.SSLError as error:
            return explain_handshake_error(error)
        except ConnectionError:
            pass
    return ""


def test_strangers_and_former_members_are_refused_at_once(live, authority, tmp_path):
    """Acceptance test 2: other authority, expired, not yet valid, revoked, with the reason in the
    log. The promise is 1 s; `--log-level=INFO` shows the measured times. The test asks that each is
    refused before the agent closes a connection that was opened before, which is after 5 s."""
    at = datetime.now(UTC)
    certify(make_authority(tmp_path / "ca"), tmp_path / "stranger")
    certify(authority, tmp_path / "expired", valid=timedelta(hours=1), at=at - timedelta(days=1))
    certify(authority, tmp_path / "later", at=at + timedelta(days=1))
    certify(authority, tmp_path / "revoked")
    authority.revoke("revoked", at)
    (state_of(live.nodes[0]) / REVOKED_FILE).write_bytes(authority.revoked_pem)
    eventually(lambda: "revocation list received" in live.log(1), "loaded, and passed on")
    before = live.counter(0, NOT_AUTHENTICATED)
    expected = [
        ("stranger", "unknown ca", "not signed by this federation's authority"),
        ("expired", "certificate expired", "the peer's certificate has expired"),
        ("later", "bad certificate", "the peer's certificate is not valid yet"),
        ("revoked", "", "the peer's certificate is refused: the certificate is revoked"),
    ]
    for name, alert, reason in expected:
        with connect_idle(live.nodes[0].link_port) as idle:
            began = time.monotonic()
            said = refusal(live, tmp_path / name)
            log.info("%s: refused after %.3f s", name, time.monotonic() - began)
            assert is_open(idle)
        assert said.endswith(alert)
        assert reason in live.log(0)
    assert live.counter(0, NOT_AUTHENTICATED) >= before + len(expected)
    assert "peer refused, not authenticated remote=127.0.0.1" in live.log(0)


def test_member_that_names_another_node_in_its_hello_is_refused(live, authority, tmp_path):
    """Also if it names a member that exists, with that member's public key."""
    member = certify(authority, tmp_path / "member").certificate
    context = dialling_context(tmp_path / "member")
    victim = live.nodes[2].status()
    key = load_key(state_of(live.nodes[2]) / KEY_FILE)
    assert key
    with socket.create_connection(("127.0.0.1", live.nodes[0].link_port), PATIENCE) as raw:
        with context.wrap_socket(raw, server_side=True) as connection:
            hello = read_hello(connection)
            forged = encode(
                replace(
                    hello,
                    node=NodeId(int(str(victim["node"]), 16)),
                    key=key.public_key().public_bytes_raw(),
                    incarnation=int(str(victim["incarnation"])) + 1,
                )
            )
            connection.sendall(LENGTH.pack(len(forged)) + forged)
            while connection.recv(1 << 16):
                pass
    said = f"its hello says {victim['node']}, its certificate or topic {member.node:016x}"
    eventually(lambda: said in live.log(0), "the log says why")
    assert live.counter(0, "security: strike") == 1
    assert live.nodes[2].status()["incarnation"] == victim["incarnation"]


def test_idle_connections_do_not_keep_a_member_out(live):
    with idle_connections(live.nodes[1].link_port, 300):
        agent = live.nodes[2].agent
        assert agent
        live.run(terminate_process(agent))
        live.run(live.federation.start_agent(2))
        eventually(lambda: is_linked(live.nodes[2]), "the newcomer is linked")
    live.wait_converged()


@pytest.mark.long
def test_newcomer_is_linked_beside_2000_idle_connections(live, authority, tmp_path):
    """Acceptance test 19. The newcomer is linked before the agent closes a connection that was
    opened before: within 5 s."""
    port = live.nodes[1].link_port
    member = certify(authority, tmp_path / "newcomer").certificate
    with unharmed(live), idle_connections(port, 2_000), connect_idle(port) as idle:
        began = time.monotonic()
        context = dialling_context(tmp_path / "newcomer")
        with RawPeer(port, "newcomer", member.key, context=context) as newcomer:
            newcomer.hello()
            eventually(lambda: has_neighbour(live.nodes[1], newcomer), "the newcomer is linked")
            log.info("linked after %.3f s", time.monotonic() - began)
            assert is_open(idle)


def test_certificates_are_renewed_under_load_without_loss(live, authority):
    """New files are in force without a restart and without a lost link."""
    subscriber = live.subscriber(2, "renew/#")
    publisher = live.client(0)
    sent = 0
    for node in live.nodes:
        key = load_key(state_of(node) / KEY_FILE)
        assert key
        now = datetime.now(UTC)
        made, bundle = authority.sign(key.public_key(), Claims(node.name), now)
        install(state_of(node), bundle, now)
        while not is_in_force(node, made):
            publisher.publish("renew/x", b"%d" % sent)
            sent += 1
    expected = [b"%d" % number for number in range(sent)]
    assert [payload for _, payload in subscriber.wait_for_all(expected)] == expected
    for number in range(3):
        assert "neighbour down" not in live.log(number).rpartition("certificate loaded")[2]


def test_root_is_replaced_under_load_without_loss(live, authority):
    """Node by node, with nodes of both roots beside each other; at the end only the new root
    counts. Publications of QoS 1 are repaired if a link is dialled again meanwhile."""
    subscriber = live.client_of(GuaranteedClient, 2)
    subscriber.subscribe_qos2("root/#")
    live.wait_installed(2, "root/#")
    publisher = live.client_of(GuaranteedClient, 0)
    sent: list[bytes] = []

    def renew_all() -> None:
        for node in live.nodes:
            key = load_key(state_of(node) / KEY_FILE)
            assert key
            now = datetime.now(UTC)
            made, bundle = authority.sign(key.public_key(), Claims(node.name), now)
            install(state_of(node), bundle, now)
            while not is_in_force(node, made):
                sent.append(b"%d" % len(sent))
                publisher.publish_guaranteed(1, "root/x", sent[-1])

    authority.renew_root(datetime.now(UTC))
    renew_all()
    authority.drop_old_roots()
    renew_all()
    assert sorted(subscriber.read_until(len(sent))) == sorted(sent)
    assert [neighbours(node) for node in live.nodes] == [1, 2, 1]


def is_in_force(node: LocalNode, certificate: NodeCertificate) -> bool:
    security = node.status()["security"]
    assert isinstance(security, dict)
    return bool(security["valid_until"] == certificate.not_after.isoformat())


def test_revoked_member_is_closed_and_kept_out(live, authority):
    """Acceptance test 22. Only node 0 is given the list; node 1, the neighbour of the revoked one,
    gets it from node 0. The promise is 2 s; the test asks that the link is closed before node 1
    closes a connection that was opened before, which is after 5 s. The last test of this
    federation: node 2 is excluded."""
    authority.revoke(live.nodes[2].name, datetime.now(UTC))
    with connect_idle(live.nodes[1].link_port) as idle:
        began = time.monotonic()
        (state_of(live.nodes[0]) / REVOKED_FILE).write_bytes(authority.revoked_pem)
        eventually(lambda: neighbours(live.nodes[1]) == 1, "the link is closed")
        log.info("closed after %.3f s", time.monotonic() - began)
        assert is_open(idle)
    eventually(lambda: "the certificate is revoked" in live.log(1), "the log says why")
    eventually(
        lambda: live.counter(1, NOT_AUTHENTICATED) > 0, "the revoked node dials and is refused"
    )
    assert neighbours(live.nodes[1]) == 1
    assert (state_of(live.nodes[1]) / REVOKED_FILE).read_bytes() == authority.revoked_pem
