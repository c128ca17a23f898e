"""What neighbours send is limited, and offences are counted, with and without certificates."""

from types import SimpleNamespace
from typing import Any

import pytest

from hansa.agent.links.budget import LimitSettings
from hansa.agent.links.peer_guard import PeerGuard
from hansa.agent.links.security import REVOCATION_FRAME
from hansa.errors import InvalidFrame
from hansa.protocol.model import NodeId
from hansa.protocol.wire.frames import Fetch, PendingNotice

MEMBER = SimpleNamespace(node=NodeId(5))


class StubLink:
    def __init__(self, certificate: Any = None, is_ordered: bool = True) -> None:
        self.id = 1
        self.bytes_in = 0
        self.certificate = certificate
        self.is_ordered = is_ordered
        self.is_admitted = True
        self.remote = "192.0.2.1:5"
        self.closed: list[str] = []
        self.pauses: list[float] = []

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


class StubQuarantine:
    def __init__(self) -> None:
        self.strikes: list[tuple[int, str, str]] = []

    def strike(self, *said: Any) -> None:
        self.strikes.append(said)


def guarded(link: StubLink, **limits: int) -> PeerGuard:
    guard = PeerGuard()
    guard.limits = LimitSettings(**limits)
    guard.link_opened(link)  # type: ignore[arg-type]
    return guard


def test_offences_of_an_authenticated_node_are_strikes():
    link = StubLink(MEMBER)
    guard = guarded(link)
    quarantine = StubQuarantine()
    guard.quarantine = quarantine  # type: ignore[assignment]
    for _ in range(5):
        guard.misbehaved(link, "forged")  # type: ignore[arg-type]
    assert quarantine.strikes == [(5, "192.0.2.1:5", "forged")] * 5
    assert link.closed == []


def test_link_without_certificate_is_closed_and_nothing_is_remembered():
    """The id of such a peer may be anybody's."""
    link = StubLink()
    guard = guarded(link)
    quarantine = StubQuarantine()
    guard.quarantine = quarantine  # type: ignore[assignment]
    for _ in range(3):
        guard.misbehaved(link, "forged")  # type: ignore[arg-type]
    assert link.closed == ["misbehaved 3 times, last: forged"]
    assert not quarantine.strikes


def test_link_beyond_a_limit_is_paused_and_counted():
    link = StubLink()
    guard = guarded(link, bytes=10)
    link.bytes_in = 100
    guard.charge(link, 1)  # type: ignore[arg-type]
    assert not link.pauses
    link.bytes_in = 105
    guard.charge(link, 1)  # type: ignore[arg-type]
    assert len(link.pauses) == 1
    assert not guard.drops_frames(link)  # type: ignore[arg-type]
    assert guard.counters == {"slowed down: a neighbour sent more bytes than [link.limits]": 1}


def test_frames_of_a_link_without_order_are_dropped_during_a_pause():
    link = StubLink(is_ordered=False)
    guard = guarded(link, records=1)
    for _ in range(1_000):
        guard.accepts(link, Fetch(()))  # type: ignore[arg-type]
    assert not guard.drops_frames(link)  # type: ignore[arg-type]
    guard.charge(link, 1)  # type: ignore[arg-type]
    assert guard.drops_frames(link)  # type: ignore[arg-type]


def test_closed_link_is_not_charged():
    link = StubLink()
    guard = guarded(link, frames=1)
    guard.link_closed(link)  # type: ignore[arg-type]
    guard.charge(link, 1_000)  # type: ignore[arg-type]
    guard.accepts(link, Fetch(()))  # type: ignore[arg-type]
    guard.misbehaved(link, "late")  # type: ignore[arg-type]
    assert not link.pauses and not link.closed


def test_unicast_frames_beyond_the_limit_are_dropped_before_the_link_is_paused():
    """The neighbour may only be the relay of a flood."""
    link = StubLink()
    guard = guarded(link, unicasts=1)
    notice = PendingNotice(NodeId(1), NodeId(2), 0, 0)
    accepted = [guard.accepts(link, notice) for _ in range(20)]  # type: ignore[arg-type]
    assert accepted == [True] * 11 + [False] * 9
    guard.charge(link, 20)  # type: ignore[arg-type]
    assert not link.pauses
    assert guard.counters["dropped: unicast frames of a neighbour beyond [link.limits]"] == 9
    guard.accepts(link, notice)  # type: ignore[arg-type]
    guard.charge(link, 1)  # type: ignore[arg-type]
    assert link.pauses


class RefusingSecurity:
    def receive_revocations(self, frame: bytes) -> None:
        raise InvalidFrame("not signed")


def test_revocation_list_with_a_wrong_signature_is_counted_and_no_offence():
    link = StubLink(MEMBER)
    guard = guarded(link, records=1)
    guard.security = RefusingSecurity()  # type: ignore[assignment]
    assert guard.receive_revocations(link, REVOCATION_FRAME + b"x")  # type: ignore[arg-type]
    guard.charge(link, 1)  # type: ignore[arg-type]
    assert guard.counters["revocation lists refused"] == 1
    assert guard.counters["misbehaviour"] == 0
    assert link.pauses


class AcceptingSecurity:
    def receive_revocations(self, frame: bytes) -> None:
        """Take it."""


def test_flood_of_genuine_revocation_lists_is_read_slowly():
    """A member has old lists: their signatures are checked before their numbers."""
    link = StubLink(MEMBER)
    guard = guarded(link, records=1_000)
    guard.security = AcceptingSecurity()  # type: ignore[assignment]
    pauses = []
    for size in (1, 1 << 20):
        for _ in range(80):
            guard.receive_revocations(link, REVOCATION_FRAME + bytes(size))  # type: ignore[arg-type]
        guard.charge(link, 80)  # type: ignore[arg-type]
        pauses.append(len(link.pauses))
    assert pauses == [0, 1]


@pytest.mark.parametrize(("certificate", "is_admitted"), [(None, True), (MEMBER, False)])
def test_revocation_list_of_a_stranger_is_no_list(certificate, is_admitted):
    link = StubLink(certificate)
    link.is_admitted = is_admitted
    guard = guarded(link)
    guard.security = RefusingSecurity()  # type: ignore[assignment]
    assert not guard.receive_revocations(link, REVOCATION_FRAME)  # type: ignore[arg-type]
