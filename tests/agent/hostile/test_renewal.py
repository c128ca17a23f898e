"""A live federation whose agents renew certificates of seconds under load."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.agent.hostile.tls_peer import state_of
from tests.agent.live import Live, eventually
from tests.identity.certified import certify

from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import save_issuer
from hansa.identity.renewal import Issuer
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation, LocalNode

VALID = timedelta(seconds=40)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:3", 1), {})) as live:
        yield live


@pytest.fixture
def authority(live: Live) -> CertificateAuthority:
    return CertificateAuthority(live.federation.directory / "ca")


@pytest.fixture
def issuer(authority: CertificateAuthority) -> Iterator[Issuer]:
    made = Issuer(authority.directory, "127.0.0.1", 0, interval_s=0.1)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.stop()
    thread.join(30)
    made.close()


def valid_until(node: LocalNode) -> datetime:
    security = node.status()["security"]
    assert isinstance(security, dict)
    return datetime.fromisoformat(security["valid_until"])


def test_agents_renew_under_load_without_losing_a_link_and_a_revoked_one_cannot(
    live, authority, issuer
):
    subscriber, publisher = live.subscriber(2, "renew/#"), live.client(0)
    ends = datetime.now(UTC) + VALID
    for node in live.nodes:
        save_issuer(state_of(node), f"127.0.0.1:{issuer.port}")
        certify(authority, state_of(node), Claims(node.name), VALID)
    sent = 0
    while datetime.now(UTC) < ends + timedelta(seconds=3):
        publisher.publish("renew/x", b"%d" % sent)
        sent += 1
        time.sleep(0.005)  # a load, not a wait
    assert all(valid_until(node) > ends for node in live.nodes)
    expected = [b"%d" % number for number in range(sent)]
    assert [payload for _, payload in subscriber.wait_for_all(expected)] == expected
    for number in range(3):
        assert "certificate renewed issuer=" in live.log(number)
        assert "neighbour down" not in live.log(number)
    assert issuer.counters["renewed"] >= 3
    assert issuer.counters["refused"] == 0

    authority.revoke(live.nodes[2].name, datetime.now(UTC))
    eventually(lambda: issuer.counters["refused"], "the revoked node asks", 90.0)
    eventually(
        lambda: "refuses to renew the certificate of this node" in live.log(2), "alarm", 30.0
    )
    assert live.counter(2, "security: renewal_failed") >= 1
