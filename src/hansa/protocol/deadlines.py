"""Deadlines: the earliest of several optional ones, and a table of many."""

import math
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")


def earliest(*deadlines: float | None) -> float | None:
    """Return the earliest deadline, None if there is none. Called after every event, so it is kept
    simple."""
    first: float | None = None
    for due in deadlines:
        if due is not None and (first is None or due < first):
            first = due
    return first


class DeadlineTable(Generic[K]):
    """Deadlines by key. Checking is one comparison while nothing is due."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        self.next_due = math.inf
        """A lower bound of the next deadline."""

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def schedule(self, key: K, at: float) -> None:
        """Set the deadline of a key, replacing an earlier one."""
        self._deadlines[key] = at
        self.next_due = min(self.next_due, at)

    def pop_due(self, now: float, max_count: int | None = None) -> list[K]:
        """Remove and return keys that are due, at most `max_count`."""
        if self.next_due > now:
            return []
        found = list(islice((key for key, at in self._deadlines.items() if at <= now), max_count))
        for key in found:
            del self._deadlines[key]
        self.next_due = min(self._deadlines.values(), default=math.inf)
        return found
