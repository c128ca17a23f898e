"""Sends the spans of sampled publications to an OpenTelemetry collector: OTLP over HTTP, as JSON.

Spans wait in memory, at most QUEUE_MAX; the oldest are dropped and counted. While the collector
does not answer, the alarm `traces not exported` is active, and the pauses between attempts grow. A
batch that the collector refuses is dropped and counted. Messages are not affected.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from hansa import __version__
from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.http_client import HttpServer, read_body
from hansa.protocol.model import Identity
from hansa.telemetry import schema
from hansa.telemetry.spans import SpanBuilder, to_attributes

EXPORT_INTERVAL_S = 1.0
PAUSE_MAX_S = 30.0
"""Longest pause between two attempts while the collector fails."""
TIMEOUT_S = 10.0
"""Seconds that the collector has for one batch."""
LAST_EXPORT_S = 2.0
"""Seconds for the last spans of an agent that stops."""
BATCH_MAX = 500
QUEUE_MAX = 5_000
ANSWER_BYTES_MAX = 1 << 16
PATH = "/v1/traces"
BUSY_STATUSES = {429, 502, 503, 504}
"""Answers after which OTLP asks to send the batch again."""


class Refused(Exception):
    """The collector refused a batch and would refuse it again."""


class TraceExporter:
    def __init__(self, url: str, identity: Identity, alarms: Alarms) -> None:
        self._server = HttpServer(url)
        self._url = url
        self._resource = to_attributes(
            {
                "service.name": "hansa",
                "service.version": __version__,
                "service.instance.id": f"{identity.node:016x}",
                "hansa.node": identity.name,
            }
        )
        self._builder = SpanBuilder(identity.node)
        self._queue: deque[dict[str, Any]] = deque()
        self._set_alarm = alarms.setter("traces not exported")
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0
        """Spans that the collector did not get."""
        self.exported = 0

    def add(self, record: schema.AnyRecord) -> None:
        """Add a telemetry record."""
        self._builder.add(record)

    def start(self) -> None:
        self._task = tasks.start_task(self._run())

    async def stop(self) -> None:
        """Send what is left, if that does not take long."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._enqueue(self._builder.take_all())
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EXPORT_S):
                await self._export()

    async def _run(self) -> None:
        pause = EXPORT_INTERVAL_S
        while True:
            await asyncio.sleep(pause)
            self._enqueue(self._builder.take_finished(time.time_ns()))
            works = await self._export()
            pause = EXPORT_INTERVAL_S if works else min(2 * pause, PAUSE_MAX_S)

    def _enqueue(self, spans: list[dict[str, Any]]) -> None:
        self._queue.extend(spans)
        while len(self._queue) > QUEUE_MAX:
            self._queue.popleft()
            self.dropped += 1

    async def _export(self) -> bool:
        """Send all spans; return whether the collector works."""
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    rejected = await self._send(batch)
            except Refused as error:
                self.dropped += len(batch)
                self._set_alarm(f"{self._url} refuses spans: {error}")
            except (OSError, ValueError, TimeoutError) as error:
                self._queue.extendleft(reversed(batch))
                reason = str(error) or f"no answer within {TIMEOUT_S:g} s"
                self._set_alarm(f"{self._url} does not take spans: {reason}")
                return False
            except asyncio.CancelledError:
                self._queue.extendleft(reversed(batch))
                raise
            else:
                self.dropped += rejected
                self.exported += len(batch) - rejected
                self._set_alarm("")
        return True

    async def _send(self, batch: list[dict[str, Any]]) -> int:
        """Send a batch; return how many spans of it the collector rejected."""
        spans = {"scope": {"name": "hansa", "version": __version__}, "spans": batch}
        resource = {"resource": {"attributes": self._resource}, "scopeSpans": [spans]}
        data = msgspec.json.encode({"resourceSpans": [resource]})
        async with self._server.request("POST", PATH, data) as response:
            if response.status in BUSY_STATUSES:
                raise ValueError(f"status {response.status}")
            if response.status != 200:
                raise Refused(f"status {response.status}")
            body = await read_body(response, ANSWER_BYTES_MAX)
        return min(_rejected_spans(body), len(batch))


class _PartialSuccess(msgspec.Struct, rename="camel"):
    rejected_spans: int | str = 0


class _ExportAnswer(msgspec.Struct, rename="camel"):
    partial_success: _PartialSuccess | None = None


def _rejected_spans(body: bytes) -> int:
    """Return how many spans the answer says were rejected; an unknown answer rejects none."""
    try:
        answer = msgspec.json.decode(body or b"{}", type=_ExportAnswer)
        return max(0, int(answer.partial_success.rejected_spans)) if answer.partial_success else 0
    except (msgspec.DecodeError, ValueError):
        return 0
