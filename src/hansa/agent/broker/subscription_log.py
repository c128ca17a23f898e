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

from hansa.agent.broker.subscriptions import note
from hansa.errors import UsageError
from hansa.journal.disk import sync, sync_directory

LEAVING = -1
ENDED = 0

LINES_SPARE = 1_000
"""Lines beyond the twofold of what is held, until the file is written anew."""

END = ""
"""Stands for the name of a filter that has ended, with its identifier and the last that had been
given then; with 0, the last one of all."""


class Line(msgspec.Struct, array_like=True, omit_defaults=True):
    """One change."""

    name: str
    identifier: int
    last: int = 0


_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


class SubscriptionLog:
    """The file of one agent. A change is noted at once, and written by a thread: of what passes
    through the agent nothing waits for the disk."""

    def __init__(self, path: Path, problem: Callable[[str], None]) -> None:
        """Read what a former life left. `problem` is told why something cannot be written: work
        goes on, but copies that are queued while the agent is away may be taken for one another."""
        self._path = path
        self._problem = problem
        self._file = -1
        self._lines = 0
        self._is_stale = True
        """Whether the file has to be written anew."""
        self._noted: list[Line] = []
        self._writing = asyncio.Lock()
        self.is_behind = True
        """Whether something is not on disk. At first, what a former life wrote may not be."""
        self.has_session = path.exists()
        """Whether the broker keeps a session of the agent's, and so speaks MQTT 5."""
        self.held: dict[str, int] = {}
        """Filters with their identifiers, or LEAVING; in the order in which they came."""
        self.last = 0
        """The last identifier that was given."""
        self.ends: OrderedDict[int, int] = OrderedDict()
        """The last identifier that had been given when another one's filter ended."""
        self._given: dict[str, int] = {}
        """Identifiers also of those that are leaving."""
        self._damage = ""
        try:
            self._read(path.read_bytes())
        except FileNotFoundError:
            pass  # the first life, or one without a session
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error

    def note(self, name: str, identifier: int) -> None:
        """A filter was entered, or it is LEAVING or has ENDED."""
        change = Line(name, identifier)
        self._apply(change)
        self._noted.append(change)
        self.is_behind = True

    def start_over(self) -> None:
        """The broker has none of them."""
        self.held.clear()
        self.ends.clear()
        self._given.clear()
        self.last = 0
        self._noted = []
        self._is_stale = self.is_behind = True

    async def write(self) -> bool:
        """Write everything that was noted before; return whether it is on disk."""
        async with self._writing:
            noted, self._noted, self.is_behind = self._noted, [], False
            self._lines += len(noted)
            needed = len(self.held) + len(self.ends)
            is_anew = self._is_stale or self._lines > 2 * needed + LINES_SPARE
            self._is_stale = False
            try:
                if not self.has_session:
                    await asyncio.to_thread(self._remove)
                elif is_anew:
                    lines = self._summary()
                    self._lines = len(lines)
                    await asyncio.to_thread(self._replace, _encode(lines))
                else:
                    has_new = any(change.identifier > 0 for change in noted)
                    await asyncio.to_thread(self._append, _encode(noted), has_new)
            except OSError as error:
                self._is_stale = self.is_behind = True  # what of it is on disk is unknown
                self._problem(f"cannot write {self._path}: {error.strerror}")
                return False
            self._problem(self._damage)
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
            self._damage = (
                f"{unreadable} of {len(whole)} lines of {self._path} cannot be read: of what the "
                "broker queued meanwhile, copies may be taken for one another"
            )
            self._problem(self._damage)

    def _summary(self) -> list[Line]:
        leaving = [name for name, identifier in self.held.items() if identifier == LEAVING]
        return [
            *(Line(name, self._given[name]) for name in leaving if name in self._given),
            *(Line(name, identifier) for name, identifier in self.held.items()),
            *(Line(END, identifier, last) for identifier, last in self.ends.items()),
            Line(END, 0, self.last),
        ]

    def _apply(self, change: Line) -> None:
        name, identifier, last = change.name, change.identifier, change.last
        self.last = max(self.last, identifier, last)
        if name == END:
            if identifier:
                note(self.ends, identifier, last)
        elif identifier == ENDED:
            self.held.pop(name, None)
            note(self.ends, self._given.pop(name, 0), self.last)
        else:
            self.held[name] = identifier
            if identifier > 0:
                self._given[name] = identifier

    def _append(self, data: bytes, is_synced: bool) -> None:
        _write(self._file, data)
        if is_synced:
            sync(self._file)

    def _replace(self, data: bytes) -> None:
        self._close()
        temporary = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._file = os.open(temporary, flags, 0o600)
        _write(self._file, data)
        sync(self._file)
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


def _encode(changes: Iterable[Line]) -> bytes:
    return b"".join(_encoder.encode(change) + b"\n" for change in changes)


def _write(file: int, data: bytes) -> None:
    """Write all of it: the system may take a part, as when the disk is nearly full."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
