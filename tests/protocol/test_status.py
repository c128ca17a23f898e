"""The status of a node: complete, plain values, and a copy."""

import json
from dataclasses import asdict

from tests.protocol.wire_of_nodes import Wire

from hansa.protocol.model import MANAGEMENT_GROUP, LinkId, NodeId
from hansa.protocol.routing.base import CoreStatus, GroupStatus
from hansa.protocol.status import InterestStatus, NeighbourStatus, NodeStatus

ONE, TWO = NodeId(1), NodeId(2)


def pair() -> Wire:
    """Two nodes; clients of 2 are interested in `g`, and a client of 1 has published to it."""
    wire = Wire("1-2")
    wire.subscribe(2, "g")
    wire.run(0.5)
    wire.publish(1, "g")
    wire.publish(1, "$SYS/x")
    wire.run(0.5)
    return wire


def test_status_shows_the_whole_node():
    view = pair().nodes[1].status()
    (neighbour,) = view.neighbours.values()
    assert neighbour.rtt_ms is not None
    assert abs(neighbour.rtt_ms - 20) < 1e-6
    assert view == NodeStatus(
        node=ONE,
        incarnation=1,
        neighbours={TWO: NeighbourStatus(LinkId(1), neighbour.rtt_ms)},
        reachable=(ONE, TWO),
        digest=view.digest,
        cores={ONE: CoreStatus(1, 1, 0, 0, ()), TWO: CoreStatus(1, 1, 1, 1, (TWO,))},
        groups={
            MANAGEMENT_GROUP: GroupStatus(ONE, (ONE, TWO), True, (), (TWO,)),
            "g": GroupStatus(TWO, (TWO,), False, (), ()),
        },
        interest={TWO: InterestStatus((1, 1), ("g",))},
        in_force={TWO: (1, 1)},
        installed=True,
        sizes={
            "receivers": 0,
            "filters": 0,
            "groups": 1,
            "out_of_order": 0,
            "out_of_order_bytes": 0,
            "nodes": 2,
            "topic_plans": 1,
            "retained": 0,
            "streams": 0,
            "unacknowledged": 0,
            "uncommitted": 0,
            "uncommitted_bytes": 0,
            "dedup_windows": 1,
        },
        counters={"topic for this broker only": 1},
    )


def test_link_not_yet_measured_has_no_round_trip_time():
    wire = Wire()
    wire.start(1)
    wire.start(2)
    wire.join("1-2")
    wire.run(0.015)
    assert wire.nodes[1].status().neighbours == {TWO: NeighbourStatus(LinkId(1), None)}


def test_making_a_status_changes_nothing():
    wire = pair()
    assert wire.nodes[1].status() == wire.nodes[1].status()


def test_status_does_not_follow_later_changes():
    wire = pair()
    view = wire.nodes[1].status()
    kept = json.dumps(asdict(view))
    wire.subscribe(2, "h")
    wire.cut("1-2")
    wire.run(1.0)
    assert json.dumps(asdict(view)) == kept
    assert json.dumps(asdict(wire.nodes[1].status())) != kept


def test_membership_view_is_live():
    wire = pair()
    chart = wire.nodes[1].membership
    assert sorted(chart.known) == sorted(chart.reachable) == [ONE, TWO]
    assert list(chart.neighbours) == [TWO]
    before = chart.digest
    wire.cut("1-2")
    wire.run(0.5)
    assert sorted(chart.known) == [ONE, TWO]
    assert sorted(chart.reachable) == [ONE]
    assert list(chart.neighbours) == []
    assert chart.digest != before
