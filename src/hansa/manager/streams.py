"""Server-sent events: changes of the federation, streamed to clients from the history.

Events are read from the database, so a slow client needs no buffer and can resume by number.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from hansa.manager.rows import HistoryRow
from hansa.manager.schemas import format_time
from hansa.manager.store import ManagerStore
from hansa.manager.types import RequestRefused

STREAMS_MAX = 1_024
KEEP_ALIVE_S = 10.0
"""Seconds without an event after which a comment keeps the connection alive."""

ROWS_PER_READ = 100


class EventStreams:
    def __init__(self, store: ManagerStore) -> None:
        self._store = store
        self._wakeups: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def on_history(self, _: list[HistoryRow]) -> None:
        """Wake all streams; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_all)

    def close_all(self) -> None:
        self._is_closed = True
        self._wake_all()

    def _wake_all(self) -> None:
        for waiting in self._wakeups:
            waiting.set()

    async def open(self, after: int | None) -> AsyncIterator[str]:
        """Return a stream of the changes after a number, or from now on."""
        if len(self._wakeups) >= STREAMS_MAX:
            raise RequestRefused(429, f"{STREAMS_MAX} streams are open; try again later")
        self._loop = asyncio.get_running_loop()
        wakeup = asyncio.Event()
        wakeup.set()
        self._wakeups.add(wakeup)
        return self._follow(wakeup, self._store.version if after is None else after)

    async def _follow(self, wakeup: asyncio.Event, after: int) -> AsyncIterator[str]:
        try:
            yield ": changes\n\n"
            while not self._is_closed:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await wakeup.wait()
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                wakeup.clear()
                while rows := await asyncio.to_thread(self._store.history, after, ROWS_PER_READ):
                    for row in rows:
                        yield format_event(row)
                    after = rows[-1].number
        finally:
            self._wakeups.discard(wakeup)


def format_event(row: HistoryRow) -> str:
    """Return a change as a server-sent event."""
    data = json.dumps(
        {"at": format_time(row.at), "nodes": row.nodes, "reason": row.reason, "kind": row.kind}
    )
    return f"id: {row.number}\nevent: {row.kind}\ndata: {data}\n\n"
