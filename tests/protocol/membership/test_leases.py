"""How long a node out of reach keeps its place, and that it stays forgotten."""

from hansa.protocol.events import Restored
from hansa.protocol.membership.leases import RESUMED_MAX, Leases
from hansa.protocol.model import NodeId

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def test_nobody_is_absent_at_first():
    leases = Leases(60.0, 8)
    assert (leases.next_deadline(), leases.expired(1e9)) == (None, [])


def test_a_lease_ends_at_its_deadline_and_not_before():
    leases = Leases(60.0, 8)
    leases.begin(A, 1.0)
    leases.begin(B, 2.0)
    assert leases.next_deadline() == 61.0
    assert leases.expired(60.9) == []
    assert leases.expired(61.0) == [A]
    assert leases.next_deadline() == 62.0


def test_a_lease_that_runs_is_not_begun_anew():
    leases = Leases(60.0, 8)
    leases.begin(A, 1.0)
    leases.begin(A, 30.0)
    assert leases.next_deadline() == 61.0


def test_a_node_that_returns_has_no_lease():
    leases = Leases(60.0, 8)
    leases.begin(A, 1.0)
    leases.end(A)
    leases.end(B)
    assert leases.expired(1e9) == []


def test_what_was_forgotten_does_not_come_back():
    leases = Leases(60.0, 8)
    leases.forget(A, (3, 5))
    assert not leases.admits(A, (3, 5))
    assert not leases.admits(A, (2, 9))


def test_news_of_a_forgotten_node_ends_the_forgetting():
    leases = Leases(60.0, 8)
    leases.forget(A, (3, 5))
    assert leases.admits(A, (3, 6))
    assert leases.admits(A, (3, 5))


def test_the_memory_of_forgotten_nodes_is_bounded():
    leases = Leases(60.0, 1)
    leases.forget(A, (3, 5))
    leases.forget(B, (3, 5))
    assert leases.admits(A, (3, 5))
    assert not leases.admits(B, (3, 5))


def test_a_lease_runs_on_in_the_next_life():
    before = Leases(60.0, 8)
    before.begin(A, 1.0)
    before.begin(B, 21.0)
    before.forget(C, (3, 5))
    after = Leases(60.0, 8)
    after.resume(Restored((), before.absences(31.0), dict(before.forgotten)), [], 1_000.0)
    after.begin(A, 1_001.0)
    assert after.absences(1_000.0) == {A: 30.0, B: 10.0}
    assert after.next_deadline() == 1_030.0
    assert not after.admits(C, (3, 5))


def test_who_was_away_for_nearly_a_lease_has_time_to_be_met_again():
    leases = Leases(60.0, 8)
    leases.resume(Restored((), {A: 5.0, B: 59.9, C: 9_999.0}), [], 100.0)
    assert leases.expired(100.0 + (1 - RESUMED_MAX) * 60.0 - 0.1) == []
    assert leases.expired(100.0 + (1 - RESUMED_MAX) * 60.0 + 0.1) == [C, B]
    assert leases.expired(155.0) == [A]


def test_who_is_owed_something_has_a_lease_also_without_a_record():
    leases = Leases(60.0, 8)
    leases.resume(Restored((), {A: 20.0}), [A, B], 100.0)
    assert leases.absences(100.0) == {A: 20.0, B: 0.0}


def test_who_is_forgotten_again_without_a_record_stays_forgotten():
    leases = Leases(60.0, 8)
    leases.forget(A, (3, 5))
    leases.forget(A, (0, 0))
    assert not leases.admits(A, (3, 5))
