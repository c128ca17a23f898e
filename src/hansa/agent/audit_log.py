"""The audit log of an agent: refused peers, strikes, quarantines, revocations, refused requests.

It is telemetry in the directory `audit` of the state directory, so the pipeline and
`/logs` read it like any other telemetry. It is always written and only appended to; the oldest
events are dropped beyond 16 MiB. Each kind of event has its own limit per second, so that a flood
of one kind neither fills the log nor hides the others; events beyond it are counted.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

from hansa.agent.alarms import Alarms
from hansa.agent.token_bucket import TokenBucket
from hansa.errors import JournalDamaged, JournalUnusable
from hansa.journal.settings import JournalSettings
from hansa.protocol.model import NodeId
from hansa.telemetry import schema
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

AUDIT_DIRECTORY = "audit"
RETENTION_BYTES = 16 << 20
RETENTION_S = 365 * 86_400.0
EVENTS_PER_S = 10.0
"""Of one kind, on average over BURST_S seconds."""

BURST_S = 10.0

TEXT_CHARS_MAX = 300
WRITE_INTERVAL_S = 1.0


class AuditLog:
    """Writes security events."""

    def __init__(
        self,
        state: Path | None = None,
        writer: tuple[NodeId, int] = (NodeId(0), 0),
        alarms: Alarms | None = None,
    ) -> None:
        """Open the log in a state directory; `writer` is node and incarnation. Without a directory,
        or if the disk fails, events are only counted; a failing disk raises an alarm."""
        self.counters: Counter[str] = Counter()
        self._set_alarm = (alarms or Alarms()).setter("audit log not written")
        self._buckets: dict[str, TokenBucket] = {}
        self._is_dirty = False
        self._log: TelemetryLog | None = None
        self._recorder: NodeRecorder | None = None
        self.path = (state or Path()) / AUDIT_DIRECTORY
        if state is None:
            return
        try:
            self._log = _open_log(self.path, writer[1])
        except JournalUnusable as error:
            self._set_alarm(f"{error}; there is none until the agent restarts")
        else:
            self._recorder = NodeRecorder(self._log, *writer)

    def record(
        self, event: str, reason: str, peer: NodeId | None = None, address: str = ""
    ) -> None:
        """Add an event; `reason` and `address` may be texts of a peer."""
        now = time.monotonic()
        bucket = self._buckets.setdefault(event, TokenBucket(EVENTS_PER_S, BURST_S, now))
        self.counters[f"security: {event}"] += 1
        if self._recorder is None or not bucket.take(now):
            self.counters["audit events not written"] += 1
            return
        self._recorder.put(
            schema.SecurityEvent(
                time.time_ns(), event, peer, address[:TEXT_CHARS_MAX], reason[:TEXT_CHARS_MAX]
            )
        )
        self._is_dirty = True

    async def run(self) -> None:
        """Write once a second."""
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            if self._is_dirty and self._log is not None and self._recorder is not None:
                self._is_dirty = False
                self._recorder.flush()
                try:
                    await asyncio.to_thread(self._log.commit)
                except JournalUnusable as error:
                    self._set_alarm(str(error))
                else:
                    self._set_alarm("")

    async def stop(self) -> None:
        """Write the last events and close."""
        if self._log is not None and self._recorder is not None:
            self._recorder.flush()
            try:
                await asyncio.to_thread(self._log.close)
            except JournalUnusable as error:
                self._set_alarm(str(error))


def _open_log(path: Path, incarnation: int) -> TelemetryLog:
    """Open the log; a damaged one is set aside."""
    settings = JournalSettings(
        segment_bytes=RETENTION_BYTES // 8,
        retention_seconds=RETENTION_S,
        retention_bytes=RETENTION_BYTES,
    )
    try:
        return TelemetryLog(path, settings)
    except JournalDamaged:
        path.rename(path.with_name(f"{path.name}-damaged-{incarnation}"))
        return TelemetryLog(path, settings)
