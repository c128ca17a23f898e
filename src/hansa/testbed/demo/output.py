"""Output of both demos: paragraphs, drawings and tables."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from rich.console import Console, RenderableType
from rich.text import Text

PARAGRAPH_PAUSE_S = 0.35
"""Seconds between two paragraphs on a terminal, as time to read."""


class DemoOutput:
    def __init__(self, out: Console, pause_s: float = PARAGRAPH_PAUSE_S) -> None:
        self._out = out
        self._pause_s = pause_s

    def say(self, text: str) -> None:
        self._out.print(text)
        if self._out.is_terminal:
            time.sleep(self._pause_s)

    def show_status(self, text: str) -> AbstractContextManager[object]:
        """Show a spinner with a text on a terminal."""
        return self._out.status(text)

    def print_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._out.print(Text(f"      {line}", style="cyan"))
        self._out.print()

    def print(self, text: str) -> None:
        """Print a text without wrapping, so that a command in it can be pasted."""
        self._out.print(Text(text), soft_wrap=True)

    def print_table(self, what: RenderableType) -> None:
        self._out.print(what)
