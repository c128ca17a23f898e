"""Cost of a durable record: the journal compared with plain writes and SQLite."""

import asyncio
import os
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.console import say
from hansa.delivery.context import Context
from hansa.delivery.effects import LogName
from hansa.delivery.group_commit import GroupCommit
from hansa.journal.reader import JournalReader
from hansa.journal.records import CapturedRecord, RecordedPublication, encode_record
from hansa.journal.segment import frame_record
from hansa.journal.writer import JournalWriter

PAYLOAD = b"x" * 64
BATCHES = (1, 16, 256)
ROUNDS = 7
ROUND_SECONDS = 0.3
WINDOW = 1_000
"""Publications that a broker lets the capturing agent leave unacknowledged."""


def measure() -> dict[str, object]:
    """Durable records per second at 64 B, compared with plain writes and SQLite."""
    # In the working directory, because /tmp is a memory disk on many machines.
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-journal-") as directory:
        return _measure(Path(directory))


def _measure(path: Path) -> dict[str, object]:
    answers: dict[str, object] = {}
    with JournalWriter(path / "journal", 1, 1) as writer:
        methods = {"journal": _Journal(writer), "bare": _Bare(path), "sqlite": _Sqlite(path)}
        for batch in BATCHES:
            rates = _race(methods, batch)
            for name, rounds in rates.items():
                answers[f"{name}_batch_{batch}_per_s"] = round(median(rounds))
            of_bare = _ratio(rates["journal"], rates["bare"])
            of_sqlite = _ratio(rates["journal"], rates["sqlite"])
            answers[f"batch_{batch}_of_bare"] = round(of_bare, 2)
            answers[f"batch_{batch}_of_sqlite"] = round(of_sqlite, 2)
            say(
                f"batches of {batch}",
                f"{median(rates['journal']):9,.0f} /s  {of_bare:5.2f} of bare write and fdatasync"
                f"  {of_sqlite:5.2f} of SQLite",
            )
        answers["captured_per_s"] = captured = round(_capture(writer))
        say(f"captured and acknowledged, {WINDOW:,} in flight", f"{captured:9,} /s")
        answers["unwaited_per_s"] = unwaited = round(_unwaited(writer))
        say("recorded while a thread commits, nobody waits", f"{unwaited:9,} /s")
    answers["read_per_s"] = reads = round(_read(path / "journal"))
    say("read back", f"{reads:9,} /s")
    return answers


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return median(our / their for our, their in zip(ours, theirs, strict=True))


def _race(methods: dict[str, "_Method"], batch: int) -> dict[str, list[float]]:
    """Run all methods in short alternating rounds, so that load on the machine affects all
    alike."""
    rates: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS):
        for name, method in methods.items():
            rates[name].append(_per_second(lambda method=method: method.commit(batch)))  # type: ignore[misc]
    return rates


def _per_second(work: Callable[[], int]) -> float:
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < ROUND_SECONDS:
        done += work()
    return done / (time.perf_counter() - began)


def _captured(number: int) -> CapturedRecord:
    return CapturedRecord(
        number, 1, "site/line/sensor", PAYLOAD, False, b"", ((1, number - 1),), 1, 1
    )


class _Method:
    """A method of making records durable."""

    def commit(self, batch: int) -> int:
        """Make `batch` records durable; return how many."""
        raise NotImplementedError


class _Journal(_Method):
    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def commit(self, batch: int) -> int:
        writer = self._writer
        for _ in range(batch):
            writer.append(_captured(writer.next_sequence))
        writer.commit()
        return batch


class _Bare(_Method):
    """The same bytes, made before; one write and one sync per batch."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._record = frame_record(CapturedRecord.KIND, encode_record(_captured(1_000)))

    def commit(self, batch: int) -> int:
        os.write(self._descriptor, self._record * batch)
        os.fdatasync(self._descriptor)
        return batch


class _Sqlite(_Method):
    """A table with the same columns: write-ahead log, synchronous, one transaction per batch."""

    def __init__(self, path: Path) -> None:
        self._base = sqlite3.connect(path / "sqlite", isolation_level=None)
        self._base.execute("pragma journal_mode = wal")
        self._base.execute("pragma synchronous = full")
        self._base.execute(
            "create table captured (number integer primary key, qos, topic, payload, retain,"
            " properties, previous, packet_id, time_ns)"
        )
        self._number = 0

    def commit(self, batch: int) -> int:
        rows = [
            (self._number + n, 1, "site/line/sensor", PAYLOAD, 0, b"", b"x" * 16, 1, 1)
            for n in range(1, batch + 1)
        ]
        self._number += batch
        self._base.execute("begin")
        self._base.executemany("insert into captured values (?,?,?,?,?,?,?,?,?)", rows)
        self._base.execute("commit")
        return batch


class _Commits:
    """Commits in a thread, one commit at a time, as the agent does."""

    def __init__(self, writer: JournalWriter, on_committed: Callable[[], None]) -> None:
        self._writer = writer
        self._on_committed = on_committed
        self._context = Context(time.time_ns)
        self._group_commit = GroupCommit(self._context, LogName.OUTBOX, writer)
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Make everything appended so far durable."""
        self._group_commit.request()
        self._start_requested()

    def _start_requested(self) -> None:
        if self._context.take_effects():
            self._task = asyncio.create_task(self._commit())

    async def _commit(self) -> None:
        await asyncio.to_thread(self._writer.commit)
        self._group_commit.on_committed()
        self._on_committed()
        self._group_commit.continue_if_needed()
        self._start_requested()


def _capture(writer: JournalWriter) -> float:
    """Like an agent: append what arrives, acknowledge what is durable, receive as many again."""

    async def run() -> float:
        in_flight: deque[int] = deque()
        done, began = 0, time.perf_counter()

        def receive(count: int) -> None:
            in_flight.extend(writer.append(_captured(writer.next_sequence)) for _ in range(count))
            commits.request()

        def durable() -> None:
            nonlocal done
            answered = 0
            while in_flight and in_flight[0] < writer.durable:
                in_flight.popleft()
                answered += 1
            done += answered
            receive(answered)

        commits = _Commits(writer, durable)
        receive(WINDOW)  # publications in flight at the end are left to the writer
        await asyncio.sleep(ROUNDS * ROUND_SECONDS)
        return done / (time.perf_counter() - began)

    return asyncio.run(run())


def _unwaited(writer: JournalWriter) -> float:
    """Append records continuously; count those that were accepted."""

    async def run() -> float:
        commits = _Commits(writer, lambda: None)
        record = RecordedPublication(1, 1, "site/line/sensor", PAYLOAD, False, b"", 1)
        taken, began = 0, time.perf_counter()
        while time.perf_counter() - began < ROUND_SECONDS * ROUNDS:
            taken += sum(writer.append_if_room(record) for _ in range(1_000))
            commits.request()
            await asyncio.sleep(0)
        return taken / (time.perf_counter() - began)

    return asyncio.run(run())


def _read(path: Path) -> float:
    began = time.perf_counter()
    count = sum(1 for _ in JournalReader(path).read())
    return count / (time.perf_counter() - began)
