"""`hansa pipeline`: what nodes recorded into tables, and questions to them."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hansa.cli import arguments
from hansa.cli.arguments import Parser, decimal_number, whole_number
from hansa.console.progress import ConsoleProgress
from hansa.errors import TableBroken, UsageError
from hansa.printable import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hansa.pipeline.bronze import PipelineJob
    from hansa.pipeline.lake import Lake

EXAMPLES = """\
  hansa pipeline run --lake lake /var/lib/hansa          read all recordings, and exit
  hansa pipeline run --lake lake --stream /var/lib/hansa    and continue until Ctrl-C
  hansa pipeline run --lake lake --master spark://host:7077 /shared/hansa    on a cluster
  hansa pipeline tables --lake lake
  hansa pipeline query --lake lake "select * from delay_by_hops\""""

ROWS_SHOWN_MAX = 1_000

TOKEN = "HANSA_ADMIN_TOKEN"
"""Environment variable of the agents' token; other users could see it on a command line."""


def run(given: Sequence[str]) -> int:
    args = _parser().parse_intermixed_args(given)
    steps = {"run": _run, "tables": _tables, "query": _query}
    try:
        return steps[args.step](args)
    except TableBroken as broken:
        print(f"hansa: {printable(str(broken))}; the tables are unchanged", file=sys.stderr)
        return 1


def _parser() -> Parser:
    parser = Parser(
        "hansa pipeline",
        "Make tables from recordings of agents and simulations with Spark, and query them.\n"
        "A lake is a directory of Parquet files: bronze as recorded, silver by subject, gold\n"
        "for analysis; docs/pipeline.md describes them.",
        EXAMPLES,
    )
    parser.add_argument(
        "step", type=arguments.one_of(("run", "tables", "query")), metavar="run|tables|query",
        help="run: update a lake; tables: list its tables; query: query it in SQL",
    )  # fmt: skip
    parser.add_argument(
        "words", nargs="*", metavar="SOURCE|SQL",
        help="run: directories with journals and telemetry, at any depth, or addresses of agents,"
        f" as http://host:port, with their token in {TOKEN}; query: one SELECT",
    )  # fmt: skip
    parser.add_argument(
        "--lake", type=arguments.path, required=True, metavar="DIR", help="directory of the tables"
    )
    parser.add_argument("--master", metavar="URL", help="a Spark cluster (default: this machine)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--once", action="store_true", help="run: exit when all input is read (the default)"
    )
    how.add_argument("--stream", action="store_true", help="run: continue until Ctrl-C")
    parser.add_argument(
        "--every", type=decimal_number(0.1, 86_400, "seconds"), default=10.0, metavar="SECONDS",
        help="with --stream: seconds between two batches (default 10)",
    )  # fmt: skip
    parser.add_argument(
        "--payloads", type=arguments.path, metavar="FILE",
        help="run: TOML file that maps topics with JSON payloads to tables; it is remembered",
    )  # fmt: skip
    parser.add_argument(
        "--format", type=arguments.one_of(("parquet", "delta", "iceberg")),
        metavar="parquet|delta|iceberg",
        help="run: table format of a new lake (default parquet); the data files are the same",
    )  # fmt: skip
    parser.add_argument(
        "--batch-bytes", type=whole_number(1, 1 << 40, "bytes"), metavar="N",
        help="run: bytes of recordings per micro-batch (default 256 MiB)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-loss", action="store_true",
        help="run: continue although retention or a disk lost unread recordings",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="query: print a JSON object per row")
    return parser


# ---------------------------------------------------------------- run


def _run(args: argparse.Namespace) -> int:
    from hansa.pipeline import formats
    from hansa.pipeline.session import session

    if not args.words:
        _parser().error("run needs a SOURCE, a directory or the address of an agent")
    formats.require_package(args.format or "parquet")
    token = check_sources(args.words, may_be_empty=args.stream)
    with ConsoleProgress("starting Spark") as progress:
        spark = session(args.master)
        from hansa.pipeline import bronze, builder, lake, runner

        work = bronze.PipelineJob(
            args.words,
            token=token,
            allow_loss=args.allow_loss,
            batch_bytes=args.batch_bytes,
            payloads=args.payloads,
        )
        builder.all_tables(args.payloads)  # report an error in the file before the work
        place = lake.Lake.open_or_create(args.lake, args.format)
        if args.stream:
            _stream(spark, place, work, args.every, progress)
        else:
            runner.run_once(spark, place, work, progress.report_table)
    return 0


def check_sources(sources: Sequence[str], may_be_empty: bool) -> str:
    """Raise UsageError before Spark is started if there is no input; return the agents' token."""
    from hansa.pipeline import feeds

    token = os.environ.get(TOKEN, "")
    if not any(feeds.find_feeds(sources, telemetry, token) for telemetry in (False, True)):
        nothing = (
            f"nothing is recorded at {', '.join(sources)}: name the state directories of agents"
            " that have `record` or telemetry (docs/telemetry.md)"
        )
        if not may_be_empty:
            raise UsageError(nothing)
        print(f"hansa: {nothing}; waiting", file=sys.stderr)
    return token


def _stream(
    spark: "SparkSession",
    lake: "Lake",
    work: "PipelineJob",
    every_s: float,
    progress: ConsoleProgress,
) -> None:
    from hansa.pipeline import runner

    progress.show("streaming; Ctrl-C stops it")
    runner.run_continuously(spark, lake, work, every_s, progress.report_table, progress.warn)


# ---------------------------------------------------------------- tables, query


def _tables(args: argparse.Namespace) -> int:
    from hansa.console.terminal import console, make_table
    from hansa.pipeline.lake import EXPERIMENTS, Lake

    lake = Lake(args.lake)
    made = make_table("layer", "table", ">rows", "grain")
    for kept in [] if lake.is_only_experiments else lake.tables():
        made.add_row(kept.layer, kept.name, f"{kept.rows:,}", Text(kept.grain))
    if lake.experiments:
        made.add_row("", EXPERIMENTS, "", "One row per simulation of a sweep.")
    console().print(made)
    return 0


def _query(args: argparse.Namespace) -> int:
    if len(args.words) != 1:
        _parser().error('query needs one SELECT, in quotes: "select * from delay"')
    from hansa.pipeline.lake import Lake

    lake = Lake(args.lake)
    if not lake.is_only_experiments:
        lake.tables()
    with ConsoleProgress("starting Spark"):
        from hansa.pipeline.session import session

        spark = session(args.master)
        columns, rows = ask(spark, lake, args.words[0])
    show(columns, rows, args.json)
    return 0


def ask(
    spark: "SparkSession", lake: "Lake", select: str
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return columns and rows of a query; one row more than is shown, if there are more."""
    from hansa.pipeline import query

    return query.run_query(spark, lake, select, ROWS_SHOWN_MAX + 1)


def show(columns: list[str], rows: list[tuple[object, ...]], as_json: bool = False) -> None:
    """Print the rows as a table, or as one JSON object per row."""
    from hansa.console.terminal import console, make_table

    if as_json:
        for row in rows[:ROWS_SHOWN_MAX]:
            print(json.dumps(dict(zip(columns, row, strict=True)), default=_format_value))
    else:
        made = make_table(*columns)
        for row in rows[:ROWS_SHOWN_MAX]:
            made.add_row(*(_format_cell(value) for value in row))
        console().print(made)
    if len(rows) > ROWS_SHOWN_MAX:
        print(
            f"hansa: only the first {ROWS_SHOWN_MAX:,} rows are shown; add a LIMIT", file=sys.stderr
        )


def _format_cell(value: object) -> Text:
    if isinstance(value, float):
        return Text(f"{value:,.4g}")
    return Text("" if value is None else _format_value(value))


def _format_value(value: object) -> str:
    """Return a value as text; bytes as an SQL literal."""
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex().upper()}'"
    return printable(str(value), keep="\n")
