"""Trials: the papers' topologies, with the same clients and faults for every strategy."""

from dataclasses import replace

import pytest

from hansa.protocol.settings import Metric, ProtocolSettings
from hansa.simulator.actions import ClientPublish, ClientSubscribe
from hansa.simulator.scenarios.comparison import measure_strategy
from hansa.simulator.scenarios.trials import PUBLICATIONS, make_trials

TRIALS = {trial.name: trial for trial in make_trials(seed=1)}


def test_trial_names_are_unique():
    assert len(TRIALS) == len(make_trials(seed=1))


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_trial_differs_only_in_settings(trial):
    one, other = (
        trial.make_options(ProtocolSettings(strategy=name), seed=3) for name in ("mesh", "paths")
    )
    assert replace(one, protocol=other.protocol) == other


@pytest.mark.parametrize("trial", TRIALS.values(), ids=TRIALS)
def test_every_trial_has_publications_and_subscribers(trial):
    options = trial.make_options(ProtocolSettings(), seed=3)
    said = sum(
        step.action.count for step in options.schedule if isinstance(step.action, ClientPublish)
    )
    assert said == PUBLICATIONS or options.workload.publishers


def test_unequal_links_favour_the_rtt_metric():
    trial = TRIALS["random-25-unequal"]
    by_hops, by_time = (
        measure_strategy(trial, ProtocolSettings(redundancy=1, metric=metric), "paths", seed=1)
        for metric in Metric
    )
    assert (by_hops.violations, by_time.violations) == ((), ())
    assert by_hops.stretch is not None
    assert by_time.stretch is not None
    assert by_hops.stretch == 1.0 < by_time.stretch
    assert by_hops.delay_ms is not None
    assert by_time.delay_ms is not None
    assert by_time.delay_ms < by_hops.delay_ms


def test_localities_of_antonielli():
    def places(name):
        steps = TRIALS[name].make_options(ProtocolSettings(), seed=1).schedule
        kinds = (ClientSubscribe, ClientPublish)
        return [[s.action.node for s in steps if isinstance(s.action, kind)] for kind in kinds]

    assert places("antonielli-tree-100") == [[0], [0]]
    assert places("antonielli-star-0") == [[4], [0]]
    assert places("antonielli-line-n") == [[0, 1, 2, 3, 4]] * 2
    root = TRIALS["antonielli-line-n"].make_options(ProtocolSettings(), seed=1).capacities
    assert root.index(max(root)) == 2  # broker C
