"""Watches the machine's wall clock: whether it was set back, and whether it was set at all.

Incarnations and epochs come from that clock when they begin, and never go down. The age of journals
is counted by it, so they are kept longer after it was set back, and times in logs and telemetry
repeat. The protocol refuses what is too far ahead of it, so it is told whenever the wall clock no
longer follows the steady one: it was set, or the machine was suspended.
"""

import asyncio
import time
from collections.abc import Callable

TOLERANCE_S = 1.0
"""Seconds that a clock may be corrected by without a word."""

INTERVAL_S = 1.0
"""Seconds between two looks."""


class ClockMonitor:
    """Compares the clock with one that never goes back."""

    def __init__(
        self,
        behind_s: float,
        set_alarm: Callable[[str], None],
        was_set: Callable[[int], None] = lambda _: None,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start with how far it is behind what a former life saw; `problem` is told that it was
        set back, and an empty text when it has caught up; `was_set` is told its milliseconds when
        it no longer follows the steady clock."""
        self._set_alarm = set_alarm
        self._was_set = was_set
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._offset_s = self._wall_offset_s()
        self._wall_offset_max_s = self._offset_s + behind_s
        self._reported_s = 0.0

    def _wall_offset_s(self) -> float:
        return (self._wall_ns() - self._steady_ns()) / 1e9

    def check(self) -> None:
        """Compare now."""
        offset_s = self._wall_offset_s()
        if abs(offset_s - self._offset_s) > TOLERANCE_S:
            self._offset_s = offset_s
            self._was_set(self._wall_ns() // 1_000_000)
        behind_s = self._wall_offset_max_s - offset_s
        if behind_s <= TOLERANCE_S:
            self._reported_s = 0.0
            self._set_alarm("")
        elif behind_s > self._reported_s + TOLERANCE_S:  # also if it was set back once more
            self._reported_s = behind_s
            self._set_alarm(
                f"it was set back by {behind_s:.0f} s: what has an age stays for longer"
            )
        else:
            self._reported_s = min(self._reported_s, behind_s)
        self._wall_offset_max_s = max(self._wall_offset_max_s, offset_s)

    async def run(self) -> None:
        """Look every second."""
        while True:
            self.check()
            await asyncio.sleep(INTERVAL_S)
