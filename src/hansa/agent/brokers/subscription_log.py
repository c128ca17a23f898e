"""Remembers what the agent's session at the broker is subscribed to, across the agent's restarts.

What the broker queued for the agent names subscriptions by their identifiers, so a new life must
know them, and their order, or it could not tell copies apart. A line per change: a filter with its
identifier when it is entered, with -1 when its end is asked for, with 0 when it has ended. Filters
that are entered are synced, or after a power failure their identifiers could be given to others;
the end of a filter need not be: it is then asked for again.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hansa.journal.disk import sync_directory

LEAVING = -1
ENDED = 0

LINES_SPARE = 1_000
"""Lines beyond the twofold of what is held, until the file is written anew."""


class SubscriptionLog:
    """The file of one agent."""

    def __init__(self, path: Path, problem: Callable[[str], None]) -> None:
        """Read what a former life left. `problem` is told why something cannot be written: work
        goes on, but copies that are queued while the agent is away may be taken for one another."""
        self._path = path
        self._problem = problem
        self._file = -1
        self.held: dict[str, int] = {}
        """Filters with their identifiers, or LEAVING; in the order in which they came."""
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line may be torn
                    name, identifier = json.loads(line)
                    self._apply(name, identifier)
        self._rewrite()

    def write(self, changes: Iterable[tuple[str, int]]) -> None:
        """Note filters that were entered, are leaving or have ended."""
        noted = tuple(changes)
        for name, identifier in noted:
            self._apply(name, identifier)
        lines = [json.dumps(change) + "\n" for change in noted]
        self._lines += len(lines)
        if self._file < 0 or self._lines > 2 * len(self.held) + LINES_SPARE:
            self._rewrite()
            return
        try:
            os.write(self._file, "".join(lines).encode())
            if any(identifier > 0 for _, identifier in noted):
                os.fdatasync(self._file)
        except OSError as error:
            self._fail(error)

    def start_over(self) -> None:
        """The broker has none of them."""
        self.held.clear()
        self._rewrite()

    def close(self) -> None:
        """Let the file go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _apply(self, name: str, identifier: int) -> None:
        if identifier == ENDED:
            self.held.pop(name, None)
        else:
            self.held[name] = identifier

    def _rewrite(self) -> None:
        self.close()
        temporary = self._path.with_suffix(".new")
        self._lines = len(self.held)
        try:
            temporary.write_text(_lines(self.held))
            temporary.chmod(0o600)
            self._file = os.open(temporary, os.O_WRONLY | os.O_APPEND)
            os.fsync(self._file)
            temporary.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            self._fail(error)
        else:
            self._problem("")

    def _fail(self, error: OSError) -> None:
        """Begin anew with the next change: what of this one is on disk is unknown."""
        self.close()
        self._problem(f"cannot write {self._path}: {error.strerror}")


def _lines(held: Mapping[str, int]) -> str:
    return "".join(json.dumps(item) + "\n" for item in held.items())
