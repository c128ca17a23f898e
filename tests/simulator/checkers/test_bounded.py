"""A bound that is exceeded is reported at every event that may grow state."""

import pytest
from tests.simulator.checkers.stubs import end, idle_world, publication, published
from tests.simulator.worlds import SimulatedRun

from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.checkers import BoundedState
from hansa.simulator.options import SimulationOptions
from hansa.simulator.topologies import parse_topology

LOOKS = {
    "after control": lambda checker, world: checker.on_state_changed(world.sites[0]),
    "after frames of guaranteed delivery": lambda checker, world: checker.on_delivery_changed(
        world.sites[0]
    ),
    "as it forwards": lambda checker, world: checker.on_copy_sent(end(world), publication()),
    "as it delivers": lambda checker, world: checker.on_delivered(
        world.sites[0], publication(), published(1)
    ),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_exceeded_bound_is_a_violation(look):
    violations: list[str] = []
    world = SimulatedRun("line:3", protocol=ProtocolSettings(nodes_max=3)).run(2.0).world
    look(BoundedState(world, violations), world)
    assert violations == []
    world.options = SimulationOptions(
        parse_topology("line:3", 0), protocol=ProtocolSettings(nodes_max=2)
    )
    look(BoundedState(world, violations), world)
    assert ["n0 has 3 nodes, the limit is 2" in text for text in violations] == [True]


def test_stopped_node_is_not_checked():
    violations: list[str] = []
    world = idle_world()
    BoundedState(world, violations).on_state_changed(world.sites[0])
    assert violations == []
