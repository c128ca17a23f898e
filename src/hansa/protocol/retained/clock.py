"""The hybrid logical clock that versions of retained values come from."""

from hansa.protocol.clock import WallClock

TICKS = 1 << 16
"""Versions in a millisecond."""

AHEAD_MAX_S = 300.0
"""How far the version of a retained value may be ahead of this node's clock. Whoever is ahead wins
over everybody else's writes for as long, so this is short: synchronised clocks differ by less."""


class Versions:
    """Greater than all that were seen, and than those of earlier times."""

    def __init__(self, greatest: int, clock: WallClock) -> None:
        """Go on from the greatest that is known."""
        self._greatest = greatest
        self.clock = clock

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
        return (self.clock.ms + int(from_now_s * 1000)) * TICKS
