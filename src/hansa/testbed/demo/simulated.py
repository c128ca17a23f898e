"""The simulated demo: a ring, then a grid with a killed core and a partition.

It runs the protocol code of the live agent in virtual time, so all times are those of the protocol
over links of 2 ms, not of this machine.
"""

from collections.abc import Callable, Iterable, Sequence

from hansa.console.terminal import make_table
from hansa.launcher import command_line
from hansa.protocol.effects import Duplicate
from hansa.protocol.model import Group
from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    HealAll,
    Partition,
    RestartAgent,
    ScheduledAction,
)
from hansa.simulator.options import LinkOptions, Phases, SimulationOptions
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import Simulation
from hansa.simulator.scenarios.scenario import FederationSnapshot, recoveries
from hansa.simulator.topologies import parse_topology
from hansa.simulator.world.transcript import MessageDelivered, MessagePublished
from hansa.testbed.demo import drawing
from hansa.testbed.demo.output import DemoOutput

LINKS = LinkOptions(delay_ms=2.0, jitter_ms=0.5)

RING_FILTER = "plant/#"
GRID_FILTER = "plant/+/temp"
TOPIC = "plant/line1/temp"

SIDE = 4
SUBSCRIBERS = (5, 0, 3, 10, 15)
"""The first one becomes the core."""
PUBLISHER = 12
PUBLICATIONS_DURING_FAILURE = 40
"""Publications around the crash, 25 ms apart."""
FAIL_S, RETURN_S, SPLIT_S, MERGE_S, END_S = 4.0, 8.0, 12.0, 20.0, 26.0

MACHADO_CORE = "2 to 5 min (Machado 2023, 6 to 25 brokers)"
MACHADO_SPLIT = "up to 5 min (Machado 2023)"


def run_simulated_demo(output: DemoOutput, seed: int) -> int:
    """Run the demo; return exit code 1 if a promise was broken."""
    output.say(
        "[bold]Hansa[/bold], simulated: the protocol code of the live agent in virtual time;"
        f" links of {LINKS.delay_ms:g} ms, seed {seed}."
    )
    results = [_ring(output, seed), _grid(output, seed)]
    return _summary(output, results)


# ---------------------------------------------------------------- a ring


def _ring(output: DemoOutput, seed: int) -> SimulationResult:
    """Four nodes in a ring: both paths have the same length, so copies meet."""
    lines: list[tuple[float, int | None, object]] = []
    schedule = (
        ScheduledAction(1.0, ClientSubscribe(1, RING_FILTER)),
        ScheduledAction(1.5, ClientSubscribe(2, RING_FILTER)),
        ScheduledAction(2.5, ClientPublish(0, TOPIC)),
    )
    topology = parse_topology("grid:2x2", seed)
    options = SimulationOptions(
        topology, seed=seed, links=LINKS, schedule=schedule, phases=Phases(3.0)
    )
    simulation = Simulation(options, lambda *what: lines.append(what))
    result = simulation.run()
    output.say(
        "\n[bold]1. Four brokers in a ring.[/bold]"
        f" Clients at 1 and 2 subscribe to {RING_FILTER}; a sensor publishes {TOPIC} at 0."
    )
    state = FederationSnapshot(tuple(simulation.statuses()))
    output.print_lines(
        drawing.draw_grid(2, 2, _make_node_mark(state, RING_FILTER), state.mesh_links(RING_FILTER))
    )
    for line in _describe_journey(lines):
        output.say(f"   {line}")
    output.say(
        f"   {result.data_frames} copies, {result.duplicates_dropped} dropped as duplicates:"
        " each broker got it once. Between plain bridges it would loop endlessly."
    )
    return result


def _describe_journey(lines: Iterable[tuple[float, int | None, object]]) -> Iterable[str]:
    """Yield the events of the publication, with milliseconds since it was made."""
    start = 0.0
    for now, place, what in lines:
        match what:
            case MessagePublished():
                start = now
                yield f"   0.0 ms  published at broker {place}"
            case MessageDelivered():
                yield f"{(now - start) * 1000:6.1f} ms  delivered at broker {place}"
            case Duplicate():
                yield f"{(now - start) * 1000:6.1f} ms  a second copy reaches {place}: dropped"


# ---------------------------------------------------------------- a grid


def _grid(output: DemoOutput, seed: int) -> SimulationResult:
    simulation = Simulation(_grid_options(seed))
    core = SUBSCRIBERS[0]
    output.say(
        f"\n[bold]2. Sixteen brokers in a grid.[/bold] Clients at {_format_list(SUBSCRIBERS)}"
        f" subscribe to {GRID_FILTER}; the first, {core}, is core (◆). Members of the mesh are ●,"
        " others ○."
    )
    _draw_at(output, simulation, FAIL_S - 0.5)
    output.say(
        f"   A sensor at {PUBLISHER} publishes every 25 ms. Meanwhile the agent of the [bold]core"
        f" {core} is killed[/bold] (✗)."
    )
    _draw_at(output, simulation, RETURN_S - 0.5)
    output.say("   It is restarted; then the grid is [bold]partitioned[/bold] silently.")
    _draw_at(output, simulation, MERGE_S - 0.5)
    output.say(
        "   Heartbeats detect it; each half elects a core. The partition is healed: one core again."
    )
    _draw_at(output, simulation, END_S)
    return simulation.run()


def _grid_options(seed: int) -> SimulationOptions:
    half = SIDE * SIDE // 2
    sides = (tuple(range(half)), tuple(range(half, 2 * half)))
    schedule = (
        *(
            ScheduledAction(1 + 0.2 * n, ClientSubscribe(node, GRID_FILTER))
            for n, node in enumerate(SUBSCRIBERS)
        ),
        ScheduledAction(
            FAIL_S - 0.5,
            ClientPublish(PUBLISHER, TOPIC, count=PUBLICATIONS_DURING_FAILURE, interval_s=0.025),
        ),
        ScheduledAction(FAIL_S, CrashAgent(SUBSCRIBERS[0])),
        ScheduledAction(RETURN_S, RestartAgent(SUBSCRIBERS[0])),
        ScheduledAction(SPLIT_S, Partition(sides)),
        ScheduledAction(MERGE_S, HealAll()),
        ScheduledAction(END_S - 1, ClientPublish(PUBLISHER, TOPIC)),
    )
    return SimulationOptions(
        parse_topology(f"grid:{SIDE}x{SIDE}", seed),
        seed=seed,
        links=LINKS,
        schedule=schedule,
        phases=Phases(END_S),
    )


def _draw_at(output: DemoOutput, simulation: Simulation, at_s: float) -> None:
    """Continue the simulation to a time, and draw the mesh."""
    simulation.run_until(at_s)
    state = FederationSnapshot(tuple(simulation.statuses()))
    output.print_lines(
        drawing.draw_grid(
            SIDE, SIDE, _make_node_mark(state, GRID_FILTER), state.mesh_links(GRID_FILTER)
        )
    )


def _make_node_mark(state: FederationSnapshot, group: Group) -> Callable[[int], str]:
    members = state.members(group)

    def mark(node: int) -> str:
        view = state.statuses[node]
        if view is None:
            return "✗"
        if group in view.groups and view.groups[group].core == node:
            return "◆"
        return "●" if node in members else "○"

    return mark


# ---------------------------------------------------------------- summary


def _summary(output: DemoOutput, results: Sequence[SimulationResult]) -> int:
    took = {found.after.split()[0]: found.duration_text for found in recoveries(results[1])}
    published = sum(result.publications for result in results)
    delivered = sum(result.delivered for result in results)
    expected = sum(result.expected for result in results)
    twice = sum(result.duplicates_delivered for result in results)
    rows = make_table("", "the papers", "simulated")
    rows.add_row("core killed, recovered after", MACHADO_CORE, took["crash"])
    rows.add_row("partitioned, both halves converged after", MACHADO_SPLIT, took["partition"])
    rows.add_row("healed, one federation after", "not measured", took["heal"])
    rows.add_row(
        f"{published} publications", "", f"{delivered} of {expected} delivered, {twice} twice"
    )
    output.print_table(rows)
    if expected > delivered:
        output.say("Lost publications were in flight at the killed core: QoS 0 allows that.")
    broken = [text for result in results for text in result.violations]
    for text in broken:
        output.say(f"[red]broken promise: {text}[/red]")
    more = command_line("simulate", "--list")
    output.say(f"Next: [bold]{more}[/bold] has the papers' own experiments.")
    return 1 if broken else 0


def _format_list(numbers: Sequence[int]) -> str:
    words = [str(number) for number in numbers]
    return f"{', '.join(words[:-1])} and {words[-1]}"
