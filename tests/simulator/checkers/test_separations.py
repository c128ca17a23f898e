"""Duration of separations between nodes."""

from tests.simulator.worlds import SimulatedRun

from hansa.protocol.model import NodeId
from hansa.simulator.actions import CrashAgent, CutLink, RestoreLink
from hansa.simulator.analysis.ground_truth import GroundTruth
from hansa.simulator.checkers.separations import Separations
from hansa.simulator.world.hooks import Hooks

NOTICED_S = 2.0
A, B, C = NodeId(0), NodeId(1), NodeId(2)


def partings(*script, lease_s=5.0) -> tuple[SimulatedRun, Separations]:
    """Three nodes in a line, and the separations between them."""
    played = SimulatedRun("line:3", script)
    made = Separations(played.world, GroundTruth(played.world), lease_s, NOTICED_S)

    class Look(Hooks):
        def on_agent_started(self, site):
            made.update()

        def on_agent_stopped(self, site):
            made.update()

        def on_disturbance(self, what, fault, places):
            made.update()

    played.world.set_hooks([Look()])
    return played, made


def test_nodes_without_a_path_are_separated():
    played, made = partings((10.0, CutLink(0, 1)))
    played.run(14.9)
    assert not made.exceeds_lease(A, C)
    played.run(15.0)
    assert made.exceeds_lease(A, C)
    assert made.exceeds_lease(C, A)
    assert not made.exceeds_lease(B, C)


def test_separation_is_rounded_as_the_end_of_a_lease():
    cut_at, lease_s = 10.783030104749779, 9.0
    ended_at = cut_at + lease_s
    assert ended_at - cut_at < lease_s
    played, made = partings((cut_at, CutLink(0, 1)), lease_s=lease_s)
    played.run(ended_at)
    assert made.exceeds_lease(A, B)


def test_stopped_node_is_separated_from_all():
    played, made = partings((10.0, CrashAgent(2)))
    played.run(15.0)
    assert made.exceeds_lease(B, C)
    assert not made.exceeds_lease(A, B)


def test_reconnection_is_noticed_with_delay():
    played, made = partings((10.0, CutLink(0, 1)), (14.0, RestoreLink(0, 1)))
    played.run(15.9)
    assert made.exceeds_lease(A, B)
    played.run(16.1)
    assert not made.exceeds_lease(A, B)


def test_unnoticed_reconnection_does_not_end_a_separation():
    script = [(10.0, CutLink(0, 1)), (14.0, RestoreLink(0, 1)), (15.0, CutLink(0, 1))]
    played, made = partings(*script, lease_s=8.0)
    played.run(18.0)
    assert made.exceeds_lease(A, B)


def test_separation_starts_anew_after_reconnection():
    script = [(10.0, CutLink(0, 1)), (14.0, RestoreLink(0, 1)), (17.0, CutLink(0, 1))]
    played, made = partings(*script, lease_s=2.0)
    played.run(18.0)
    assert not made.exceeds_lease(A, B)


def test_exceeded_lease_is_known_after_reconnection():
    played, made = partings((10.0, CutLink(0, 1)), (16.0, RestoreLink(0, 1)))
    played.run(30.0)
    assert made.exceeded_lease_since(A, B, at=17.0)
    assert not made.exceeded_lease_since(A, B, at=18.1)
    assert not made.exceeded_lease_since(B, C, at=10.0)
    played, made = partings((10.0, CutLink(0, 1)), (12.0, RestoreLink(0, 1)))
    played.run(30.0)
    assert not made.exceeded_lease_since(A, B, at=10.0)
