"""Notices that the machine's clock was set back.

Nothing in the protocol reads that clock; lives and epochs are numbered by it when they begin, and
never downwards. But the age of journals is counted by it, so they stay for longer until it has
caught up, and whoever reads logs or telemetry should know that their times repeat.
"""

import asyncio
import time
from collections.abc import Callable

TOLERANCE_S = 1.0
"""Seconds that a clock may be corrected by without a word."""

INTERVAL_S = 1.0
"""Seconds between two looks."""


class ClockWatch:
    """Compares the clock with one that never goes back."""

    def __init__(
        self,
        behind_s: float,
        problem: Callable[[str], None],
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Start with how far it is behind what a former life saw; `problem` is told that it was
        set back, and an empty text when it has caught up."""
        self._problem = problem
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._ahead_s = self._now_ahead_s() + behind_s
        self._told_s = 0.0

    def _now_ahead_s(self) -> float:
        return (self._wall_ns() - self._steady_ns()) / 1e9

    def look(self) -> None:
        """Compare now."""
        ahead = self._now_ahead_s()
        behind = self._ahead_s - ahead
        if behind <= TOLERANCE_S:
            self._told_s = 0.0
            self._problem("")
        elif behind > self._told_s + TOLERANCE_S:  # also if it was set back once more
            self._told_s = behind
            self._problem(f"it was set back by {behind:.0f} s: what has an age stays for longer")
        else:
            self._told_s = min(self._told_s, behind)
        self._ahead_s = max(self._ahead_s, ahead)

    async def run(self) -> None:
        """Look every second."""
        while True:
            self.look()
            await asyncio.sleep(INTERVAL_S)
