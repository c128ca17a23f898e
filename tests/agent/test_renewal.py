"""When an agent renews its certificate, and what it says if that fails."""

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.identity.certified import certify, make_authority, now

from hansa.agent import renewal
from hansa.agent.links.security import LinkSecurity
from hansa.agent.renewal import CertificateRenewer
from hansa.errors import UsageError
from hansa.identity.authority import Bundle, CertificateAuthority
from hansa.identity.certificates import Claims, validity
from hansa.identity.credentials import save_issuer
from hansa.identity.keys import KEY_FILE
from hansa.identity.renewal import RenewalRefused
from hansa.identity.tls import LinkContexts

DAY = timedelta(days=1)
ISSUER = "127.0.0.1:10502"


class Node:
    """A renewer with a clock of the test, and an issuer that is a function."""

    def __init__(self, authority: CertificateAuthority, state: Path, configured: str) -> None:
        self.authority = authority
        self.now = now()
        certify(authority, state, Claims("a"), 60 * DAY, self.now)
        self.expiry_alarm = self.alarm = ""
        self.security = LinkSecurity(state, state / KEY_FILE, self._set_expiry, lambda: self.now)
        self.events: list[tuple[str, str]] = []
        self.asked: list[datetime] = []
        self.problem: UsageError | None = None
        self.renewer = CertificateRenewer(
            self.security,
            configured,
            self._set_alarm,
            lambda event, reason: self.events.append((event, reason)),
            random.Random(1),
        )

    def _set_expiry(self, text: str) -> None:
        self.expiry_alarm = text

    def _set_alarm(self, text: str) -> None:
        self.alarm = text

    def answer(self, contexts: LinkContexts, host: str, port: int, at: datetime) -> Bundle:
        assert (host, port) == ("127.0.0.1", 10_502)
        self.asked.append(at)
        if self.problem is not None:
            raise self.problem
        return self.authority.renew_presented(contexts.credentials.certificate, at)[1]

    def advance(self, by: timedelta, step: timedelta = DAY / 24) -> None:
        """Let time pass, with looks as `run` does them."""
        end = self.now + by
        while self.now < end:
            self.now += step
            self.security.check()
            asyncio.run(self.renewer.renew_if_due())


@pytest.fixture
def make_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Node]:
    def make(configured: str) -> Node:
        node = Node(make_authority(tmp_path / "ca"), tmp_path / "a", configured)
        monkeypatch.setattr(renewal, "request_renewal", node.answer)
        return node

    return make


def test_certificate_is_renewed_once_after_two_thirds_of_its_validity(make_node):
    node = make_node(ISSUER)
    began = node.now
    node.advance(80 * DAY)
    (asked,) = node.asked
    assert 40 * DAY <= asked - began <= 42 * DAY + DAY / 24
    certificate = node.security.credentials.certificate
    assert certificate.not_after >= asked + 59 * DAY
    assert validity(certificate) == 60 * DAY
    assert (node.alarm, node.expiry_alarm) == ("", "")
    assert node.events == [("certificate_renewed", f"by the issuer at {ISSUER}")]


def test_issuer_of_the_token_is_used_if_none_is_configured(make_node):
    node = make_node("")
    node.advance(42 * DAY)
    assert node.asked == []
    assert "renew it with hansa ca renew" in node.expiry_alarm
    save_issuer(node.security.credentials.directory, "127.0.0.1")
    node.advance(DAY)
    assert len(node.asked) == 1
    assert node.expiry_alarm == ""


def test_unreachable_issuer_is_asked_again_and_raises_the_alarm_well_before_the_end(make_node):
    node = make_node(ISSUER)
    node.problem = UsageError("no answer: refused")
    node.advance(44 * DAY)
    assert len(node.asked) > 10
    assert (node.alarm, node.expiry_alarm) == ("", "")
    node.advance(3 * DAY)
    assert f"the issuer at {ISSUER} does not renew the certificate of this node" in node.alarm
    assert "no answer: refused. The agent asks again" in node.alarm
    assert node.expiry_alarm == ""
    node.advance(4 * DAY)
    assert "expires at" in node.expiry_alarm
    node.problem = None
    node.advance(DAY)
    assert (node.alarm, node.expiry_alarm) == ("", "")


def test_attempts_become_rarer_up_to_one_an_hour(make_node):
    node = make_node(ISSUER)
    node.problem = UsageError("no answer")
    node.advance(39 * DAY)
    node.advance(4 * DAY, timedelta(seconds=10))
    gaps = [later - earlier for earlier, later in zip(node.asked, node.asked[1:], strict=False)]
    assert timedelta(seconds=90) <= gaps[0] <= timedelta(seconds=150)
    assert gaps[0] < gaps[2] < gaps[4]
    assert all(timedelta(hours=1) <= gap <= timedelta(hours=1.51) for gap in gaps[7:])


def test_refusal_raises_the_alarm_at_once(make_node):
    node = make_node(ISSUER)
    node.problem = RenewalRefused("the certificate is revoked")
    node.advance(42 * DAY)
    assert "refuses to renew" in node.alarm
    assert node.events[0] == ("renewal_failed", f"issuer {ISSUER}: the certificate is revoked")


def test_certificate_that_an_operator_installs_ends_the_alarm(make_node):
    node = make_node(ISSUER)
    node.problem = RenewalRefused("the certificate is revoked")
    node.advance(42 * DAY)
    state = node.security.credentials.directory
    certify(node.authority, state, Claims("a"), 60 * DAY, node.now)
    node.advance(DAY)
    assert node.alarm == ""


def test_directory_that_cannot_be_written_is_a_failure(make_node, monkeypatch):
    node = make_node(ISSUER)

    def refuse(directory: Path, bundle: Bundle) -> None:
        raise UsageError(f"cannot write {directory}: Read-only file system")

    monkeypatch.setattr(renewal, "install_files", refuse)
    node.advance(48 * DAY)
    assert "Read-only file system" in node.alarm
