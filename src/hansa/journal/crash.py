"""Places where a test can end the process, by number: what a crash at each of them leaves behind
must be a good journal.

`HANSA_CRASH_POINT=3` ends the process, at once and without any tidying, where point 3 is first
reached; `HANSA_CRASH_POINT=3:5` where it is reached for the fifth time. Points are passed once per
commit, never per record.
"""

import os
from enum import IntEnum
from itertools import count

from hansa.errors import UsageError

CRASH_POINT_VARIABLE = "HANSA_CRASH_POINT"
EXIT_CODE = 86
"""Of a process that ended here."""


class JournalCrashPoint(IntEnum):
    """What the journal has just done. Who uses it has points of its own, from 100 on."""

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
    """Return a point and how often it is to be passed; (0, 0), which is no point, for no text."""
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
"""The point at which this process ends, 0 for none."""

_passes = count(1)


def pass_crash_point(point: int) -> None:
    """Go on, unless this is where a test wants the process to end."""
    if point == ARMED_POINT and next(_passes) == _ARMED_PASS:
        os._exit(EXIT_CODE)
