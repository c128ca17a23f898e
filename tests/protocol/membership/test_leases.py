"""Leases of unreachable nodes, and tombstones."""

from hansa.protocol.events import PeersRestored
from hansa.protocol.membership.leases import RESTORED_LEASE_FRACTION_MAX, Leases
from hansa.protocol.model import NodeId

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def test_no_node_is_absent_at_first():
    leases = Leases(60.0, 8)
    assert (leases.next_deadline(), leases.pop_expired(1e9)) == (None, [])


def test_lease_ends_at_its_deadline_and_not_before():
    leases = Leases(60.0, 8)
    leases.start_lease(A, 1.0)
    leases.start_lease(B, 2.0)
    assert leases.next_deadline() == 61.0
    assert leases.pop_expired(60.9) == []
    assert leases.pop_expired(61.0) == [A]
    assert leases.next_deadline() == 62.0


def test_running_lease_is_not_restarted():
    leases = Leases(60.0, 8)
    leases.start_lease(A, 1.0)
    leases.start_lease(A, 30.0)
    assert leases.next_deadline() == 61.0


def test_node_that_returns_has_no_lease():
    leases = Leases(60.0, 8)
    leases.start_lease(A, 1.0)
    leases.cancel_lease(A)
    leases.cancel_lease(B)
    assert leases.pop_expired(1e9) == []


def test_record_at_its_tombstone_is_refused():
    leases = Leases(60.0, 8)
    leases.add_tombstone(A, (3, 5))
    assert leases.tombstone_against(A, (3, 5)) == (3, 5)
    assert leases.tombstone_against(A, (2, 9)) == (3, 5)


def test_newer_record_removes_the_tombstone():
    leases = Leases(60.0, 8)
    leases.add_tombstone(A, (3, 5))
    assert leases.tombstone_against(A, (3, 6)) is None
    assert leases.tombstone_against(A, (3, 5)) is None


def test_number_of_tombstones_is_bounded():
    leases = Leases(60.0, 1)
    leases.add_tombstone(A, (3, 5))
    leases.add_tombstone(B, (3, 5))
    assert leases.tombstone_against(A, (3, 5)) is None
    assert leases.tombstone_against(B, (3, 5)) == (3, 5)


def test_lease_continues_after_a_restart():
    before = Leases(60.0, 8)
    before.start_lease(A, 1.0)
    before.start_lease(B, 21.0)
    before.add_tombstone(C, (3, 5))
    after = Leases(60.0, 8)
    after.restore(
        PeersRestored((), before.absent_seconds(31.0), dict(before.tombstones)), [], 1_000.0
    )
    after.start_lease(A, 1_001.0)
    assert after.absent_seconds(1_000.0) == {A: 30.0, B: 10.0}
    assert after.next_deadline() == 1_030.0
    assert after.tombstone_against(C, (3, 5)) == (3, 5)


def test_restored_lease_leaves_time_to_meet_the_node():
    leases = Leases(60.0, 8)
    leases.restore(PeersRestored((), {A: 5.0, B: 59.9, C: 9_999.0}), [], 100.0)
    assert leases.pop_expired(100.0 + (1 - RESTORED_LEASE_FRACTION_MAX) * 60.0 - 0.1) == []
    assert leases.pop_expired(100.0 + (1 - RESTORED_LEASE_FRACTION_MAX) * 60.0 + 0.1) == [C, B]
    assert leases.pop_expired(155.0) == [A]


def test_receiver_without_a_record_has_a_lease():
    leases = Leases(60.0, 8)
    leases.restore(PeersRestored((), {A: 20.0}), [A, B], 100.0)
    assert leases.absent_seconds(100.0) == {A: 20.0, B: 0.0}


def test_node_that_expires_again_without_a_record_keeps_its_tombstone():
    leases = Leases(60.0, 8)
    leases.add_tombstone(A, (3, 5))
    leases.add_tombstone(A, (0, 0))
    assert leases.tombstone_against(A, (3, 5)) == (3, 5)
