"""A live federation in which a node gets another certificate: interest that it no longer covers is
retracted, and returns with a certificate that covers it."""

import json
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.hostile.tls_peer import state_of
from tests.agent.live import Live, eventually
from tests.identity.certified import certify

from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LocalFederation
from hansa.testbed.mosquitto import terminate_process

ALL = Claims("2", ("relay", "core"))
SILENT = Claims("2", ("relay", "core"), may_publish=())
PLANT = Claims("2", ("relay", "core"), may_subscribe=("plant/#",))


@pytest.fixture(scope="module")
def running_federation(mosquitto: str) -> Iterator[Live]:
    with Live(LocalFederation(parse_topology("line:3", 1), {})) as live:
        yield live


def sign_again(live: Live, claims: Claims) -> None:
    """Replace the certificate of node 2 while its agent runs."""
    authority = CertificateAuthority(live.federation.directory / "ca")
    certify(authority, state_of(live.nodes[2]), claims, at=datetime.now(UTC))


def interest_at(live: Live, number: int) -> str:
    return str(live.nodes[number].status()["interest"])


def test_interest_is_retracted_and_returns_with_the_certificate(live):
    subscriber = live.client_of(GuaranteedClient, 2).subscribe_qos2("canary/#", "plant/#")
    publisher = live.client_of(GuaranteedClient, 0)
    live.wait_installed(2, "canary/#", "plant/#")
    publisher.publish_guaranteed(1, "canary/a", b"canary before")
    assert subscriber.read_until(1) == [b"canary before"]
    sign_again(live, PLANT)
    eventually(lambda: "canary" not in interest_at(live, 0), "node 0 knows of no interest")
    for qos in (1, 2):
        publisher.publish_guaranteed(qos, "canary/a", b"canary %d" % qos)
        publisher.publish_guaranteed(qos, "plant/a", b"plant %d" % qos)
    received = {b"canary before", b"plant 1", b"plant 2"}
    assert set(subscriber.read_until(3)) == received
    sign_again(live, ALL)
    eventually(lambda: "canary" in interest_at(live, 0), "the interest is back")
    live.wait_installed(2, "canary/#")
    publisher.publish_guaranteed(1, "canary/a", b"canary after")
    assert set(subscriber.read_until(4)) == received | {b"canary after"}


def test_trace_names_the_certificate_that_stops_a_publication(live):
    live.subscriber(0, "canary/#")
    live.wait_installed(0, "canary/#")
    sign_again(live, SILENT)
    reason = "not sent: the certificate of this node does not allow the topic"
    trace = f"{live.nodes[1].admin_url}/trace?topic=canary/a&from=2"

    def stopped() -> Any:
        with urllib.request.urlopen(trace, timeout=30) as answer:
            found = json.load(answer)
        return found if reason in found["hops"][0]["reasons"] else None

    found = eventually(stopped, "the trace has the reason")
    assert (len(found["hops"]), found["delivered"]) == (1, [])
    missed = [(each["name"], each["filters"], each["reason"]) for each in found["missed"]]
    assert missed == [("0", ["canary/#"], "2 may not publish to the topic (may_publish)")]
    sign_again(live, ALL)
    eventually(lambda: not stopped(), "the new certificate allows it")


def test_pending_publications_are_not_delivered_beyond_the_new_certificate(live):
    """They were acknowledged while the agent of the receiver was down."""
    subscriber = live.client_of(GuaranteedClient, 2).subscribe_qos2("canary/#", "plant/#")
    publisher = live.client_of(GuaranteedClient, 0)
    live.wait_installed(2, "canary/#", "plant/#")
    agent = live.nodes[2].agent
    assert agent
    live.run(terminate_process(agent))
    for _ in range(3):
        publisher.publish_guaranteed(1, "canary/b", b"canary")
    publisher.publish_guaranteed(1, "plant/b", b"plant")
    sign_again(live, PLANT)
    live.run(live.federation.start_agent(2))
    assert subscriber.read_until(1) == [b"plant"]
    publisher.publish_guaranteed(1, "plant/b", b"last")
    assert set(subscriber.read_until(2)) == {b"plant", b"last"}
