"""Power failures at every crash point: committed records survive.

A process that ends leaves everything it wrote; a power failure leaves only what was synced. A
shadow records the content of each file, and the names in the directory, at their last sync. At
every crash point the journal is rebuilt from the shadow, once with only that and once with
everything that may have reached the disk.
"""

import os
from pathlib import Path

import pytest
from tests.journal.journals import captured, numbers, open_writer

from hansa.journal import active_segment, crash, disk, retention
from hansa.journal.crash import JournalCrashPoint
from hansa.journal.durable_mark import MARK_FILE as MARK


class Shadow:
    """The content of the disk if the power failed now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}

    def sync(self, descriptor: int) -> None:
        """Record the content of a file of this journal, by its inode."""
        inode = os.fstat(descriptor).st_ino
        for file in self.path.iterdir():
            if file.stat().st_ino == inode:
                self._contents[inode] = file.read_bytes()

    def sync_directory(self, path: Path) -> None:
        """Record the names in the directory."""
        if path == self.path:
            self._names = self._current()

    def fail(self, to: Path, lucky: bool) -> None:
        """Build the directory after the failure; if `lucky`, unsynced names and mark survive."""
        to.mkdir()
        for name, inode in (self._current() if lucky else self._names).items():
            (to / name).write_bytes(self._contents.get(inode, b""))
        if lucky:
            (to / MARK).write_bytes((self.path / MARK).read_bytes())

    def _current(self) -> dict[str, int]:
        return {file.name: file.stat().st_ino for file in self.path.iterdir()}


def rebuilt(shadow: Shadow, to: Path, lucky: bool) -> list[int]:
    """Return the numbers after the failure, as the next writer sees them; a reader sees no
    others."""
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
