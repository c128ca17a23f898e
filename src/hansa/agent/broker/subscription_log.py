"""Saves the subscriptions of the agent's session at the broker, so that they survive restarts.

Queued publications name subscriptions by identifier, so the next incarnation must know the
identifiers and their order to tell copies apart. The file has a line per change: a filter with its
identifier when it is subscribed, with -1 when UNSUBSCRIBE is sent, with 0 when it is confirmed. New
filters are synced, otherwise their identifiers could be assigned again after a power failure.
Unsubscriptions are not synced: they are then requested again. The file exists, possibly empty,
while the broker keeps a session. If it cannot be written, an alarm is raised and work goes on.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from hansa.agent.alarms import SetAlarm
from hansa.agent.broker.subscription_table import remember_bounded
from hansa.errors import UsageError
from hansa.journal.disk import sync_directory, sync_file

LEAVING = -1
ENDED = 0

LINES_SPARE = 1_000
"""Lines beyond twice the number of filters before the file is rewritten."""

END_NAME = ""
"""Name in the line of an unsubscribed filter, with its identifier and the last one assigned then;
with 0, the last one of all."""


class SubscriptionChange(msgspec.Struct, array_like=True, omit_defaults=True):
    name: str
    identifier: int
    last_identifier: int = 0


_decoder = msgspec.json.Decoder(SubscriptionChange)
_encoder = msgspec.json.Encoder()


class SubscriptionLog:
    """The file of one agent. Changes are recorded at once and written by a thread, so that nothing
    waits for the disk."""

    def __init__(self, path: Path, set_alarm: SetAlarm) -> None:
        """Read the file of the previous incarnation. `set_alarm` gets the reason if it cannot be
        written; work continues, but queued copies may then be confused after a restart."""
        self._path = path
        self._set_alarm = set_alarm
        self._file = -1
        self._line_count = 0
        self._needs_rewrite = True
        """Whether the whole file has to be written."""
        self._unwritten: list[SubscriptionChange] = []
        self._write_lock = asyncio.Lock()
        self.has_unwritten = True
        """Whether changes are not on disk yet. True at first: the previous incarnation may not have
        synced."""
        self.has_session = path.exists()
        """Whether the broker keeps a session of the agent, and so supports MQTT 5."""
        self.identifiers: dict[str, int] = {}
        """Filters with their identifiers, or LEAVING, in the order of subscription."""
        self.last_identifier = 0
        """The last identifier assigned."""
        self.last_identifier_at_end: OrderedDict[int, int] = OrderedDict()
        """The last identifier assigned when another one's filter ended."""
        self._assigned: dict[str, int] = {}
        """Identifiers, including those of filters that are LEAVING."""
        self._damage_text = ""
        try:
            self._read(path.read_bytes())
        except FileNotFoundError:
            pass  # first start, or no session
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error

    def record(self, name: str, identifier: int) -> None:
        """Record that a filter was subscribed, is LEAVING or has ENDED."""
        change = SubscriptionChange(name, identifier)
        self._apply(change)
        self._unwritten.append(change)
        self.has_unwritten = True

    def clear(self) -> None:
        """Record that the broker has no subscriptions."""
        self.identifiers.clear()
        self.last_identifier_at_end.clear()
        self._assigned.clear()
        self.last_identifier = 0
        self._unwritten = []
        self._needs_rewrite = self.has_unwritten = True

    async def write(self) -> bool:
        """Write everything recorded before; return whether it is on disk."""
        async with self._write_lock:
            noted, self._unwritten, self.has_unwritten = self._unwritten, [], False
            self._line_count += len(noted)
            needed = len(self.identifiers) + len(self.last_identifier_at_end)
            is_anew = self._needs_rewrite or self._line_count > 2 * needed + LINES_SPARE
            self._needs_rewrite = False
            try:
                if not self.has_session:
                    await asyncio.to_thread(self._remove)
                elif is_anew:
                    lines = self._summary()
                    self._line_count = len(lines)
                    await asyncio.to_thread(self._replace, _encode(lines))
                else:
                    has_new = any(change.identifier > 0 for change in noted)
                    await asyncio.to_thread(self._append, _encode(noted), has_new)
            except OSError as error:
                self._needs_rewrite = self.has_unwritten = True  # unknown how much of it is on disk
                self._set_alarm(f"cannot write {self._path}: {error.strerror}")
                return False
            self._set_alarm(self._damage_text)
            return True

    async def stop(self) -> None:
        """Write pending changes and close the file."""
        await self.write()
        self._close()

    def _read(self, data: bytes) -> None:
        *whole, _ = data.split(b"\n")  # the last line may be torn
        unreadable = 0
        for line in whole:
            try:
                self._apply(_decoder.decode(line))
            except ValueError:  # from msgspec, or not UTF-8
                unreadable += 1
        if unreadable:
            self._damage_text = (
                f"{unreadable} of {len(whole)} lines of {self._path} cannot be read: of what the "
                "broker queued meanwhile, copies may be taken for one another"
            )
            self._set_alarm(self._damage_text)

    def _summary(self) -> list[SubscriptionChange]:
        leaving = [name for name, identifier in self.identifiers.items() if identifier == LEAVING]
        return [
            *(
                SubscriptionChange(name, self._assigned[name])
                for name in leaving
                if name in self._assigned
            ),
            *(
                SubscriptionChange(name, identifier)
                for name, identifier in self.identifiers.items()
            ),
            *(
                SubscriptionChange(END_NAME, identifier, last)
                for identifier, last in self.last_identifier_at_end.items()
            ),
            SubscriptionChange(END_NAME, 0, self.last_identifier),
        ]

    def _apply(self, change: SubscriptionChange) -> None:
        name, identifier, last = change.name, change.identifier, change.last_identifier
        self.last_identifier = max(self.last_identifier, identifier, last)
        if name == END_NAME:
            if identifier:
                remember_bounded(self.last_identifier_at_end, identifier, last)
        elif identifier == ENDED:
            self.identifiers.pop(name, None)
            remember_bounded(
                self.last_identifier_at_end, self._assigned.pop(name, 0), self.last_identifier
            )
        else:
            self.identifiers[name] = identifier
            if identifier > 0:
                self._assigned[name] = identifier

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
