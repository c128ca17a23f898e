"""Deadlines: the earliest of several, any of which may be missing; and tables of many."""

import math
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")


def earliest(*deadlines: float | None) -> float | None:
    """Return the earliest, None if there is none. Asked after every input, so it is kept plain."""
    first: float | None = None
    for due in deadlines:
        if due is not None and (first is None or due < first):
            first = due
    return first


class DeadlineTable(Generic[K]):
    """What is due when. Looking costs nothing while nothing is."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._deadlines: dict[K, float] = {}
        self.next_due = math.inf
        """When something is next due; maybe a little before it."""

    def __contains__(self, key: K) -> bool:
        """Whether something waits for its time."""
        return key in self._deadlines

    def schedule(self, key: K, at: float) -> None:
        """Let something be due at a time, instead of the one before."""
        self._deadlines[key] = at
        self.next_due = min(self.next_due, at)

    def pop_due(self, now: float, max_count: int | None = None) -> list[K]:
        """Return what is due, and forget it; so many at a time."""
        if self.next_due > now:
            return []
        found = list(islice((key for key, at in self._deadlines.items() if at <= now), max_count))
        for key in found:
            del self._deadlines[key]
        self.next_due = min(self._deadlines.values(), default=math.inf)
        return found
