"""Small journals and telemetry logs with known contents."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hansa.journal.records import (
    CaptureCompletedRecord,
    CapturedRecord,
    JournalRecord,
    RecordedPublication,
)
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.pipeline.feeds import find_feeds
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options
from hansa.telemetry import schema
from hansa.telemetry.reader import read_rows
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def captured(
    number: int,
    topic: str = "a/b",
    payload: bytes = b"21.5",
    qos: int = 1,
    properties: bytes = b"",
) -> CapturedRecord:
    time_ns = START + number * SECOND // 1_000
    return CapturedRecord(number, qos, topic, payload, False, properties, (), 1, time_ns, True)


def recorded(number: int, topic: str = "a/c", payload: bytes = b"on") -> RecordedPublication:
    return RecordedPublication(3, number, topic, payload, True, b"\x01", START + number)


def journal(
    path: Path, node: int, records: Iterable[JournalRecord], settings: JournalSettings | None = None
) -> None:
    """Append to the journal of a node; create it if necessary."""
    with JournalWriter(path, node, 7, settings) as writer:
        for record in records:
            writer.append(record)
            if writer.end - writer.durable > 1 << 20:
                writer.commit()
        writer.commit()


def many(first: int, last: int) -> list[JournalRecord]:
    """Return captured publications with these sequence numbers, and other records between them."""
    return [
        record
        for number in range(first, last + 1)
        for record in (captured(number), CaptureCompletedRecord(number))
    ]


def telemetry(
    path: Path, node: int, records: Iterable[schema.AnyRecord], incarnation: int = 1
) -> None:
    """Write a log with one incarnation of one node."""
    log = TelemetryLog(path)
    recorder = NodeRecorder(log, node, incarnation)
    for record in records:
        recorder.put(record)
    recorder.flush()
    log.close()


@dataclass(slots=True)
class Recording:
    """Recorded data of simulations and agents, and what is known of it independently."""

    root: Path
    results: dict[str, SimulationResult] = field(default_factory=dict)
    """The results of random simulations, by run."""
    runs: dict[str, str] = field(default_factory=dict)
    """The runs of other logs, by name."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """All telemetry rows, with their runs."""

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    def add_log(self, name: str, log: Path, run: str = "") -> str:
        run = run or next(iter(find_feeds([str(log)], telemetry=True)))
        self.runs[name] = run
        for row in read_rows(log):
            whole = row.record.time_ns // 1_000 * 1_000  # tables have microseconds
            self.rows.append({**row.columns(), "run": run, "time_ns": whole})
        return run


def simulated(root: Path, seeds: Sequence[int]) -> Recording:
    """Run and record random simulations."""
    made = Recording(root)
    for seed in seeds:
        log = made.source / str(seed)
        result = simulate(random_options(seed), telemetry=log)
        made.results[made.add_log(str(seed), log)] = result
    return made
