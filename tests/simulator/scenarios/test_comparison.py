"""Measurements compared with values counted by hand."""

import pytest

from hansa.protocol.routing import STRATEGIES
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import CutLink, RestoreLink
from hansa.simulator.options import FaultCounts
from hansa.simulator.random_faults import random_faults
from hansa.simulator.scenarios.comparison import measure_strategy
from hansa.simulator.scenarios.trials import INTERVAL_S, PUBLICATIONS, StrategyTrial, make_trials
from hansa.simulator.topologies import parse_topology

SETTINGS = ProtocolSettings(redundancy=1)
RING = StrategyTrial("ring", "", parse_topology("ring:6", 1), subscribers=(2,), publishers=(4,))
PAPER = {trial.name: trial for trial in make_trials(seed=1)}


@pytest.mark.parametrize(
    ("strategy", "copies", "busiest", "stretch"),
    [
        ("paths", 2, 1, 1.0),  # 4-3-2
        ("tree-subscriptions", 4, 1, 2.0),  # 4-5-0-1-2, root 0
        ("tree-flood", 5, 1, 2.0),  # and 1-2-3, or the like
        ("bridge-flood", 7, 2, 1.0),
    ],
)
def test_measurement_of_a_ring(strategy, copies, busiest, stretch):
    ours = measure_strategy(RING, SETTINGS, strategy, seed=1)
    assert (ours.copies, ours.busiest, ours.stretch) == (copies, busiest, stretch)
    assert (ours.publications, ours.expected, ours.lost, ours.notices) == (50, 50, 0, 5)
    assert ours.bytes / ours.copies == pytest.approx(105, abs=1)  # 64 bytes of payload, a topic
    assert ours.violations == ()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_publication_without_remote_interest_stays_at_its_broker(strategy):
    ours = measure_strategy(PAPER["antonielli-tree-100"], SETTINGS, strategy, seed=1)
    assert (ours.publications, ours.copies, ours.busiest, ours.expected) == (0, 0.0, 0.0, 0)
    assert (ours.stretch, ours.delay_ms, ours.recovered_s) == (None, None, None)


def test_heartbeats_are_not_counted():
    mesh, paths = (measure_strategy(RING, SETTINGS, name, seed=1) for name in ("mesh", "paths"))
    assert 0 < paths.control_frames < mesh.control_frames
    assert 0 < paths.control_bytes < mesh.control_bytes


def test_recovery_time_and_losses_after_faults():
    """Two nodes whose only link is cut now and then: publications are lost while it is cut and
    until it is redialled, at most a second later."""
    cuts = FaultCounts(cuts=20, outage_s=(1.0, 2.0))
    trial = StrategyTrial("faulty", "", parse_topology("line:2", 1), (1,), (0,), faults=cuts)
    ours = measure_strategy(trial, SETTINGS, "tree-subscriptions", seed=1)
    options = trial.make_options(SETTINGS, seed=1)
    steps = random_faults(options)
    starts = [step.at_s for step in steps if isinstance(step.action, CutLink)]
    ends = [step.at_s for step in steps if isinstance(step.action, RestoreLink)]
    made = [options.phases.warm_up_s + number * INTERVAL_S for number in range(PUBLICATIONS)]

    def within(more_s: float) -> int:
        outages = [(a, b + more_s) for a, b in zip(starts, ends, strict=True)]
        return sum(any(a < at < b for a, b in outages) for at in made)

    assert (ours.expected, ours.stretch) == (PUBLICATIONS, None)
    assert 0 < within(0.0) <= ours.lost <= within(1.1) < PUBLICATIONS
    assert ours.recovered_s is not None
    assert 0 < ours.recovered_s < 1.2
