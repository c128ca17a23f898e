"""The file with the persistent sessions of the proxy's clients, and the filters of each."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hansa.agent.alarms import SetAlarm
from hansa.errors import UsageError
from hansa.journal.disk import replace_file, sync_file
from hansa.observers.proxy.observer import (
    ADDED,
    DOUBTED,
    ENDED,
    OPENED,
    REMOVED,
    SessionChange,
)

SESSIONS_FILE = "proxy-sessions"

LINES_SPARE = 1_000
"""Lines beyond twice the number of sessions and filters before the file is rewritten."""


class _Header(msgspec.Struct):
    """The first line: whether clients may have left sessions at the broker before the proxy ran."""

    may_have_earlier_sessions: bool


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
        self.sessions: dict[str, SavedSession] = {}
        self._load()
        if no_earlier_sessions:
            self._header.may_have_earlier_sessions = False

    @property
    def may_have_earlier_sessions(self) -> bool:
        """Whether clients may have left sessions at the broker before the proxy first ran."""
        return self._header.may_have_earlier_sessions

    def _load(self) -> None:
        try:
            lines = self._path.read_bytes().split(b"\n")[:-1]  # a torn last line is not confirmed
            if lines:
                self._header = msgspec.json.decode(lines.pop(0), type=_Header)
            decoder = msgspec.json.Decoder(SessionChange)
            for line in lines:
                self._apply(decoder.decode(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"cannot read {self._path}: {error.strerror}") from error
        except (msgspec.DecodeError, ValueError, IndexError) as error:
            raise UsageError(
                f"{self._path} is damaged ({error}); set [proxy] no_earlier_sessions = false and"
                " remove the file: the sessions that it holds are then unknown"
            ) from error

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
            self._needs_rewrite = True  # until it is written: the end of the file may be torn
            try:
                await asyncio.to_thread(self._write, data, rewrite)
            except OSError as error:
                self._set_alarm(f"sessions of proxy clients cannot be saved: {error.strerror}")
                return
            self._needs_rewrite = False
            self._line_count = len(content) if rewrite else self._line_count
            self._set_alarm("")

    def _whole(self) -> list[_Header | SessionChange]:
        content: list[_Header | SessionChange] = [self._header]
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
