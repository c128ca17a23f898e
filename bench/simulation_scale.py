"""CPU and wall time to simulate a large federation."""

import random
import time

from bench.console import say
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ClientSubscribe, ScheduledAction
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import parse_topology

NODES = 1_000
GROUPS = 1_000
CORES = 50
MEMBERS = 200
VIRTUAL_S = 60.0


def measure() -> dict[str, object]:
    """CPU for 1,000 nodes, 1,000 groups on 50 cores, one virtual minute (goal 60 s)."""
    topology = parse_topology(f"random:{NODES},4", seed=1)
    # Clients subscribe to twenty filters at once: 5 ms let them share a frame.
    settings = ProtocolSettings(change_delay=0.005)
    options = SimulationOptions(
        topology,
        settings,
        seed=1,
        schedule=_steps(),
        phases=Phases(warm_up_s=VIRTUAL_S),
        check_invariants=False,
    )
    began, cpu_began = time.perf_counter(), time.process_time()
    simulation = Simulation(options)
    result = simulation.run()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    installed = sum(view.installed for view in simulation.statuses() if view)
    cores = {g.core for view in simulation.statuses() if view for g in view.groups.values()}
    say("wall time", f"{wall:8.1f} s for {VIRTUAL_S:.0f} virtual seconds")
    say("CPU time", f"{cpu:8.1f} s")
    say("events", f"{result.events:12,}  {result.events / wall:10,.0f} /s")
    say("cores seen, nodes whose interest is installed", f"{len(cores)}, {installed}")
    return {
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "events": result.events,
        "installed": installed,
    }


def _steps() -> tuple[ScheduledAction, ...]:
    """Fifty nodes claim twenty groups each; two hundred others join five of them each."""
    chance = random.Random(1)
    places = chance.sample(range(NODES), CORES + MEMBERS)
    steps = [
        ScheduledAction(2.0 + 0.01 * core, ClientSubscribe(places[core], f"g/{core}/{number}"))
        for core in range(CORES)
        for number in range(GROUPS // CORES)
    ]
    for member in range(CORES, CORES + MEMBERS):
        at = 5.0 + 0.01 * member
        steps += [
            ScheduledAction(
                at, ClientSubscribe(places[member], f"g/{member % CORES}/{chance.randrange(20)}")
            )
            for _ in range(5)
        ]
    return tuple(steps)
