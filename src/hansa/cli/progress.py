"""What the pipeline is doing: a moving line on a terminal, plain lines elsewhere. On stderr."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from hansa.printable import printable


class ConsoleProgress:
    """One line that changes, while something takes its time."""

    def __init__(self, first: str) -> None:
        """Begin with these words."""
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._first = first
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        """Show the line."""
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
        """Take it away."""
        if self._status:
            self._status.stop()

    def show(self, text: str) -> None:
        """Say what is done now."""
        if self._status:
            self._status.update(Text(printable(text)))
        else:
            seconds = time.monotonic() - self._began
            line = f"{seconds:6.1f} s  {printable(text)}"
            self._console.print(line, soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Say what is to be seen later, too."""
        self._console.print(printable(text, keep="\n"), soft_wrap=True, markup=False)

    def report_table(self, layer: str, table: str, count: int | None) -> None:
        """Say how far a table is; on a terminal also that it has begun."""
        if count is not None:
            self.show(f"{layer}.{table}: {count:,} rows")
        elif self._status:
            self.show(f"{layer}.{table}")
