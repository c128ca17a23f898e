"""Group commit: one commit of a log at a time; records appended meanwhile share the next one."""

from hansa.delivery.context import Context
from hansa.delivery.effects import Commit, LogName
from hansa.delivery.log import RecordLog

RETRY_S = 1.0
"""Seconds from a failed write to the next attempt."""


class GroupCommit:
    """Requests the commits of one log."""

    def __init__(self, context: Context, name: LogName, log: RecordLog) -> None:
        self._context = context
        self._name = name
        self.log = log
        self._requested = 0
        self._is_running = False
        self.retry_at: float | None = None
        """When a failed commit is repeated."""

    def request(self) -> None:
        """Make everything appended so far durable. If a commit runs, another one follows it."""
        self._requested = self.log.end
        if not self._is_running:
            self._start()

    def _start(self) -> None:
        self._is_running, self.retry_at = True, None
        self._context.effects.append(Commit(self._name))

    def on_committed(self) -> None:
        """A commit has succeeded."""
        self._context.set_alarm(self._name.alarm, "")
        self._is_running = False

    def continue_if_needed(self) -> None:
        """Commit what was requested meanwhile."""
        if not self._is_running and self.log.durable < self._requested:
            self._start()

    def on_failed(self, reason: str) -> None:
        """A commit has failed: try again after a pause."""
        self._context.set_alarm(self._name.alarm, reason)
        self.retry_at = self._context.now + RETRY_S

    def on_timer(self) -> None:
        """Repeat a failed commit if its pause has passed."""
        if self.retry_at is not None and self._context.now >= self.retry_at:
            self._start()

    def adopt(self, log: RecordLog) -> None:
        """Continue with the log of a new epoch; a commit of the old one does not matter."""
        self.log = log
        self._is_running, self.retry_at = False, None
