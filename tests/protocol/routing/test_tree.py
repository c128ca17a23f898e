"""The tree: its root by capacity, reported when it changes, and a node's place in it."""

import pytest
from tests.protocol.federation import SQUARE, restart, views
from tests.protocol.wire_of_nodes import Wire, key

from hansa.protocol.effects import CoreElected
from hansa.protocol.model import MANAGEMENT_GROUP, Identity, NodeId

TREES = ["tree-flood", "tree-subscriptions"]


@pytest.mark.parametrize("name", TREES)
def test_new_root_changes_the_tree(name):
    wire = Wire(SQUARE, strategy=name)
    assert wire.effects(3, CoreElected)[-1] == CoreElected(MANAGEMENT_GROUP, NodeId(1))
    assert wire.effects(1, CoreElected) == []  # it was its own root while it was alone
    wire.log.clear()
    wire.stop(1)
    wire.run(1.0)
    assert wire.effects(3, CoreElected) == [CoreElected(MANAGEMENT_GROUP, NodeId(2))]


@pytest.mark.parametrize("name", TREES)
def test_node_that_comes_back_with_more_capacity_becomes_the_root(name):
    wire = Wire(SQUARE, strategy=name)
    wire.stop(3)
    wire.run(1.0)
    wire.start(3, Identity(NodeId(3), key(3), incarnation=2, capacity=8.0))
    wire.join("3-2 3-4")
    wire.run(1.0)
    assert {view.groups[MANAGEMENT_GROUP].core for view in views(wire).values()} == {3}
    wire.stop(3)
    restart(wire, 3, "3-2 3-4", incarnation=3)
    wire.run(1.0)
    assert {view.groups[MANAGEMENT_GROUP].core for view in views(wire).values()} == {1}


@pytest.mark.parametrize("name", TREES)
def test_parents_and_children_agree(name):
    wire = Wire(SQUARE, strategy=name)
    groups = {place: view.groups[MANAGEMENT_GROUP] for place, view in views(wire).items()}
    assert {place: group.parents for place, group in groups.items()} == {
        1: (),
        2: (1,),
        3: (2,),
        4: (1,),
    }
    assert {place: group.children for place, group in groups.items()} == {
        1: (2, 4),
        2: (3,),
        3: (),
        4: (),
    }
