"""Subscription tables: who is a member, and that the root is spared."""

from tests.protocol.federation import LINE, members, publish, settled


def test_members_are_those_between_the_root_and_whoever_wants_it():
    wire = settled("1-2 2-3 2-4 1-5", (3, "g"), strategy="tree-subscriptions")
    assert members(wire) == [1, 2, 3]


def test_the_root_gets_nothing_that_it_does_not_lead_to():
    wire = settled(LINE, (3, "g"), strategy="tree-subscriptions")
    assert publish(wire, 4) == {3: [b"x"]}
    assert wire.copies() == [(4, 3)]


def test_what_is_wanted_no_more_takes_its_branch_no_more():
    wire = settled(LINE, (3, "g"), (1, "g"), strategy="tree-subscriptions")
    wire.unwant(3, "g")
    wire.run(2.0)
    assert publish(wire, 2) == {1: [b"x"]}
    assert wire.copies() == [(2, 1)]
