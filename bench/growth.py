"""How the cost of a federation grows with its nodes and filters, in the simulator.

Every size runs in its own process. Bytes, virtual seconds and memory do not depend on how busy the
machine is; CPU time does a little, so compare the exponents, not the seconds.
"""

import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.console import say
from bench.line_chart import Curve, draw_curves
from bench.memory import fill_node, resident_mb
from hansa.protocol.effects import Effect, InterestInstalled
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import ClientSubscribe, CrashAgent, ScheduledAction
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import Simulation
from hansa.simulator.topologies import parse_topology
from hansa.simulator.world.hooks import Hooks
from hansa.simulator.world.site import Site

NODES = (10, 30, 100, 300, 1_000)
FILTERS = (10, 100, 1_000, 10_000, 100_000)
FILTER_AXIS_NODES = 10
DEGREE = 4
"""Links per node, on average; at 10 nodes too."""

QUIET_FROM_S, SUBSCRIBE_AT_S, CRASH_AT_S, END_S = 20.0, 50.0, 60.0, 75.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One size. A change is one new filter, a crash one lost node; both without steady traffic."""

    nodes: int
    links: int
    filters: int
    steady_bytes_per_link_s: float
    steady_cpu_us_per_node_s: float
    change_bytes_per_link: float
    change_cpu_us_per_node: float
    installed_s: float
    """Virtual time from the new filter to its installation at every node."""
    crash_bytes_per_link: float
    crash_cpu_us_per_node: float
    start_bytes_per_link: float
    start_converged_s: float
    """Virtual time from the start of all nodes to the first correct state."""
    crash_converged_s: float
    node_memory_kb: float
    """Resident memory of one node with these records, without interpreter and code."""
    simulator_cpu_s: float
    """For 75 virtual seconds."""
    change_frames: str
    """Frame types of a change, the largest share first."""


COLUMNS: Mapping[str, str] = {
    "steady_bytes_per_link_s": "steady B per link and s",
    "change_bytes_per_link": "B per link and new filter",
    "crash_bytes_per_link": "B per link and lost node",
    "start_bytes_per_link": "B per link and start",
    "steady_cpu_us_per_node_s": "steady CPU, us per node and s",
    "change_cpu_us_per_node": "CPU, us per node and new filter",
    "crash_cpu_us_per_node": "CPU, us per node and lost node",
    "node_memory_kb": "memory of a node, kB",
    "installed_s": "new filter installed, virtual s",
    "start_converged_s": "start converged, virtual s",
    "crash_converged_s": "lost node converged, virtual s",
    "simulator_cpu_s": "simulator CPU, s",
}


def measure(
    nodes_max: int = 300, filters_max: int = 100_000, pictures: Path | None = None
) -> dict[str, object]:
    """Growth with nodes and filters: bytes, CPU, memory, convergence, with fitted exponents."""
    by_nodes = [_measure_apart(n, n, 10) for n in NODES if n <= nodes_max]
    by_filters = [_measure_apart(FILTER_AXIS_NODES, n, 1) for n in FILTERS if n <= filters_max]
    exponents = {
        "nodes": _report("nodes", by_nodes, lambda sample: sample.nodes),
        "filters": _report("filters", by_filters, lambda sample: sample.filters),
    }
    if pictures is not None:
        _draw(by_nodes, "nodes", lambda sample: sample.nodes, pictures)
        _draw(by_filters, "filters", lambda sample: sample.filters, pictures)
    return {
        "by_nodes": [asdict(sample) for sample in by_nodes],
        "by_filters": [asdict(sample) for sample in by_filters],
        "exponents": exponents,
    }


def fit_exponent(points: Iterable[tuple[float, float]]) -> float:
    """Return b of the least-squares fit y = a * x^b; points that are not positive do not count."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(logs) < 2:
        return math.nan
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum(
        (x - mean_x) ** 2 for x, _ in logs
    )


def _report(axis: str, samples: list[Sample], size: Callable[[Sample], int]) -> dict[str, float]:
    say(axis, " ".join(f"{size(sample):>9,}" for sample in samples) + "  exponent, last step")
    exponents: dict[str, float] = {}
    for name, title in COLUMNS.items():
        points = [(float(size(sample)), float(getattr(sample, name))) for sample in samples]
        exponents[name] = round(fit_exponent(points), 2)
        say(
            f"  {title}",
            " ".join(f"{value:>9.4g}" for _, value in points)
            + f"  {exponents[name]:8.2f} {fit_exponent(points[-2:]):10.2f}",
        )
    for sample in samples:
        say(f"  frames of a change at {size(sample):,} {axis}", sample.change_frames)
    return exponents


def _draw(samples: list[Sample], axis: str, size: Callable[[Sample], int], directory: Path) -> None:
    def curves(*names: str) -> list[Curve]:
        return [
            Curve(COLUMNS[name], [(size(each), getattr(each, name)) for each in samples])
            for name in names
        ]

    directory.mkdir(parents=True, exist_ok=True)
    for name, title, found in (
        (
            "bytes",
            "control bytes per link",
            curves("steady_bytes_per_link_s", "change_bytes_per_link", "crash_bytes_per_link"),
        ),
        (
            "cost",
            "CPU and memory per node",
            curves("steady_cpu_us_per_node_s", "change_cpu_us_per_node", "node_memory_kb"),
        ),
        (
            "time",
            "virtual and simulator time",
            curves("installed_s", "crash_converged_s", "simulator_cpu_s"),
        ),
    ):
        text = draw_curves(f"{title}, by {axis}", axis, found)
        (directory / f"{axis}-{name}.svg").write_text(text, encoding="utf-8")


# -------------------------------------------------------------------- one size, in its own process


def _measure_apart(nodes: int, filters: int, nodes_per_holder: int) -> Sample:
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", f"from bench import growth; growth.{call}"],
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        )
        for call in (
            f"print_run({nodes}, {filters}, {nodes_per_holder})",
            f"print_memory({nodes}, {filters}, {nodes_per_holder})",
        )
    ]
    return Sample(**answers[0], node_memory_kb=answers[1])


class _InstallTimes(Hooks):
    """When the interest of each place was installed last."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = lambda: 0.0
        self.by_place: dict[int, float] = {}

    def on_notification(self, site: Site, notification: Effect) -> None:
        if isinstance(notification, InterestInstalled):
            self.by_place[site.place] = self.now()


def print_run(nodes: int, filters: int, nodes_per_holder: int) -> None:
    """Simulate one size and print its measurements as JSON."""
    spec = f"random:{nodes},{DEGREE}"
    topology = parse_topology(spec, seed=1)
    steps = (
        *(
            ScheduledAction(0.0, ClientSubscribe(place, name))
            for place, name in _subscriptions(nodes, filters, nodes_per_holder)
        ),
        ScheduledAction(SUBSCRIBE_AT_S, ClientSubscribe(0, "new/filter")),
        ScheduledAction(CRASH_AT_S, CrashAgent(nodes - 1)),
    )
    installs = _InstallTimes()
    simulation = Simulation(
        SimulationOptions(
            topology,
            _settings(filters),
            seed=1,
            schedule=steps,
            phases=Phases(warm_up_s=END_S),
            check_invariants=False,
        ),
        extra_hooks=(installs,),
    )
    installs.now = lambda: simulation.world.now
    comparisons = _Comparisons(simulation)
    gc.disable()
    links = len(topology.links)
    windows = [
        _run_window(simulation, comparisons, end)
        for end in (QUIET_FROM_S, SUBSCRIBE_AT_S, CRASH_AT_S, END_S)
    ]
    (start, _), (quiet, quiet_cpu), (change, change_cpu), (crash, crash_cpu) = windows
    quiet_s = SUBSCRIBE_AT_S - QUIET_FROM_S
    rate, cpu_rate = sum(quiet.values()) / quiet_s, quiet_cpu / quiet_s
    change_s, crash_s = CRASH_AT_S - SUBSCRIBE_AT_S, END_S - CRASH_AT_S
    extra = {name: size - quiet.get(name, 0) / quiet_s * change_s for name, size in change.items()}
    largest = sorted(extra.items(), key=lambda item: -item[1])[:3]
    converged = [record.converged_s for record in simulation.tracker.measurements()]
    json.dump(
        {
            "nodes": nodes,
            "links": links,
            "filters": filters,
            "steady_bytes_per_link_s": rate / links,
            "steady_cpu_us_per_node_s": 1e6 * cpu_rate / nodes,
            "change_bytes_per_link": sum(extra.values()) / links,
            "change_cpu_us_per_node": 1e6 * (change_cpu - cpu_rate * change_s) / nodes,
            "installed_s": installs.by_place[0] - SUBSCRIBE_AT_S,
            "crash_bytes_per_link": (sum(crash.values()) - rate * crash_s) / links,
            "crash_cpu_us_per_node": 1e6 * (crash_cpu - cpu_rate * crash_s) / nodes,
            "start_bytes_per_link": (sum(start.values()) - rate * QUIET_FROM_S) / links,
            "start_converged_s": converged[0] or math.nan,
            "crash_converged_s": converged[-1] or math.nan,
            "simulator_cpu_s": sum(cpu for _, cpu in windows) + comparisons.cpu_s,
            "change_frames": ", ".join(
                f"{name} {size / links:.0f} B" for name, size in largest if size > 0
            ),
        },
        sys.stdout,
    )


class _Comparisons:
    """CPU seconds of the comparisons that detect convergence: no part of a node."""

    def __init__(self, simulation: Simulation) -> None:
        self.cpu_s = 0.0
        self._find_problem = simulation.tracker.find_problem
        simulation.tracker.find_problem = self._timed  # type: ignore[method-assign]

    def _timed(self) -> str | None:
        began = time.process_time()
        try:
            return self._find_problem()
        finally:
            self.cpu_s += time.process_time() - began


def _run_window(
    simulation: Simulation, comparisons: _Comparisons, end_s: float
) -> tuple[dict[str, float], float]:
    """Run to a virtual time; return the control bytes by frame type, and the CPU seconds of nodes
    and simulator."""
    before, began = simulation.world.traffic.control_bytes(), time.process_time()
    began -= comparisons.cpu_s
    simulation.run_until(end_s)
    cpu_s = time.process_time() - began - comparisons.cpu_s
    after = simulation.world.traffic.control_bytes()
    return {name: size - before.get(name, 0) for name, size in after.items()}, cpu_s


def print_memory(nodes: int, filters: int, nodes_per_holder: int) -> None:
    """Print the memory of one node that holds the records of all others, in kB."""
    names: dict[int, list[str]] = {}
    for place, name in _subscriptions(nodes, filters, nodes_per_holder):
        names.setdefault(place, []).append(name)
    before = resident_mb()
    node = fill_node([names.get(place, []) for place in range(nodes)], _settings(filters))
    gc.collect()
    json.dump(round(1024 * (resident_mb() - before), 1), sys.stdout)
    del node  # until here it stays in memory


def _settings(filters: int) -> ProtocolSettings:
    return ProtocolSettings(
        filters_max=max(100_000, 2 * filters),
        filters_per_node_max=max(10_000, filters),
        filters_per_neighbour_max=max(100_000, 2 * filters),
    )


def _subscriptions(nodes: int, filters: int, nodes_per_holder: int) -> list[tuple[int, str]]:
    """Spread the filters over every tenth node or all nodes; another node joins the first filter
    of each."""
    holders = range(0, nodes, nodes_per_holder)
    spread = [
        (holders[number % len(holders)], f"plant/{number % len(holders)}/sensor/{number}")
        for number in range(filters)
    ]
    joined = [((place + nodes // 2 + 1) % nodes, name) for place, name in spread[: len(holders)]]
    return [*spread, *joined]
