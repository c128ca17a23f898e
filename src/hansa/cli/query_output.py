"""Prints the rows of a query: for people, or as CSV or JSON for programs."""

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal

from rich.text import Text

from hansa.printable import printable

ROWS_SHOWN_MAX = 1_000
"""Rows of a table for people; programs get all."""


def is_for_people(args: argparse.Namespace) -> bool:
    given = vars(args)
    return not (given.get("json") or given.get("csv"))


def show(
    columns: Sequence[str],
    rows: Iterable[tuple[object, ...]],
    args: argparse.Namespace | None = None,
) -> None:
    from hansa.console.terminal import console, make_table

    given = vars(args) if args else {}
    if given.get("json"):
        for row in rows:
            named = dict(zip(columns, row, strict=True))
            print(json.dumps(named, default=_json_value))
        return
    if given.get("csv"):
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_plain(value) for value in row] for row in rows)
        return
    found = list(itertools.islice(rows, ROWS_SHOWN_MAX + 1))
    shown = found[:ROWS_SHOWN_MAX]
    if given.get("vertical"):
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
    if len(found) > ROWS_SHOWN_MAX:
        print(
            f"hansa: only the first {ROWS_SHOWN_MAX:,} rows are shown; --csv and --json print all",
            file=sys.stderr,
        )


def _json_value(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else _format_value(value)


def _plain(value: object) -> object:
    """Return a value for programs: numbers as they are, an empty text for NULL, JSON for lists and
    maps."""
    if value is None or isinstance(value, int | float):
        return "" if value is None else value
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, default=_json_value)
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
