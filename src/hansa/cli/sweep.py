"""`hansa experiment run`: run a grid of simulations on Spark and keep the results in a lake."""

import json
import shlex
import sys
from collections.abc import Sequence
from itertools import islice

from hansa.cli import arguments, simulate
from hansa.cli.arguments import Parser
from hansa.cli.lake_options import add_lake, open_lake
from hansa.console.progress import ConsoleProgress
from hansa.experiments.fan_out import Row
from hansa.experiments.runs import case_key
from hansa.experiments.sweep import read_sweep
from hansa.launcher import command_line
from hansa.pipeline.location import require_place

EXCLUDED_OPTIONS = (
    *("help", "list", "seed", "runs", "json", "transcript", "telemetry"),
    *("campaign", "seeds", "ledger", "cores"),
)
"""Options of `hansa simulate` that a sweep may not set."""

FAILURES_SHOWN_MAX = 10

EXAMPLES = """\
  hansa experiment run sweep.toml --lake lake                 all cores of this machine
  hansa experiment run sweep.toml --lake lake                 again: runs only the missing cases
  hansa experiment run sweep.toml --lake /shared/lake --master spark://host:7077

sweep.toml: every key is an option of `hansa simulate`, a list is swept
  topology = ["ring:{size}", "random:{size},4"]
  size = [10, 25]
  redundancy = [1, 2]
  faults = ["", "crashes=1"]
  seeds = 20

the campaign of `hansa simulate --campaign`, with the default strategy
  scenario = "random"
  seeds = "0-49999"

exit code: 0 all promises kept, 1 some broken, 2 bad input, 70 internal error
"""


def run(given: Sequence[str]) -> int:
    args = _parser().parse_args(given)
    sweep = read_sweep(args.file, _sweepable_options())

    from hansa.console.progress import progress_bar
    from hansa.experiments import runner
    from hansa.experiments.run_table import RunTable

    runner.check_cases(sweep, simulate.parse_request)
    require_place(args.lake)
    with ConsoleProgress("starting Spark") as starting:
        lake = open_lake(args, starting, create=True)
    table = RunTable(lake)
    completed = table.completed_cases()
    missing = [case for case in sweep.cases if case_key(case) not in completed]
    print(
        f"hansa: {sweep.name}: {len(sweep.cases)} simulations, {len(missing)} to run",
        file=sys.stderr,
    )
    with progress_bar() as progress:
        bar = progress.add_task(sweep.name, total=len(missing))
        runner.run_cases(
            sweep.name,
            missing,
            simulate.parse_request,
            table,
            lake.spark.sparkContext,
            lambda count: progress.advance(bar, count),
        )
    summary = table.summary(sweep, [case_key(case) for case in sweep.cases])
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        _show(summary)
    failed = table.failed_cases(case_key(case) for case in sweep.cases)
    for case, violations in islice(failed.items(), FAILURES_SHOWN_MAX):
        replay = command_line("simulate", *shlex.split(case))
        print(f"hansa: {violations[0]}; replay: {replay}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> Parser:
    made = Parser(
        "hansa experiment run",
        "Run a grid of simulations on all cores, or on a Spark cluster, and keep every result in\n"
        "a lake. After an interruption the same command runs only the missing cases.",
        EXAMPLES,
    )
    made.add_argument("file", type=arguments.path, metavar="SWEEP.toml", help="the simulations")
    add_lake(made)
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return made


def _sweepable_options() -> list[str]:
    found = [
        word[2:]
        for action in simulate.make_parser()._actions  # noqa: SLF001 - argparse has no other list
        for word in action.option_strings
        if word.startswith("--")
    ]
    return [name for name in found if name not in EXCLUDED_OPTIONS]


def _show(summary: list[Row]) -> None:
    from hansa.console.terminal import console, make_table

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
