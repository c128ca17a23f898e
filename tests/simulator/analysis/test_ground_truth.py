"""The true state of a world."""

from tests.simulator.worlds import SimulatedRun

from hansa.protocol.model import NodeId
from hansa.simulator.actions import CrashAgent, CutOneWay, CutSilently, FreezeAgent, Partition
from hansa.simulator.analysis.ground_truth import GroundTruth


def components(word, *script):
    played = SimulatedRun(word, script).run(2.0)
    return [[site.place for site in part.sites] for part in GroundTruth(played.world).components()]


def test_connected_nodes_are_one_component():
    assert components("line:4") == [[0, 1, 2, 3]]


def test_one_way_link_does_not_connect():
    assert components("line:4", (1.0, CutSilently(1, 2))) == [[0, 1], [2, 3]]
    assert components("line:4", (1.0, CutOneWay(2, 1))) == [[0, 1], [2, 3]]
    assert components("full:4", (1.0, Partition(((0, 3), (1, 2))))) == [[0, 3], [1, 2]]


def test_stopped_and_suspended_nodes_are_excluded():
    assert components("line:3", (1.0, CrashAgent(1))) == [[0], [2]]
    assert components("line:3", (1.0, FreezeAgent(1, 5.0))) == [[0], [2]]


def test_component_has_neighbours_and_distances():
    played = SimulatedRun("ring:5").run(1.0)
    truth = GroundTruth(played.world)
    (part,) = truth.components()
    assert part.neighbours[NodeId(0)] == (1, 4)
    assert part.distances(NodeId(0)) == {0: 0, 1: 1, 4: 1, 2: 2, 3: 2}
    assert truth.component_of(played.world.sites[3]) is part


def test_components_and_statuses_are_recomputed_after_a_change():
    played = SimulatedRun("line:2", [(2.0, CrashAgent(1))]).run(1.0)
    truth = GroundTruth(played.world)
    site = played.world.sites[0]
    first = truth.status(site)
    assert truth.status(site) is first
    assert truth.components() is truth.components()
    played.run(3.0)
    assert len(truth.components()) == 1
    assert truth.status(site) is not first
    newest = truth.status(site)
    truth.clear_statuses()
    assert truth.status(site) is not newest


def test_stopped_site_has_no_component():
    played = SimulatedRun("line:2", [(1.0, CrashAgent(1))]).run(2.0)
    assert GroundTruth(played.world).component_of(played.world.sites[1]) is None
