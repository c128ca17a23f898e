"""Stops an agent in bounded time, whatever its parts wait for: a broker or neighbour that does not
read, a slow disk, a busy thread.

Each part has PART_TIMEOUT_S to stop. A part that needs longer is logged and abandoned. The whole
process ends after STOP_TIMEOUT_S at the latest, by force if necessary. Nothing acknowledged is
lost: records are durable before they are acknowledged, and a start after `kill -9` is the same as a
start after a clean stop (docs/delivery.md).
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue

log = logging.getLogger("hansa.agent")

STOP_TIMEOUT_S = 8.0
"""Longest time in seconds from the signal to the end of the process."""

PART_TIMEOUT_S = 3.0
"""Longest time in seconds that one part may take to stop."""

LOG_TIMEOUT_S = 0.5
"""Longest time in seconds that the last log line may take: the reader of the log may be stuck."""


class Shutdown:
    """The bounded stop of one agent."""

    def __init__(
        self,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        part_timeout_s: float = PART_TIMEOUT_S,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._part_timeout_s = part_timeout_s
        self._exit_process = exit_process
        self._exit_code = 0
        self._is_begun = False
        self._wake_watchdog: SimpleQueue[None] = SimpleQueue()  # a signal handler may call `put`
        self._current = "its loop"  # until the first part stops, the loop has other work
        self._late_parts: list[str] = []
        self._fault: BaseException | None = None
        self._watchdog: threading.Thread | None = None

    def handle_signals(self, stop: Callable[[], object]) -> None:
        """At SIGTERM and SIGINT, start the clock and have the running loop call `stop`.

        The handlers of an event loop would start the clock only when the loop gets to them. These
        run between any two steps of Python code, and while the loop waits or sleeps.
        """
        loop = asyncio.get_running_loop()

        def handle(*_: object) -> None:
            if not self._is_begun:
                self.begin()
                with suppress(RuntimeError):  # the loop has just ended
                    loop.call_soon_threadsafe(stop)

        self._start_watchdog()  # now: starting a thread in a signal handler can deadlock
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    def begin(self, exit_code: int = 0) -> None:
        """Start the clock; if the process has to be forced, it ends with this code."""
        if not self._is_begun:
            self._is_begun = True
            self._exit_code = exit_code
            self._wake_watchdog.put(None)
            self._start_watchdog()

    def _start_watchdog(self) -> None:
        if self._watchdog is None:
            self._watchdog = threading.Thread(target=self._watch, name="stopping", daemon=True)
            self._watchdog.start()

    async def stop_part(self, name: str, work: Awaitable[object]) -> None:
        """Stop one part, or abandon it after a timeout. `end` raises its fault."""
        self._current = name
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=self._part_timeout_s)
        if not done:
            self._late_parts.append(name)
            task.cancel()
            log.warning("part did not stop in time part=%r seconds=%g", name, self._part_timeout_s)
        elif not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault

    def end(self) -> None:
        """All parts have stopped or timed out; raise the first fault. If some timed out, the
        process ends here: closing the loop would wait for them."""
        if self._late_parts and self._fault is None:
            self._force(f"without {', '.join(self._late_parts)}")
        self._current = "threads that are still busy"
        if self._fault is not None:
            raise self._fault

    def _watch(self) -> None:
        """Run in a daemon thread, which ends with the process."""
        self._wake_watchdog.get()
        time.sleep(self._stop_timeout_s)
        self._force(f"after {self._stop_timeout_s:g} s, while it waited for {self._current}")

    def _force(self, text: str) -> None:
        last = threading.Thread(target=_log_force, args=(text,), daemon=True)
        last.start()
        last.join(LOG_TIMEOUT_S)
        self._exit_process(self._exit_code)


def _log_force(text: str) -> None:
    log.warning("agent ends by force %s: nothing that was acknowledged is lost", text)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
