"""Marker file: a CONNECT was sent and its result is not durable yet.

A broker that lost the agent's session says so once, in CONNACK. If CONNACK is lost, or the agent
stops before the consequences are durable, the next CONNACK reports the new session as if it were
the old one. The file exists for as long as that can happen. CONNECT waits until the file is
durable; nothing else waits for it. If the file cannot be written, the agent raises an alarm and
connects nevertheless.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from hansa.journal.disk import sync_directory

SESSION_UNCERTAIN = (
    "a connection attempt was interrupted: if the broker lost the agent's session meanwhile, "
    "publications in flight may be lost or duplicated"
)


class ConnectMarker:
    """State of the connection attempt that the file stands for."""

    def __init__(self, path: Path, set_alarm: Callable[[str], None]) -> None:
        self._path = path
        self._set_alarm = set_alarm
        self.is_uncertain = path.exists()
        """Whether the session that the broker reports may be a new one."""
        self._is_connecting = False
        self._is_loss_pending = False

    async def before_connect(self) -> None:
        """Create the file; CONNECT is sent when this returns."""
        self.is_uncertain |= self._is_connecting
        self._is_connecting = True
        try:
            await asyncio.to_thread(self._create_file)
        except OSError as error:
            self._set_alarm(f"cannot write {self._path}: {error.strerror}")
        else:
            self._set_alarm("")

    def _create_file(self) -> None:
        self._path.touch(mode=0o600)
        sync_directory(self._path.parent)

    def on_connect_refused(self) -> None:
        """CONNECT was refused or not sent: there is no new session."""
        self._is_connecting = False
        self._remove_if_done()

    def on_session_kept(self) -> None:
        self._is_connecting = self.is_uncertain = False
        self._remove_if_done()

    def on_session_lost(self) -> None:
        """The broker lost the session; `on_loss_durable` follows when that is durable."""
        self._is_connecting = self.is_uncertain = False
        self._is_loss_pending = True

    def on_loss_durable(self) -> None:
        self._is_loss_pending = False
        self._remove_if_done()

    def _remove_if_done(self) -> None:
        """Delete the file if nothing is uncertain. The deletion is not synced: if a power failure
        restores the file, the only consequence is a needless alarm."""
        if self._is_connecting or self.is_uncertain or self._is_loss_pending:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._set_alarm(f"cannot remove {self._path}: {error.strerror}")
