"""The marker file of a connection attempt whose result is not durable yet
(`delivery/connect_attempts`). If it cannot be written, the agent raises an alarm and connects
nevertheless."""

import asyncio
from pathlib import Path

from hansa.agent.alarms import SetAlarm
from hansa.journal.disk import sync_directory


class ConnectMarker:
    """The file: it exists while an attempt is uncertain."""

    def __init__(self, path: Path, set_alarm: SetAlarm) -> None:
        self._path = path
        self._set_alarm = set_alarm
        self.was_left = path.exists()
        """Whether a previous incarnation left the file."""

    async def create(self) -> None:
        """Return when the file is durable."""
        try:
            await asyncio.to_thread(self._create_file)
        except OSError as error:
            self._set_alarm(f"cannot write {self._path}: {error.strerror}")
        else:
            self._set_alarm("")

    def _create_file(self) -> None:
        self._path.touch(mode=0o600)
        sync_directory(self._path.parent)

    def remove(self) -> None:
        """Delete the file. The deletion is not synced: if a power failure restores the file, the
        only consequence is a needless alarm."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._set_alarm(f"cannot remove {self._path}: {error.strerror}")
