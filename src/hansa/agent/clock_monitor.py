"""Monitors the wall clock: whether it was set back, or set at all.

Incarnations and epochs start from the wall clock and never decrease. The age of journal records
depends on it, so they are kept longer after the clock was set back, and times in logs and telemetry
repeat. The protocol rejects timestamps too far in the future, so the node is told whenever the wall
clock deviates from the monotonic one: it was set, or the machine was suspended.
"""

import asyncio
import time
from collections.abc import Callable

from hansa.agent.alarms import SetAlarm

TOLERANCE_S = 1.0
"""Seconds of correction that are ignored."""

INTERVAL_S = 1.0
"""Seconds between two checks."""


class ClockMonitor:
    """Compares the wall clock with a monotonic one."""

    def __init__(
        self,
        behind_s: float,
        set_alarm: SetAlarm,
        was_set: Callable[[int], None] = lambda _: None,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`behind_s` is how far the clock is behind the last time that an earlier incarnation
        saved. `set_alarm` gets the reason while the clock is behind; `was_set` gets the wall
        clock in milliseconds when it deviates from the monotonic one."""
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
        """Check every INTERVAL_S."""
        while True:
            self.check()
            await asyncio.sleep(INTERVAL_S)
