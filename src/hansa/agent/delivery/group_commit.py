"""Makes a journal durable whenever somebody waits for it, and says how far it is."""

import asyncio
from collections.abc import Callable

from hansa.agent import tasks
from hansa.errors import JournalUnusable, UsageError
from hansa.journal.writer import JournalWriter

RETRY_S = 1.0
"""Seconds until the disk is tried again."""


async def run_write(write: Callable[[], object], set_alarm: Callable[[str], None]) -> bool:
    """Let a thread write something, and return whether it could. If not, `problem` is told why, and
    it is time to try again; if so, an empty text."""
    try:
        await asyncio.to_thread(write)
    except UsageError as error:
        set_alarm(str(error))
        await asyncio.sleep(RETRY_S)
        return False
    set_alarm("")
    return True


class GroupCommit:
    """Commits in a thread, one at a time; what is appended meanwhile shares the next one."""

    def __init__(
        self,
        writer: JournalWriter,
        on_durable: Callable[[], None],
        set_alarm: Callable[[str], None],
    ) -> None:
        """`durable` is called after each commit; `problem` is told why there is none, and an empty
        text when there is one again."""
        self._writer = writer
        self._on_durable = on_durable
        self._set_alarm = set_alarm
        self._requested_offset = 0
        self._task: asyncio.Task[None] | None = None

    def schedule(self) -> None:
        """Make everything durable that was appended so far."""
        self._requested_offset = self._writer.end
        if self._task is None:
            self._task = tasks.start_task(self._run())

    async def _run(self) -> None:
        try:
            while self._writer.durable < self._requested_offset:
                if await run_write(self._writer.commit, self._set_alarm):
                    self._on_durable()
        finally:
            self._task = None

    async def stop(self) -> None:
        """Commit no more, and close the journal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._writer.close)
        except JournalUnusable as error:
            self._set_alarm(str(error))
