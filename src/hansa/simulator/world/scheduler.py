"""Virtual time: what is to happen when. Knows nothing about who it happens to.

Things due at the same moment happen in the order in which they were planned, so a run is the same
run every time.
"""

import heapq
from collections.abc import Callable


class Scheduler:
    """A queue of calls ordered by time."""

    __slots__ = ("_order", "_queue", "now")

    def __init__(self) -> None:
        """Start at time 0 with nothing to do."""
        self.now = 0.0
        self._order = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []

    def at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        """Plan a call. A time in the past means now."""
        self._order += 1
        heapq.heappush(self._queue, (max(time, self.now), self._order, call, arguments))

    def after(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        """Plan a call so many seconds from now."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay, self._order, call, arguments))

    def run_until(self, until: float) -> None:
        """Make all calls that are due by `until`, and those that they plan; end at that time."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(queue)
            call(*arguments)
        self.now = until
