"""Places where a test can end the process, by number: what a crash at each of them leaves behind
must be a good journal.

`HANSA_CRASH_POINT=3` ends the process, at once and without any tidying, where point 3 is first
reached; `HANSA_CRASH_POINT=3:5` where it is reached for the fifth time. Points are passed once per
commit, never per record.
"""

import os
from enum import IntEnum
from itertools import count

VARIABLE = "HANSA_CRASH_POINT"
EXIT_CODE = 86
"""Of a process that ended here."""


class Point(IntEnum):
    """What was just done."""

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


def _armed(text: str) -> tuple[int, int]:
    point, _, times = text.partition(":")
    return int(point), int(times or 1)


ARMED, _TIMES = _armed(os.environ.get(VARIABLE) or "0")
"""The point at which this process ends, 0 for none."""

_passes = count(1)


def reached(point: Point) -> None:
    """Go on, unless this is where a test wants the process to end."""
    if point == ARMED and next(_passes) == _TIMES:
        os._exit(EXIT_CODE)
