"""`hansa report`: a lake as one page with plots."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.cli import arguments
from hansa.cli.arguments import Parser
from hansa.cli.lake_options import add_lake, open_lake, start_spark
from hansa.cli.pipeline import ask, check_sources, make_job
from hansa.cli.query_output import show
from hansa.console.progress import ConsoleProgress
from hansa.errors import UsageError
from hansa.pipeline.location import require_lake, require_place

if TYPE_CHECKING:
    from hansa.pipeline.report.page import ReportedPaper

EXAMPLES = """\
  hansa report --lake lake --out report.html           a page about the federation
  hansa report --lake lake /var/lib/hansa              update the lake from recordings first
  hansa report --lake lake --papers --out report.html  with the papers' numbers beside ours"""


def run(given: Sequence[str]) -> int:
    args = _parser().parse_intermixed_args(given)
    if args.payloads and not args.sources:
        _parser().error("--payloads needs a SOURCE to make tables from")
    _check_output_path(args.out)
    if args.sources:
        require_place(args.lake)
        token = check_sources(args.sources, may_be_empty=False)
    else:
        require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        start_spark(args, progress, args.sources)
        job = make_job(args, token) if args.sources else None
        lake = open_lake(args, progress, create=job is not None)
        from hansa.pipeline import runner
        from hansa.pipeline.report.facts import collect_report
        from hansa.pipeline.report.page import render_page

        if job:
            runner.run_once(lake, job, progress.report_table)
        papers = _run_papers(progress) if args.papers else []
        progress.show("drawing")
        _write(args.out, render_page(collect_report(lake), papers, args.title))
        answer = ask(lake, args.query) if args.query else None
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
    add_lake(parser)
    parser.add_argument(
        "--title", default="Federation report", metavar="TEXT",
        help="heading of the page, such as the name of the federation",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=arguments.path, default=Path("report.html"), metavar="FILE",
        help="the page (default report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--payloads", type=arguments.path, metavar="FILE",
        help="with SOURCE: payload contracts, as for `hansa pipeline run`",
    )  # fmt: skip
    parser.add_argument(
        "--query", metavar="SELECT",
        help="also print the result of one SELECT, as `hansa pipeline query` does",
    )  # fmt: skip
    parser.add_argument(
        "--papers", action="store_true",
        help="run the papers' experiments now, and show their numbers beside ours",
    )  # fmt: skip
    return parser


def _run_papers(progress: ConsoleProgress) -> "list[ReportedPaper]":
    from hansa.experiments.papers import run_papers

    return run_papers(lambda name: progress.show(f"running {name}"))
