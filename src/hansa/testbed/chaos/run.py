"""Plays one scenario: clients publish, trouble comes, all is healed, and everything must arrive."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hansa.errors import HansaError, UsageError
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.agent_faults import do_nothing, run_fault
from hansa.testbed.chaos.final_checks import wait_until_settled
from hansa.testbed.chaos.scenarios import ChaosScenario
from hansa.testbed.chaos.testbench import ChaosFederation, start_chaos_federation
from hansa.testbed.chaos.verdict import ChaosVerdict

STEADY_S = 1.0
POLL_S = 0.25
LISTEN_S = 3.0
"""When everything has arrived: a second copy comes after the first."""
RATE_SHARE_MIN = 0.1
"""Of the rate: a publisher that reaches less proves little. Brokers are away for moments, and a
busy machine is slow."""


@dataclass(frozen=True, slots=True)
class ChaosRun:
    """What is played."""

    scenario: ChaosScenario
    topology: str = "grid:3x3"
    seed: int = 1
    seconds: float = 30.0
    """How long there is trouble."""
    rate: float = 100.0
    """Publications per second of each publisher."""
    directory: Path | None = None
    """Where to keep everything, with telemetry of agents and faults."""
    drain_s: float = 60.0
    """How long everything may take to arrive after the last trouble."""

    def validate(self) -> None:
        """Refuse what cannot be played, before anything is started."""
        nodes = parse_topology(self.topology, self.seed).nodes
        if nodes < self.scenario.nodes_min:
            raise UsageError(
                f"{self.scenario.name} needs {self.scenario.nodes_min} nodes at least,"
                f" and {self.topology} has {nodes}"
            )


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    """What came of it."""

    verdict: ChaosVerdict
    drained_s: float | None
    """From the end of the trouble until everything had arrived; None if it did not."""
    fault_counts: Counter[str] = field(default_factory=Counter)
    """What was done to it, and how often."""
    counts_by_fault: Counter[str] = field(default_factory=Counter)
    """How much of it each kind of trouble did."""
    problems: list[str] = field(default_factory=list)
    """Agents that ended by themselves, and what else should not have happened."""
    is_comparison: bool = False
    """Whether this was not Hansa, and only for comparison."""

    @property
    def violations(self) -> list[str]:
        """Return which promises were broken."""
        return [*self.problems, *self.verdict.violations]


async def run_chaos(
    chaos_run: ChaosRun,
    on_progress: Callable[[str], None] = lambda what: None,
    history: Path | None = None,
) -> ChaosOutcome:
    """Play it on real brokers and agents; write the history to a file if asked to."""
    chaos_run.validate()
    rng = random.Random(f"{chaos_run.seed} {chaos_run.scenario.name}")
    on_progress("starting brokers and agents")
    chaos = await start_chaos_federation(
        parse_topology(chaos_run.topology, chaos_run.seed),
        chaos_run.directory,
        chaos_run.scenario.link_profile,
    )
    fault_effects, drained_s = chaos.fault_effects, None
    try:
        publishers, subscribers = _choose_clients(chaos_run.scenario, chaos, rng)
        await chaos.connect_clients(
            publishers, subscribers, chaos_run.rate, chaos_run.scenario.payload_bytes
        )
        try:
            drained_s = await run_phases(chaos_run, chaos, rng, on_progress)
        except HansaError as problem:  # of the federation: the user's part is long done
            fault_effects.problems.append(str(problem))
        fault_effects.problems += chaos.agents.unexpected_exits()
    finally:
        await chaos.close()
    if not fault_effects.fault_counts and chaos_run.scenario.fault is not do_nothing:
        fault_effects.problems.append(
            "nothing was harmed, which proves nothing: play it for longer"
        )
    evidence = chaos.evidence()
    if history is not None:
        evidence.write(history)
    return ChaosOutcome(
        evidence.judge(),
        drained_s,
        fault_effects.fault_counts,
        fault_effects.counts_by_fault,
        fault_effects.problems,
    )


def _choose_clients(
    scenario: ChaosScenario, chaos: ChaosFederation, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Choose who publishes and who subscribes: a third each, and at least two. Where there are two
    sides, one each on either side."""
    if scenario.has_two_sides:
        pairs = [rng.sample(sorted(side), 2) for side in chaos.sides]
        return [publisher for publisher, _ in pairs], [subscriber for _, subscriber in pairs]
    count = max(2, len(chaos.places) // 3)
    places = rng.sample(chaos.places, min(len(chaos.places), 2 * count))
    return places[:count], places[-count:]


async def run_phases(
    chaos_run: ChaosRun,
    chaos: ChaosFederation,
    rng: random.Random,
    on_progress: Callable[[str], None],
) -> float | None:
    """Let clients publish and trouble come; return how long everything then took to arrive."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for publisher in chaos.publishers.values():
        publisher.start_publishing()
    await asyncio.sleep(STEADY_S)
    on_progress(f"{chaos_run.scenario.description}, for {chaos_run.seconds:g} s")
    await run_fault(chaos_run.scenario.fault, chaos, rng, chaos_run.seconds)
    healed = loop.time()
    await asyncio.sleep(STEADY_S)
    await chaos.stop_publishers()
    chaos.fault_effects.problems += _find_idle_publishers(
        chaos, chaos_run.rate * (loop.time() - began)
    )
    on_progress("waiting for the rest to arrive")
    drained_s = await _wait_until_drained(chaos, healed, chaos_run.drain_s)
    await asyncio.sleep(LISTEN_S)
    chaos.fault_effects.problems += await wait_until_settled(chaos.federation, chaos.fault_effects)
    return drained_s


async def _wait_until_drained(
    chaos: ChaosFederation, healed: float, drain_s: float
) -> float | None:
    loop = asyncio.get_running_loop()
    while loop.time() - healed < drain_s:
        await asyncio.sleep(POLL_S)
        if _is_drained(chaos):
            return loop.time() - healed
    return None


def _find_idle_publishers(chaos: ChaosFederation, expected: float) -> list[str]:
    """Return which publishers published far less than each should have."""
    return [
        f"{publisher.name} published {publisher.count} of {expected:.0f}, which proves little"
        for publisher in chaos.publishers.values()
        if publisher.count < RATE_SHARE_MIN * expected
    ]


def _is_drained(chaos: ChaosFederation) -> bool:
    """Whether nothing is missing but what may be."""
    if not all(publisher.is_idle for publisher in chaos.publishers.values()):
        return False
    if not chaos.outstanding.missing_count:
        return True
    return bool(chaos.fault_effects.closed_losses) and not chaos.evidence().judge().fates["lost"]
