"""The machine's wall clock as a node knows it, and what may be ahead of it.

A node reads no clock: the shell tells it the time (`events.ClockRead`), and again when the
machine's clock was set or the machine slept. Until then the node takes its own incarnation for the
time of its first input, because incarnations are times in milliseconds.

Incarnations, epochs and versions of retained values come from clocks, and the greatest wins. A
forged one from the far future would outrank all honest ones permanently, so it is refused.
"""

AHEAD_MAX_MS = 86_400_000
"""How far the clock of an honest node may be ahead of this one: a day, for a wrong time zone."""

NUMBERS_PER_MS = 1_000
"""Publications per millisecond that no origin exceeds for long: a million per second."""


AHEAD = "incarnation ahead of the clock"
EPOCH_AHEAD = "epoch ahead of the clock"


class WallClock:
    """Milliseconds since 1970, as reported by the shell."""

    def __init__(self, incarnation: int) -> None:
        """Assume the time of the incarnation until the shell reports the time."""
        self._assumed_ms = incarnation
        self._offset_ms: float | None = None
        self.now = 0.0
        """The time of the input that is being handled, in the shell's steady seconds."""

    def set_now(self, now: float) -> None:
        """An input is handled at `now`."""
        self.now = now
        if self._offset_ms is None:
            self._offset_ms = self._assumed_ms - now * 1000

    def read(self, wall_ms: int, now: float) -> None:
        """The wall clock shows this time now."""
        self.now = now
        self._offset_ms = wall_ms - now * 1000

    @property
    def ms(self) -> int:
        """The wall clock's time."""
        return int((self._offset_ms or 0.0) + self.now * 1000)

    @property
    def limit_ms(self) -> int:
        """The greatest incarnation or epoch that an honest node may have now."""
        return self.ms + AHEAD_MAX_MS

    def numbers_max(self, began_ms: int) -> int:
        """Return the greatest version or number that a node may have reached since an incarnation
        or an epoch began: more would need more than a million changes a second."""
        return max(0, self.limit_ms + AHEAD_MAX_MS - began_ms) * NUMBERS_PER_MS

    def number_refusal(self, incarnation: int, number: int, what: str) -> str | None:
        """Return why an incarnation, or a number since it began, is too great to be honest."""
        limit_ms = self.limit_ms
        if incarnation > limit_ms:
            return AHEAD
        if number <= limit_ms - incarnation:  # spares most calls the exact bound
            return None
        is_too_great = number > self.numbers_max(incarnation)
        return f"{what} out of bounds" if is_too_great else None
