"""The report of the demo: tables and a page, made by Spark from the recordings of the agents.

`hansa report` makes both in another process, so that `./run` installs Spark only then. The demo
compares the tables with the publications of its sensors and the deliveries to its clients.
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

from hansa.console.terminal import make_table
from hansa.errors import UsageError
from hansa.launcher import command_line, command_prefix
from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog
from hansa.testbed.cancellation import run_until_stopped
from hansa.testbed.demo import readings
from hansa.testbed.demo.delta_files import read_delta
from hansa.testbed.demo.healing import OutageMeasurement
from hansa.testbed.demo.output import DemoOutput

TELEMETRY_ENVIRONMENT = {
    "HANSA_TELEMETRY_SAMPLE": "all",
    "HANSA_RECORD": "plant/line1/temp,plant/+/speed",
}
"""The agents record the readings, and telemetry of every publication."""

CALM = "no fault"
"""Name of the event of an observation without a fault."""

UNWRITTEN_RECORDS_MAX = 1_000
"""Records that a killed agent may lose: 2 s at 500 per second. It writes every second, and the disk
may be busy."""

STOP_TIMEOUT_S = 10.0


# ---------------------------------------------------------------- the output directory


class DemoDirectory:
    PARTS = ("agents", "lake", "payloads.toml", "report.html")

    def __init__(self, path: Path) -> None:
        """Raise UsageError if the path is not usable, or a directory with foreign files."""
        if path.exists():
            if not path.is_dir():
                raise UsageError(
                    f"cannot write to {path}: it is not a directory; name another: --out"
                )
            others = sorted({entry.name for entry in path.iterdir()} - {*self.PARTS})
            if others:
                raise UsageError(
                    f"{path} contains {others[0]!r}, which is not from a demo; name another"
                    " directory: --out"
                )
        elif not path.parent.is_dir():
            raise UsageError(f"cannot write to {path}: there is no directory {path.parent}")
        self.path = path
        self.agents, self.lake, self.payloads, self.report = (path / name for name in self.PARTS)

    def fill(self, recorded: Path) -> None:
        """Replace the files of an earlier demo by new recordings."""
        try:
            self.remove()
            shutil.copytree(recorded, self.agents)
            self.payloads.write_text(readings.PAYLOADS, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


# ---------------------------------------------------------------- expected results


@dataclass(frozen=True, slots=True)
class Event:
    """An action of the demo, with its time on the event loop's clock and in telemetry."""

    what: str
    at: float
    time_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True)
class DemoRecord:
    """Faults, publications and deliveries of the demo, also written as telemetry."""

    directory: Path
    """Also the directory of the agents' recordings."""
    published: Counter[str] = field(default_factory=Counter)
    """Published temperatures by site."""
    expected: Counter[str] = field(default_factory=Counter)
    """Publications at other brokers to which its client was subscribed, by broker."""
    received_counts: Counter[str] = field(default_factory=Counter)
    """Deliveries to its client, duplicates included, by broker."""
    faults_by_broker: dict[str, str] = field(default_factory=dict)
    """Faults of the broker or its agent, by broker."""
    records: int = 0

    def record_fault(self, name: str, event: Event, node: str) -> None:
        self.faults_by_broker[name] = f"{self.faults_by_broker.get(name, '')} {event.what}"
        self._write(schema.FaultInjected(event.time_ns, event.what, int(node, 16)))

    def observe(
        self, name: str, event: Event, ids: tuple[str, str], seen: OutageMeasurement
    ) -> None:
        """Record deliveries to the client at a broker since an event."""
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
        # One incarnation per record, because every recorder numbers its records from 1.
        recorder = NodeRecorder(log, schema.FAULT_INJECTOR, self.records)
        recorder.put(record)
        recorder.flush()
        log.close()


# ---------------------------------------------------------------- tables and report


def write_report(output: DemoOutput, record: DemoRecord, directory: DemoDirectory) -> bool:
    """Make tables and report; return whether the tables agree with the record."""
    output.say("\n[bold]Your data.[/bold] Spark makes tables of the agents' recordings.")
    arguments = [
        "--lake",
        directory.lake,
        "--payloads",
        directory.payloads,
        "--out",
        directory.report,
    ]
    words = ["report", *map(str, arguments), "--query", readings.QUERY, str(directory.agents)]
    try:
        code, answer = run_until_stopped(_output([*command_prefix(), *words]))
    except KeyboardInterrupt:
        directory.remove()
        raise
    if code != 0:
        return _without(output, directory, words)
    output.print(answer)
    is_recorded = _compare_recorded(output, record, directory.lake)
    is_delivered = _compare_delivered(output, record, directory.lake)
    output.say("This shows the table of your data again:")
    output.print(
        f"  {command_line('pipeline', 'query', '--lake', str(directory.lake), readings.QUERY)}"
    )
    return is_recorded and is_delivered


async def _output(words: list[str]) -> tuple[int, str]:
    """Run a command; return its exit code and output.

    It runs in a new session, so Ctrl-C reaches only the demo, which then stops the command and its
    children: Spark's Java, or pip.
    """
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, start_new_session=True
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


def _without(output: DemoOutput, directory: DemoDirectory, words: list[str]) -> bool:
    """Print why there is no report; that is a failure only if Spark is installed."""
    importlib.invalidate_caches()
    is_installed = importlib.util.find_spec("pyspark") is not None
    why = "that failed, see above" if is_installed else "Spark is not installed, see above"
    output.say(
        f"   No table of readings and no report, because {why}. The recordings of the agents are in"
        f" {directory.agents}; this command makes both later:"
    )
    output.print(f"  {command_line(*words)}")
    return not is_installed


def _compare_recorded(output: DemoOutput, record: DemoRecord, lake: Path) -> bool:
    """Compare the readings in the table with the publications of the sensors."""
    found = Counter(row["site"] for row in read_delta(lake / "silver" / "temperatures"))
    if found == record.published:
        output.say(f"   All {found.total():,} published readings are in the table, once.")
        return True
    output.say(
        f"[red]The sensors published {_by_site(record.published)}, the table has"
        f" {_by_site(found)}: these must be equal.[/red]"
    )
    return False


def _by_site(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} at {site}" for site, count in sorted(counts.items())) or "nothing"


def _compare_delivered(output: DemoOutput, record: DemoRecord, lake: Path) -> bool:
    """Compare the deliveries that agents recorded with those that their clients received."""
    names = {row["node_id"]: row["node_name"] for row in read_delta(lake / "silver" / "nodes")}
    recorded: Counter[str] = Counter()
    for row in read_delta(lake / "gold" / "traffic_matrix"):
        recorded[names[row["node_id"]]] += row["publications"]
    made = make_table(
        "at broker", ">published elsewhere", ">client received", ">agent delivered", ""
    )
    is_good = True
    for name in sorted(record.received_counts):
        received, delivered = record.received_counts[name], recorded[name]
        reason = explain_difference(received, delivered, record.faults_by_broker.get(name, ""))
        is_good = is_good and reason is not None
        shown = "[red]must be equal[/red]" if reason is None else reason
        made.add_row(name, f"{record.expected[name]:,}", f"{received:,}", f"{delivered:,}", shown)
    output.say(
        "   The report has both counts of deliveries: received by clients, recorded by agents."
    )
    output.print_table(made)
    return is_good


def explain_difference(received: int, recorded: int, faults: str) -> str | None:
    """Return why the two counts differ, or None if no fault explains it.

    A client counts deliveries. An agent records publications to its broker, and writes the records
    once a second.
    """
    if received == recorded:
        return "equal"
    if 0 < received - recorded <= UNWRITTEN_RECORDS_MAX and "kill agent" in faults:
        return f"the last {received - recorded:,} before kill -9 were not written yet"
    if recorded > received and "kill broker" in faults:
        return f"{recorded - received:,} were published to the broker as it was killed"
    return None
