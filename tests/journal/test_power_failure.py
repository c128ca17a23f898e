"""The power fails at every step of a journal's work; what was promised is there afterwards.

A process that ends leaves what it wrote to the system; a machine that ends leaves only what was
synced. So a shadow keeps, for every file, the content that its last sync saw, and for the
directory the names that its last sync saw. At every crash point the journal is built anew from
that, once with nothing else and once with everything that may or may not have made it to the disk.
"""

import os
from pathlib import Path

import pytest
from tests.journal.journals import captured, numbers, open_writer

from hansa.journal import active_segment, crash, disk, retention
from hansa.journal.crash import JournalCrashPoint
from hansa.journal.durable_mark import MARK_FILE as MARK


class Shadow:
    """What would be on disk if the power failed now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}

    def sync(self, descriptor: int) -> None:
        """Note what a file holds, by its inode. Files of other journals are not looked at."""
        inode = os.fstat(descriptor).st_ino
        for file in self.path.iterdir():
            if file.stat().st_ino == inode:
                self._contents[inode] = file.read_bytes()

    def sync_directory(self, path: Path) -> None:
        """Note which names there are."""
        if path == self.path:
            self._names = self._current()

    def fail(self, to: Path, lucky: bool) -> None:
        """Build the directory as it is after the failure; if lucky, names and mark survived."""
        to.mkdir()
        for name, inode in (self._current() if lucky else self._names).items():
            (to / name).write_bytes(self._contents.get(inode, b""))
        if lucky:
            (to / MARK).write_bytes((self.path / MARK).read_bytes())

    def _current(self) -> dict[str, int]:
        return {file.name: file.stat().st_ino for file in self.path.iterdir()}


def rebuilt(shadow: Shadow, to: Path, lucky: bool) -> list[int]:
    """The numbers that a failure leaves to the next writer; a reader before it sees no others."""
    shadow.fail(to, lucky)
    before = numbers(to)
    with open_writer(to) as writer:
        after = numbers(to)
        assert after == list(range(writer.first_sequence, writer.next_sequence))
    assert before == after[: len(before)]
    return after


@pytest.mark.parametrize("lucky", [False, True], ids=["unlucky", "lucky"])
def test_committed_records_survive_power_failure(tmp_path, monkeypatch, lucky):
    shadow = Shadow(tmp_path / "journal")
    failures: list[JournalCrashPoint] = []
    promised = 0
    rebuilding = False

    def fail(point: JournalCrashPoint) -> None:
        nonlocal rebuilding
        if promised and not rebuilding:
            rebuilding = True
            left = rebuilt(shadow, tmp_path / str(len(failures)), lucky)
            rebuilding = False
            assert left[-1] >= promised, f"at {point.name}"
            failures.append(point)

    monkeypatch.setattr(disk, "_sync_data", shadow.sync)
    for module in (active_segment, retention):
        monkeypatch.setattr(module, "sync_directory", shadow.sync_directory)
    monkeypatch.setattr(active_segment, "pass_crash_point", fail)
    monkeypatch.setattr(crash, "pass_crash_point", fail)
    with open_writer(shadow.path, segment_bytes=200, retention_bytes=600) as writer:
        for number in range(1, 31):
            writer.append(captured(number))
            if number % 3 == 0:
                writer.commit()
                promised = number
        assert writer.first_sequence > 1
    assert set(JournalCrashPoint) - set(failures) == {
        JournalCrashPoint.HALF_WRITTEN,
        JournalCrashPoint.TAIL_CUT,
        JournalCrashPoint.RECOVERED,
    }
