"""An agent's telemetry: gathered in the loop, written by a thread once a second.

Trouble with the disk is told as an alarm and costs records, never the agent's work.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hansa import __version__
from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.telemetry.sampler import Witness
from hansa.agent.telemetry.settings import TelemetrySettings
from hansa.errors import JournalDamaged, JournalUnusable
from hansa.protocol.model import Identity
from hansa.telemetry import schema
from hansa.telemetry.log import Log, Recorder

WRITE_S = 1.0
"""Seconds until what happened can be read by others."""

COUNT_EVERY = 10
"""Writes from one look at the counters to the next."""

UPTIME = "uptime_s"
"""A counter that always changes: an agent without links must not look like a lost node."""


class Telemetry:
    """What one agent tells, in one life."""

    def __init__(
        self,
        path: Path,
        settings: TelemetrySettings,
        identity: Identity,
        counters: Callable[[], Counter[str]],
        alarms: Alarms,
    ) -> None:
        """Open the log; `counters` are looked at now and then."""
        self._log = _open(path, settings, identity.incarnation, alarms)
        self._recorder = Recorder(self._log, identity.node, identity.incarnation)
        self._counters = counters
        self._counted: Counter[str] = Counter()
        self._started_at = time.monotonic()
        self._problem = alarms.named("telemetry")
        self._task: asyncio.Task[None] | None = None
        life = (identity.node, identity.incarnation)
        self.witness = Witness(self._recorder.put, life, settings.sample.one_in, clock=time.time_ns)
        self._recorder.put(schema.Started(time.time_ns(), identity.name, __version__))

    @property
    def dropped(self) -> int:
        """Records that the disk could not take in time."""
        return self._log.dropped

    def start(self) -> None:
        """Write from now on."""
        self._task = tasks.start(self._run())

    async def _run(self) -> None:
        turn = 0
        while True:
            if turn % COUNT_EVERY == 0:
                self._count()
            turn += 1
            await self._write()
            await asyncio.sleep(WRITE_S)

    async def _write(self) -> None:
        self._recorder.flush()
        try:
            await asyncio.to_thread(self._log.commit)
        except JournalUnusable as error:
            self._problem(str(error))
        else:
            self._problem("")

    def _count(self) -> None:
        """Tell what has changed of the counters."""
        now, counted = time.time_ns(), Counter(self._counters())
        counted[UPTIME] = round(time.monotonic() - self._started_at)
        for name, value in counted.items():
            if value != self._counted[name]:
                self._recorder.put(schema.Counter(now, name, value))
        self._counted = counted

    async def stop(self) -> None:
        """Write the last words."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._count()
        self._recorder.put(schema.Stopped(time.time_ns()))
        self._recorder.flush()
        try:
            await asyncio.to_thread(self._log.close)
        except JournalUnusable as error:
            self._problem(str(error))


def _open(path: Path, settings: TelemetrySettings, incarnation: int, alarms: Alarms) -> Log:
    """Open the log; one that the disk has damaged is set aside."""
    try:
        return Log(path, settings.journal())
    except JournalDamaged as error:
        aside = path.with_name(f"{path.name}-damaged-{incarnation}")
        alarms.set("telemetry damaged", f"{error}; it is set aside as {aside.name}")
        path.rename(aside)
        return Log(path, settings.journal())
