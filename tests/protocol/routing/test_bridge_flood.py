"""The bridge flood: all links, twice at most."""

from collections import Counter

from tests.protocol.federation import grid, publish, settled
from tests.protocol.wire_of_nodes import pairs


def test_every_link_is_crossed_at_most_once_in_each_direction():
    wire = settled(grid(3), (8, "g"), strategy="bridge-flood")
    assert publish(wire, 0) == {8: [b"x"]}
    crossings = Counter(wire.copies())
    assert max(crossings.values()) == 1
    assert {tuple(sorted(arc)) for arc in crossings} == set(pairs(grid(3)))
