"""Server-sent events for the web page: `/stream`.

A stream carries documents that change, such as the overview. Each is made only while a client
follows it, once for all clients. A client that reads slowly gets the newest version of each
document and misses those in between, so that memory is bounded.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

import msgspec

from hansa.agent import tasks

CLIENTS_MAX = 16
"""Streams at the same time; further ones are refused with 503."""

DocumentSource = Callable[[], AsyncGenerator[object, None]]
"""Yields a document whenever it has changed; closed when no client follows it any more."""


def format_event(name: str, document: object) -> bytes:
    """Return a server-sent event. JSON of msgspec has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(document))


class _Client:
    def __init__(self, followed: frozenset[str]) -> None:
        self.followed = followed
        self.unsent: dict[str, bytes] = {}
        """The newest version of each document."""
        self.wake = asyncio.Event()


class DocumentStreams:
    """All open streams of an agent."""

    def __init__(self, sources: Mapping[str, DocumentSource]) -> None:
        self.counters: Counter[str] = Counter()
        self._sources = sources
        self._clients: dict[_Client, None] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._newest: dict[str, bytes] = {}
        self._is_closed = False

    def refusal(self, names: Iterable[str]) -> tuple[int, str] | None:
        """Return status and reason if a stream of these documents is refused."""
        if unknown := sorted(set(names) - set(self._sources)):
            known = ", ".join(self._sources)
            return 400, f"there is no document {unknown[0]!r}; there are {known}"
        if len(self._clients) >= CLIENTS_MAX or self._is_closed:
            self.counters["refused: too many open streams"] += 1
            return 503, f"{CLIENTS_MAX} streams are open, which is the limit: close other pages"
        return None

    def open(self, names: Iterable[str]) -> AsyncGenerator[bytes, None]:
        """Return the events of these documents, the newest known ones first; ask `refusal` before.
        A stream counts from the time when its first event is awaited until it is closed."""
        return self._follow(_Client(frozenset(names)))

    async def _follow(self, client: _Client) -> AsyncGenerator[bytes, None]:
        self._clients[client] = None
        try:
            for name in sorted(client.followed):
                if name not in self._tasks:
                    self._tasks[name] = tasks.start_task(self._run_source(name))
                elif name in self._newest:
                    yield self._newest[name]
            while not self._is_closed:
                client.wake.clear()
                unsent, client.unsent = client.unsent, {}
                for event in unsent.values():
                    yield event
                if not client.unsent and not self._is_closed:
                    await client.wake.wait()
        finally:
            self._discard(client)

    def _discard(self, client: _Client) -> None:
        """End a client, and the documents that no other client follows."""
        self._clients.pop(client, None)
        followed = {name for each in self._clients for name in each.followed}
        for name in [name for name in self._tasks if name not in followed]:
            self._tasks.pop(name).cancel()
            self._newest.pop(name, None)

    async def _run_source(self, name: str) -> None:
        source = self._sources[name]()
        try:
            async for document in source:
                event = self._newest[name] = format_event(name, document)
                for client in self._clients:
                    if name in client.followed:
                        client.unsent[name] = event
                        client.wake.set()
        finally:
            await source.aclose()

    def close(self) -> None:
        """End all streams: the agent stops."""
        self._is_closed = True
        for client in self._clients:
            client.wake.set()
