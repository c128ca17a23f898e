"""Whether the agent was interrupted while it connected to its broker.

A broker that has forgotten the agent's session says so once, in its answer to CONNECT. If that
answer is lost, or the agent ends before all that follows from it is durable, the next answer speaks
of the new session as if it were the old one. A file stands for as long as that can happen: CONNECT
waits until it is durable, and nothing else does.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from hansa.journal.disk import sync_directory

UNSURE = (
    "connecting was interrupted: if the broker forgot the agent's session just then, publications "
    "under way may be lost or come twice"
)


class Greeting:
    """From CONNECT until everything is durable that its answer means."""

    def __init__(self, path: Path, problem: Callable[[str], None]) -> None:
        """Find out what a former life left. `problem` is told why the disk does not take it."""
        self._path = path
        self._problem = problem
        self.in_doubt = path.exists()
        """Whether the session that the broker says it has may be another than it was."""
        self._is_asked = False
        self._is_lost = False

    async def begin(self) -> None:
        """CONNECT leaves when this returns."""
        self.in_doubt |= self._is_asked
        self._is_asked = True
        try:
            await asyncio.to_thread(self._mark)
        except OSError as error:
            self._problem(f"cannot write {self._path}: {error.strerror}")
        else:
            self._problem("")

    def _mark(self) -> None:
        self._path.touch(mode=0o600)
        sync_directory(self._path.parent)

    def refused(self) -> None:
        """The broker has refused it, or it did not leave: there is no new session."""
        self._is_asked = False
        self._end()

    def kept(self) -> None:
        """The broker has kept the session."""
        self._is_asked = self.in_doubt = False
        self._end()

    def lost(self) -> None:
        """The broker has forgotten the session; `noted` is called when that is durable."""
        self._is_asked = self.in_doubt = False
        self._is_lost = True

    def noted(self) -> None:
        """All losses are durable."""
        self._is_lost = False
        self._end()

    def _end(self) -> None:
        """If everything is known and durable, let the file go. If it comes back with a power
        failure, the doubt is needless."""
        if self._is_asked or self.in_doubt or self._is_lost:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._problem(f"cannot remove {self._path}: {error.strerror}")
