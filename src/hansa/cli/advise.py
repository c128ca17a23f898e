"""`hansa advise`: changes that a recorded federation should make, and their effect."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.text import Text

from hansa.advice.adviser import advise
from hansa.advice.proposals import Advice
from hansa.cli.arguments import Parser, one_of, whole_number
from hansa.cli.lake_options import add_lake, open_lake
from hansa.console.progress import ConsoleProgress
from hansa.pipeline.location import require_lake
from hansa.printable import printable
from hansa.protocol.settings import Metric, ProtocolSettings

DEGREE_MAX = 5
ADVICE_MAX = 5

EXAMPLES = """\
  hansa advise --lake lake                     for the recorded live federation
  hansa advise --lake lake --degree 3          with at most three neighbours per node
  hansa advise --lake lake --json              for the topology manager

exit code: 0 also without advice; 2 bad input, 70 internal error
"""


def run(given: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit code."""
    args = _parser().parse_args(given)

    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
    from hansa.advice.loading import load_federation, make_spark_map
    from hansa.pipeline.query import read_tables

    settings = replace(
        ProtocolSettings(),
        redundancy=args.redundancy,
        metric=Metric(args.metric),
        group_depth=args.group_depth,
    )
    recorded = load_federation(read_tables(lake), args.run, settings)
    print(
        f"hansa: {len(recorded.nodes)} nodes, {len(recorded.links)} links, traffic on"
        f" {len(recorded.flows)} topics; {len(recorded.sample)} publications are replayed",
        file=sys.stderr,
    )
    found = advise(recorded, args.degree, args.most, make_spark_map(lake.spark.sparkContext))
    if args.json:
        print(json.dumps({"advice": [each.as_json() for each in found]}, indent=2))
    else:
        _show(list(found))
    return 0


def _parser() -> Parser:
    made = Parser(
        "hansa advise",
        "Advises on a recorded federation (`hansa pipeline run` with telemetry): links to add or\n"
        "remove, cores to move, filters to merge, clients to move. Spark predicts the effect of\n"
        "every change; the best are confirmed by a replay in the simulator.",
        EXAMPLES,
    )
    add_lake(made)
    made.add_argument("--run", metavar="NAME", help="run of the lake, if there are several")
    made.add_argument(
        "--degree", type=whole_number(1, 64, "neighbours"), default=DEGREE_MAX, metavar="N",
        help=f"maximum number of neighbours of a node (default {DEGREE_MAX})",
    )  # fmt: skip
    made.add_argument(
        "--most", type=whole_number(1, 50, "pieces of advice"), default=ADVICE_MAX, metavar="N",
        help=f"maximum number of changes (default {ADVICE_MAX}); each assumes the previous ones",
    )  # fmt: skip
    made.add_argument(
        "--redundancy", type=whole_number(1, 16, "parents"), default=2, metavar="N",
        help="setting of the federation (default 2)",
    )  # fmt: skip
    made.add_argument(
        "--metric", type=one_of(Metric), default=Metric.HOPS, metavar="hops|rtt",
        help="setting of the federation (default hops)",
    )  # fmt: skip
    made.add_argument(
        "--group-depth", type=whole_number(0, 32, "levels"), default=0, metavar="N",
        help="setting of the federation (default 0)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="print JSON instead of text")
    return made


def _show(found: list[Advice]) -> None:
    from hansa.console.terminal import console, make_table

    out = console()
    if not found:
        out.print("no advice: no change would save a fifth of delay, bytes or groups")
        return
    for number, advice in enumerate(found, 1):
        out.print(
            Text(f"{number}. {printable(advice.proposal.text)}", style="bold"), soft_wrap=True
        )
        made = make_table("", ">now", ">predicted", ">replayed")
        for name, title in TITLES.items():
            (_, predicted), (before, shown) = advice.predicted, advice.replayed
            change = advice.predicted[0].relative_change(predicted, name)
            after = before.relative_change(shown, name)
            made.add_row(title, f"{getattr(before, name):.4g}", f"{change:+.0%}", f"{after:+.0%}")
        out.print(made)


TITLES = {
    "delay_ms": "delay, ms",
    "bytes": "bytes per publication",
    "copies": "copies per publication",
    "groups": "groups",
}
