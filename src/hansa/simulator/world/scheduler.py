"""Virtual time: a queue of calls.

Calls due at the same time run in the order in which they were scheduled, so runs are reproducible.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class Scheduler:
    """A queue of calls ordered by time."""

    __slots__ = ("_calls", "_times", "now", "order")

    def __init__(self) -> None:
        self.now = 0.0
        self.order = 0
        """The number of calls scheduled so far."""
        self._times: list[float] = []  # a heap
        self._calls: dict[float, deque[tuple[Callable[..., None], tuple[object, ...]]]] = {}

    def at(self, time: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call. A time in the past means now."""
        self._put(max(time, self.now), call, arguments)

    def after(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call in `delay` seconds."""
        self._put(self.now + delay, call, arguments)

    def _put(self, time: float, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        self.order += 1
        calls = self._calls.get(time)
        if calls is None:
            calls = self._calls[time] = deque()
            heapq.heappush(self._times, time)
        calls.append((call, arguments))

    def run_until(self, until: float) -> None:
        """Run all calls due by `until`, including those scheduled meanwhile; then set the time to
        `until`."""
        times = self._times
        while times and times[0] <= until:
            self.now = times[0]
            calls = self._calls[self.now]
            while calls:
                call, arguments = calls.popleft()
                call(*arguments)
            del self._calls[heapq.heappop(times)]
        self.now = until


class BatchedCalls:
    """Passes items to a call after a delay. Items that directly follow each other share one call,
    so the order of all calls is the same as with one call for each."""

    __slots__ = ("_call", "_delay", "_items", "_last", "_scheduler")

    def __init__(
        self, scheduler: Scheduler, delay: float, call: Callable[[int, list[Any]], None]
    ) -> None:
        """`call` gets the key and the items."""
        self._scheduler = scheduler
        self._delay = delay
        self._call = call
        self._items: list[Any] | None = None
        """The items of the newest call, until it runs."""
        self._last = (0, 0.0, 0)
        """Its key, when it was scheduled, and the number of calls then."""

    def add(self, key: int, items: Sequence[Any]) -> None:
        scheduler = self._scheduler
        if self._items is not None and self._last == (key, scheduler.now, scheduler.order):
            self._items += items
            return
        self._items = [*items]
        scheduler.after(self._delay, self._run, key, self._items)
        self._last = (key, scheduler.now, scheduler.order)

    def _run(self, key: int, items: list[Any]) -> None:
        if items is self._items:
            self._items = None
        self._call(key, items)
