"""Live federations under faults: no acknowledged publication is lost.

All faults in turn in every test run; every scenario with --long. A failure names the seed;
`hansa chaos NAME --seed N` repeats it, as far as a live machine is repeatable.
"""

import asyncio
import random
from dataclasses import replace

import pytest
from tests.agent.strategies import OTHERS, SETTING

from hansa.testbed.chaos.faults.runner import run_fault
from hansa.testbed.chaos.federation import ChaosFederation
from hansa.testbed.chaos.run import ChaosOutcome, ChaosRun, run_chaos
from hansa.testbed.chaos.scenarios import FAULT_DURATION_S, PAUSE_S, SCENARIOS, TRANSIENT_FAULTS

KINDS = {
    "crash",
    "suspend",
    "clone",
    "crash-point",
    "restart-broker",
    "take-over",
    "churn",
    "stalled-client",
} | {
    "silence",
    "reset",
    "black-hole",
    "degrade",
}
"""Kinds of faults that TRANSIENT_FAULTS inject."""

pytestmark = [pytest.mark.usefixtures("mosquitto"), pytest.mark.timeout(600)]


async def each_once(chaos: ChaosFederation, rng: random.Random) -> None:
    """All faults once, however long that takes: on a busy machine healing is slow."""
    for fault in rng.sample(TRANSIENT_FAULTS, len(TRANSIENT_FAULTS)):
        await run_fault(fault, chaos, rng, FAULT_DURATION_S)
        await asyncio.sleep(PAUSE_S)


def run_scenario(name: str, seconds: float) -> ChaosOutcome:
    plan = ChaosRun(SCENARIOS[name], "grid:2x3", seconds=seconds, rate=50.0, drain_s=120.0)
    return asyncio.run(run_chaos(plan))


def test_all_faults_in_turn():
    scenario = replace(SCENARIOS["all-in-turn"], fault=each_once)
    outcome = asyncio.run(
        run_chaos(ChaosRun(scenario, "grid:2x3", seconds=300.0, rate=50.0, drain_s=120.0))
    )
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    assert outcome.verdict.fates["ok"] > 1_000
    assert outcome.verdict.published > 50.0 * len(TRANSIENT_FAULTS) * FAULT_DURATION_S
    assert {fault.__name__ for fault in TRANSIENT_FAULTS} <= set(outcome.counts_by_fault)
    assert set(outcome.fault_counts) >= KINDS


@pytest.mark.long
def test_partition_of_a_minute_at_1500_publications_per_second():
    """docs/chaos.md has the times to drain; a busy machine publishes less."""
    plan = ChaosRun(SCENARIOS["partition"], seconds=60.0, rate=1_500.0, drain_s=300.0)
    outcome = asyncio.run(run_chaos(plan))
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    reached = outcome.verdict.published / (2 * 1_500 * 62.0)
    if reached < 0.9:
        pytest.skip(f"too busy: nothing was lost, but at {reached:.0%} of the rate")
    # All publications at QoS 1 and 2 except those of the last 2 s arrive late, on both sides.
    assert outcome.verdict.fates["recovered"] > 0.8 * 2 * 1_000 * 58.0


@pytest.mark.long
@pytest.mark.parametrize("strategy", OTHERS)
def test_all_faults_in_turn_with_other_strategies(strategy, monkeypatch):
    monkeypatch.setenv(SETTING, strategy)
    outcome = run_scenario("all-in-turn", seconds=60.0)
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    assert outcome.verdict.fates["ok"] > 1_000


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name):
    outcome = run_scenario(name, seconds=60.0)
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    assert outcome.verdict.fates["ok"] > 1_000
    assert outcome.verdict.published > 2 * 50.0 * 60.0 / 2
    assert outcome.fault_counts or name == "calm"
    assert outcome.verdict.excusable <= outcome.verdict.promised / 3
