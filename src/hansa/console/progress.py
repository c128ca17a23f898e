"""Progress of a long command, on stderr: a spinner or bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.text import Text

from hansa.printable import printable


def progress_bar() -> Progress:
    """Return a bar for a known number of steps; it shows nothing if stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


class ConsoleProgress:
    """The current step of a command, for commands without a known number of steps."""

    def __init__(self, first: str) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._first = first
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(self._first)
            self._status.start()
        else:
            self.show(self._first)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def show(self, text: str) -> None:
        """Replace the shown step; off a terminal, print it with the elapsed time."""
        if self._status:
            self._status.update(Text(printable(text)))
        else:
            seconds = time.monotonic() - self._began
            line = f"{seconds:6.1f} s  {printable(text)}"
            self._console.print(line, soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Print a text that stays on the screen."""
        self._console.print(printable(text, keep="\n"), soft_wrap=True, markup=False)

    def report_table(self, layer: str, table: str, count: int | None) -> None:
        """Show that a table has `count` rows, or, on a terminal, that it has been started."""
        if count is not None:
            self.show(f"{layer}.{table}: {count:,} rows")
        elif self._status:
            self.show(f"{layer}.{table}")
