"""Plays one scenario: clients publish, trouble comes, all is healed, and everything must arrive."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hansa.chaos import history
from hansa.chaos.scenarios import Scenario
from hansa.chaos.stage import Stage, set_up
from hansa.chaos.verdict import Verdict, judge
from hansa.simulator.topologies import parse

BEFORE_S = 1.0
POLL_S = 0.25
DUPLICATES_PER_CRASH = 1_000
"""At QoS 1 what was under way to the broker in a crash may come again: at most the window."""


@dataclass(frozen=True, slots=True)
class Play:
    """What is played."""

    scenario: Scenario
    topology: str = "grid:3x3"
    seed: int = 1
    seconds: float = 30.0
    """How long there is trouble."""
    rate: float = 100.0
    """Publications per second of each publisher."""
    keep: Path | None = None
    """Where to keep everything, with telemetry of agents and faults."""
    drain_s: float = 60.0
    """How long everything may take to arrive after the last trouble."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    verdict: Verdict
    drained_s: float | None
    """From the end of the trouble until everything had arrived; None if it did not."""
    duplicates_allowed: int
    is_rival: bool = False
    """Whether this was not Hansa, and only for comparison."""

    @property
    def broken(self) -> list[str]:
        """Return which promises were broken."""
        return self.verdict.broken(self.duplicates_allowed)


async def play(
    plan: Play, told: Callable[[str], None] = lambda what: None, keep: Path | None = None
) -> Outcome:
    """Play it on real brokers and agents; write the history to a file if asked to."""
    chance = random.Random(f"{plan.seed} {plan.scenario.name}")
    told("starting brokers and agents")
    stage = await set_up(parse(plan.topology, plan.seed), plan.keep)
    try:
        publishers, subscribers = _cast(plan.scenario, stage, chance)
        await stage.populate(publishers, subscribers, plan.rate)
        drained_s = await _perform(plan, stage, chance, told)
    finally:
        await stage.close()
    if keep is not None:
        history.write(stage.account.history, keep)
    allowed = DUPLICATES_PER_CRASH if plan.scenario.crashes else 0
    return Outcome(judge(stage.account.history, stage.wanted()), drained_s, allowed)


def _cast(scenario: Scenario, stage: Stage, chance: random.Random) -> tuple[list[int], list[int]]:
    """Choose who publishes and who subscribes: a third each, and at least two. Where there are two
    sides, one each on either side."""
    if scenario.sides:
        pairs = [chance.sample(sorted(side), 2) for side in stage.sides]
        return [publisher for publisher, _ in pairs], [subscriber for _, subscriber in pairs]
    count = max(2, len(stage.places) // 3)
    places = chance.sample(stage.places, min(len(stage.places), 2 * count))
    return places[:count], places[-count:]


async def _perform(
    plan: Play, stage: Stage, chance: random.Random, told: Callable[[str], None]
) -> float | None:
    loop = asyncio.get_running_loop()
    for publisher in stage.publishers:
        publisher.go()
    await asyncio.sleep(BEFORE_S)
    told(f"{plan.scenario.about}, for {plan.seconds:g} s")
    trouble = asyncio.ensure_future(plan.scenario.trouble(stage, chance))
    try:
        await asyncio.wait([trouble], timeout=plan.seconds)
    finally:
        trouble.cancel()
        (ended,) = await asyncio.gather(trouble, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended
    await stage.heal()
    healed = loop.time()
    await asyncio.sleep(BEFORE_S)
    await asyncio.gather(*(publisher.pause() for publisher in stage.publishers))
    told("waiting for the rest to arrive")
    while loop.time() - healed < plan.drain_s:
        await asyncio.sleep(POLL_S)
        quiet = all(publisher.is_quiet for publisher in stage.publishers)
        if quiet and not stage.account.missing:
            return loop.time() - healed
    return None
