"""Authentication of records without a node."""

import pytest
from tests.protocol.contexts import plain

from hansa.protocol.membership import authentication
from hansa.protocol.membership.authentication import PlainAuthenticator, RecordAuthentication
from hansa.protocol.membership.database import ASSEMBLIES_MAX, Database
from hansa.protocol.membership.records import InterestRecord, NodeRecord, RecordKind
from hansa.protocol.membership.rights import NO_RIGHTS, UNLIMITED
from hansa.protocol.model import LinkId, NodeId
from hansa.simulator.world.authority import SimulatedAuthenticator, SimulatedAuthority

A = NodeId(1)
KEY = b"k" * 32


class CountingAuthenticator(SimulatedAuthenticator):
    """Counts verifications."""

    count = 0

    def verify(self, key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
        self.count += 1
        return super().verify(key, domain, data, signature)


def test_plain_federation_signs_nothing_and_accepts_everything():
    port = PlainAuthenticator()
    assert port.sign(b"", b"") == b"" and port.verify(KEY, b"", b"", b"")
    assert (plain().rights_of(A), plain().certificates) == (UNLIMITED, ())


def test_node_without_a_record_has_no_rights():
    member = SimulatedAuthority(0).enrol(A, KEY)
    assert RecordAuthentication("f", member).rights_of(A) == NO_RIGHTS


@pytest.mark.pure
def test_signature_is_verified_once(monkeypatch):
    member = SimulatedAuthority(0).enrol(A, KEY)
    counting = CountingAuthenticator(SimulatedAuthority(0), KEY, member.certificates)
    checks = RecordAuthentication("f", counting)
    proofs = [(KEY, checks.sign_announcement(A, (1, number))) for number in range(3)]

    def verify(number: int) -> bool:
        return checks.is_genuine_announcement(A, (1, number), proofs[number])

    assert all(verify(number) for number in (0, 0, 1, 1)) and counting.count == 2
    assert not checks.is_genuine_announcement(A, (1, 1), proofs[0]) and counting.count == 3
    monkeypatch.setattr(authentication, "VERIFIED_MAX", 2)
    assert all(verify(number) for number in (2, 2, 0)) and counting.count == 5


def test_signature_of_another_federation_does_not_count():
    member = SimulatedAuthority(0).enrol(A, KEY)
    one, other = RecordAuthentication("one", member), RecordAuthentication("other", member)
    record = one.sign_node_record(
        NodeRecord(A, 1, 1, 1, KEY, "", (), 1.0, (), certificates=member.certificates)
    )
    assert one.is_genuine(record) and not other.is_genuine(record)


def test_parts_of_a_set_are_collected_from_few_neighbours_at_a_time():
    database = Database(plain())
    for link in range(ASSEMBLIES_MAX + 2):
        database.merge(InterestRecord(A, 1, 1, 1, ("a",), (), 0, 2), LinkId(link))
    assert database.size(RecordKind.INTEREST, A) == ASSEMBLIES_MAX
    database.merge(InterestRecord(A, 1, 1, 1, ("b",), (), 1, 2), LinkId(ASSEMBLIES_MAX + 1))
    assert list(database.names(RecordKind.INTEREST, A)) == ["a", "b"]
    assert database.size(RecordKind.INTEREST, A) == 2
