"""The console on stdout, the table style of every command, and messages on stderr."""

import sys

from rich import box
from rich.console import Console
from rich.table import Table

from hansa.printable import printable

PLAIN_WIDTH = 120
"""Columns if stdout is not a terminal."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit with code 1, which means "a promise was broken"; `main` returns 141.
        raise BrokenPipeError


def console() -> Console:
    made = _Console(highlight=False)
    return made if made.is_terminal else _Console(highlight=False, width=PLAIN_WIDTH)


def say(text: str) -> None:
    """Print a message to stderr; it may quote files, brokers and peers."""
    print(f"hansa: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201


def make_table(*columns: str) -> Table:
    """Return an empty table; a column whose name starts with `>` is right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return made
