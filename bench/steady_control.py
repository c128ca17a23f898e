"""Control traffic of a quiet federation."""

from bench.console import say
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ClientSubscribe, ScheduledAction
from hansa.simulator.options import SimulationOptions
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import parse_topology

QUIET_FROM_S = 20.0
QUIET_S = 60.0


def measure() -> dict[str, object]:
    """Control bytes per link and second in a quiet grid:3x3, as groups grow (at most 2x)."""
    answers: dict[str, object] = {}
    first = 0.0
    for groups in (10, 1_000, 10_000):
        rate = _bytes_per_link_and_second(groups)
        first = first or rate
        answers[f"bytes_per_link_s_{groups}_groups"] = round(rate, 1)
        say(f"{groups:>6,} groups", f"{rate:8.1f} B/s per link  {rate / first:.2f} of 10 groups")
    return answers


def _bytes_per_link_and_second(groups: int) -> float:
    topology = parse_topology("grid:3x3", seed=1)
    steps = tuple(
        ScheduledAction(0.0, ClientSubscribe(node, f"plant/line/{number}"))
        for number in range(groups)
        for node in (number % 9, (number * 7 + 4) % 9)
    )
    settings = ProtocolSettings()
    simulation = Simulation(
        SimulationOptions(topology, settings, seed=1, schedule=steps, check_invariants=False)
    )
    simulation.run_until(QUIET_FROM_S)
    before = sum(simulation.world.traffic.control_bytes().values())
    simulation.run_until(QUIET_FROM_S + QUIET_S)
    after = sum(simulation.world.traffic.control_bytes().values())
    return (after - before) / QUIET_S / len(topology.links)
