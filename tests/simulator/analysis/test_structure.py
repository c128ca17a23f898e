"""Violations of every structural invariant, made by hand.

A ring of five converges; then one node's status is changed before it is checked.
"""

from dataclasses import replace

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.mqtt.packets import SubscribePacket, Subscription, UnsubscribePacket
from hansa.protocol.routing import STRATEGIES, strategy_class
from hansa.protocol.routing.base import StrategyInvariant
from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.simulator.actions import ClientSubscribe, CloneNode, CrashAgent, RestartAgent
from hansa.simulator.analysis.ground_truth import GroundTruth
from hansa.simulator.analysis.structure import StructureCheck
from hansa.simulator.options import DiskOptions

GROUP = "a/#"


@pytest.fixture(scope="module")
def resting():
    script = [(0.0, ClientSubscribe(0, GROUP)), (0.0, ClientSubscribe(2, GROUP))]
    return SimulatedRun("ring:5", script).run(6.0)


class Tampered(GroundTruth):
    """The truth, with one node's status changed."""

    def __init__(self, played, place=None, **changes):
        super().__init__(played.world)
        self._place = place
        self._changes = changes

    def status(self, site):
        view = super().status(site)
        if site.place != self._place:
            return view
        return replace(view, **{name: change(view) for name, change in self._changes.items()})


def structure(resting, place=None, metric=Metric.HOPS, **changes):
    return StructureCheck(Tampered(resting, place, **changes), ProtocolSettings(metric=metric))


def group_with(**changes):
    """Return a change of one node's group status."""
    return lambda view: {**view.groups, GROUP: replace(view.groups[GROUP], **changes)}


def core_with(**changes):
    """Return a change of one node's route to the group's core."""
    return lambda view: {**view.cores, 0: replace(view.cores[0], **changes)}


def test_quiet_federation_has_no_problem(resting):
    assert structure(resting).find_problem() is None
    assert list(structure(resting).find_broken_invariants()) == []


@pytest.mark.parametrize(
    ("place", "changes", "problem"),
    [
        (1, {"neighbours": lambda view: {}}, "n1: its neighbours are"),
        (1, {"reachable": lambda view: (0, 1)}, "n1: it can reach"),
        (2, {"interest": lambda view: {}}, "n2: its clients subscribe to a/#"),
        (1, {"in_force": lambda view: {}}, "n1 has the interest of"),
        (1, {"groups": group_with(core=3)}, "nodes see different cores"),
        (1, {"groups": lambda view: {"": view.groups[""]}}, "nodes see different cores"),
        (1, {"cores": core_with(parents=())}, "has no path to the core 0"),
        (1, {"cores": lambda view: {}}, "has no path to the core 0"),
        (1, {"cores": core_with(parents=(9,))}, "over 9, which is gone"),
        (0, {"cores": lambda view: {}}, "its core n0 does not announce itself"),
        (1, {"cores": core_with(parents=(2,))}, "has no path to the core 0"),
        (2, {"groups": group_with(is_member=False)}, "n2 is interested and not joined to core 0"),
        (1, {"groups": group_with(children=())}, "n2 is interested and not joined to core 0"),
    ],
)
def test_user_visible_problem_prevents_convergence(resting, place, changes, problem):
    assert problem in structure(resting, place, **changes).find_problem()


@pytest.mark.parametrize(
    ("place", "changes", "promise"),
    [
        (1, {"digest": lambda view: 1}, "databases equal"),
        (3, {"cores": core_with(distance=1)}, "true distances"),
        (3, {"cores": core_with(parents=())}, "redundancy filled"),
        (3, {"cores": core_with(parents=(2,))}, "redundancy filled"),
        (2, {"groups": group_with(parents=(1, 3))}, "tables agree"),
        (1, {"groups": group_with(children=(2, 4))}, "tables agree"),
        (3, {"groups": group_with(is_member=True)}, "meshes minimal"),
        (3, {"groups": group_with(interested_nodes=(0,))}, "meshes minimal"),
        (3, {"installed": lambda view: False}, "interest installed"),
    ],
)
def test_violated_invariant_is_named(resting, place, changes, promise):
    assert promise in dict(structure(resting, place, **changes).find_broken_invariants())


def test_distances_are_not_checked_with_rtt_metric(resting):
    wrong = structure(resting, 3, Metric.RTT, cores=core_with(distance=700, parents=(4,)))
    assert {"true distances", "redundancy filled"}.isdisjoint(dict(wrong.find_broken_invariants()))


def test_tables_are_not_checked_with_varying_rtt(resting):
    tampered = Tampered(resting, 3, groups=group_with(is_member=True, parents=(2,)))
    settings = ProtocolSettings(metric=Metric.RTT)
    assert dict(StructureCheck(tampered, settings, is_steady=True).find_broken_invariants())
    assert not dict(StructureCheck(tampered, settings, is_steady=False).find_broken_invariants())


def test_missing_broker_subscription_is_a_problem(resting):
    broker = resting.world.sites[3].broker
    unsubscribe = UnsubscribePacket(999, (GROUP,))
    broker.receive_from_agent(broker.agent_connection, unsubscribe, resting.world.now)
    try:
        assert "broker of n3 lacks subscriptions" in structure(resting).find_problem()
    finally:
        subscribe = SubscribePacket(999, (Subscription(GROUP, qos=2),))
        broker.receive_from_agent(broker.agent_connection, subscribe, resting.world.now)


def test_missing_core_is_a_problem(resting):
    class Agreed(Tampered):
        """All nodes agree on a core that does not exist."""

        def status(self, site):
            view = super().status(site)
            return replace(view, groups=group_with(core=9)(view))

    problem = StructureCheck(Agreed(resting), ProtocolSettings()).find_problem()
    assert problem is not None
    assert "its core 9 does not exist" in problem


def test_single_node_has_no_problem():
    lonely = structure(SimulatedRun("line:1", [(0.0, ClientSubscribe(0, GROUP))]).run(2.0))
    assert lonely.find_problem() is None
    assert list(lonely.find_broken_invariants()) == []


def test_duplicate_id_is_a_problem():
    played = SimulatedRun("line:3", [(1.0, CloneNode(0, near=2))]).run(1.0)
    assert "two nodes share an id" in structure(played).find_problem()


# ---------------------------------------------------------------- other strategies


@pytest.fixture(scope="module", params=[name for name in STRATEGIES if name != "mesh"])
def following(request):
    """A converged ring whose strategy computes paths from the database."""
    settings = ProtocolSettings(strategy=request.param)
    return SimulatedRun("ring:5", [(0.0, ClientSubscribe(2, GROUP))], protocol=settings).run(
        6.0
    ), settings


def test_every_strategy_has_no_problem_at_rest(following):
    played, settings = following
    assert StructureCheck(GroundTruth(played.world), settings).find_problem() is None
    assert list(StructureCheck(GroundTruth(played.world), settings).find_broken_invariants()) == []


def test_databases_must_be_equal_if_paths_depend_on_them(following, resting):
    played, settings = following
    other = {"digest": lambda view: 1}
    problem = StructureCheck(Tampered(played, 1, **other), settings).find_problem()
    assert problem is not None
    assert "databases differ" in problem
    assert structure(resting, 1, **other).find_problem() is None


def test_absent_node_may_be_forgotten_at_different_times():
    """The lease does not run while an agent is stopped."""
    settings = ProtocolSettings(strategy="tree-flood", interest_lease=5.0)
    script = [
        (2.0, CrashAgent(1)),
        (2.5, RestartAgent(1, with_state=False)),
        (4.0, CrashAgent(0)),
        (7.0, RestartAgent(0)),
    ]
    played = SimulatedRun("ring:3", script, protocol=settings, disk=DiskOptions()).run(8.5)
    truth = GroundTruth(played.world)
    assert len({truth.status(site).digest for site in played.world.sites}) == 2
    assert StructureCheck(truth, settings).find_problem() is None
    without_lease = replace(settings, interest_lease=60.0)
    problem = StructureCheck(truth, without_lease).find_problem()
    assert problem is not None
    assert "databases differ" in problem


def test_only_invariants_of_the_strategy_are_checked(following):
    played, settings = following
    wrong = StructureCheck(Tampered(played, 1, groups=group_with(core=3)), settings)
    promises = strategy_class(settings.strategy).invariants
    assert (wrong.find_problem() is None) == (StrategyInvariant.ONE_CORE not in promises)


def test_path_fingerprint_follows_the_database(following, resting):
    played, settings = following
    mark = StructureCheck(GroundTruth(played.world), settings).path_fingerprint()
    assert StructureCheck(GroundTruth(played.world), settings).path_fingerprint() == mark
    assert (
        StructureCheck(Tampered(played, 1, digest=lambda view: 1), settings).path_fingerprint()
        != mark
    )
    assert structure(resting).path_fingerprint() is None
