"""Writes an agent's telemetry: collected in the loop, written by a thread once a second.

A failing disk raises an alarm and loses records; the agent works on.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hansa import __version__
from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.telemetry.sampler import Sampler
from hansa.agent.telemetry.settings import TelemetrySettings
from hansa.errors import JournalDamaged, JournalUnusable
from hansa.protocol.model import Identity
from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

if TYPE_CHECKING:  # most agents export no traces
    from hansa.agent.telemetry.trace_exporter import TraceExporter

WRITE_INTERVAL_S = 1.0
"""Seconds until records can be read by others."""

WRITES_PER_COUNT = 10
"""Writes between two records of the counters."""

UPTIME_COUNTER = "uptime_s"
"""A counter that always changes: an agent without links must not look like a lost node."""

ALARM_CHARS_MAX = 500
"""Longest recorded text of an alarm."""


class TelemetryWriter:
    def __init__(
        self,
        path: Path,
        settings: TelemetrySettings,
        identity: Identity,
        counters: Callable[[], Counter[str]],
        alarms: Alarms,
    ) -> None:
        """Open the log; `counters` returns the counters to record."""
        self._log = _open_log(path, settings, identity.incarnation, alarms)
        self._recorder = NodeRecorder(self._log, identity.node, identity.incarnation)
        self._counters = counters
        self._last_counters: Counter[str] = Counter()
        self._started_at = time.monotonic()
        self._set_alarm = alarms.setter("telemetry not written")
        self._task: asyncio.Task[None] | None = None
        self.exporter = _make_exporter(settings, identity, alarms)
        """Sends the same records as spans, if a collector is configured."""
        identity_pair = (identity.node, identity.incarnation)
        sink = self._put_and_export if self.exporter else self._recorder.put
        self.sampler = Sampler(sink, identity_pair, settings.sample.one_in, clock=time.time_ns)
        self._recorder.put(schema.NodeStarted(time.time_ns(), identity.name, __version__))

    @property
    def dropped(self) -> int:
        """Records dropped because the disk was too slow."""
        return self._log.dropped

    def record_alarm(self, name: str, text: str, change: str) -> None:
        """Record an alarm that was `raised` or `cleared`."""
        if change == "raised":
            self._recorder.put(schema.AlarmRaised(time.time_ns(), name, text[:ALARM_CHARS_MAX]))
        elif change == "cleared":
            self._recorder.put(schema.AlarmCleared(time.time_ns(), name))

    def start(self) -> None:
        self._task = tasks.start_task(self._run())
        if self.exporter:
            self.exporter.start()

    def _put_and_export(self, record: schema.AnyRecord) -> None:
        assert self.exporter is not None
        self._recorder.put(record)
        self.exporter.add(record)

    async def _run(self) -> None:
        turn = 0
        while True:
            if turn % WRITES_PER_COUNT == 0:
                self._record_counters()
            turn += 1
            await self._write()
            await asyncio.sleep(WRITE_INTERVAL_S)

    async def _write(self) -> None:
        self._recorder.flush()
        try:
            await asyncio.to_thread(self._log.commit)
        except JournalUnusable as error:
            self._set_alarm(str(error))
        else:
            self._set_alarm("")

    def _record_counters(self) -> None:
        now, current = time.time_ns(), Counter(self._counters())
        current[UPTIME_COUNTER] = round(time.monotonic() - self._started_at)
        for name, value in current.items():
            if value != self._last_counters[name]:
                self._recorder.put(schema.Counter(now, name, value))
        self._last_counters = current

    async def stop(self) -> None:
        """Write the last records, close, and send the last spans."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._record_counters()
        self._recorder.put(schema.NodeStopped(time.time_ns()))
        self._recorder.flush()
        try:
            await asyncio.to_thread(self._log.close)
        except JournalUnusable as error:
            self._set_alarm(str(error))
        if self.exporter:
            await self.exporter.stop()


def _open_log(
    path: Path, settings: TelemetrySettings, incarnation: int, alarms: Alarms
) -> TelemetryLog:
    """Open the log; a damaged one is set aside."""
    try:
        return TelemetryLog(path, settings.journal_settings())
    except JournalDamaged as error:
        aside = path.with_name(f"{path.name}-damaged-{incarnation}")
        alarms.set("telemetry damaged", f"{error}; it is set aside as {aside.name}")
        path.rename(aside)
        return TelemetryLog(path, settings.journal_settings())


def _make_exporter(
    settings: TelemetrySettings, identity: Identity, alarms: Alarms
) -> "TraceExporter | None":
    if not settings.otlp:
        return None
    from hansa.agent.telemetry.trace_exporter import TraceExporter

    return TraceExporter(settings.otlp, identity, alarms)
