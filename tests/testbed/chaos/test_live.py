"""Real brokers, real agents, real trouble: nothing that was acknowledged is lost.

Two minutes of everything in every run; each kind of trouble by itself with --long. A failure names
the seed, and `hansa chaos NAME --seed N` plays the same again, as far as a live machine lets it.
"""

import asyncio
import random
from dataclasses import replace

import pytest
from tests.agent.strategies import OTHERS, SETTING

from hansa.testbed.chaos.agent_faults import run_fault
from hansa.testbed.chaos.run import ChaosOutcome, ChaosRun, run_chaos
from hansa.testbed.chaos.scenarios import FAULT_DURATION_S, PAUSE_S, SCENARIOS, TRANSIENT_FAULTS
from hansa.testbed.chaos.testbench import ChaosFederation

KINDS = {
    "crash",
    "freeze",
    "clone",
    "doom",
    "restart-broker",
    "take-over",
    "visitors",
    "sleeper",
} | {
    "silence",
    "reset",
    "black-hole",
    "worsen",
}
"""What all of MIXED does, by kind."""

pytestmark = [pytest.mark.usefixtures("mosquitto"), pytest.mark.timeout(600)]


async def each_once(stage: ChaosFederation, chance: random.Random) -> None:
    """All of MIXED, for as long as that takes: on a busy machine to mend takes longer, too."""
    for trouble in chance.sample(TRANSIENT_FAULTS, len(TRANSIENT_FAULTS)):
        await run_fault(trouble, stage, chance, FAULT_DURATION_S)
        await asyncio.sleep(PAUSE_S)


def played(name: str, seconds: float) -> ChaosOutcome:
    plan = ChaosRun(SCENARIOS[name], "grid:2x3", seconds=seconds, rate=50.0, drain_s=120.0)
    return asyncio.run(run_chaos(plan))


def test_two_minutes_of_everything():
    scenario = replace(SCENARIOS["everything"], fault=each_once)
    outcome = asyncio.run(
        run_chaos(ChaosRun(scenario, "grid:2x3", seconds=300.0, rate=50.0, drain_s=120.0))
    )
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    assert outcome.verdict.fates["ok"] > 1_000
    # To mend takes time, too, and brokers are away for moments only.
    assert outcome.verdict.published > 50.0 * len(TRANSIENT_FAULTS) * FAULT_DURATION_S
    assert {trouble.__name__ for trouble in TRANSIENT_FAULTS} <= set(outcome.counts_by_fault)
    assert set(outcome.fault_counts) >= KINDS


@pytest.mark.long
def test_a_minute_of_partition_with_500_a_second_of_qos_1_and_as_many_of_qos_2_on_both_sides():
    """How long it takes to drain is in docs/chaos.md; a busy machine publishes less."""
    plan = ChaosRun(SCENARIOS["parted"], seconds=60.0, rate=1_500.0, drain_s=300.0)
    outcome = asyncio.run(run_chaos(plan))
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    reached = outcome.verdict.published / (2 * 1_500 * 62.0)
    if reached < 0.9:
        pytest.skip(f"too busy: nothing was lost, but at {reached:.0%} of the rate")
    # All of a minute but for its last two seconds comes late, at QoS 1 and 2, on both sides.
    assert outcome.verdict.fates["recovered"] > 0.8 * 2 * 1_000 * 58.0


@pytest.mark.long
@pytest.mark.parametrize("strategy", OTHERS)
def test_a_minute_of_everything_with_every_other_strategy(strategy, monkeypatch):
    monkeypatch.setenv(SETTING, strategy)
    outcome = played("everything", seconds=60.0)
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    assert outcome.verdict.fates["ok"] > 1_000


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_kind_of_trouble(name):
    outcome = played(name, seconds=60.0)
    assert outcome.violations == [], outcome.verdict.examples
    assert outcome.drained_s is not None
    assert outcome.verdict.fates["ok"] > 1_000
    assert outcome.verdict.published > 2 * 50.0 * 60.0 / 2
    assert outcome.fault_counts or name == "calm"
    assert outcome.verdict.excusable <= outcome.verdict.promised / 3
