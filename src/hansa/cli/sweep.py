"""`hansa experiment run`: a grid of simulations over Spark, into a lake, to go on with any time."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from hansa import __version__
from hansa.cli import arguments, simulate
from hansa.cli.arguments import Parser
from hansa.errors import UsageError
from hansa.experiments.fan_out import Row, run_on_executors
from hansa.experiments.runs import case_key, make_run_row
from hansa.experiments.sweep import SimulationSweep, SweepCase, read_sweep
from hansa.launcher import command_line

if TYPE_CHECKING:
    from rich.progress import Progress

    from hansa.experiments.table import RunTable

SAVE_INTERVAL_S = 15.0
"""Seconds after which results are written: what an interruption can cost."""

EXCLUDED_OPTIONS = ("help", "list", "seed", "runs", "json", "transcript", "scenario", "telemetry")
"""Options of `hansa simulate` that make no sense in a sweep."""

EXAMPLES = """\
  hansa experiment run sweep.toml --lake lake                 all cores of this machine
  hansa experiment run sweep.toml --lake lake                 again: only what is missing is played
  hansa experiment run sweep.toml --lake /shared/lake --master spark://host:7077

sweep.toml: every key is an option of `hansa simulate`, a list is swept
  topology = ["ring:{size}", "random:{size},4"]
  size = [10, 25]
  redundancy = [1, 2]
  faults = ["", "crashes=1"]
  seeds = 20

exit code: 0 all promises kept, 1 some broken, 2 bad input, 70 a fault of Hansa itself
"""


def run(given: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit code."""
    args = _parser().parse_args(given)
    sweep = read_sweep(args.file, _options())
    _check_cases(sweep)

    from hansa.experiments.table import RunTable
    from hansa.pipeline.lake import Lake
    from hansa.pipeline.session import session

    lake = Lake.open_or_create(args.lake)
    spark = session(args.master)
    runs = RunTable(spark, str(lake.path))
    known = runs.completed_cases()
    missing = [case for case in sweep.cases if case_key(case) not in known]
    _print_progress(f"{sweep.name}: {len(sweep.cases)} simulations, {len(missing)} to play")
    _run_all(sweep, missing, runs, spark.sparkContext)
    summary = runs.summary(sweep, [case_key(case) for case in sweep.cases])
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        _show(summary)
    return 1 if any(row["broken"] for row in summary) else 0


def _parser() -> Parser:
    made = Parser(
        "hansa experiment run",
        "Play a grid of simulations over all cores, or a Spark cluster, and keep every result in\n"
        "a lake. Ctrl-C or a crash costs seconds: the same command goes on where it stopped.",
        EXAMPLES,
    )
    made.add_argument("file", type=arguments.path, metavar="SWEEP.toml", help="which simulations")
    made.add_argument(
        "--lake", type=arguments.path, required=True, metavar="DIR",
        help="where the results are kept",
    )  # fmt: skip
    made.add_argument(
        "--master", metavar="URL", help="a Spark cluster that has Hansa installed (default: here)"
    )
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return made


def _options() -> list[str]:
    """Return the options of `hansa simulate` that a sweep may set."""
    found = [
        word[2:]
        for action in simulate.make_parser()._actions  # noqa: SLF001 - argparse has no other list
        for word in action.option_strings
        if word.startswith("--")
    ]
    return [name for name in found if name not in EXCLUDED_OPTIONS]


def _check_cases(sweep: SimulationSweep) -> None:
    """Find what is impossible before Spark is started: each combination once."""
    from hansa.cli.plan import make_options

    for case in {case.parameters: case for case in sweep.cases}.values():
        try:
            make_options(simulate.make_parser().parse_args(case.arguments), case.seed)
        except UsageError as error:
            raise UsageError(f"{case_key(case)}: {error}") from error


def run_case(sweep: str, case: SweepCase) -> Row:
    """Play one case; this runs on the executors."""
    args = simulate.make_parser().parse_args(case.arguments)
    try:
        result = simulate.run_seed(args, case.seed).result
    except Exception as fault:
        fault.add_note(f"while playing: {command_line('simulate', *case.arguments)}")
        raise
    return make_run_row(case, sweep, __version__, result)


def _run_all(
    sweep: SimulationSweep, cases: list[SweepCase], runs: "RunTable", context: Any
) -> None:
    """Play and keep; an interruption keeps what there is and says how to go on."""
    made: list[Row] = []
    kept_at = time.monotonic()
    with (
        _progress() as progress,
        closing(run_on_executors(context, cases, partial(run_case, sweep.name))) as incoming,
    ):
        bar = progress.add_task(sweep.name, total=len(cases))
        try:
            for rows in incoming:
                made += rows
                progress.advance(bar, len(rows))
                if time.monotonic() - kept_at >= SAVE_INTERVAL_S:
                    runs.append(made)
                    made, kept_at = [], time.monotonic()
        finally:
            runs.append(made)


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


def _print_progress(text: str) -> None:
    print(f"hansa: {text}", file=sys.stderr)


def _show(summary: list[Row]) -> None:
    from hansa.terminal import console, make_table

    if not summary:
        return
    numbers = [name for name, value in summary[0].items() if not isinstance(value, str)]
    titles = {name: name.replace("_", " ") for name in summary[0]}
    made = make_table(*(f">{titles[name]}" if name in numbers else titles[name] for name in titles))
    for row in summary:
        made.add_row(*(_cell(value) for value in row.values()))
    console().print(made)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
