"""A member that misbehaves: strikes, quarantine, audit log, release by the operator.

The federation has certificates. The hostile member has one too, so that the agent knows who it is.
"""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.agent.hostile.raw_peer import framed
from tests.agent.hostile.tls_peer import dialling_context, read_hello, state_of
from tests.agent.live import PATIENCE, Live, eventually
from tests.identity.certified import certify

from hansa.agent.audit_log import AUDIT_DIRECTORY
from hansa.agent.links.strikes import SavedOffender
from hansa.agent.storage.state_directory import QUARANTINE_FILE
from hansa.cli.main import main
from hansa.identity.authority import CertificateAuthority
from hansa.identity.credentials import Credentials
from hansa.identity.keys import KEY_FILE, load_key
from hansa.protocol.wire.codec import encode
from hansa.simulator.topologies import parse_topology
from hansa.telemetry import schema
from hansa.telemetry.reader import read_rows
from hansa.testbed.federation import LocalFederation
from hansa.testbed.mosquitto import terminate_process

INVALID_FRAME = b"\x0f not a frame"


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:2", 1), {})) as live:
        yield live


@pytest.fixture
def member(live: Live, tmp_path: Path) -> Credentials:
    return certify(CertificateAuthority(live.federation.directory / "ca"), tmp_path / "member")


@contextmanager
def linked(live: Live, member: Credentials) -> Iterator[ssl.SSLSocket]:
    """A link of the member to the first agent, after the hellos."""
    address = ("127.0.0.1", live.nodes[0].link_port)
    with socket.create_connection(address, PATIENCE) as raw:
        with dialling_context(member.directory).wrap_socket(raw, server_side=True) as connection:
            theirs = read_hello(connection)
            key = load_key(member.directory / KEY_FILE)
            assert key is not None
            hello = replace(
                theirs,
                node=member.certificate.node,
                key=key.public_key().public_bytes_raw(),
                name="mallory",
            )
            connection.sendall(framed(encode(hello)))
            yield connection


def misbehave(live: Live, member: Credentials, count: int = 3) -> None:
    """Send invalid frames; return when the agent has closed the link."""
    with linked(live, member) as connection:
        connection.sendall(framed(*[INVALID_FRAME] * count))
        with suppress(OSError):
            while connection.recv(1 << 16):
                pass


def quarantined(live: Live) -> list[dict[str, Any]]:
    found: Any = live.nodes[0].status()["quarantined"]
    return list(found)


def is_accepted(live: Live, member: Credentials) -> bool:
    try:
        with linked(live, member):
            return True
    except (OSError, IndexError):
        return False


def security_events(live: Live) -> list[schema.SecurityEvent]:
    path = state_of(live.nodes[0]) / AUDIT_DIRECTORY
    records = [each.record for each in read_rows(path)]
    return [each for each in records if isinstance(each, schema.SecurityEvent)]


def url(live: Live) -> str:
    return str(live.nodes[0].admin_url)


def test_misbehaving_member_is_quarantined_longer_each_time_and_released(live, member, capsys):
    """Nothing else changes: the honest neighbour stays, also over a restart of the agent."""
    misbehave(live, member)
    eventually(lambda: live.counter(0, "security: quarantine") == 1, "in quarantine")
    eventually(lambda: not quarantined(live), "the quarantine ends")
    misbehave(live, member)
    eventually(lambda: live.counter(0, "security: quarantine") == 2, "in quarantine again")

    # A restart: the file is changed so that the quarantine outlasts the test.
    agent = live.nodes[0].agent
    assert agent
    live.run(terminate_process(agent))
    path = state_of(live.nodes[0]) / QUARANTINE_FILE
    (saved,) = msgspec.msgpack.decode(path.read_bytes(), type=list[SavedOffender])
    assert (saved.node, saved.duration_s) == (member.certificate.node, 2.0)
    later = replace(saved, duration_s=600.0, ended_at=saved.ended_at + 600)
    path.write_bytes(msgspec.msgpack.encode([later]))
    live.run(live.federation.start_agent(0))
    live.wait_converged()
    (found,) = eventually(lambda: quarantined(live), "remembered after a restart")

    node = f"{member.certificate.node:016x}"
    assert (found["node"], found["duration_s"]) == (node, 600)
    assert found["reason"].startswith("invalid frame")
    alarms: Any = live.nodes[0].status()["alarms"]
    assert node in alarms["neighbour quarantined"]
    assert "invalid frame" in alarms["neighbour quarantined"]
    assert not is_accepted(live, member)
    assert main(["quarantine", "ls", "--agent", url(live)]) == 0
    assert node in capsys.readouterr().out
    assert main(["quarantine", "ls", "--json", "--agent", url(live)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["quarantined"]
    assert (row["agent"], row["node"], row["duration_s"]) == (url(live), node, 600)

    assert main(["quarantine", "release", node, "--agent", url(live)]) == 0
    assert capsys.readouterr().out == f"{url(live)}: released {node}\n"
    assert quarantined(live) == []
    assert "neighbour quarantined" not in live.nodes[0].status()["alarms"]
    assert is_accepted(live, member)
    live.wait_converged()

    events = eventually(
        lambda: (
            "release" in [each.security_event for each in security_events(live)]
            and security_events(live)
        ),
        "written",
    )
    ours = [each.security_event for each in events if each.peer_id == member.certificate.node]
    assert ours == (["strike"] * 3 + ["quarantine"]) * 2 + ["release"]
    refused = [each.reason for each in events if each.security_event == "peer_refused"]
    assert any("is in quarantine for another" in reason for reason in refused)


def test_release_of_an_unknown_node_is_refused(live, capsys):
    assert main(["quarantine", "release", "0" * 16, "--agent", url(live)]) == 2
    assert "no strikes of node 0000000000000000 are known" in capsys.readouterr().err
    assert main(["quarantine", "release", "nobody", "--agent", url(live)]) == 2
    assert "'nobody' is no node id" in capsys.readouterr().err


def test_two_strikes_do_not_close_a_link(live, member):
    before = live.counter(0, "invalid frames")
    with linked(live, member) as connection:
        connection.sendall(framed(INVALID_FRAME, INVALID_FRAME))
        eventually(lambda: live.counter(0, "invalid frames") == before + 2, "counted")
        assert quarantined(live) == []
