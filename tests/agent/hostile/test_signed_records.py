"""A live federation with certificates and a dishonest member: forged records are refused at the
first hop, and an observer reads its topics, writes nothing and is core of nothing."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.hostile.raw_peer import counted, framed, guaranteed_client, wait_counted
from tests.agent.hostile.tls_peer import dialling_context, read_hello
from tests.agent.live import PATIENCE, Live, eventually
from tests.identity.certified import certify, make_authority

from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import Credentials
from hansa.identity.keys import load_key
from hansa.identity.records import MemberAuthenticator
from hansa.protocol.forwarding.engine import MAY_NOT_PUBLISH
from hansa.protocol.membership.authentication import FORGED, RecordAuthentication
from hansa.protocol.membership.records import InterestRecord, NodeRecord
from hansa.protocol.model import NodeId
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import AnyFrame, Update
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation, LocalNode

OBSERVER = 2
PLANT_A = Claims("observer", ("observe",), ("#",), ("plant/a/#",))


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    federation = LocalFederation(parse_topology("line:3", 1), {})
    authority = make_authority(federation.directory / "ca")
    certify(authority, federation.nodes[OBSERVER].directory / "agent", PLANT_A)
    with Live(federation) as live:
        yield live


def id_of(node: LocalNode) -> str:
    return str(node.status()["node"])


def interest_at(node: LocalNode, other: LocalNode) -> list[str]:
    """Return the filters of another node that an agent knows."""
    interest: Any = node.status()["interest"]
    return list(interest["remote"].get(id_of(other), ()))


def signer(member: Credentials) -> RecordAuthentication:
    """Return what signs as a member."""
    key = load_key(member.key_file)
    assert key is not None
    port = MemberAuthenticator(key, lambda: member, lambda: datetime.now(UTC))
    return RecordAuthentication(member.federation, port)


def send_as_member(live: Live, state: Path, *records: Any) -> None:
    """Join node 0 as a member with a certificate, and send records beside the member's own."""
    member = certify(CertificateAuthority(live.federation.directory / "ca"), state)
    with socket.create_connection(("127.0.0.1", live.nodes[0].link_port), PATIENCE) as raw:
        with dialling_context(state).wrap_socket(raw, server_side=True) as connection:
            hello = read_hello(connection)
            now_ms = time.time_ns() // 1_000_000
            node, key = member.certificate.node, member.certificate.key
            own = NodeRecord(
                *(node, now_ms, 1, now_ms, key, "member", (), 1.0, ((hello.node, 100),)),
                certificates=signer(member).certificates,
            )
            ours = replace(hello, node=node, key=key, incarnation=now_ms, name="member")
            frames: tuple[AnyFrame, ...] = (
                ours,
                Update((signer(member).sign_node_record(own), *records)),
            )
            connection.sendall(framed(*[encode(frame) for frame in frames]))
            wait_counted(live.nodes[0], FORGED, len(records))
            eventually(
                lambda: f"node reachable node={node:016x}" in live.log(2),
                "the member's own record, which is genuine, at node 2",
            )


def test_forged_records_of_third_nodes_are_refused_at_the_first_hop(live, tmp_path):
    live.subscriber(1, "forged/old")
    victim, now_ms = live.nodes[1], time.time_ns() // 1_000_000
    incarnation = int(str(victim.status()["incarnation"]))
    node = NodeId(int(id_of(victim), 16))
    key = load_key(victim.directory / "agent" / "key.pem")
    assert key is not None
    public = key.public_key().public_bytes_raw()
    interest = InterestRecord(node, incarnation, 99, 99, ("forged/new",), signature=b"x" * 64)
    exile = NodeRecord(node, now_ms, 1, now_ms, public, "", (), 1.0, (), signature=b"x" * 64)
    send_as_member(live, tmp_path / "member", interest, exile)
    assert [counted(each, FORGED) for each in live.nodes] == [2, 0, 0]
    assert interest_at(live.nodes[0], victim) == ["forged/old"]
    assert live.nodes[1].status()["incarnation"] == incarnation


def test_observer_reads_exactly_its_topics(live):
    reader = guaranteed_client(live, OBSERVER).subscribe_qos2("#")
    eventually(
        lambda: interest_at(live.nodes[0], live.nodes[OBSERVER]) == ["plant/a/#"],
        "the interest of the observer, narrowed",
    )
    writer = guaranteed_client(live, 0)
    eventually(lambda: _reaches(writer, reader), "a path to the observer")
    for qos in (0, 1, 2):
        writer.publish_guaranteed(qos, "plant/b/1", b"other %d" % qos)
        writer.publish_guaranteed(qos, "plant/a", b"%d" % qos)
    reader.read_until(3)
    reader.read_for(0.5)
    assert sorted(packet.payload for packet in reader.received) == [b"0", b"1", b"2"]


def test_observer_gets_no_answers_about_other_nodes(live):
    observer = live.nodes[OBSERVER]

    others = [node for node in live.nodes if node is not observer]

    def problems() -> dict[str, str]:
        with urllib.request.urlopen(f"{observer.admin_url}/federation", timeout=30) as response:
            return {node["name"]: node["problem"] for node in json.load(response)["nodes"]}

    refused = "refused: the role of the asking node does not allow it"
    eventually(lambda: all(problems().get(node.name) == refused for node in others), "two refusals")
    name = "refused: question of an agent whose role does not allow it"
    assert all(counted(node, name) for node in others)


def _reaches(writer: Any, reader: Any) -> bool:
    writer.publish("plant/a/probe", b"probe")
    reader.read_for(0.3)
    if not reader.received:
        return False
    reader.read_for(0.5)
    reader.forget()
    return True


def test_observer_writes_nothing_and_is_core_of_nothing(live):
    reader = live.subscriber(0, "up/#")
    observer = live.nodes[OBSERVER]
    eventually(lambda: interest_at(observer, live.nodes[0]), "the interest at the observer")
    writer = guaranteed_client(live, OBSERVER)

    def is_refused() -> bool:
        writer.publish("up/1", b"x")
        return counted(observer, MAY_NOT_PUBLISH) > 0

    eventually(is_refused, "publications at the observer refused")
    for qos in (1, 2):
        writer.publish_guaranteed(qos, "up/1", b"y")
    assert reader.silent()
    for node in live.nodes:
        groups: Any = node.status()["groups"]
        assert groups
        assert id_of(observer) not in {group["core"] for group in groups.values()}
