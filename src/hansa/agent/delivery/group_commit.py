"""Makes a journal durable whenever somebody waits for it, and says how far it is."""

import asyncio
from collections.abc import Callable

from hansa.agent import tasks
from hansa.errors import JournalUnusable, UsageError
from hansa.journal.writer import Writer

RETRY_S = 1.0
"""Seconds until the disk is tried again."""


async def written(write: Callable[[], object], problem: Callable[[str], None]) -> bool:
    """Let a thread write something, and return whether it could. If not, `problem` is told why, and
    it is time to try again; if so, an empty text."""
    try:
        await asyncio.to_thread(write)
    except UsageError as error:
        problem(str(error))
        await asyncio.sleep(RETRY_S)
        return False
    problem("")
    return True


class Commits:
    """Commits in a thread, one at a time; what is appended meanwhile shares the next one."""

    def __init__(
        self, writer: Writer, durable: Callable[[], None], problem: Callable[[str], None]
    ) -> None:
        """`durable` is called after each commit; `problem` is told why there is none, and an empty
        text when there is one again."""
        self._writer = writer
        self._durable = durable
        self._problem = problem
        self._wanted = 0
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Make everything durable that was appended so far."""
        self._wanted = self._writer.end
        if self._task is None:
            self._task = tasks.start(self._run())

    async def _run(self) -> None:
        try:
            while self._writer.durable < self._wanted:
                if await written(self._writer.commit, self._problem):
                    self._durable()
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
            self._problem(str(error))
