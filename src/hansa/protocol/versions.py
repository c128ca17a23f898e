"""The clock that versions of retained values come from: it follows time, and what it has seen."""

TICKS = 1 << 16
"""Versions in a millisecond."""

AHEAD_MAX_S = 86_400.0
"""How far a clock may be ahead of this one: what comes from further is not kept."""


class Versions:
    """Greater than all that were seen, and than those of earlier times."""

    def __init__(self, greatest: int) -> None:
        """Go on from the greatest that is known."""
        self._greatest = greatest
        self._origin: float | None = None
        self.now = 0.0

    def tell_time(self, incarnation: int, now: float) -> bool:
        """It is `now`; an incarnation is a time in milliseconds. Return whether this is the first
        that is heard of it."""
        self.now = now
        if self._origin is not None:
            return False
        self._origin = incarnation / 1000 - now
        return True

    def next(self) -> int:
        """Return the version of what is published now."""
        self._greatest = max(self._greatest + 1, self.at(0.0))
        return self._greatest

    def see(self, version: int) -> None:
        """Never return one as small again."""
        self._greatest = max(self._greatest, version)

    def is_sound(self, version: int) -> bool:
        """Whether a version may be of this time, as far as clocks may differ."""
        return version <= self.at(AHEAD_MAX_S)

    def at(self, from_now_s: float) -> int:
        """Return the first version of a time."""
        return int(((self._origin or 0.0) + self.now + from_now_s) * 1000) * TICKS
