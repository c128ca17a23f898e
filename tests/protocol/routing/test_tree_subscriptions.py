"""Subscription tables: members, and traffic that the root does not get."""

from tests.protocol.federation import LINE, members, publish, settled


def test_members_are_on_the_branches_to_interested_nodes():
    wire = settled("1-2 2-3 2-4 1-5", (3, "g"), strategy="tree-subscriptions")
    assert members(wire) == [1, 2, 3]


def test_root_gets_only_publications_that_pass_it():
    wire = settled(LINE, (3, "g"), strategy="tree-subscriptions")
    assert publish(wire, 4) == {3: [b"x"]}
    assert wire.copies() == [(4, 3)]


def test_branch_without_interest_is_not_used_any_more():
    wire = settled(LINE, (3, "g"), (1, "g"), strategy="tree-subscriptions")
    wire.unsubscribe(3, "g")
    wire.run(2.0)
    assert publish(wire, 2) == {1: [b"x"]}
    assert wire.copies() == [(2, 1)]
