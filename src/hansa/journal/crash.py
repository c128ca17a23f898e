"""Crash points: places where a test ends the process, identified by number.

`HANSA_CRASH_POINT=3` ends the process at point 3, without any cleanup; `HANSA_CRASH_POINT=3:5` when
it passes point 3 for the fifth time. A commit passes each point once, not once per record.
"""

import os
from enum import IntEnum
from itertools import count

from hansa.errors import UsageError

CRASH_POINT_VARIABLE = "HANSA_CRASH_POINT"
EXIT_CODE = 86
"""Exit code of a process that ended at a crash point."""


class JournalCrashPoint(IntEnum):
    """The step that the journal has just done. Other packages use numbers from 100 on."""

    COMMIT_BEGUN = 1
    HALF_WRITTEN = 2
    WRITTEN = 3
    SYNCED = 4
    MARKED = 5
    SEGMENT_PREPARED = 6
    SEGMENT_SEALED = 7
    SEGMENT_RENAMED = 8
    SEGMENT_BEGUN = 9
    SEGMENT_DROPPED = 10
    TAIL_CUT = 11
    RECOVERED = 12


def parse_crash_point(text: str) -> tuple[int, int]:
    """Return the point and the number of the pass that ends the process; (0, 0) for no text."""
    if not text:
        return 0, 0
    point, _, times = text.partition(":")
    if not point.isdecimal() or not (times or "1").isdecimal():
        raise UsageError(
            f"{CRASH_POINT_VARIABLE} is {text!r}; it takes the number of a crash point, such as 3, "
            "or 3:5 for the fifth time that point 3 is passed"
        )
    return int(point), int(times or 1)


ARMED_POINT, _ARMED_PASS = parse_crash_point(os.environ.get(CRASH_POINT_VARIABLE, ""))
"""The point at which this process ends; 0 for none."""

_passes = count(1)


def pass_crash_point(point: int) -> None:
    """End the process if this is the configured pass of the configured point."""
    if point == ARMED_POINT and next(_passes) == _ARMED_PASS:
        os._exit(EXIT_CODE)
