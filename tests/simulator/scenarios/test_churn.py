"""Nodes join, leave and fail while the manager is up, absent or wrong: connected, and nothing
lost."""

import pytest

from hansa.simulator.scenarios.churn import ChurnOptions, ChurnResult, run_churn
from hansa.simulator.world.managed_links import ManagerMode

SPLIT_S_MAX = 60.0
"""Seconds until parts must be connected again: even a failing address is retried every minute."""


def check(result: ChurnResult) -> None:
    assert result.violations == []
    assert result.promised == result.delivered > 0
    assert result.parts_at_end == 1
    assert result.split_s_max <= SPLIT_S_MAX
    assert min(result.joined, result.failed) > 0


@pytest.mark.parametrize(
    ("modes", "seed"),
    [
        ((ManagerMode.UP, ManagerMode.ABSENT, ManagerMode.WRONG), 1),
        ((ManagerMode.UP, ManagerMode.ABSENT), 2),
        ((ManagerMode.UP, ManagerMode.WRONG), 3),
    ],
)
def test_churn_of_a_few_nodes(modes, seed):
    check(run_churn(ChurnOptions(nodes=8, seconds=120, manager_modes=modes, seed=seed, rate=0.5)))


def test_churn_is_deterministic():
    options = ChurnOptions(nodes=5, seconds=60, seed=7)
    assert run_churn(options) == run_churn(options)


def test_churn_without_healing_is_detected(monkeypatch):
    """Nodes that never update their links are never connected again."""
    monkeypatch.setattr(
        "hansa.topology.neighbour_selector.NeighbourSelector.update_links",
        lambda self, now, is_planning: None,
    )
    options = ChurnOptions(
        nodes=8, seconds=120, manager_modes=(ManagerMode.UP, ManagerMode.ABSENT), seed=2, rate=0.5
    )
    result = run_churn(options)
    assert result.split_s_max > 0 or result.parts_at_end > 1


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2])
def test_churn_of_two_hundred_nodes_for_an_hour(seed):
    check(
        run_churn(
            ChurnOptions(200, 3600, fault_interval_s=20.0, rate=0.2, heartbeat_s=5.0, seed=seed)
        )
    )
