"""Group commit: syncs a journal in a thread and reports each commit."""

import asyncio
from collections.abc import Callable

from hansa.agent import tasks
from hansa.agent.storage.retry import run_write
from hansa.errors import JournalUnusable
from hansa.journal.writer import JournalWriter


class GroupCommit:
    """Commits in a thread, one commit at a time. Records appended meanwhile share the next one."""

    def __init__(
        self,
        writer: JournalWriter,
        on_durable: Callable[[], None],
        set_alarm: Callable[[str], None],
    ) -> None:
        """`on_durable` is called after each commit. `set_alarm` gets the reason of each failure,
        and an empty text after the next success."""
        self._writer = writer
        self._on_durable = on_durable
        self._set_alarm = set_alarm
        self._requested_offset = 0
        self._task: asyncio.Task[None] | None = None

    def schedule(self) -> None:
        """Start a commit of everything appended so far, unless one runs; then it follows."""
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
        """Cancel the commit task and close the journal, which commits the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._writer.close)
        except JournalUnusable as error:
            self._set_alarm(str(error))
