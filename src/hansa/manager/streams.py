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
STREAMS_PER_NODE_MAX = 8
"""Streams of one node that shows its certificate; an agent needs one."""

KEEP_ALIVE_S = 10.0
"""Seconds without an event after which a comment keeps the connection alive."""

KEEP_ALIVE = ": still here\n\n"

ROWS_PER_READ = 100


class EventStreams:
    def __init__(self, store: ManagerStore) -> None:
        self._store = store
        self._wakeups: dict[asyncio.Event, int | None] = {}
        """The open streams, and the nodes that they are for."""
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

    async def open(self, after: int | None, only: int | None = None) -> AsyncIterator[str]:
        """Return a stream of the changes after a number, or from now on; with `only` those of one
        node and of settings. It counts from its first event until it is closed."""
        if len(self._wakeups) >= STREAMS_MAX:
            raise RequestRefused(429, f"{STREAMS_MAX} streams are open; try again later")
        of_node = [each for each in self._wakeups.values() if each == only]
        if only is not None and len(of_node) >= STREAMS_PER_NODE_MAX:
            raise RequestRefused(429, f"{STREAMS_PER_NODE_MAX} streams of this node are open")
        self._loop = asyncio.get_running_loop()
        return self._follow(self._store.version if after is None else after, only)

    async def _follow(self, after: int, only: int | None) -> AsyncIterator[str]:
        wakeup = asyncio.Event()
        wakeup.set()
        self._wakeups[wakeup] = only
        try:
            yield ": changes\n\n"
            while not self._is_closed:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await wakeup.wait()
                except TimeoutError:
                    yield KEEP_ALIVE
                    continue
                wakeup.clear()
                while rows := await asyncio.to_thread(self._store.history, after, ROWS_PER_READ):
                    shown = [row for row in rows if only is None or _concerns(row, only)]
                    for row in shown:
                        yield format_event(row)
                    if not shown:
                        yield KEEP_ALIVE
                    after = rows[-1].number
        finally:
            del self._wakeups[wakeup]


def _concerns(row: HistoryRow, number: int) -> bool:
    """Whether a change is one of a node, or of settings."""
    return number in row.nodes or not row.nodes


def format_event(row: HistoryRow) -> str:
    """Return a change as a server-sent event."""
    data = json.dumps(
        {"at": format_time(row.at), "nodes": row.nodes, "reason": row.reason, "kind": row.kind}
    )
    return f"id: {row.number}\nevent: {row.kind}\ndata: {data}\n\n"
