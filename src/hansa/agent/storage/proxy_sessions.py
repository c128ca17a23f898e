"""The file with the persistent sessions of the proxy's clients, and the filters of each.

A client is served also if its session cannot be saved. The file is then behind, and says so itself
as soon as possible: its header has a fixed length and is overwritten in place, which needs no space
on a full disk. A restart before the next successful save so finds sessions that it must not trust.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hansa.agent.alarms import SetAlarm
from hansa.errors import UsageError
from hansa.journal.disk import replace_file, sync_directory, sync_file
from hansa.observers.proxy.observer import (
    ADDED,
    DOUBTED,
    EARLIER_SESSIONS,
    ENDED,
    MISSED_CHANGES,
    NOT_SAVED,
    OPENED,
    REMOVED,
    SessionChange,
)

log = logging.getLogger("hansa.agent")

SESSIONS_FILE = "proxy-sessions"

HEADER_BYTES = 96
"""Length of the first line: JSON, filled up with spaces."""

LINES_SPARE = 1_000
"""Lines beyond twice the number of sessions and filters before the file is rewritten."""


class _Header(msgspec.Struct):
    """The first line."""

    may_have_earlier_sessions: bool
    """Whether clients may have left sessions at the broker before the proxy ran."""
    has_missed_changes: bool = False
    """Whether sessions may have changed since then without being saved here."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self).ljust(HEADER_BYTES - 1) + b"\n"


@dataclass(slots=True)
class SavedSession:
    """What the file holds of one client."""

    expiry_s: int = 0
    filters: dict[str, None] = field(default_factory=dict)
    doubt: str = ""


class SessionFile:
    """The persistent sessions of the proxy's clients: a header, then a line per `SessionChange`.

    Changes that arrive while others are being written share the next write and sync.
    """

    def __init__(self, path: Path, no_earlier_sessions: bool, set_alarm: SetAlarm) -> None:
        self._path = path
        self._set_alarm = set_alarm
        self._lock = asyncio.Lock()
        self._unwritten: list[SessionChange] = []
        self._line_count = 0
        self._needs_rewrite = True
        self._header = _Header(may_have_earlier_sessions=True)
        self.is_saved = True
        """Whether the last attempt to save succeeded."""
        self.sessions: dict[str, SavedSession] = {}
        self._load()
        self.declare(no_earlier_sessions)

    def declare(self, no_earlier_sessions: bool) -> None:
        """Note what the operator says. Missed changes are only forgotten if he stops to declare
        that there are no unknown sessions, and declares it again later."""
        if no_earlier_sessions:
            self._header.may_have_earlier_sessions = False
        elif self._header.has_missed_changes:
            self._header = _Header(may_have_earlier_sessions=True)
        self._needs_rewrite = True

    def report_late(self) -> None:
        """Note that the disk does not answer; the save that waits for it corrects that at its
        end."""
        self.is_saved = False
        self._set_alarm("sessions of proxy clients cannot be saved: the disk does not answer")

    def note_missed_changes(self) -> None:
        """Note that clients were served whose sessions were not observed."""
        self._header.has_missed_changes = True
        self._needs_rewrite = True

    @property
    def may_have_earlier_sessions(self) -> bool:
        """Whether clients may have left sessions at the broker before the proxy first ran."""
        return self._header.may_have_earlier_sessions

    @property
    def problem(self) -> str:
        """Why sessions may be unknown; empty if none are."""
        if self._header.may_have_earlier_sessions:
            return EARLIER_SESSIONS
        if self._header.has_missed_changes:
            return MISSED_CHANGES
        return "" if self.is_saved else NOT_SAVED

    @property
    def has_missed_changes(self) -> bool:
        """Whether sessions may have changed without being saved."""
        return self._header.has_missed_changes

    def _load(self) -> None:
        """Read the file. If it is damaged, sessions may have changed in the lost part; it is kept
        under another name."""
        try:
            lines = self._path.read_bytes().split(b"\n")[:-1]  # a torn last line is not confirmed
            if not lines:
                raise ValueError("it has no header")  # a full disk, when it was created
            self._header = msgspec.json.decode(lines.pop(0), type=_Header)
            decoder = msgspec.json.Decoder(SessionChange)
            for line in lines:
                self._apply(decoder.decode(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"cannot read {self._path}: {error.strerror}") from error
        except (msgspec.DecodeError, ValueError, IndexError) as error:
            self.note_missed_changes()
            kept = self._path.with_name(f"{SESSIONS_FILE}.damaged")
            log.error("%s is damaged (%s): it is kept as %s", self._path, error, kept)
            with suppress(OSError):
                self._path.replace(kept)

    def _apply(self, change: SessionChange) -> None:
        client_id, action, items = change
        self._line_count += 1
        if action == ENDED:
            self.sessions.pop(client_id, None)
            return
        if action == OPENED:
            self.sessions[client_id] = SavedSession(int(items[0]))
        session = self.sessions.setdefault(client_id, SavedSession())
        if action == ADDED:
            session.filters.update(dict.fromkeys(items))
        elif action == REMOVED:
            for item in items:
                session.filters.pop(item, None)
        elif action == DOUBTED:
            session.doubt = items[0]

    async def save(self, changes: Iterable[SessionChange]) -> None:
        """Return when these changes are on disk, or an alarm has been raised."""
        self._unwritten += changes
        async with self._lock:
            written, self._unwritten = self._unwritten, []
            if not written and not self._needs_rewrite:
                return  # another call has written them
            for change in written:
                self._apply(change)
            filter_count = sum(len(session.filters) for session in self.sessions.values())
            if self._line_count > 2 * (len(self.sessions) + filter_count) + LINES_SPARE:
                self._needs_rewrite = True
            rewrite = self._needs_rewrite
            content = self._whole() if rewrite else written
            data = b"".join(msgspec.json.encode(item) + b"\n" for item in content)
            if rewrite:
                data = self._header.encode() + data
            self._needs_rewrite = True  # until it is written: the end of the file may be torn
            try:
                await asyncio.to_thread(self._write, data, rewrite)
            except OSError as error:
                await asyncio.to_thread(mark_missed_changes, self._path)
                self.is_saved = False
                self._set_alarm(f"sessions of proxy clients cannot be saved: {error.strerror}")
                return
            self._needs_rewrite = False
            self.is_saved = True
            self._line_count = len(content) if rewrite else self._line_count
            self._set_alarm("")

    def _whole(self) -> list[SessionChange]:
        content: list[SessionChange] = []
        for client_id, session in self.sessions.items():
            content.append((client_id, OPENED, [str(session.expiry_s)]))
            if session.filters:
                content.append((client_id, ADDED, list(session.filters)))
            if session.doubt:
                content.append((client_id, DOUBTED, [session.doubt]))
        return content

    def _write(self, data: bytes, rewrite: bool) -> None:
        if rewrite:
            replace_file(self._path, data)
            return
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())


def mark_missed_changes(path: Path) -> None:
    """Overwrite the header of the file, or create the file, so that it says that it is behind; as
    far as the disk allows that."""
    with suppress(OSError, msgspec.DecodeError):
        try:
            file = path.open("r+b", buffering=0)
        except FileNotFoundError:
            _create_marked(path)
            return
        with file:
            line = file.read(HEADER_BYTES)
            if not line.endswith(b"\n"):
                return  # written by an earlier version
            header = msgspec.json.decode(line, type=_Header)
            if header.has_missed_changes:
                return
            header.has_missed_changes = True
            os.pwrite(file.fileno(), header.encode(), 0)
            sync_file(file.fileno())


def _create_marked(path: Path) -> None:
    """Create the file of a proxy whose agent has never run, unless it exists by now."""
    with path.open("xb") as file:
        file.write(_Header(may_have_earlier_sessions=True, has_missed_changes=True).encode())
        file.flush()
        sync_file(file.fileno())
    sync_directory(path.parent)
