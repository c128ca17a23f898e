"""Remembers what the agent's session at the broker is subscribed to, across the agent's restarts.

What the broker queued for the agent names subscriptions by their identifiers, so a new life must
know them, and their order, or it could not tell copies apart. A line per change: a filter with its
identifier when it is entered, with -1 when its end is asked for, with 0 when it has ended. Filters
that are entered are synced, or after a power failure their identifiers could be given to others;
the end of a filter need not be: it is then asked for again. There is a file, and be it empty, while
the broker keeps a session.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from hansa.agent.broker.subscription_table import remember_bounded
from hansa.errors import UsageError
from hansa.journal.disk import sync_directory, sync_file

LEAVING = -1
ENDED = 0

LINES_SPARE = 1_000
"""Lines beyond the twofold of what is held, until the file is written anew."""

END_NAME = ""
"""Stands for the name of a filter that has ended, with its identifier and the last that had been
given then; with 0, the last one of all."""


class SubscriptionChange(msgspec.Struct, array_like=True, omit_defaults=True):
    """One change."""

    name: str
    identifier: int
    last_identifier: int = 0


_decoder = msgspec.json.Decoder(SubscriptionChange)
_encoder = msgspec.json.Encoder()


class SubscriptionLog:
    """The file of one agent. A change is noted at once, and written by a thread: of what passes
    through the agent nothing waits for the disk."""

    def __init__(self, path: Path, set_alarm: Callable[[str], None]) -> None:
        """Read what a former life left. `problem` is told why something cannot be written: work
        goes on, but copies that are queued while the agent is away may be taken for one another."""
        self._path = path
        self._set_alarm = set_alarm
        self._file = -1
        self._line_count = 0
        self._needs_rewrite = True
        """Whether the file has to be written anew."""
        self._unwritten: list[SubscriptionChange] = []
        self._write_lock = asyncio.Lock()
        self.has_unwritten = True
        """Whether something is not on disk. At first, what a former life wrote may not be."""
        self.has_session = path.exists()
        """Whether the broker keeps a session of the agent's, and so speaks MQTT 5."""
        self.identifiers: dict[str, int] = {}
        """Filters with their identifiers, or LEAVING; in the order in which they came."""
        self.last_identifier = 0
        """The last identifier that was given."""
        self.last_identifier_at_end: OrderedDict[int, int] = OrderedDict()
        """The last identifier that had been given when another one's filter ended."""
        self._assigned: dict[str, int] = {}
        """Identifiers also of those that are leaving."""
        self._damage_text = ""
        try:
            self._read(path.read_bytes())
        except FileNotFoundError:
            pass  # the first life, or one without a session
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error

    def record(self, name: str, identifier: int) -> None:
        """A filter was entered, or it is LEAVING or has ENDED."""
        change = SubscriptionChange(name, identifier)
        self._apply(change)
        self._unwritten.append(change)
        self.has_unwritten = True

    def clear(self) -> None:
        """The broker has none of them."""
        self.identifiers.clear()
        self.last_identifier_at_end.clear()
        self._assigned.clear()
        self.last_identifier = 0
        self._unwritten = []
        self._needs_rewrite = self.has_unwritten = True

    async def write(self) -> bool:
        """Write everything that was noted before; return whether it is on disk."""
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
                self._needs_rewrite = self.has_unwritten = True  # what of it is on disk is unknown
                self._set_alarm(f"cannot write {self._path}: {error.strerror}")
                return False
            self._set_alarm(self._damage_text)
            return True

    async def stop(self) -> None:
        """Write what is noted, and let the file go."""
        await self.write()
        self._close()

    def _read(self, data: bytes) -> None:
        *whole, _ = data.split(b"\n")  # the last line may be torn
        unreadable = 0
        for line in whole:
            try:
                self._apply(_decoder.decode(line))
            except ValueError:  # of msgspec, or no text
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
    """Write all of it: the system may take a part, as when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
