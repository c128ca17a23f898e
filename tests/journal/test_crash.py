"""Crashes at every crash point: committed records survive."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.journal.journals import captured, open_writer, write

from hansa.errors import UsageError
from hansa.journal.crash import (
    CRASH_POINT_VARIABLE,
    EXIT_CODE,
    JournalCrashPoint,
    parse_crash_point,
)
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord

FIRST_LIFE = 30


def live(path, armed=""):
    """Run a process; return its exit code and the last committed number, 0 for none."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("crashing.py")), str(path)],
        env=os.environ | {CRASH_POINT_VARIABLE: armed},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, EXIT_CODE), done.stderr
    return done.returncode, max([0, *map(int, done.stdout.split())])


def numbers_after(path):
    """Return all captured numbers after a crash, as the next writer and readers see them."""
    with open_writer(path) as writer:
        found = [r.sequence for _, r in JournalReader(path).read() if isinstance(r, CapturedRecord)]
        assert found == list(range(writer.first_sequence, writer.next_sequence))
    return found


def torn_journal(path):
    """Create a journal with a torn record at its end."""
    write(path, *(captured(n) for n in range(1, FIRST_LIFE + 1)), segment_bytes=200)
    with sorted(path.glob("*.log"))[-1].open("ab") as file:
        file.write(b"\x12\x34\x56")


OPENING = (JournalCrashPoint.TAIL_CUT, JournalCrashPoint.RECOVERED)
"""Points that a process passes once."""


@pytest.mark.parametrize(
    "point, times",
    [
        (point, times)
        for point in JournalCrashPoint
        for times in ([1] if point in OPENING else [1, 4])
    ],
    ids=lambda value: value.name.lower() if isinstance(value, JournalCrashPoint) else str(value),
)
def test_committed_records_survive_crash(tmp_path, point, times):
    torn_journal(tmp_path)
    ended, promised = live(tmp_path, f"{point}:{times}")
    assert ended == EXIT_CODE
    assert numbers_after(tmp_path)[-1] >= max(promised, FIRST_LIFE)


def test_journal_survives_repeated_crashes(tmp_path):
    """Each process crashes at another point, on the journal of the previous one."""
    promised = 0
    for point in JournalCrashPoint:
        ended, last = live(tmp_path, str(int(point)))
        assert ended == EXIT_CODE
        promised = max(promised, last)
    assert live(tmp_path)[0] == 0
    assert numbers_after(tmp_path)[-1] > promised > 0


@pytest.mark.parametrize("text, armed", [("", (0, 0)), ("3", (3, 1)), ("12:5", (12, 5))])
def test_parse_crash_point(text, armed):
    assert parse_crash_point(text) == armed


@pytest.mark.parametrize("text", ["x", "3:x", ":3", "-1"])
def test_invalid_crash_point_is_refused(text):
    with pytest.raises(UsageError, match=f"HANSA_CRASH_POINT is '{text}'; it takes the number"):
        parse_crash_point(text)


def test_no_crash_without_crash_point(tmp_path):
    assert live(tmp_path) == (0, 36)
    assert numbers_after(tmp_path)[-1] == 36
