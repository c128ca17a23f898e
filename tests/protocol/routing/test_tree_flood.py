"""Flooding along the tree: every node takes part."""

from tests.protocol.federation import LINE, members, publish, settled


def test_everybody_is_a_member_of_every_group():
    assert members(settled(LINE, (2, "g"), strategy="tree-flood")) == [1, 2, 3, 4]


def test_branch_without_interest_is_flooded_too():
    wire = settled(LINE, (2, "g"), strategy="tree-flood")
    publish(wire, 1)
    assert wire.copies() == [(1, 2), (2, 3), (3, 4)]
