"""The live event stream: what changes, told to whoever listens, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

from hansa.manager.bodies import moment
from hansa.manager.exchange import Refused
from hansa.manager.rows import HistoryRow
from hansa.manager.store import Store

STREAMS_MAX = 1_024
KEEP_ALIVE_S = 10.0
"""Seconds of silence after which a comment shows that the stream still stands."""

PAGE = 100


class Streams:
    """Everybody who listens. What they are told is read from the history, so nothing piles up."""

    def __init__(self, store: Store) -> None:
        """Start with nobody listening."""
        self._store = store
        self._waiting: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    def told(self, _: list[HistoryRow]) -> None:
        """Something has changed; any thread may say so."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            waiting.set()

    async def open(self, after: int | None) -> AsyncIterator[str]:
        """Return what changes after a number, or from now on, for as long as it is listened to."""
        if len(self._waiting) >= STREAMS_MAX:
            raise Refused(429, f"{STREAMS_MAX} streams are open; try again later")
        self._loop = asyncio.get_running_loop()
        news = asyncio.Event()
        news.set()
        self._waiting.add(news)
        return self._follow(news, self._store.version if after is None else after)

    async def _follow(self, news: asyncio.Event, after: int) -> AsyncIterator[str]:
        try:
            yield ": what changes\n\n"
            while not self._ended:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await news.wait()
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                news.clear()
                while rows := await asyncio.to_thread(self._store.history, after, PAGE):
                    for row in rows:
                        yield as_event(row)
                    after = rows[-1].number
        finally:
            self._waiting.discard(news)


def as_event(row: HistoryRow) -> str:
    """Return a change as an event of a stream."""
    data = json.dumps(
        {"at": moment(row.at), "nodes": row.nodes, "reason": row.reason, "kind": row.kind}
    )
    return f"id: {row.number}\nevent: {row.kind}\ndata: {data}\n\n"
