"""Whether the agent was interrupted while it connected to its broker.

A broker that has forgotten the agent's session says so once, in its answer to CONNECT. If that
answer is lost, or the agent ends before all that follows from it is durable, the next answer speaks
of the new session as if it were the old one. A file stands for as long as that can happen: CONNECT
waits until it is durable, and nothing else does.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from hansa.journal.disk import sync_directory

SESSION_UNCERTAIN = (
    "connecting was interrupted: if the broker forgot the agent's session just then, publications "
    "under way may be lost or come twice"
)


class ConnectMarker:
    """From CONNECT until everything is durable that its answer means."""

    def __init__(self, path: Path, set_alarm: Callable[[str], None]) -> None:
        """Find out what a former life left. `problem` is told why the disk does not take it."""
        self._path = path
        self._set_alarm = set_alarm
        self.is_uncertain = path.exists()
        """Whether the session that the broker says it has may be another than it was."""
        self._is_connecting = False
        self._is_loss_pending = False

    async def before_connect(self) -> None:
        """CONNECT leaves when this returns."""
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
        """The broker has refused it, or it did not leave: there is no new session."""
        self._is_connecting = False
        self._remove_if_done()

    def on_session_kept(self) -> None:
        """The broker has kept the session."""
        self._is_connecting = self.is_uncertain = False
        self._remove_if_done()

    def on_session_lost(self) -> None:
        """The broker has forgotten the session; `noted` is called when that is durable."""
        self._is_connecting = self.is_uncertain = False
        self._is_loss_pending = True

    def on_loss_durable(self) -> None:
        """All losses are durable."""
        self._is_loss_pending = False
        self._remove_if_done()

    def _remove_if_done(self) -> None:
        """If everything is known and durable, let the file go. If it comes back with a power
        failure, the doubt is needless."""
        if self._is_connecting or self.is_uncertain or self._is_loss_pending:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._set_alarm(f"cannot remove {self._path}: {error.strerror}")
