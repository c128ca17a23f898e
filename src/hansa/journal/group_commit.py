"""Group commit for asyncio: many wait, one thread syncs, and nobody blocks the loop."""

import asyncio

from hansa.journal.writer import Writer


class GroupCommit:
    """Commits a journal whenever somebody waits for it. While one commit runs, others gather."""

    def __init__(self, writer: Writer) -> None:
        """Commit for this writer, whose appends all happen in the loop's thread."""
        self._writer = writer
        self._running: asyncio.Future[int] | None = None

    async def durable(self, offset: int) -> None:
        """Return when the record at this offset is durable; raise what `Writer.commit` raises."""
        while self._writer.durable <= offset:
            if self._running is None or self._running.done():
                self._running = asyncio.ensure_future(asyncio.to_thread(self._writer.commit))
                self._running.add_done_callback(_seen)
            # Shielded: who stops waiting does not stop it for the others.
            await asyncio.shield(self._running)


def _seen(done: asyncio.Future[int]) -> None:
    """Take the outcome of a commit that nobody waits for any more; the next one will tell."""
    if not done.cancelled():
        done.exception()
