"""How long a node out of reach keeps its place, and that it stays forgotten."""

from hansa.protocol.leases import Leases
from hansa.protocol.vocabulary import NodeId

A, B = NodeId(1), NodeId(2)


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
