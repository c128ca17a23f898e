"""A live federation with nodes that an intermediate authority has enrolled."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.hostile.tls_peer import state_of
from tests.agent.live import Live, eventually
from tests.identity.certified import certify, make_authority

from hansa.identity.authority import REVOKED_FILE, CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation

SITE = Claims("site", ("relay", "core"), ("site/#",), ("site/#",))
REVOKED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    """Node 0 is enrolled by the root, nodes 1 and 2 by the intermediate."""
    federation = LocalFederation(parse_topology("line:3", 1), {})
    root = make_authority(federation.directory / "ca")
    root.issue_intermediate(federation.directory / "site", SITE, datetime.now(UTC))
    site = CertificateAuthority(federation.directory / "site")
    for number in (1, 2):
        claims = Claims(str(number), SITE.roles, SITE.may_publish, SITE.may_subscribe)
        certify(site, federation.directory / str(number) / "agent", claims)
    with Live(federation) as live:
        yield live


def neighbours(live: Live, number: int) -> int:
    found = live.nodes[number].status()["neighbours"]
    assert isinstance(found, dict)
    return len(found)


def test_nodes_of_root_and_intermediate_are_one_federation(live):
    """Publications pass in both directions, within the topics of the intermediate."""
    at_root, at_site = (live.client_of(GuaranteedClient, number) for number in (0, 2))
    for client in (at_root, at_site):
        client.subscribe_qos2("site/#")
    live.wait_installed(0, "site/#")
    live.wait_installed(2, "site/#")
    at_site.publish_guaranteed(1, "site/a", b"from the site")
    at_root.publish_guaranteed(1, "site/b", b"from the root")
    assert set(at_root.read_until(2)) == {b"from the site", b"from the root"}
    assert set(at_site.read_until(2)) == {b"from the site", b"from the root"}


def test_revocation_by_the_intermediate_and_of_it_is_in_force_everywhere(live):
    """Only node 0 is given the lists; node 1 gets them from it. The last test of this
    federation."""
    directory = live.federation.directory
    root, site = (CertificateAuthority(directory / name) for name in ("ca", "site"))
    given = state_of(live.nodes[0]) / REVOKED_FILE
    site.revoke("2", datetime.now(UTC))
    began = time.monotonic()
    given.write_bytes(site.revoked_pem)
    eventually(lambda: neighbours(live, 1) == 1, "node 2 is excluded")
    took = time.monotonic() - began
    assert neighbours(live, 0) == 1
    root.revoke_intermediate("site", datetime.now(UTC))
    began = time.monotonic()
    given.write_bytes(root.revoked_pem)
    eventually(lambda: neighbours(live, 0) == 0, "node 1 is excluded")
    assert max(took, time.monotonic() - began) < REVOKED_WITHIN_S + 1.0
    text = "the authority that issued the certificate is revoked"
    eventually(lambda: text in live.log(0), "the log says why")
