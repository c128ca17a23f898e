"""Deadlines: the earliest of several, any of which may be missing; and tables of many."""

import math
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K")


def earliest(*dues: float | None) -> float | None:
    """Return the earliest, None if there is none. Asked after every input, so it is kept plain."""
    first: float | None = None
    for due in dues:
        if due is not None and (first is None or due < first):
            first = due
    return first


class Timetable(Generic[K]):
    """What is due when. Looking costs nothing while nothing is."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._times: dict[K, float] = {}
        self.due = math.inf
        """When something is next due; maybe a little before it."""

    def __contains__(self, key: K) -> bool:
        """Whether something waits for its time."""
        return key in self._times

    def put(self, key: K, at: float) -> None:
        """Let something be due at a time, instead of the one before."""
        self._times[key] = at
        self.due = min(self.due, at)

    def take(self, now: float, most: int | None = None) -> list[K]:
        """Return what is due, and forget it; so many at a time."""
        if self.due > now:
            return []
        found = list(islice((key for key, at in self._times.items() if at <= now), most))
        for key in found:
            del self._times[key]
        self.due = min(self._times.values(), default=math.inf)
        return found
