"""Writing a journal: `append` gives a record its place, `commit` makes all of them durable.

`append` touches no disk, so a stream that nobody waits for never waits either. `commit` writes and
syncs everything at once (group commit) and may run in another thread while appends go on; two
commits wait for one another.

A segment ends by size or age, which `append` notices. The next one begins with what `carry`
returns, all state that must outlive the old segments: so the last segment alone tells what a
restarted agent has to know, `replay` reads it, and retention never drops a state with old data.
"""

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hansa.errors import JournalUnusable
from hansa.journal import crash, recovery, retention
from hansa.journal.disk import SyncFailed
from hansa.journal.index import Entry, Spacing
from hansa.journal.reader import Reader
from hansa.journal.records import Captured, Record, Trimmed, encode
from hansa.journal.segment import HEADER_BYTES, Header, bases, frame
from hansa.journal.settings import JournalSettings
from hansa.journal.tail import Tail

_PASSES = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write that end when somebody makes room."""


@dataclass(slots=True)
class _Stretch:
    """Appended records that wait for the disk and belong into one segment."""

    offset: int
    begins: Header | None = None
    """The segment that begins with them."""
    chunks: list[bytes] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


def nothing() -> Iterable[Record]:
    """Carry nothing."""
    return ()


class Writer:
    """The one writer of a journal. Raises JournalUnusable where the system refuses."""

    def __init__(
        self,
        path: Path,
        node: int,
        new_epoch: int,
        settings: JournalSettings | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open the journal of a node and cut what a crash left; make it, with this epoch, if there
        is none. Raises JournalDamaged if something that was durable is lost."""
        self.carry: Callable[[], Iterable[Record]] = nothing
        """Returns the state that the next segment begins with. Called by `append`, in its thread;
        must not append. A carried record may say again what follows it."""
        self.dropped = 0
        """Records that `offer` refused."""
        self.cut_bytes = 0
        """Bytes of records, never durable, that opening cut."""
        self.damage = ""
        """What opening found damaged, although no record is known to be lost by it."""
        self._path = path
        self._settings = settings or JournalSettings()
        self._clock = clock
        self._appending = threading.Lock()
        self._committing = threading.Lock()
        self._trimmed: list[Trimmed] = []
        self._failure: str | None = None
        with contextlib.ExitStack() as on_failure:
            self._lock = _locked(path)
            on_failure.callback(self._lock.close)
            try:
                found = self._find(node)
                self._tail = Tail(path)
                on_failure.callback(self._tail.close)
                self._open(found, Header(node, new_epoch, 0, 1, clock()))
            except OSError as error:
                raise _refused(path, error) from error
            on_failure.pop_all()

    def _find(self, node: int) -> recovery.Found:
        retention.remove_remains(self._path, bases(self._path))
        found = recovery.find(self._path)
        if found.headers and found.headers[-1].node != node:
            raise JournalUnusable(
                f"the journal {self._path} is that of node {found.headers[-1].node:016x}, not of "
                f"{node:016x}; give this node its own"
            )
        return found

    def _open(self, found: recovery.Found, new: Header) -> None:
        self._is_found = bool(found.headers)
        if found.headers:
            last = found.headers[-1]
            self._tail.resume(last.base, found.durable, found.end, found.entries)
        else:
            last = new
            found.headers.append(last)
            found.end = HEADER_BYTES
            self._tail.begin(last, b"", [])
        self.cut_bytes, self.damage = found.cut_bytes, found.damage
        self._headers = found.headers
        self._next_number = found.next_number
        self._end = self.durable = found.end
        self._recovered = last.base, found.end
        self._checkpoint = last.base + HEADER_BYTES
        self._waiting = [_Stretch(self._end)]
        self._spacing = Spacing(found.entries[-1][1] if found.entries else last.base)
        self._plan()

    # ------------------------------------------------------------ what it is

    durable: int
    """Everything before this offset is durable."""

    @property
    def epoch(self) -> int:
        """The epoch of this journal, which its captured publications carry."""
        return self._headers[0].epoch

    @property
    def next_number(self) -> int:
        """The number that the next captured publication must have."""
        return self._next_number

    @property
    def first_number(self) -> int:
        """The lowest number of a captured publication that retention has not dropped."""
        return self._headers[0].number

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._end

    def replay(self) -> Iterator[Record]:
        """Yield what the last segment said when it was opened: the state of the life before."""
        reader = Reader(self._path, self.durable)
        for _, record in reader.read(*self._recovered):
            yield record

    # ------------------------------------------------------------ writing

    def append(self, record: Record) -> int:
        """Give a record its place and return its offset. It is durable when `durable` is above."""
        data = frame(record.KIND, encode(record))
        with self._appending:
            if self._failure:
                raise JournalUnusable(self._failure)
            number = record.number if isinstance(record, Captured) else None
            if number is not None and number != self._next_number:
                raise ValueError(f"number {number}, the next one is {self._next_number}")
            if self._is_due():
                self._roll()
            if self._trimmed:
                self._say_trimmed()
            offset = self._end
            stretch = self._waiting[-1]
            if number is not None:
                self._spacing.note(stretch.entries, number, offset)
                self._next_number = number + 1
            stretch.chunks.append(data)
            self._end = offset + len(data)
            return offset

    def offer(self, record: Record) -> bool:
        """Append a record that nobody waits for, unless too much already waits for the disk."""
        if self._end - self.durable > self._settings.waiting_bytes_max:
            self.dropped += 1
            return False
        self.append(record)
        return True

    def commit(self) -> int:
        """Make everything durable that was appended before; return `durable`.

        When the disk is full, what was appended stays, and the next commit tries again. After any
        other failure this writer is of no more use: what is on disk is known only to the next one.
        """
        with self._committing:
            with self._appending:
                if self._failure:
                    raise JournalUnusable(self._failure)
                taken, self._waiting = self._waiting, [_Stretch(self._end)]
            try:
                while taken:
                    self._write(taken[0])
                    del taken[0]
            except OSError as error:
                raise self._failed(error, taken) from error
            return self.durable

    def close(self) -> None:
        """Commit, and let the next writer in."""
        try:
            if not self._failure:
                self.commit()
        finally:
            self._tail.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ inside: appending

    def _put(self, record: Record) -> None:
        self._put_bytes(frame(record.KIND, encode(record)))

    def _put_bytes(self, data: bytes) -> None:
        self._waiting[-1].chunks.append(data)
        self._end += len(data)

    def _say_trimmed(self) -> None:
        for trimmed in self._trimmed:
            self._put(trimmed)
        self._trimmed = []

    def _plan(self) -> None:
        """Say when the segment ends: so much after what it began with, or so long after that."""
        last = self._headers[-1]
        self._full_at = self._checkpoint + self._settings.segment_bytes
        age_ns = round(self._settings.segment_seconds * retention.SECOND_NS)
        self._old_at_ns = last.created_ns + age_ns

    def _is_due(self) -> bool:
        return self._end >= self._full_at or self._clock() >= self._old_at_ns

    def _roll(self) -> None:
        if self._end == self._checkpoint:  # nothing new in it, so it may stay
            return
        carried = b"".join(frame(record.KIND, encode(record)) for record in self.carry())
        if self._is_found:
            # What a former life began it with is not known: about what the next would begin with.
            self._is_found = False
            self._checkpoint += len(carried)
            self._plan()
            if not self._is_due():
                return
        last = self._headers[-1]
        header = Header(last.node, last.epoch, self._end, self._next_number, self._clock())
        self._headers = [*self._headers, header]
        self._waiting.append(_Stretch(self._end, header))
        self._spacing = Spacing(self._end)
        self._end += HEADER_BYTES
        self._put_bytes(carried)
        self._checkpoint = self._end
        self._plan()

    # ------------------------------------------------------------ inside: committing

    def _write(self, stretch: _Stretch) -> None:
        data = b"".join(stretch.chunks)
        if stretch.begins is not None:
            self._tail.begin(stretch.begins, data, stretch.entries)
            self.durable = stretch.offset + HEADER_BYTES + len(data)
            self._trim()
        elif data:
            crash.reached(crash.Point.COMMIT_BEGUN)
            self._tail.write(stretch.offset, data, stretch.entries)
            self.durable = stretch.offset + len(data)

    def _trim(self) -> None:
        now_ns = self._clock()
        on_disk = [header for header in self._headers if header.base < self.durable]
        count = retention.expired(on_disk, self.durable, self._settings, now_ns)
        said = retention.drop(self._path, on_disk, count, now_ns)
        with self._appending:
            self._headers = self._headers[count:]
            self._trimmed += said

    def _failed(self, error: OSError, unwritten: list[_Stretch]) -> JournalUnusable:
        refused = _refused(self._path, error)
        with self._appending:
            # What was appended since goes on in the same segment: no stretch more for each attempt.
            since, *begun = self._waiting
            unwritten[-1].chunks += since.chunks
            unwritten[-1].entries += since.entries
            self._waiting = unwritten + begun
            if isinstance(error, SyncFailed) or error.errno not in _PASSES:
                self._failure = f"{refused}; start the agent again"
                return JournalUnusable(self._failure)
        return refused


def _locked(path: Path) -> "_Lock":
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _Lock(path)
    except BlockingIOError as error:
        raise JournalUnusable(f"another agent writes the journal {path}") from error
    except OSError as error:
        raise _refused(path, error) from error


class _Lock:
    """Keeps a second writer out for as long as the process holds it, and no longer."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        os.close(self._descriptor)


def _refused(path: Path, error: OSError) -> JournalUnusable:
    return JournalUnusable(f"cannot write the journal {path}: {error.strerror}")
