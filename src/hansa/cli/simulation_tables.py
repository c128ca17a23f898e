"""Tables of `hansa simulate`: one run, many seeds, the list of scenarios."""

import argparse
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hansa.console.terminal import console, make_table
from hansa.simulator.request import PRESET
from hansa.simulator.result import DelayStatistics, GuaranteeSummary, SimulationResult
from hansa.simulator.scenarios.catalogue import SCENARIOS, ScenarioResult
from hansa.simulator.scenarios.scenario import (
    ClaimRow,
    SimulationScenario,
    format_duration,
    recoveries,
)
from hansa.simulator.seed_runner import SeedTally
from hansa.simulator.topologies import parse_topology

NODES_SHOWN_MAX = 16
RECOVERIES_SHOWN_MAX = 20
VIOLATIONS_SHOWN_MAX = 10


def print_run(args: argparse.Namespace, scenario_result: ScenarioResult, replay: str) -> None:
    """Print one run; `replay` is the command that repeats it."""
    out, result = console(), scenario_result.result
    scenario = _scenario(args)
    if scenario:
        out.print(f"[bold]{scenario.name}[/bold]: {scenario.title}")
        out.print(scenario.claim, style="italic")
    out.print(_heading(args, result))
    if scenario:
        out.print(_claims(scenario_result.rows))
        for note in scenario.notes:
            out.print(Padding(Text(note, style="dim"), (0, 2)))
    if (scenario is None or scenario.is_drawn_from_seed) and len(result.converged_s) > 1:
        out.print(_convergence(result))
    out.print(_numbers(result))
    if 1 < len(result.delay_ms_by_node) <= NODES_SHOWN_MAX:
        out.print(_delays(result, _labels(args)))
    _print_violations(out, result)
    out.print(Text(f"seed {result.seed}, replay: {replay}", style="dim"), soft_wrap=True)


def print_tally(args: argparse.Namespace, tally: SeedTally) -> None:
    out = console()
    if tally.failed:
        if tally.passed:
            passed = format_count(tally.passed, "seed")
            out.print(f"[green]{passed} kept all promises[/green], then this one did not:")
        out.print(_heading(args, tally.failed.result))
        _print_violations(out, tally.failed.result)
    elif tally.last:
        first, last = args.seed, args.seed + tally.passed - 1
        out.print(f"[green]seeds {first} to {last}: {tally.passed} runs kept all promises[/green]")


def print_scenarios() -> None:
    made = make_table("scenario", "events", "claim")
    for scenario in SCENARIOS.values():
        made.add_row(scenario.name, scenario.title, scenario.claim)
    console().print(made)


def _heading(args: argparse.Namespace, result: SimulationResult) -> Text:
    scenario = _scenario(args)
    where = f"{result.topology}: " if scenario is None or scenario.is_drawn_from_seed else ""
    size = f"{format_count(result.nodes, 'node')}, {format_count(result.links, 'link')}"
    preset = "" if args.preset in (None, PRESET) else f", preset {args.preset}"
    times = (
        f"{format_duration(result.virtual_s)} of virtual time in {format_duration(result.wall_s)}"
    )
    return Text(f"{where}{size}, seed {result.seed}{preset}; {times}")


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _scenario(args: argparse.Namespace) -> SimulationScenario | None:
    return None if args.scenario is None else SCENARIOS[args.scenario]


def _claims(rows: Iterable[ClaimRow]) -> Table:
    made = make_table("", "claimed", "measured", "")
    marks = {True: Text("✓", "green"), False: Text("✗", "red bold"), None: Text("")}
    for row in rows:
        made.add_row(Text(row.what), Text(row.claimed), Text(row.ours), marks[row.holds])
    return made


def _convergence(result: SimulationResult) -> Table:
    made = make_table("disturbance", ">recovered after")
    found = recoveries(result)
    for recovery in found[:RECOVERIES_SHOWN_MAX]:
        made.add_row(Text(recovery.after), recovery.duration_text)
    if len(found) > RECOVERIES_SHOWN_MAX:
        made.add_row(f"… {len(found) - RECOVERIES_SHOWN_MAX} more; --json has all", "")
    return made


def _numbers(result: SimulationResult) -> Table:
    made = make_table("", "")
    for name, value in _result_rows(result):
        made.add_row(name, Text(value))
    return made


def _result_rows(result: SimulationResult) -> list[tuple[str, str]]:
    control = sum(result.control_frames.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in result.control_frames.items())
    delivered = f"{result.delivered} of {result.expected}, {result.lost} lost"
    return [
        ("converged after the start", recoveries(result)[0].duration_text),
        ("publications", str(result.publications)),
        ("deliveries at other brokers", delivered),
        ("delivered twice", str(result.duplicates_delivered)),
        ("duplicates dropped on the way", str(result.duplicates_dropped)),
        ("copies per publication", f"{result.copies_per_publication:.2f}"),
        ("delay", _delay(result.delay_ms) if result.delay_ms else "nothing was delivered"),
        ("frames per announcement", f"{result.frames_per_announcement_max} at most"),
        ("control frames", f"{control} ({kinds})"),
        ("control bytes, data bytes", f"{sum(result.control_bytes.values())}, {result.data_bytes}"),
        *_guarantee(result.guaranteed),
        ("fingerprint", result.fingerprint),
    ]


def _guarantee(summary: GuaranteeSummary | None) -> list[tuple[str, str]]:
    if summary is None:
        return []
    delivered = f"{summary.delivered} of {summary.promised}, {summary.reported} reported as gaps"
    return [
        ("promised at QoS 1 and 2, delivered", delivered),
        ("repaired, lost before capture", f"{summary.repaired}, {summary.uncaptured}"),
    ]


def _delay(delay: DelayStatistics) -> str:
    return f"mean {delay.mean:.2f} ms, median {delay.p50:.2f} ms, 99 % {delay.p99:.2f} ms"


def _delays(result: SimulationResult, labels: Callable[[int], str]) -> Table:
    made = make_table(">received at", ">publications", ">mean ms", ">median ms", ">99 % ms")
    for node, delay in result.delay_ms_by_node.items():
        values = (f"{value:.2f}" for value in (delay.mean, delay.p50, delay.p99))
        made.add_row(labels(node), str(delay.count), *values)
    return made


def _labels(args: argparse.Namespace) -> Callable[[int], str]:
    """Return the labels of the nodes: a topology file may name them."""
    return parse_topology(args.topology, args.seed).node_label if args.topology is not None else str


def _print_violations(out: Console, result: SimulationResult) -> None:
    if result.ok:
        out.print("all promises kept", style="bold green")
        return
    count = len(result.violations)
    out.print(f"{format_count(count, 'promise')} broken", style="bold red")
    for text in result.violations[:VIOLATIONS_SHOWN_MAX]:
        out.print(Text(f"  {text}", style="red"))
    if count > VIOLATIONS_SHOWN_MAX:
        out.print(f"  … {count - VIOLATIONS_SHOWN_MAX} more; --json has all", style="red")
