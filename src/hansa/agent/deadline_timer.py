"""One timer for the next deadline of a state machine."""

import asyncio
import math
from collections.abc import Callable


class DeadlineTimer:
    """Calls back at the earliest deadline, or earlier: deadlines are postponed all the time, so a
    timer that is set for an earlier time is left alone."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._handle: asyncio.Handle | None = None
        self._due = math.inf  # kept here: for a time that has passed, uvloop returns no TimerHandle

    def schedule(self, due: float) -> None:
        """Call back at `due`, in the time of the event loop, unless a call is due before."""
        if self._handle is not None:
            if self._due <= due:
                return
            self._handle.cancel()
        self._due = due
        self._handle = asyncio.get_running_loop().call_at(due, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()
