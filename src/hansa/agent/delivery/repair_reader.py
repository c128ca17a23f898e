"""Reads pending publications from the outbox journal in threads, for receivers that missed them.

Each ReadJournal command gets exactly one JournalRead event, an empty one if reading fails: without
it the node would never read for this receiver again. At most JOURNAL_READERS_MAX threads read at a
time, so that commits find a free thread.
"""

import asyncio
from collections.abc import Callable

from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.delivery.outbox_files import OutboxFiles
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead

JOURNAL_READERS_MAX = 2


class RepairReader:
    """The running reads of one journal."""

    def __init__(
        self, outbox: OutboxFiles, feed: Callable[[JournalRead], None], alarms: Alarms
    ) -> None:
        """`feed` hands the result to the node."""
        self._outbox = outbox
        self._feed = feed
        self._alarms = alarms
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(JOURNAL_READERS_MAX)

    def start(self, command: ReadJournal) -> None:
        """Read in the background, unless the agent stops."""
        if not self._outbox.is_stopping:
            task = tasks.start_task(self._read(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel all reads; no more events follow."""
        self._outbox.is_stopping = True
        for task in self._tasks:
            task.cancel()

    async def _read(self, command: ReadJournal) -> None:
        result = JournalRead(command.receiver, command.epoch, command.after, command.after, ())
        try:
            async with self._slots:
                result = await asyncio.to_thread(self._outbox.read_journal, command)
            self._alarms.set("journal damaged", self._outbox.damage_text)
            self._alarms.set("journal unreadable", self._outbox.read_error)
        finally:
            if not self._outbox.is_stopping:
                self._feed(result)
