"""Whether the agent was interrupted while it connected to its broker.

A broker that has forgotten the agent's session says so once, in its answer to CONNECT. If that
answer is lost, or the agent ends before all that follows from it is durable, the next answer speaks
of the new session as if it were the old one. A file stands for as long as that can happen.
"""

from collections.abc import Callable
from pathlib import Path

from hansa.journal.disk import sync_directory


class Greeting:
    """From CONNECT until everything is durable that its answer means."""

    def __init__(self, path: Path, problem: Callable[[str], None]) -> None:
        """Find out what a former life left. `problem` is told why the disk does not take it."""
        self._path = path
        self._problem = problem
        self.in_doubt = path.exists()
        """Whether the session that the broker says it has may be another than it was."""
        self._stands = False

    def begin(self) -> None:
        """CONNECT leaves next."""
        self.in_doubt |= self._stands
        self._stands = True
        try:
            self._path.touch(mode=0o600)
            sync_directory(self._path.parent)
        except OSError as error:
            self._problem(f"cannot write {self._path}: {error.strerror}")
        else:
            self._problem("")

    def refused(self) -> None:
        """The broker has refused it, so there is no new session."""
        self._stands = False
        if not self.in_doubt:
            self.end()

    def end(self) -> None:
        """Everything is known, and durable. If the file comes back with a power failure, the doubt
        is needless."""
        self.in_doubt = self._stands = False
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._problem(f"cannot remove {self._path}: {error.strerror}")
