"""`hansa experiment`: compare routing strategies; run sweeps of simulations."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import TYPE_CHECKING

from hansa.cli import arguments
from hansa.cli.arguments import Parser, make_directory, one_of, whole_number
from hansa.errors import UsageError
from hansa.protocol.settings import Metric, ProtocolSettings

if TYPE_CHECKING:
    from hansa.simulator.scenarios.comparison import StrategyMeasurement
    from hansa.simulator.scenarios.trials import StrategyTrial

DEFAULT_SEED = 1
EXPERIMENTS = ("compare", "run")

EXAMPLES = """\
  hansa experiment compare                                       all strategies, all trials
  hansa experiment compare --redundancy 1                        without redundant paths
  hansa experiment compare --trial random-25-faults --seed 7     one trial, other faults
  hansa experiment compare --strategy mesh --strategy paths --json
  hansa experiment compare --plots plots                         bar charts as SVG files
  hansa experiment run sweep.toml --lake lake                    thousands of simulations on Spark

exit code: 0 all promises kept, 1 some broken, 2 bad input, 70 internal error
"""


def run(given: Sequence[str]) -> int:
    if given and given[0] == "run":
        from hansa.cli import sweep

        return sweep.run(given[1:])
    args = _parser().parse_args(given)
    chosen = _chosen_trials(args)
    if args.plots is not None:
        make_directory(args.plots, "--plots")
    measured = list(_measure(args, chosen))
    if args.plots is not None:
        from hansa.experiments.bar_chart import draw_measurements

        with_faults = {trial.name for trial in chosen if trial.has_faults}
        draw_measurements(measured, with_faults, args.plots)
    if args.json:
        print(json.dumps([asdict(each) for each in measured], indent=2))
    else:
        _print_tables(measured, args.seed)
    return 1 if any(each.violations for each in measured) else 0


def _parser() -> Parser:
    made = Parser(
        "hansa experiment",
        "compare: simulate every routing strategy on the papers' topologies and on larger random\n"
        "ones, with every promise checked, and print their costs.\n"
        "run: run a grid of simulations on Spark (`hansa experiment run --help`).",
        EXAMPLES,
    )
    made.add_argument("experiment", type=one_of(EXPERIMENTS), help="compare or run")
    made.add_argument(
        "--trial", action="append", metavar="NAME",
        help="only this trial; may be repeated (default: all, named in the output)",
    )  # fmt: skip
    made.add_argument(
        "--strategy", action="append", type=arguments.strategy, metavar="NAME",
        help="only this strategy; may be repeated (default: all, see docs/strategies.md)",
    )  # fmt: skip
    made.add_argument(
        "--redundancy", type=whole_number(1, 16, "parents"), default=2, metavar="N",
        help="parents per mesh member; with strategy `paths`, paths per receiver, at most 2"
        " (default 2)",
    )  # fmt: skip
    made.add_argument(
        "--metric", type=one_of(Metric), default=Metric.HOPS, metavar="hops|rtt",
        help="length of a path (default hops)",
    )  # fmt: skip
    made.add_argument(
        "--seed", type=arguments.seed, default=DEFAULT_SEED, metavar="N",
        help=f"seed of topologies, clients and faults (default {DEFAULT_SEED})",
    )  # fmt: skip
    made.add_argument(
        "--plots", type=arguments.path, metavar="DIR",
        help="draw copies, load, delay, control traffic and loss as SVG files in DIR",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return made


def _chosen_trials(args: argparse.Namespace) -> "list[StrategyTrial]":
    from hansa.simulator.scenarios.trials import make_trials

    known = {trial.name: trial for trial in make_trials(args.seed)}
    names = list(dict.fromkeys(args.trial or known))
    for name in names:
        if name not in known:
            raise UsageError(f"there is no trial {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names]


def _measure(
    args: argparse.Namespace, trials: "list[StrategyTrial]"
) -> "Iterator[StrategyMeasurement]":
    """Run all trials one by one, with a progress bar on a terminal."""
    from hansa.console.progress import progress_bar
    from hansa.protocol.routing import STRATEGIES
    from hansa.simulator.scenarios.comparison import measure_strategy

    metric = Metric(args.metric)
    settings = replace(ProtocolSettings(), redundancy=args.redundancy, metric=metric)
    strategies = list(dict.fromkeys(args.strategy or STRATEGIES))
    with progress_bar() as progress:
        bar = progress.add_task("", total=len(trials) * len(strategies))
        for trial in trials:
            for strategy in strategies:
                progress.update(bar, description=f"{trial.name}: {strategy}")
                yield measure_strategy(trial, settings, strategy, args.seed)
                progress.advance(bar)


# ---------------------------------------------------------------- tables


def _print_tables(measured: "list[StrategyMeasurement]", seed: int) -> None:
    from hansa.console.terminal import console, make_table
    from hansa.simulator.scenarios.trials import make_trials

    titles = {trial.name: trial.title for trial in make_trials(seed)}
    out = console()
    for name, group in groupby(measured, key=lambda each: each.trial):
        rows = list(group)
        first = rows[0]
        out.print(f"[bold]{name}[/bold]: {titles[name]}")
        out.print(
            f"{first.publications} publications left their broker, {first.expected} deliveries"
            f" expected; the paper's subscription tables would need {first.notices} notices"
        )
        made = make_table(*_COLUMNS)
        for each in rows:
            made.add_row(each.strategy, *_cells(each))
        out.print(made)
        for each in rows:
            for text in each.violations:
                out.print(f"{each.strategy}: {text}", style="red", markup=False)
    out.print(f"redundancy {measured[0].redundancy}, seed {seed}", style="dim")


_COLUMNS = (
    "strategy",
    ">copies",
    ">bytes",
    ">busiest",
    ">stretch",
    ">ms",
    ">99 % ms",
    ">control",
    ">control kB",
    ">recovered",
    ">lost",
)


def _cells(each: "StrategyMeasurement") -> list[str]:
    from hansa.simulator.scenarios.scenario import format_duration

    return [
        f"{each.copies:.2f}",
        f"{each.bytes:.0f}",
        f"{each.busiest:.2f}",
        _number(each.stretch, 2),
        _number(each.delay_ms, 1),
        _number(each.delay_p99_ms, 1),
        str(each.control_frames),
        f"{each.control_bytes / 1000:.0f}",
        "" if each.recovered_s is None else format_duration(each.recovered_s),
        str(each.lost),
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
