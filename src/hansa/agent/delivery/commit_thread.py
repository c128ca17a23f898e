"""A thread that commits one log.

An agent commits thousands of times per second. `asyncio.to_thread` costs a task, a future and a
copied context each time, twice the CPU of this thread.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

OnCommitEnded = Callable[[Exception | None], None]
"""Called in the event loop after a commit, with the error if it failed."""


class CommitThread:
    """Runs commits one after another."""

    def __init__(self) -> None:
        self._commits: SimpleQueue[tuple[Callable[[], object], OnCommitEnded] | None]
        self._commits = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start_commit(self, commit: Callable[[], object], on_ended: OnCommitEnded) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, args=(loop,), daemon=True)
            self._thread.start()
        self._commits.put((commit, on_ended))

    async def stop(self) -> None:
        """Wait until all commits have ended."""
        if self._thread is not None:
            self._commits.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (request := self._commits.get()) is not None:
            commit, on_ended = request
            error: Exception | None = None
            try:
                commit()
            except Exception as fault:  # noqa: BLE001 - the event loop reports it
                error = fault
            with suppress(RuntimeError):  # the loop was closed: the process ends
                loop.call_soon_threadsafe(on_ended, error)
