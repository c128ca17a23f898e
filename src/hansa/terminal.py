"""Output for people: one console and one style of table for every command."""

from rich import box
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 120
"""Columns if stdout is not a terminal: files and pipes need no wrapping at 80."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `main`; rich would exit with code 1, which means a broken promise here."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console on stdout."""
    made = _Console(highlight=False)
    return made if made.is_terminal else _Console(highlight=False, width=PLAIN_WIDTH)


def make_table(*columns: str) -> Table:
    """Return an empty table in the style of all; a column that starts with `>` is numbers."""
    made = Table(box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return made
