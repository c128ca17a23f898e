"""Group commit: shared commits, retries, closing."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from tests.agent.waiting import PATIENCE, until
from tests.journal.journals import captured, numbers, open_writer

from hansa.agent.delivery.group_commit import GroupCommit
from hansa.agent.storage import retry
from hansa.journal import disk
from hansa.journal.writer import JournalWriter


class Scene:
    """A journal with its commits and alarms."""

    def __init__(self, path: Path) -> None:
        self.writer = open_writer(path)
        self.ends: list[int] = []
        self.problems: list[str] = []
        self.made = GroupCommit(
            self.writer, lambda: self.ends.append(self.writer.durable), self.problems.append
        )

    async def durable(self) -> None:
        await until(lambda: self.ends and self.ends[-1] == self.writer.end, "all durable")


def test_records_appended_during_commit_share_the_next(tmp_path, monkeypatch):
    syncs: list[int] = []

    def counted(descriptor: int) -> None:
        syncs.append(descriptor)
        os.fsync(descriptor)

    async def work() -> None:
        scene = Scene(tmp_path)
        with monkeypatch.context() as watched:
            watched.setattr(disk, "_sync_data", counted)
            for number in range(1, 51):
                scene.writer.append(captured(number))
                scene.made.schedule()
            await scene.durable()
        assert len(syncs) == 1
        assert numbers(tmp_path) == list(range(1, 51))
        await scene.made.stop()

    asyncio.run(work())


def test_full_disk_is_retried_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "RETRY_S", 0.01)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    async def work() -> None:
        scene = Scene(tmp_path)
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", full)
            scene.writer.append(captured(1))
            scene.made.schedule()
            await until(lambda: len(scene.problems) >= 3, "attempts")
        assert not scene.ends
        await scene.durable()
        assert scene.problems[-1] == ""
        await scene.made.stop()
        assert numbers(tmp_path) == [1]

    asyncio.run(work())


def test_event_loop_runs_while_journal_closes(tmp_path, monkeypatch):
    """As after an epoch rollover, when the old journal is closed."""
    goes_on = threading.Event()
    close = JournalWriter.close

    def slow(writer: JournalWriter) -> None:
        assert goes_on.wait(PATIENCE), "the loop waits for the disk"
        close(writer)

    async def work() -> None:
        scene = Scene(tmp_path)
        scene.writer.append(captured(1))
        monkeypatch.setattr(JournalWriter, "close", slow)
        asyncio.get_running_loop().call_soon(goes_on.set)
        await scene.made.stop()
        assert numbers(tmp_path) == [1]

    asyncio.run(work())
