"""Nodes join, leave and fail; the manager is there, away, or wrong: one part, and nothing lost."""

import pytest

from hansa.simulator.faults.churn import ChurnOptions, ChurnResult, churn
from hansa.simulator.faults.managed_links import Mode

SPLIT_S_MAX = 60.0
"""Seconds that parts may take to find together: even a hopeless address is tried every minute."""


def check(result: ChurnResult) -> None:
    assert result.violations == []
    assert result.promised == result.delivered > 0
    assert result.parts_at_end == 1
    assert result.split_s_max <= SPLIT_S_MAX
    assert min(result.joined, result.failed) > 0


@pytest.mark.parametrize(
    ("modes", "seed"),
    [
        ((Mode.UP, Mode.AWAY, Mode.LYING), 1),
        ((Mode.UP, Mode.AWAY), 2),
        ((Mode.UP, Mode.LYING), 3),
    ],
)
def test_a_few_nodes_for_some_minutes(modes, seed):
    check(churn(ChurnOptions(nodes=8, seconds=120, modes=modes, seed=seed, rate=0.5)))


def test_the_same_seed_is_the_same_run():
    options = ChurnOptions(nodes=5, seconds=60, seed=7)
    assert churn(options) == churn(options)


def test_without_any_healing_the_check_would_fail(monkeypatch):
    """The test can fail: nodes that never look are never linked again."""
    monkeypatch.setattr("hansa.topology.steering.Steering.look", lambda self, now, planning: None)
    options = ChurnOptions(nodes=8, seconds=120, modes=(Mode.UP, Mode.AWAY), seed=2, rate=0.5)
    result = churn(options)
    assert result.split_s_max > 0 or result.parts_at_end > 1


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2])
def test_two_hundred_nodes_for_an_hour(seed):
    check(churn(ChurnOptions(200, 3600, trouble_s=20.0, rate=0.2, heartbeat_s=5.0, seed=seed)))
