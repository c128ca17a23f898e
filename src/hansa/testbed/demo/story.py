"""A story told in paragraphs, pictures and tables: what both demos are."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from rich.console import Console, RenderableType
from rich.text import Text

BEAT_S = 0.35
"""Real seconds between two paragraphs on a terminal: time to read, none to get bored."""


class Story:
    """Prints paragraphs, at a reader's pace if there is one."""

    def __init__(self, out: Console, beat_s: float = BEAT_S) -> None:
        self._out = out
        self._beat_s = beat_s

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._out.print(text)
        if self._out.is_terminal:
            time.sleep(self._beat_s)

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Say on a terminal what is waited for, as long as it is."""
        return self._out.status(text)

    def draw(self, lines: Iterable[str]) -> None:
        """Print a picture."""
        for line in lines:
            self._out.print(Text(f"      {line}", style="cyan"))
        self._out.print()

    def print(self, text: str) -> None:
        """Print a text as it is: unwrapped, so that a command in it can be pasted."""
        self._out.print(Text(text), soft_wrap=True)

    def show(self, what: RenderableType) -> None:
        """Print a table."""
        self._out.print(what)
