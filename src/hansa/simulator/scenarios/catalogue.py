"""The scenarios by name: finds one, plays it, and holds it to its expectations."""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.errors import UsageError
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.analysis.transcript import Listener
from hansa.simulator.papers import bevilaqua, examples, machado, spohn
from hansa.simulator.result import Result
from hansa.simulator.run import Simulation
from hansa.simulator.scenarios import deliveries, sampling
from hansa.simulator.scenarios.scenario import Final, Row, Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        *spohn.SCENARIOS,
        *machado.SCENARIOS,
        *bevilaqua.SCENARIOS,
        *examples.SCENARIOS,
        *deliveries.SCENARIOS,
        sampling.SCENARIO,
    )
}


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario's run. Rows that do not hold are among the result's violations."""

    result: Result
    rows: tuple[Row, ...]


def find(name: str) -> Scenario:
    """Return the scenario of that name."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    near = difflib.get_close_matches(name, SCENARIOS, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(SCENARIOS)}"
    raise UsageError(f"there is no scenario {name!r}; {hint}")


def play(
    scenario: Scenario,
    settings: ProtocolSettings,
    seed: int,
    listen: Listener | None = None,
    telemetry: Path | None = None,
) -> Played:
    """Play a scenario with these settings, as far as it leaves them open."""
    options = scenario.make(settings, seed)
    simulation = Simulation(options, listen, telemetry=telemetry)
    result = simulation.run()
    rows = scenario.judge(Final(tuple(simulation.views()), options, result))
    broken = tuple(
        f"{scenario.name}: {row.what} should be {row.claimed}, not {row.ours} (seed {seed})"
        for row in rows
        if row.holds is False
    )
    return Played(replace(result, violations=result.violations + broken), tuple(rows))
