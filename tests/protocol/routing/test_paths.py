"""Paths strategy: caches are bounded, and an unreachable origin has no paths."""

from typing import Any

from tests.protocol.federation import RING, SQUARE, link_of, publish, settled

from hansa.protocol.effects import Send
from hansa.protocol.events import FrameReceived
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.routing import paths


def test_copy_of_an_unreachable_origin_is_not_forwarded():
    wire = settled(SQUARE, (3, "g"), strategy="paths")
    wire.stop(4)
    wire.run(1.0)
    late = Publication(NodeId(4), 1, 1, 0, "g", b"late")
    effects = wire.give(2, FrameReceived(link_of(wire, 2, 1), late))
    assert not [effect for effect in effects if isinstance(effect, Send)]


def test_full_cache_of_next_hops_is_cleared(monkeypatch):
    monkeypatch.setattr(paths, "PAIRS_MAX", 1)
    wire = settled(RING, (3, "g"), (5, "g"), strategy="paths")
    for _ in range(2):
        assert publish(wire, 1) == {3: [b"x"], 5: [b"x"]}
        assert publish(wire, 2) == {3: [b"x"], 5: [b"x"]}


def test_full_cache_of_trees_is_cleared(monkeypatch):
    monkeypatch.setattr(paths, "TREE_NODES_MAX", 8)
    wire = settled(RING, (3, "g"), strategy="paths", redundancy=1)
    for _ in range(2):
        assert [publish(wire, place) for place in (1, 2, 4)] == [{3: [b"x"]}] * 3


def test_entries_with_equal_routes_are_equal():
    wire = settled(RING, (3, "g"), strategy="paths")
    strategy: Any = wire.nodes[1]._routing.strategy  # noqa: SLF001
    one, other, wider = (strategy._make_entry("g", nodes) for nodes in ([3], [3], [3, 4]))  # noqa: SLF001
    assert one.is_equivalent(other)
    assert not one.is_equivalent(wider)


def test_both_paths_around_a_ring_are_used():
    wire = settled(RING, (3, "g"), strategy="paths", redundancy=2)
    assert publish(wire, 1) == {3: [b"x"]}
    assert sorted(wire.copies()) == [(1, 2), (1, 5), (2, 3), (4, 3), (5, 4)]
