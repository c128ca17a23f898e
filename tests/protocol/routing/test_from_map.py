"""Base of strategies that use only the map: no frames, no timers, computed when needed."""

import pytest
from tests.protocol.federation import LINE, SQUARE, publish, settled, views
from tests.protocol.routing.test_init import context_of

from hansa.protocol.model import MANAGEMENT_GROUP, NodeId
from hansa.protocol.routing import STRATEGIES, make_strategy
from hansa.protocol.routing.from_map import LinkStateStrategy
from hansa.protocol.wire.frames import AnnouncementRequest

NAMES = [name for name, strategy in STRATEGIES.items() if issubclass(strategy, LinkStateStrategy)]
OTHER = NodeId(2)


@pytest.mark.parametrize("name", NAMES)
def test_strategy_has_no_frames_and_no_timers(name):
    made = make_strategy(context_of(name))
    assert made.neighbour_up(OTHER, 0.0) == made.neighbour_down(OTHER, 0.0) == []
    assert made.costs_changed(0.0) == made.nodes_changed([], [OTHER], 0.0) == []
    assert made.claims_changed(OTHER, ["g"], [], 0.0) == made.handle_timer(0.0) == []
    assert made.receive(OTHER, AnnouncementRequest(OTHER, 0, 0, 0), 0.0) == []
    assert made.next_deadline() is None
    made.expire_node(OTHER)
    assert made.groups() == [MANAGEMENT_GROUP]


@pytest.mark.parametrize("name", NAMES)
def test_group_without_reachable_interest_has_no_entry(name):
    wire = settled(LINE, (4, "g"), strategy=name)
    assert views(wire)[1].groups["g"].interested_nodes == (4,)
    wire.stop(4)
    wire.run(1.0)
    assert views(wire)[1].groups["g"].interested_nodes == ()
    assert publish(wire, 1) == {}
    assert wire.copies() == []


@pytest.mark.parametrize("name", NAMES)
def test_new_link_with_a_new_number_is_used(name):
    wire = settled(SQUARE, (3, "g"), strategy=name)
    for _ in range(2):
        wire.cut("1-2 1-4")
        wire.run(1.0)
        assert publish(wire, 1) == {}
        wire.join("1-2")
        wire.run(1.0)
        assert publish(wire, 1) == {3: [b"x"]}


@pytest.mark.parametrize("name", NAMES)
def test_group_status_without_a_mesh(name):
    wire = settled(LINE, (1, "g"), (4, "g"), strategy=name)
    view = views(wire)[4].groups["g"]
    assert (view.interested_nodes, view.is_member) == ((1, 4), True)
    assert views(wire)[4].groups[MANAGEMENT_GROUP].interested_nodes == (1, 2, 3, 4)
