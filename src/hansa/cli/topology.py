"""`hansa topology`: the graph of a federation, and rules that make one."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from hansa.cli import arguments
from hansa.cli.arguments import Parser, amount, one_of, whole
from hansa.cli.results import console
from hansa.topology.comparison import Score, Trial, compare

ACTIONS = ("compare",)

EXAMPLES = """\
  hansa topology compare                       the planner beside the rule of Bevilaqua 2023
  hansa topology compare --nodes 100 --failed 0.3 --json
"""


def run(given: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit code."""
    args = _parser().parse_args(given)
    trial = Trial(args.nodes, args.degree_max, failed=args.failed, seed=args.seed)
    scores = compare(trial)
    if args.json:
        print(json.dumps([asdict(score) for score in scores], indent=2))
    else:
        _show(trial, scores)
    return 0


def _parser() -> Parser:
    made = Parser(
        "hansa topology",
        "compare: let nodes join and fail under the planner and under the paper's rule.",
        EXAMPLES,
    )
    made.add_argument("action", type=one_of(ACTIONS), help="compare")
    made.add_argument(
        "--nodes", type=whole(3, 200, "nodes"), default=30, metavar="N",
        help="nodes that join one by one (default 30)",
    )  # fmt: skip
    made.add_argument(
        "--degree-max", type=whole(3, 64, "neighbours"), default=5, metavar="N",
        help="neighbours of a node at most (default 5)",
    )  # fmt: skip
    made.add_argument(
        "--failed", type=amount(0.0, 0.9), default=0.2, metavar="PART",
        help="part of the nodes that fail at once (default 0.2)",
    )  # fmt: skip
    made.add_argument(
        "--seed", type=arguments.seed, default=1, metavar="N",
        help="draws places and failures (default 1)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return made


def _show(trial: Trial, scores: list[Score]) -> None:
    out = console()
    out.print(
        f"{trial.nodes} nodes join one by one, {trial.federations} federations;"
        f" {trial.failed:.0%} of them fail at once, {trial.failures} times each; seed {trial.seed}"
    )
    table = Table(
        "rule", "links", "degree, at most", "diameter", "hops", "round trip",
        "whole after failures", "whole after repair", box=None, header_style="bold",
    )  # fmt: skip
    for score in scores:
        table.add_row(
            score.rule,
            f"{score.links:.0f}",
            str(score.degree_max),
            f"{score.diameter:.1f}",
            f"{score.mean_hops:.2f}",
            f"{score.mean_ms:.0f} ms",
            f"{score.whole:.1%}",
            f"{score.mended:.1%}",
        )
    out.print(table)
