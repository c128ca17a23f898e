"""Runs one scenario: clients publish, faults are injected and healed, everything must arrive.

Problems of the federation never raise: they are part of the outcome. UsageError is raised only for
a run that cannot be started.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hansa.errors import HansaError, UsageError
from hansa.simulator.topologies import parse_topology
from hansa.testbed.chaos.faults.runner import do_nothing, run_fault
from hansa.testbed.chaos.federation import ChaosFederation, start_chaos_federation
from hansa.testbed.chaos.final_checks import wait_until_settled
from hansa.testbed.chaos.scenarios import ChaosScenario
from hansa.testbed.chaos.verdict import ChaosVerdict

STEADY_S = 1.0
"""Seconds of traffic before the first fault and after the last."""
POLL_S = 0.25
LISTEN_S = 3.0
"""Seconds to wait for duplicates after everything has arrived."""
RATE_SHARE_MIN = 0.1
"""Least share of the configured rate that a publisher must reach: faults and a busy machine slow it
down, but a run with less proves little."""


@dataclass(frozen=True, slots=True)
class ChaosRun:
    """A scenario with its parameters."""

    scenario: ChaosScenario
    topology: str = "grid:3x3"
    seed: int = 1
    seconds: float = 30.0
    """Duration of the faults."""
    rate: float = 100.0
    """Publications per second of each publisher."""
    directory: Path | None = None
    """If given, state and logs are kept there, with telemetry of agents and faults."""
    drain_s: float = 60.0
    """Seconds until everything must have arrived after the last fault."""

    def validate(self) -> None:
        """Raise UsageError if the topology does not fit the scenario."""
        nodes = parse_topology(self.topology, self.seed).nodes
        if nodes < self.scenario.nodes_min:
            raise UsageError(
                f"{self.scenario.name} needs {self.scenario.nodes_min} nodes at least,"
                f" {self.topology} has {nodes}"
            )


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    verdict: ChaosVerdict
    drained_s: float | None
    """Seconds from the last fault until everything had arrived; None if it did not."""
    fault_counts: Counter[str] = field(default_factory=Counter)
    """Injected faults by kind."""
    counts_by_fault: Counter[str] = field(default_factory=Counter)
    """Injected faults by fault function."""
    problems: list[str] = field(default_factory=list)
    """Broken promises besides those of publications, such as agents that ended."""
    is_comparison: bool = False
    """Whether this was a bridge of Mosquitto, for comparison."""

    @property
    def violations(self) -> list[str]:
        """All broken promises."""
        return [*self.problems, *self.verdict.violations]


async def run_chaos(
    chaos_run: ChaosRun,
    on_progress: Callable[[str], None] = lambda what: None,
    history: Path | None = None,
) -> ChaosOutcome:
    """Run a scenario on real brokers and agents; write the history to a file if one is given."""
    chaos_run.validate()
    rng = chaos_run.scenario.make_rng(chaos_run.seed)
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
        except HansaError as problem:  # usage errors were raised before the start
            fault_effects.problems.append(str(problem))
        fault_effects.problems += chaos.agents.unexpected_exits()
    finally:
        await chaos.close()
    if not fault_effects.fault_counts and chaos_run.scenario.fault is not do_nothing:
        fault_effects.problems.append("no fault was injected: run it longer")
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
    """Return the places of publishers and subscribers: a third of the nodes each, at least two. In
    a scenario with two sides, one of each on either side."""
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
    """Publish, inject faults, heal, and drain; return the seconds that draining took."""
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
    on_progress("waiting for pending publications")
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
    return [
        f"{publisher.name} published {publisher.count} of {expected:.0f}, too few for a verdict"
        for publisher in chaos.publishers.values()
        if publisher.count < RATE_SHARE_MIN * expected
    ]


def _is_drained(chaos: ChaosFederation) -> bool:
    """Whether only publications are missing whose loss is allowed."""
    if not all(publisher.is_idle for publisher in chaos.publishers.values()):
        return False
    if not chaos.outstanding.missing_count:
        return True
    return bool(chaos.fault_effects.closed_losses) and not chaos.evidence().judge().fates["lost"]
