"""The read access of shells to the delivery state of a node."""

from tests.protocol.federation import settled

from hansa.protocol.model import NodeId

TWO = NodeId(2)


def test_view_shows_positions_and_pending_publications():
    wire = settled("1-2", (2, "a"))
    view = wire.nodes[1].delivery
    wire.publish(1, "a", qos=1)
    wire.run(1.0)
    assert (view.next_position, view.acknowledged, view.pending) == ((1, 2), {TWO: 1}, {TWO: 0})
    wire.cut("1-2")
    wire.run(1.0)
    wire.publish(1, "a", qos=1)
    assert (list(view.receivers), view.acknowledged_by_all) == ([TWO], 1)
    wire.run(0.1)
    assert (view.next_position, view.pending) == ((1, 3), {TWO: 1})
    assert (view.first_pending_before(2), view.first_pending_before(3)) == ({}, {TWO: 2})
