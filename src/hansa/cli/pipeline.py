"""`hansa pipeline`: what nodes recorded into tables, and questions to them."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from hansa.cli import arguments, maintain
from hansa.cli.arguments import Parser, decimal_number, whole_number
from hansa.cli.lake_options import add_lake, open_lake, start_spark
from hansa.cli.query_output import ROWS_SHOWN_MAX, is_for_people, show
from hansa.console.progress import ConsoleProgress
from hansa.errors import TableBroken, UsageError
from hansa.pipeline.location import require_lake, require_place
from hansa.printable import printable

if TYPE_CHECKING:
    from hansa.pipeline.bronze import PipelineJob
    from hansa.pipeline.lake import Lake

EXAMPLES = """\
  hansa pipeline run --lake lake /var/lib/hansa             read all recordings, and exit
  hansa pipeline stream --lake s3a://bucket/lake https://a.example:8081    and continue
  hansa pipeline run --lake lake --master spark://host:7077 /shared/hansa    on a cluster
  hansa pipeline tables --lake lake
  hansa pipeline describe --lake lake deliveries
  hansa pipeline query --lake lake "select * from delay_by_hops"
  hansa pipeline query --lake lake --as-of "2026-01-31 12:00:00" "select * from delivery"
  hansa pipeline shell --lake lake                          queries, until Ctrl-D
  hansa pipeline optimize --lake lake                       merge small files
  hansa pipeline retain --lake lake silver 30               keep a layer or table for 30 days
  hansa pipeline forget --lake lake --topic 'people/#' --before 2026-01-31"""

RETAIN_HOURS = 168

TOKEN = "HANSA_ADMIN_TOKEN"
"""Environment variable of the agents' token; other users could see it on a command line."""

STEPS = (
    *("run", "stream", "query", "shell", "tables", "describe", "history"),
    *("optimize", "vacuum", "retain", "forget"),
)
WITHOUT_WORDS = ("shell", "tables", "optimize", "vacuum", "forget")


def run(given: Sequence[str]) -> int:
    parser = _parser()
    args = parser.parse_intermixed_args(given)
    if args.words and args.step in WITHOUT_WORDS:
        parser.error(f"{args.step} takes options only, not {args.words[0]!r}")
    steps: dict[str, Callable[[argparse.Namespace, Parser], int]] = {
        "run": _run,
        "stream": _run,
        "query": _query,
        "shell": _shell,
        "tables": maintain.tables_step,
        "describe": maintain.describe_step,
        "history": maintain.history_step,
        "optimize": maintain.optimize_step,
        "vacuum": maintain.vacuum_step,
        "retain": maintain.retain_step,
        "forget": maintain.forget_step,
    }
    try:
        return steps[args.step](args, parser)
    except TableBroken as broken:
        print(f"hansa: {printable(str(broken))}; the tables are unchanged", file=sys.stderr)
        return 1


def _parser() -> Parser:
    parser = Parser(
        "hansa pipeline",
        "Make Delta tables from recordings of agents and simulations with Spark, and query them.\n"
        "A lake has three layers: bronze as recorded, silver by subject, gold for analysis;\n"
        "docs/pipeline.md describes them.",
        EXAMPLES,
    )
    parser.add_argument(
        "step", type=arguments.one_of(STEPS), metavar="|".join(STEPS),
        help="run: update a lake; stream: the same, until Ctrl-C; query: query it in SQL; shell:"
        " many queries with one start of Spark; tables: list its tables; describe, history:"
        " columns or versions of a table; optimize: merge small files; vacuum: remove files of old"
        " versions; retain: choose after how many days the rows of a table are deleted; forget:"
        " delete rows for good",
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="*", metavar="SOURCE|SQL|TABLE|DAYS",
        help="run, stream: directories with journals and telemetry, at any depth, or addresses of"
        f" agents, as http://host:port, with their token in {TOKEN}; query: one SELECT, `show"
        " tables` or `describe TABLE`; describe, history: a table; retain: a table, or bronze,"
        " silver or gold, and a number of days or `forever`",
    )  # fmt: skip
    add_lake(parser)
    parser.add_argument(
        "--every", type=decimal_number(0.1, 86_400, "seconds"), default=10.0, metavar="SECONDS",
        help="stream: seconds between two updates (default 10)",
    )  # fmt: skip
    parser.add_argument(
        "--payloads", type=arguments.path, metavar="FILE",
        help="run, stream: TOML file with payload contracts; it is remembered",
    )  # fmt: skip
    parser.add_argument(
        "--batch-bytes", type=whole_number(1, 1 << 40, "bytes"), metavar="N",
        help="run, stream: bytes of recordings per micro-batch (default 256 MiB)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-loss", action="store_true",
        help="run, stream: continue although retention or a disk lost unread recordings",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="query, shell: print a JSON object per row"
    )
    form.add_argument(
        "--csv", action="store_true", help="query, shell: print comma-separated values"
    )
    form.add_argument(
        "--vertical", action="store_true", help="query, shell: print a line per value"
    )
    parser.add_argument(
        "--as-of", metavar="TIME", help="query, shell: the tables as they were then, UTC"
    )
    parser.add_argument("--topic", metavar="FILTER", help="forget: rows of matching topics")
    parser.add_argument("--before", metavar="TIME", help="forget: rows recorded before, UTC")
    parser.add_argument("--node", metavar="NAME", help="forget: publications at this node's broker")
    parser.add_argument(
        "--client", metavar="ID",
        help="forget: refused, because publishing clients are not recorded; use --topic",
    )  # fmt: skip
    parser.add_argument(
        "--retain", type=whole_number(0, 87_600, "hours"), default=RETAIN_HOURS, metavar="HOURS",
        help=f"vacuum: keep versions of the last hours (default {RETAIN_HOURS})",
    )  # fmt: skip
    return parser


# ---------------------------------------------------------------- run, stream


def _run(args: argparse.Namespace, parser: Parser) -> int:
    if not args.words:
        parser.error(f"{args.step} needs a SOURCE, a directory or the address of an agent")
    is_stream = args.step == "stream"
    require_place(args.lake)
    token = check_sources(args.words, may_be_empty=is_stream)
    with ConsoleProgress("starting Spark") as progress:
        start_spark(args, progress, args.words, is_endless=is_stream)
        job = make_job(args, token, is_stream)
        lake = open_lake(args, progress, create=True)
        from hansa.pipeline import runner

        if is_stream:
            progress.show("streaming; Ctrl-C stops it")
            runner.run_continuously(lake, job, args.every, progress.report_table, progress.warn)
        elif not runner.run_once(lake, job, progress.report_table):
            progress.show("nothing new")
    return 0


def make_job(args: argparse.Namespace, token: str, is_stream: bool = False) -> "PipelineJob":
    """Return the options of a run; raise UsageError if the contracts are wrong. Spark has to run,
    because it parses them."""
    from hansa.pipeline.bronze import PipelineJob
    from hansa.pipeline.catalog import RESERVED_NAMES
    from hansa.pipeline.contracts import read_contracts

    given = vars(args)
    if args.payloads:
        read_contracts(args.payloads, RESERVED_NAMES)
    return PipelineJob(
        given.get("sources") or given["words"],
        token=token,
        allow_loss=given.get("allow_loss", False),
        skip_unreachable=is_stream,
        batch_bytes=given.get("batch_bytes"),
        payloads=args.payloads,
    )


def check_sources(sources: Sequence[str], may_be_empty: bool) -> str:
    """Raise UsageError before Spark is started if there is no input, and AgentUnreachable if an
    agent does not answer, unless the command waits for both; return the agents' token."""
    from hansa.pipeline import feeds

    token = os.environ.get(TOKEN, "")
    if not any(
        feeds.find_feeds(sources, telemetry, token, skip_unreachable=may_be_empty)
        for telemetry in (False, True)
    ):
        nothing = (
            f"nothing is recorded at {', '.join(sources)}: name the state directories of agents"
            " that have `record` or telemetry (docs/telemetry.md)"
        )
        if not may_be_empty:
            raise UsageError(nothing)
        print(f"hansa: {nothing}; waiting", file=sys.stderr)
    return token


# ---------------------------------------------------------------- query


def _query(args: argparse.Namespace, parser: Parser) -> int:
    if len(args.words) != 1:
        parser.error('query needs one SELECT, in quotes: "select * from delay"')
    as_of = maintain.parse_time(args.as_of) if args.as_of else None
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        columns, rows = ask(lake, args.words[0], as_of, is_for_people(args))
    show(columns, rows, args)
    return 0


def _shell(args: argparse.Namespace, parser: Parser) -> int:
    """Answer one statement per line; a mistake in one does not end it."""
    as_of = maintain.parse_time(args.as_of) if args.as_of else None
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(
            "one SELECT, `show tables` or `describe TABLE` per line; Ctrl-D ends", file=sys.stderr
        )
    while True:
        try:
            statement = input("sql> " if is_terminal else "")
        except EOFError:
            return 0
        if not statement.strip():
            continue
        try:
            show(*ask(lake, statement, as_of, is_for_people(args)), args)
        except UsageError as error:
            print(f"hansa: {printable(str(error))}", file=sys.stderr)


def ask(
    lake: "Lake", select: str, as_of: str | None = None, is_limited: bool = True
) -> tuple[list[str], Iterable[tuple[object, ...]]]:
    """Return columns and rows of a query: all, or one row more than is shown to people."""
    from hansa.pipeline import query

    return query.run_query(lake, select, ROWS_SHOWN_MAX + 1 if is_limited else None, as_of)
