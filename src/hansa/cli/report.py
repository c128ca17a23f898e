"""`hansa report`: a lake as one page with plots."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.cli import arguments
from hansa.cli.arguments import Parser
from hansa.cli.pipeline import ask, check_sources, show
from hansa.console.progress import ConsoleProgress
from hansa.errors import UsageError

if TYPE_CHECKING:
    from hansa.pipeline.report.page import ReportedPaper

EXAMPLES = """\
  hansa report --lake lake --out report.html           a page about the federation
  hansa report --lake lake /var/lib/hansa              update the lake from recordings first
  hansa report --lake lake --papers --out report.html  with the papers' numbers beside ours"""


def run(given: Sequence[str]) -> int:
    args = _parser().parse_intermixed_args(given)
    from hansa.pipeline.lake import Lake
    from hansa.pipeline.session import session

    if args.payloads and not args.sources:
        _parser().error("--payloads needs a SOURCE to make tables from")
    _check_output_path(args.out)
    token = check_sources(args.sources, may_be_empty=False) if args.sources else ""
    if not args.sources and not Lake(args.lake).is_only_experiments:
        Lake(args.lake).tables()
    with ConsoleProgress("starting Spark") as progress:
        spark = session(args.master)
        from hansa.pipeline import bronze, builder, runner
        from hansa.pipeline.report.facts import collect_report
        from hansa.pipeline.report.page import render_page

        if args.sources:
            builder.all_tables(args.payloads)  # report an error in the file before the work
            runner.run_once(
                spark,
                Lake.open_or_create(args.lake),
                bronze.PipelineJob(args.sources, token, payloads=args.payloads),
                progress.report_table,
            )
        papers = _run_papers(progress) if args.papers else []
        progress.show("drawing")
        _write(args.out, render_page(collect_report(spark, Lake(args.lake)), papers))
        answer = ask(spark, Lake(args.lake), args.query) if args.query else None
    if answer:
        show(*answer)
    print(f"{args.out}: open it in a browser")
    return 0


def _check_output_path(out: Path) -> None:
    """Raise UsageError before the work if the page cannot be written."""
    if out.is_dir():
        raise UsageError(f"cannot write {out}: it is a directory; use --out {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UsageError(f"cannot write {out}: there is no directory {out.parent}")


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error


def _parser() -> Parser:
    parser = Parser(
        "hansa report",
        "Write one page with plots about a federation: delay by hops and by pair, delivery and\n"
        "loss, cost of redundancy, bytes by link, announcements against the papers' bound,\n"
        "recovery after each fault, traffic between nodes, busiest topics; and the sweeps of\n"
        "`hansa experiment run`.",
        EXAMPLES,
    )
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE",
        help="update the lake from these recordings first, as `hansa pipeline run` does",
    )  # fmt: skip
    parser.add_argument(
        "--lake", type=arguments.path, required=True, metavar="DIR",
        help="directory of the tables",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=arguments.path, default=Path("report.html"), metavar="FILE",
        help="the page (default report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--payloads", type=arguments.path, metavar="FILE",
        help="with SOURCE: topics with JSON payloads, as for `hansa pipeline run`",
    )  # fmt: skip
    parser.add_argument(
        "--query", metavar="SELECT",
        help="also print the result of one SELECT, as `hansa pipeline query` does",
    )  # fmt: skip
    parser.add_argument(
        "--papers", action="store_true",
        help="run the papers' experiments now, and show their numbers beside ours",
    )  # fmt: skip
    parser.add_argument("--master", metavar="URL", help="a Spark cluster (default: this machine)")
    return parser


def _run_papers(progress: ConsoleProgress) -> "list[ReportedPaper]":
    from hansa.experiments.papers import run_papers

    return run_papers(lambda name: progress.show(f"running {name}"))
