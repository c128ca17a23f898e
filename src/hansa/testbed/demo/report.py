"""The end of the demo: tables and a page, made by Spark from what the agents recorded.

`hansa report` makes both, in a process of its own, so that `./run` installs Spark when it comes to
that. Then the demo compares the tables with what its sensors published and its clients received.
"""

import asyncio
import importlib
import importlib.util
import os
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hansa.console.terminal import make_table
from hansa.errors import UsageError
from hansa.launcher import command_line, command_prefix
from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog
from hansa.testbed.demo import readings
from hansa.testbed.demo.healing import OutageMeasurement
from hansa.testbed.demo.story import DemoOutput
from hansa.testbed.signals import run_until_stopped

TELEMETRY_ENVIRONMENT = {
    "HANSA_TELEMETRY_SAMPLE": "all",
    "HANSA_RECORD": "plant/line1/temp,plant/+/speed",
}
"""Let the agents record the readings, and every step of every publication."""

CALM = "no fault"
"""The event of an observation that begins with none."""

UNWRITTEN_RECORDS_MAX = 1_000
"""What a killed agent may not have written down: two seconds' worth at 500 a second. It writes
every second, and a busy disk takes its time."""

STOP_TIMEOUT_S = 10.0

JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""A JVM that runs for a minute does not get back what it spends on compiling; this saves a third of
the time for the tables."""


# ---------------------------------------------------------------- the directory


class Place:
    """The directory that the demo leaves behind."""

    PARTS = ("agents", "lake", "payloads.toml", "report.html")

    def __init__(self, path: Path) -> None:
        """Choose it; raise UsageError if the demo cannot write there without doing harm."""
        if path.exists():
            if not path.is_dir():
                raise UsageError(f"cannot write to {path}: it is no directory; name another: --out")
            others = sorted({entry.name for entry in path.iterdir()} - {*self.PARTS})
            if others:
                raise UsageError(
                    f"{path} holds {others[0]!r}, which no demo has left there; name another"
                    " directory: --out"
                )
        elif not path.parent.is_dir():
            raise UsageError(f"cannot write to {path}: there is no directory {path.parent}")
        self.path = path
        self.agents, self.lake, self.payloads, self.report = (path / name for name in self.PARTS)

    def fill(self, recorded: Path) -> None:
        """Put recordings in the place of what an earlier demo left."""
        try:
            self.remove()
            shutil.copytree(recorded, self.agents)
            self.payloads.write_text(readings.PAYLOADS, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)


# ---------------------------------------------------------------- what the demo knows


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the demo did, and when, by its own clock and by the clock of the records."""

    what: str
    at: float
    time_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True)
class DemoRecord:
    """What the demo did, what its sensors published and what its clients received."""

    directory: Path
    """Where the agents keep their records, too."""
    published: Counter[str] = field(default_factory=Counter)
    """Temperatures by site, wherever they went."""
    expected: Counter[str] = field(default_factory=Counter)
    """Per broker, publications at other brokers to which its client was subscribed."""
    received_counts: Counter[str] = field(default_factory=Counter)
    """Per broker, how many of them its client received, copies included."""
    faults_by_broker: dict[str, str] = field(default_factory=dict)
    """Per broker, what was done to it or its agent."""
    records: int = 0

    def record_fault(self, name: str, event: Event, node: str) -> None:
        """Note a fault; in the tables it stands beside what the agents did then."""
        self.faults_by_broker[name] = f"{self.faults_by_broker.get(name, '')} {event.what}"
        self._write(schema.FaultInjected(event.time_ns, event.what, int(node, 16)))

    def observe(
        self, name: str, event: Event, ids: tuple[str, str], seen: OutageMeasurement
    ) -> None:
        """Note what the client at a broker received of the publications since an event."""
        self.expected[name] += seen.published
        self.received_counts[name] += seen.arrived + seen.duplicates
        origin, target = (int(node, 16) for node in ids)
        seconds = None if event.what == CALM else seen.interruption_s
        counts = (seen.published, seen.arrived, seen.duplicates)
        self._write(
            schema.ClientDeliveriesCounted(
                event.time_ns, event.what, origin, target, *counts, seconds
            )
        )

    def _write(self, record: schema.AnyRecord) -> None:
        log = TelemetryLog(self.directory / "demo")
        self.records += 1
        # An incarnation for each record, because every recorder numbers its records from 1.
        recorder = NodeRecorder(log, schema.FAULT_INJECTOR, self.records)
        recorder.put(record)
        recorder.flush()
        log.close()


# ---------------------------------------------------------------- tables and report


def write_report(output: DemoOutput, record: DemoRecord, place: Place) -> bool:
    """Make tables and report; return whether they agree with what the demo knows."""
    output.say("\n[bold]Your data.[/bold] Spark makes tables of what the agents recorded.")
    arguments = ["--lake", place.lake, "--payloads", place.payloads, "--out", place.report]
    words = ["report", *map(str, arguments), "--query", readings.QUERY, str(place.agents)]
    try:
        code, answer = run_until_stopped(_output([*command_prefix(), *words]))
    except KeyboardInterrupt:
        place.remove()
        raise
    if code != 0:
        return _without(output, place, words)
    output.print(answer)
    tables = place.lake / "tables"
    is_recorded = _compare_recorded(output, record, tables)
    is_delivered = _compare_delivered(output, record, tables)
    output.say("This shows the table of your data again:")
    output.print(
        f"  {command_line('pipeline', 'query', '--lake', str(place.lake), readings.QUERY)}"
    )
    return is_recorded and is_delivered


async def _output(words: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code and output.

    It gets a new session, so Ctrl-C reaches only the demo, which then stops the command and
    all that it started: Spark's Java, or pip.
    """
    options = f"{os.environ.get(JAVA_OPTIONS, '')} {QUICK_JAVA}".strip()
    process = await asyncio.create_subprocess_exec(
        *words,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, JAVA_OPTIONS: options},
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        raise
    assert process.returncode is not None
    return process.returncode, output.decode()


def _without(story: DemoOutput, place: Place, words: list[str]) -> bool:
    """Say what is left out; it is no failure of the demo where Spark is not installed."""
    importlib.invalidate_caches()
    is_installed = importlib.util.find_spec("pyspark") is not None
    why = "that failed, see above" if is_installed else "Spark is not installed, see above"
    story.say(
        f"   Left out, because {why}: the table of readings and the report. What the agents"
        f" recorded is in {place.agents}; later this makes both:"
    )
    story.print(f"  {command_line(*words)}")
    return not is_installed


def _compare_recorded(story: DemoOutput, account: DemoRecord, tables: Path) -> bool:
    """Compare the readings in the table with what the sensors published."""
    found = Counter(row["site"] for row in _rows(tables / "silver" / "temperatures"))
    if found == account.published:
        story.say(
            f"   All {found.total():,} readings that the sensors published are in the table, once."
        )
        return True
    story.say(
        f"[red]The sensors published {_by_site(account.published)}, the table has"
        f" {_by_site(found)}: this should be the same.[/red]"
    )
    return False


def _by_site(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} at {site}" for site, count in sorted(counts.items())) or "nothing"


def _compare_delivered(story: DemoOutput, account: DemoRecord, tables: Path) -> bool:
    """Compare the deliveries that agents recorded with what their clients received."""
    names = {row["node_id"]: row["node_name"] for row in _rows(tables / "silver" / "nodes")}
    told: Counter[str] = Counter()
    for row in _rows(tables / "gold" / "traffic_matrix"):
        told[names[row["node_id"]]] += row["publications"]
    made = make_table(
        "at broker", ">published elsewhere", ">its client got", ">agent delivered", ""
    )
    is_good = True
    for name in sorted(account.received_counts):
        counted, said = account.received_counts[name], told[name]
        reason = explain_difference(counted, said, account.faults_by_broker.get(name, ""))
        is_good = is_good and reason is not None
        shown = "[red]this should be the same[/red]" if reason is None else reason
        made.add_row(name, f"{account.expected[name]:,}", f"{counted:,}", f"{said:,}", shown)
    story.say(
        "   The report has both counts of deliveries: what clients got, and what agents recorded."
    )
    story.print_table(made)
    return is_good


def explain_difference(received: int, recorded: int, faults: str) -> str | None:
    """Return why the two numbers are as they are, None if nothing that was done explains it.

    A client counts what reaches it. An agent records what it hands to its broker, and writes that
    down once a second.
    """
    if received == recorded:
        return "the same"
    if 0 < received - recorded <= UNWRITTEN_RECORDS_MAX and "kill agent" in faults:
        return f"the {received - recorded:,} missing were its last before kill -9, not written yet"
    if recorded > received and "kill broker" in faults:
        return f"the {recorded - received:,} more were handed to the broker as it was killed"
    return None


def _rows(path: Path) -> list[dict[str, Any]]:
    """Read a table; pyarrow may have been installed since this process began."""
    importlib.invalidate_caches()
    parquet = importlib.import_module("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows
