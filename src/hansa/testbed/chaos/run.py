"""Plays one scenario: clients publish, trouble comes, all is healed, and everything must arrive."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hansa.errors import HansaError, UsageError
from hansa.simulator.topologies import parse
from hansa.testbed.chaos.agent_faults import calm, suffer
from hansa.testbed.chaos.final_checks import settled
from hansa.testbed.chaos.scenarios import Scenario
from hansa.testbed.chaos.testbench import Stage, set_up
from hansa.testbed.chaos.verdict import Verdict

BEFORE_S = 1.0
POLL_S = 0.25
LISTEN_S = 3.0
"""When everything has arrived: a second copy comes after the first."""
SHARE_MIN = 0.1
"""Of the rate: a publisher that reaches less proves little. Brokers are away for moments, and a
busy machine is slow."""


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

    def check(self) -> None:
        """Refuse what cannot be played, before anything is started."""
        nodes = parse(self.topology, self.seed).nodes
        if nodes < self.scenario.nodes_min:
            raise UsageError(
                f"{self.scenario.name} needs {self.scenario.nodes_min} nodes at least,"
                f" and {self.topology} has {nodes}"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    verdict: Verdict
    drained_s: float | None
    """From the end of the trouble until everything had arrived; None if it did not."""
    faults: Counter[str] = field(default_factory=Counter)
    """What was done to it, and how often."""
    troubles: Counter[str] = field(default_factory=Counter)
    """How much of it each kind of trouble did."""
    problems: list[str] = field(default_factory=list)
    """Agents that ended by themselves, and what else should not have happened."""
    is_rival: bool = False
    """Whether this was not Hansa, and only for comparison."""

    @property
    def broken(self) -> list[str]:
        """Return which promises were broken."""
        return [*self.problems, *self.verdict.broken]


async def play(
    plan: Play, told: Callable[[str], None] = lambda what: None, history: Path | None = None
) -> Outcome:
    """Play it on real brokers and agents; write the history to a file if asked to."""
    plan.check()
    chance = random.Random(f"{plan.seed} {plan.scenario.name}")
    told("starting brokers and agents")
    stage = await set_up(parse(plan.topology, plan.seed), plan.keep, plan.scenario.cable)
    harm, drained_s = stage.harm, None
    try:
        publishers, subscribers = _cast(plan.scenario, stage, chance)
        await stage.populate(publishers, subscribers, plan.rate, plan.scenario.payload_bytes)
        try:
            drained_s = await perform(plan, stage, chance, told)
        except HansaError as problem:  # of the federation: the user's part is long done
            harm.problems.append(str(problem))
        harm.problems += stage.agents.ended()
    finally:
        await stage.close()
    if not harm.done and plan.scenario.trouble is not calm:
        harm.problems.append("nothing was harmed, which proves nothing: play it for longer")
    evidence = stage.evidence()
    if history is not None:
        evidence.write(history)
    return Outcome(evidence.verdict(), drained_s, harm.done, harm.troubles, harm.problems)


def _cast(scenario: Scenario, stage: Stage, chance: random.Random) -> tuple[list[int], list[int]]:
    """Choose who publishes and who subscribes: a third each, and at least two. Where there are two
    sides, one each on either side."""
    if scenario.sides:
        pairs = [chance.sample(sorted(side), 2) for side in stage.sides]
        return [publisher for publisher, _ in pairs], [subscriber for _, subscriber in pairs]
    count = max(2, len(stage.places) // 3)
    places = chance.sample(stage.places, min(len(stage.places), 2 * count))
    return places[:count], places[-count:]


async def perform(
    plan: Play, stage: Stage, chance: random.Random, told: Callable[[str], None]
) -> float | None:
    """Let clients publish and trouble come; return how long everything then took to arrive."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for publisher in stage.publishers.values():
        publisher.go()
    await asyncio.sleep(BEFORE_S)
    told(f"{plan.scenario.about}, for {plan.seconds:g} s")
    await suffer(plan.scenario.trouble, stage, chance, plan.seconds)
    healed = loop.time()
    await asyncio.sleep(BEFORE_S)
    await stage.pause()
    stage.harm.problems += _idle(stage, plan.rate * (loop.time() - began))
    told("waiting for the rest to arrive")
    drained_s = await _drained(stage, healed, plan.drain_s)
    await asyncio.sleep(LISTEN_S)
    stage.harm.problems += await settled(stage.federation, stage.harm)
    return drained_s


async def _drained(stage: Stage, healed: float, drain_s: float) -> float | None:
    loop = asyncio.get_running_loop()
    while loop.time() - healed < drain_s:
        await asyncio.sleep(POLL_S)
        if _is_drained(stage):
            return loop.time() - healed
    return None


def _idle(stage: Stage, wanted: float) -> list[str]:
    """Return which publishers published far less than each should have."""
    return [
        f"{publisher.name} published {publisher.count} of {wanted:.0f}, which proves little"
        for publisher in stage.publishers.values()
        if publisher.count < SHARE_MIN * wanted
    ]


def _is_drained(stage: Stage) -> bool:
    """Whether nothing is missing but what may be."""
    if not all(publisher.is_quiet for publisher in stage.publishers.values()):
        return False
    if not stage.account.missing:
        return True
    return bool(stage.harm.losses) and not stage.evidence().verdict().fates["lost"]
