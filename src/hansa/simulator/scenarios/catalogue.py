"""The scenarios by name: finds one, runs it and evaluates its claims."""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.papers import bevilaqua, machado, spohn
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import Simulation
from hansa.simulator.scenarios import byzantine, deliveries, examples, sampling
from hansa.simulator.scenarios.scenario import ClaimRow, FinalSnapshot, SimulationScenario
from hansa.simulator.world.transcript import TranscriptListener

SCENARIOS: dict[str, SimulationScenario] = {
    scenario.name: scenario
    for scenario in (
        *spohn.SCENARIOS,
        *machado.SCENARIOS,
        *bevilaqua.SCENARIOS,
        *examples.SCENARIOS,
        *deliveries.SCENARIOS,
        sampling.SCENARIO,
        byzantine.SCENARIO,
    )
}


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """A scenario's run. Rows that do not hold are among the result's violations."""

    result: SimulationResult
    rows: tuple[ClaimRow, ...]


def find_scenario(name: str) -> SimulationScenario:
    if name in SCENARIOS:
        return SCENARIOS[name]
    close_matches = difflib.get_close_matches(name, SCENARIOS, n=2)
    hint = (
        f"did you mean {' or '.join(close_matches)}?"
        if close_matches
        else f"there are {', '.join(SCENARIOS)}"
    )
    raise UsageError(f"there is no scenario {name!r}; {hint}")


def run_scenario(
    scenario: SimulationScenario,
    settings: ProtocolSettings,
    seed: int,
    listener: TranscriptListener | None = None,
    telemetry: Path | None = None,
) -> ScenarioResult:
    """Run a scenario with these settings, as far as it leaves them open."""
    options = scenario.make_options(settings, seed)
    simulation = Simulation(options, listener, telemetry=telemetry)
    result = simulation.run()
    rows = scenario.evaluate(FinalSnapshot(tuple(simulation.statuses()), options, result))
    broken = tuple(
        f"{scenario.name}: {row.what} should be {row.claimed}, not {row.ours} (seed {seed})"
        for row in rows
        if row.holds is False
    )
    return ScenarioResult(replace(result, violations=result.violations + broken), tuple(rows))
