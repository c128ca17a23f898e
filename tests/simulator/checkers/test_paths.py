"""Paths that violate the invariant, made by hand."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.simulator.actions import ClientPublish, ClientSubscribe
from hansa.simulator.checkers import ShortestPathsFromOrigin

WANTED = [(0.0, ClientSubscribe(2, "a")), (5.0, ClientPublish(0, "a"))]


def judged(*arcs, **settings):
    """Send a publication of node 0 in a ring of six, with interest at node 2, over these arcs;
    return the violations without time and seed."""
    played = SimulatedRun("ring:6", WANTED, protocol=ProtocolSettings(strategy="paths", **settings))
    played.run(5.9)
    assert played.simulation.violations == []
    complaints: list[str] = []
    checker = ShortestPathsFromOrigin(played.world, complaints, played.simulation.tracker)
    entry = played.world.ledger.entries[0]
    part = played.simulation.tracker.truth.component_of(played.world.sites[0])
    assert part is not None
    checker._links_used[0] = dict.fromkeys(arcs)  # noqa: SLF001
    checker.check_publication(entry, part, entry.expected_places)
    return [text.partition(" from n0 ")[2].rpartition(" (")[0] for text in complaints]


SHORT, LONG = [(0, 1), (1, 2)], [(0, 5), (5, 4), (4, 3), (3, 2)]


@pytest.mark.parametrize(
    ("arcs", "problem"),
    [
        (SHORT, []),
        (LONG, ["takes 4 hops to n2, it is 2 away"]),
        ([*SHORT, (2, 3)], ["ends at n3, where no client subscribes to it"]),
        ([*SHORT, *LONG], [f"reaches a node by two paths: {sorted([*SHORT, *LONG])}"]),
    ],
)
def test_single_paths_must_be_shortest_and_unique(arcs, problem):
    assert judged(*arcs, redundancy=1) == problem


def test_with_rtt_only_the_shape_is_checked():
    assert judged(*LONG, redundancy=1, metric=Metric.RTT) == []


def test_redundant_paths_survive_the_loss_of_any_link():
    assert judged(*SHORT, *LONG, redundancy=2) == []
    assert judged(*SHORT, redundancy=2) == ["would miss n2 without the link n0-n1"]


def test_nodes_of_the_same_group_may_get_it():
    assert judged(*SHORT, (2, 3), redundancy=1, group_depth=1) == []


def test_checker_is_used_only_for_strategies_with_the_invariant():
    for strategy, judges in (("paths", True), ("tree-flood", False)):
        played = SimulatedRun("ring:6", protocol=ProtocolSettings(strategy=strategy))
        calls = played.world.hooks.on_copy_sent
        assert any("ShortestPathsFromOrigin" in repr(call) for call in calls) == judges
