"""Prints the rows of a query: for people, or as CSV or JSON for programs."""

import argparse
import csv
import json
import sys

from rich.text import Text

from hansa.printable import printable

ROWS_SHOWN_MAX = 1_000


def show(
    columns: list[str], rows: list[tuple[object, ...]], args: argparse.Namespace | None = None
) -> None:
    from hansa.console.terminal import console, make_table

    shown = rows[:ROWS_SHOWN_MAX]
    given = vars(args) if args else {}
    if given.get("json"):
        for row in shown:
            print(json.dumps(dict(zip(columns, row, strict=True)), default=_format_value))
    elif given.get("csv"):
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_plain(value) for value in row] for row in shown)
    elif given.get("vertical"):
        width = max(map(len, columns))
        for row in shown:
            for name, value in zip(columns, row, strict=True):
                print(f"{name:>{width}}: {_plain(value)}")
            print()
    else:
        made = make_table(*columns)
        for row in shown:
            made.add_row(*(_format_cell(value) for value in row))
        console().print(made)
    if len(rows) > ROWS_SHOWN_MAX:
        print(
            f"hansa: only the first {ROWS_SHOWN_MAX:,} rows are shown; add a LIMIT", file=sys.stderr
        )


def _plain(value: object) -> object:
    """Return a value for programs: numbers as they are, an empty text for NULL."""
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    return _format_value(value)


def _format_cell(value: object) -> Text:
    if isinstance(value, float):
        return Text(f"{value:,.4g}")
    return Text("" if value is None else _format_value(value))


def _format_value(value: object) -> str:
    """Return a value as text; bytes as an SQL literal."""
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex().upper()}'"
    return printable(str(value), keep="\n")
