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
        self._retry_at: float | None = None
        """When a failed commit is repeated."""
        self._due_at: float | None = None
        """When records that can wait are committed."""

    @property
    def deadline(self) -> float | None:
        """When `on_timer` is due."""
        if self._retry_at is None or self._due_at is None:
            return self._due_at if self._retry_at is None else self._retry_at
        return min(self._retry_at, self._due_at)

    def request(self) -> None:
        """Make everything appended so far durable. If a commit runs, another one follows it."""
        self._requested = self.log.end
        if not self._is_running:
            self._start()

    def request_within(self, delay_s: float) -> None:
        """Make everything appended so far durable with the next commit; request one after a delay
        if nothing else has done so."""
        if self._due_at is None:
            self._due_at = self._context.now + delay_s

    def _start(self) -> None:
        self._is_running, self._retry_at, self._due_at = True, None, None
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
        self._retry_at = self._context.now + RETRY_S

    def on_timer(self) -> None:
        """Repeat a failed commit if its pause has passed, or request one that is due."""
        now = self._context.now
        if self._retry_at is not None and now >= self._retry_at:
            self._start()
        elif self._due_at is not None and now >= self._due_at:
            self._due_at = None
            self.request()

    def adopt(self, log: RecordLog) -> None:
        """Continue with the log of a new epoch; a commit of the old one does not matter."""
        self.log = log
        self._is_running, self._retry_at, self._due_at = False, None, None
