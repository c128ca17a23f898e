"""A live federation with certificates: strangers, impostors, renewal under load, revocation."""

import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.agent.guaranteed import GuaranteedClient
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

IDLE_CONNECTIONS = 300
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


def test_stranger_with_a_certificate_of_another_authority_gets_an_alert(live, tmp_path):
    before = live.counter(0, NOT_AUTHENTICATED)
    certify(make_authority(tmp_path / "ca"), tmp_path / "stranger")
    context = dialling_context(tmp_path / "stranger")
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", live.nodes[0].link_port), PATIENCE) as raw:
        with pytest.raises(ssl.SSLError) as refused:
            context.wrap_socket(raw, server_side=True)
    assert explain_handshake_error(refused.value).endswith("unknown ca")
    assert time.monotonic() - began < PATIENCE / 2
    eventually(lambda: live.counter(0, NOT_AUTHENTICATED) == before + 1, "counted")
    text = "peer refused, not authenticated remote=127.0.0.1"
    assert text in live.log(0)
    assert "not signed by this federation's authority" in live.log(0)


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
    port = live.nodes[1].link_port
    idle = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(IDLE_CONNECTIONS)]
    try:
        agent = live.nodes[2].agent
        assert agent
        live.run(terminate_process(agent))
        live.run(live.federation.start_agent(2))
        eventually(lambda: is_linked(live.nodes[2]), "the newcomer is linked")
    finally:
        for each in idle:
            each.close()
    live.wait_converged()


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
    """Only node 0 is given the list; node 1, the neighbour of the revoked one, gets it from node
    0. The last test of this federation: node 2 is excluded."""
    authority.revoke(live.nodes[2].name, datetime.now(UTC))
    began = time.monotonic()
    (state_of(live.nodes[0]) / REVOKED_FILE).write_bytes(authority.revoked_pem)
    eventually(lambda: neighbours(live.nodes[1]) == 1, "the link is closed")
    took = time.monotonic() - began
    eventually(lambda: "the certificate is revoked" in live.log(1), "the log says why")
    eventually(
        lambda: live.counter(1, NOT_AUTHENTICATED) > 0, "the revoked node dials and is refused"
    )
    assert neighbours(live.nodes[1]) == 1
    assert took < PATIENCE / 2
    assert (state_of(live.nodes[1]) / REVOKED_FILE).read_bytes() == authority.revoked_pem
