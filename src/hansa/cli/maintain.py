"""The steps of `hansa pipeline` that look after a lake: tables, describe, optimize, forget, …"""

import argparse
from datetime import UTC, datetime

from rich.text import Text

from hansa.cli.arguments import Parser, whole_number
from hansa.cli.lake_options import open_lake
from hansa.cli.query_output import ROWS_SHOWN_MAX, show
from hansa.console.progress import ConsoleProgress
from hansa.errors import UsageError
from hansa.pipeline.location import require_lake
from hansa.protocol.topics import check_filter

RETAINED_DAYS_MAX = 36_500
CLIENT_UNKNOWN = (
    "forget cannot select rows by client: a broker does not send the id of the publishing client"
    " to subscribers, such as the agent; use --topic with the topics of that client, and"
    " --before or --node"
)


def tables_step(args: argparse.Namespace, parser: Parser) -> int:
    from hansa.console.terminal import console, make_table

    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.catalog import places_of
        from hansa.pipeline.retention import retention_days

        days = retention_days(lake)
        made = make_table("layer", "table", ">rows", *([">days"] if days else []), "grain")
        for place in places_of(lake):
            count = lake.read(place).count()
            kept = [str(days.get(place.view, ""))] if days else []
            made.add_row(place.layer, place.view, f"{count:,}", *kept, Text(place.grain))
    console().print(made)
    return 0


def _one_table(args: argparse.Namespace, parser: Parser) -> str:
    if len(args.words) != 1:
        parser.error(f"{args.step} needs one TABLE; `hansa pipeline tables` lists them")
    name: str = args.words[0]
    return name


def describe_step(args: argparse.Namespace, parser: Parser) -> int:
    from hansa.console.terminal import console, make_table

    name = _one_table(args, parser)
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.maintenance import describe

        found = describe(lake, name)
    out = console()
    out.print(Text(f"{found.place.layer}.{found.place.name}: {found.place.grain}"))
    if found.key:
        out.print(Text(f"key: {', '.join(found.key)}"))
    for rule in found.rules:
        out.print(Text(f"rule: {rule}"))
    if found.days:
        out.print(Text(f"retention: {found.days} days"))
    made = make_table("column", "type", "meaning")
    for column in found.columns:
        made.add_row(*(Text(cell) for cell in column))
    out.print(made)
    return 0


def history_step(args: argparse.Namespace, parser: Parser) -> int:
    name = _one_table(args, parser)
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.maintenance import history

        commits = history(lake, name).limit(ROWS_SHOWN_MAX)
        columns, rows = commits.columns, [tuple(row) for row in commits.collect()]
    show(columns, rows, args)
    return 0


# ---------------------------------------------------------------- optimize, vacuum, retain, forget


def optimize_step(args: argparse.Namespace, parser: Parser) -> int:
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.maintenance import optimize

        removed = optimize(lake, progress.report_table)
    print(f"{removed:,} small files were merged")
    return 0


def vacuum_step(args: argparse.Namespace, parser: Parser) -> int:
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.maintenance import vacuum

        vacuum(lake, args.retain, progress.report_table)
    return 0


def retain_step(args: argparse.Namespace, parser: Parser) -> int:
    if len(args.words) != 2:
        parser.error("retain needs TABLE DAYS, such as `retain silver 30`, or TABLE forever")
    name, text = args.words
    try:
        days = None if text == "forever" else whole_number(1, RETAINED_DAYS_MAX, "days")(text)
    except argparse.ArgumentTypeError as error:
        parser.error(f"{error}, or forever")
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.retention import retain

        tables = retain(lake, name, days)
    print(f"retention of {', '.join(tables)}: {f'{days} days' if days else text}")
    return 0


def forget_step(args: argparse.Namespace, parser: Parser) -> int:
    from hansa.console.terminal import console, make_table

    if args.client:
        raise UsageError(CLIENT_UNKNOWN)
    if not (args.topic or args.before or args.node):
        parser.error("forget needs --topic, --before or --node")
    topic = check_filter(args.topic) if args.topic else None
    before = parse_time(args.before) if args.before else None
    require_lake(args.lake)
    with ConsoleProgress("starting Spark") as progress:
        lake = open_lake(args, progress)
        from hansa.pipeline.maintenance import ForgottenRows, forget, node_id

        origin = node_id(lake, args.node) if args.node else None
        deleted = forget(lake, ForgottenRows(topic, before, origin), progress.report_table)
    made = make_table("table", ">rows deleted")
    for name, count in deleted.items():
        made.add_row(name, f"{count:,}")
    console().print(made if deleted else "no rows match")
    return 0


def parse_time(text: str) -> str:
    """Return a time in UTC, as SQL writes it; without a time zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo:
            time = time.astimezone(UTC)
        return time.strftime("%Y-%m-%d %H:%M:%S.%f")
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is not a time; write 2026-01-31 or 2026-01-31T12:00:00"
        ) from None
