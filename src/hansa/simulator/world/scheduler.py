"""Virtual time: a queue of calls.

Calls due at the same time run in the order in which they were scheduled, so runs are reproducible.
"""

import heapq
from collections.abc import Callable


class Scheduler:
    """A queue of calls ordered by time."""

    __slots__ = ("_order", "_queue", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []

    def at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call. A time in the past means now."""
        self._order += 1
        heapq.heappush(self._queue, (max(time, self.now), self._order, call, arguments))

    def after(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call in `delay` seconds."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay, self._order, call, arguments))

    def run_until(self, until: float) -> None:
        """Run all calls due by `until`, including those scheduled meanwhile; then set the time to
        `until`."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(queue)
            call(*arguments)
        self.now = until
