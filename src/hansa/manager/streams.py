"""The live event stream: what changes, told to whoever listens, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

from hansa.manager.bodies import format_time
from hansa.manager.exchange import RequestRefused
from hansa.manager.rows import HistoryRow
from hansa.manager.store import ManagerStore

STREAMS_MAX = 1_024
KEEP_ALIVE_S = 10.0
"""Seconds of silence after which a comment shows that the stream still stands."""

ROWS_PER_READ = 100


class EventStreams:
    """Everybody who listens. What they are told is read from the history, so nothing piles up."""

    def __init__(self, store: ManagerStore) -> None:
        """Start with nobody listening."""
        self._store = store
        self._wakeups: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def on_history(self, _: list[HistoryRow]) -> None:
        """Something has changed; any thread may say so."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_all)

    def close_all(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._wake_all()

    def _wake_all(self) -> None:
        for waiting in self._wakeups:
            waiting.set()

    async def open(self, after: int | None) -> AsyncIterator[str]:
        """Return what changes after a number, or from now on, for as long as it is listened to."""
        if len(self._wakeups) >= STREAMS_MAX:
            raise RequestRefused(429, f"{STREAMS_MAX} streams are open; try again later")
        self._loop = asyncio.get_running_loop()
        wakeup = asyncio.Event()
        wakeup.set()
        self._wakeups.add(wakeup)
        return self._follow(wakeup, self._store.version if after is None else after)

    async def _follow(self, wakeup: asyncio.Event, after: int) -> AsyncIterator[str]:
        try:
            yield ": what changes\n\n"
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
    """Return a change as an event of a stream."""
    data = json.dumps(
        {"at": format_time(row.at), "nodes": row.nodes, "reason": row.reason, "kind": row.kind}
    )
    return f"id: {row.number}\nevent: {row.kind}\ndata: {data}\n\n"
