"""The hybrid logical clock that versions of retained values come from."""

from hansa.protocol.clock import WallClock

VERSIONS_PER_MS = 1 << 16
"""Versions in a millisecond."""

AHEAD_MAX_S = 300.0
"""How far the version of a retained value may be ahead of this node's clock. A node that is ahead
overrides the writes of others for that long, so this is short: synchronised clocks differ by
less."""


class HybridClock:
    """Versions greater than all observed ones, and than those of earlier times."""

    def __init__(self, greatest: int, clock: WallClock) -> None:
        self._latest = greatest
        self.clock = clock

    def next_version(self) -> int:
        """Return the version of a publication made now."""
        self._latest = max(self._latest + 1, self.version_at(0.0))
        return self._latest

    def observe(self, version: int) -> None:
        """Never return a version as small as this one."""
        self._latest = max(self._latest, version)

    def is_plausible(self, version: int) -> bool:
        """Whether a version may be of this time, considering that clocks differ."""
        return version <= self.version_at(AHEAD_MAX_S)

    def version_at(self, from_now_s: float) -> int:
        """Return the first version of a time."""
        return (self.clock.ms + int(from_now_s * 1000)) * VERSIONS_PER_MS
