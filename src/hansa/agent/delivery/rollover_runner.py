"""Runs epoch rollovers of an outbox journal, one at a time (`epoch_rollover` builds the journal).

    schedule → delay → plan → copy in a thread (repeated while the disk is full) → adopt → clean up
    `is_pending` ───────────────────────────────────────────────────────────────┤
               `is_copying` ───────────────────────────────────────────────────┤

While a rollover is pending, capture postpones what the broker sends: the in-flight window bounds
it. While the journal is copied, changes of the old journal would be lost, so they are deferred
until the new one is adopted.
"""

import asyncio
from collections.abc import Callable

from hansa.agent import tasks
from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.epoch_rollover import EpochRollover
from hansa.agent.delivery.group_commit import GroupCommit
from hansa.agent.delivery.outbox_journal import OutboxJournal
from hansa.agent.storage.retry import run_write
from hansa.journal.crash import pass_crash_point
from hansa.journal.writer import JournalWriter

ROLLOVER_POLL_S = 0.1
"""Seconds between two looks at the due time, which `schedule` may bring forward."""


class RolloverRunner:
    """The rollover of one journal, with everything that waits for it."""

    def __init__(
        self,
        journal: OutboxJournal,
        adopt: Callable[[EpochRollover, JournalWriter], GroupCommit],
        set_alarm: Callable[[str], None],
    ) -> None:
        """`adopt` continues with the new journal and returns the committer of the old one."""
        self._journal = journal
        self._adopt = adopt
        self._set_alarm = set_alarm
        self._next_epoch = 0
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None
        self._plan: EpochRollover | None = None
        self.is_pending = False
        """Whether a rollover is scheduled or running."""
        self._postponed: list[Callable[[], None]] = []
        self._deferred: list[Callable[[], None]] = []

    @property
    def is_copying(self) -> bool:
        """Whether changes of the old journal would be lost."""
        return self._plan is not None

    def schedule(self, epoch: int, delay_s: float) -> None:
        """Start a rollover to at least `epoch` after a delay, or bring a pending one forward."""
        self._next_epoch = max(self._next_epoch, epoch)
        due = asyncio.get_running_loop().time() + delay_s
        self._due = min(self._due, due) if self.is_pending else due
        if not self.is_pending:
            self.is_pending = True
            self._task = tasks.start_task(self._run())

    def postpone(self, step: Callable[[], None]) -> None:
        """Handle something that the broker sent after the rollover."""
        self._postponed.append(step)

    def clear_postponed(self) -> None:
        """Forget what the broker sent: it sends it again on the next connection."""
        self._postponed.clear()

    def defer(self, change: Callable[[], None]) -> None:
        """Apply a change to the new journal, as part of its adoption."""
        self._deferred.append(change)

    def apply_deferred(self) -> None:
        """Apply the deferred changes; for `adopt`."""
        deferred, self._deferred = self._deferred, []
        for change in deferred:
            change()

    async def stop(self) -> None:
        """Cancel a rollover. If the new journal is not in place yet, the old one stays."""
        if self._plan is not None:
            self._plan.is_cancelled = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while (left_s := self._due - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, ROLLOVER_POLL_S))
        plan = self._plan = self._journal.plan_rollover(self._next_epoch)
        built: list[JournalWriter] = []
        while not await run_write(
            lambda: built.append(self._journal.build_rollover(plan)), self._set_alarm
        ):
            pass
        self._plan, self.is_pending = None, False
        old_commit = self._adopt(plan, built[0])
        postponed, self._postponed = self._postponed, []
        for step in postponed:
            step()
        await old_commit.stop()
        await asyncio.to_thread(self._journal.remove_ended_epochs)
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_FINISHED)
