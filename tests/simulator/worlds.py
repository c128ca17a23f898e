"""Small worlds for tests: a topology, a script, and all transcript lines."""

from collections.abc import Sequence
from typing import Any

from hansa.simulator.actions import ScheduledAction, SimulatedAction
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import parse_topology


class SimulatedRun:
    """A simulation that runs up to given times."""

    def __init__(self, word: str, script: Sequence[tuple[float, SimulatedAction]] = (), **options):
        self.lines: list[tuple[float, int | None, object]] = []
        steps = tuple(ScheduledAction(at, action) for at, action in script)
        phases = options.pop("phases", Phases(warm_up_s=1000.0))
        made = SimulationOptions(parse_topology(word, 0), schedule=steps, phases=phases, **options)
        self.simulation = Simulation(made, lambda *what: self.lines.append(what))
        self.world = self.simulation.world

    def run(self, until: float) -> "SimulatedRun":
        self.simulation.run_until(until)
        return self

    def notifications(self, kind: type, place: int | None = None, since: float = 0.0) -> list[Any]:
        """Return the events of one type, at one place or anywhere."""
        return [
            what
            for at, where, what in self.lines
            if isinstance(what, kind) and at >= since and place in (None, where)
        ]

    def neighbours(self, place: int) -> list[int]:
        node = self.world.sites[place].node
        assert node is not None
        return sorted(node.status().neighbours)

    def received(self, place: int) -> list[int]:
        """Return the numbers of the publications that a broker got from its agent."""
        return [entry.number for entry in self.world.ledger.entries if place in entry.delivered_at]
