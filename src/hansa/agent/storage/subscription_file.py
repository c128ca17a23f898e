"""The file of the agent's subscriptions at its broker (`delivery/subscriptions/saved`).

It has a line per change. It exists, possibly empty, while the broker keeps a session. If it cannot
be written, an alarm is raised and work goes on: queued copies may then be confused after a restart.
"""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from hansa.agent.alarms import SetAlarm
from hansa.agent.storage.echo_file import EchoFile
from hansa.agent.storage.state_directory import ECHOES_FILE
from hansa.delivery.subscriptions.saved import SavedSubscriptions, SubscriptionChange
from hansa.errors import UsageError
from hansa.journal.disk import sync_directory, sync_file

LINES_SPARE = 1_000
"""Lines beyond twice the number of filters before the file is rewritten."""

_decoder = msgspec.json.Decoder(SubscriptionChange)
_encoder = msgspec.json.Encoder()


class SubscriptionFile:
    """The file of one agent. Writes run in a thread, so that nothing waits for the disk."""

    def __init__(self, path: Path, set_alarm: SetAlarm) -> None:
        """Read the file of the previous incarnation."""
        self._path = path
        self._set_alarm = set_alarm
        self._file = -1
        self._line_count = 0
        self._damage_text = ""
        self._lock = asyncio.Lock()
        try:
            saved, has_session = self._read(path.read_bytes()), True
        except FileNotFoundError:  # first start, or no session
            saved, has_session = [], False
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        self.saved_subscriptions = SavedSubscriptions(saved, has_session)
        self._echo_file = EchoFile(path.with_name(ECHOES_FILE))
        self.saved_subscriptions.echoes = self._echo_file.saved_echoes
        self._damage_text = self._damage_text or self._echo_file.problem
        if self._damage_text:
            set_alarm(self._damage_text)

    async def save(self) -> bool:
        """Write everything recorded before; return whether it is on disk."""
        async with self._lock:
            saved = self.saved_subscriptions
            changes = saved.take_unsaved()
            self._line_count += len(changes or ())
            needed = len(saved.identifiers) + len(saved.last_identifier_at_end)
            try:
                if not saved.has_session:
                    await asyncio.to_thread(self._remove)
                elif changes is None or self._line_count > 2 * needed + LINES_SPARE:
                    lines = saved.summary()
                    self._line_count = len(lines)
                    await asyncio.to_thread(self._replace, _encode(lines))
                else:
                    has_new = any(change.identifier > 0 for change in changes)
                    await asyncio.to_thread(self._append, _encode(changes), has_new)
            except OSError as error:
                saved.request_rewrite()  # unknown how much of it is on disk
                self._set_alarm(f"cannot write {self._path}: {error.strerror}")
                return False
            self._set_alarm(self._damage_text)
            return True

    async def stop(self) -> None:
        """Write pending changes and echoes, and close the file."""
        await self.save()
        try:
            await asyncio.to_thread(self._echo_file.save, self.saved_subscriptions.echoes)
        except OSError as error:
            self._set_alarm(f"cannot write {ECHOES_FILE}: {error.strerror}")
        self._close()

    def _read(self, data: bytes) -> list[SubscriptionChange]:
        *whole, _ = data.split(b"\n")  # the last line may be torn
        changes: list[SubscriptionChange] = []
        for line in whole:
            try:
                changes.append(_decoder.decode(line))
            except ValueError:  # from msgspec, or not UTF-8
                continue
        if len(changes) < len(whole):
            self._damage_text = (
                f"{len(whole) - len(changes)} of {len(whole)} lines of {self._path} cannot be "
                "read: of what the broker queued meanwhile, copies may be taken for one another"
            )
        return changes

    def _append(self, data: bytes, is_synced: bool) -> None:
        _write(self._file, data)
        if is_synced:
            sync_file(self._file)

    def _replace(self, data: bytes) -> None:
        self._close()
        temporary = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._file = os.open(temporary, flags, 0o600)
        _write(self._file, data)
        sync_file(self._file)
        temporary.replace(self._path)
        sync_directory(self._path.parent)

    def _remove(self) -> None:
        self._close()
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _encode(changes: Iterable[SubscriptionChange]) -> bytes:
    return b"".join(_encoder.encode(change) + b"\n" for change in changes)


def _write(file: int, data: bytes) -> None:
    """Write everything: the system may accept a part, as when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
