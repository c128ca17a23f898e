"""Finds out whether an agent that starts now would know every subscription at a Mosquitto.

The doctor observes the broker as an agent does, with the same observer: it watches the log topics,
reads the log file if it knows where that is, and compares what it learned with the broker's own
counters.
"""

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.observer_client import RETAINED_DELAY_S
from hansa.errors import UsageError
from hansa.mqtt.types import Version
from hansa.observers.history import BrokerLogFile
from hansa.observers.mosquitto.observer import COUNTS_WAIT_S, MosquittoObserver
from hansa.testbed.clients import RecordingClient, wait_until

SAMPLE_TIMEOUT_S = 12.0
"""How long to wait for the next sample of the counters; `sys_interval` is 10 s by default."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What an agent would know of a broker's subscriptions."""

    earlier_count: int | None = None
    """Without a log file: subscriptions from before the doctor connected; None if no sample of the
    counters came in time."""
    known_count: int | None = None
    """With a log file: how many subscriptions are known; None if it cannot be read."""
    is_complete: bool | None = None
    """With a log file: whether these are all; None if no sample came in time."""
    reason: str = ""
    """Why they are not."""
    has_persistence: bool = False
    """Whether the log shows that the broker saves sessions to disk."""


class ObservationProbe:
    """An observer for as long as the doctor looks."""

    def __init__(self, address: BrokerAddress, version: Version, log_file: Path | None) -> None:
        """Without a log file only the counters are looked at."""
        name = f"hansa-doctor-{secrets.token_hex(4)}-observer"
        self._observer = MosquittoObserver(own_prefix=name)
        self._client = RecordingClient(
            address, name, *self._observer.topics_to_subscribe(), version=version
        )
        self._log_file = log_file
        self._taken = 0

    async def start(self) -> None:
        """Subscribe, before the doctor's other clients do; raise UsageError if the broker does not
        let a client in."""
        self._observer.on_connected(session_lost=True, now=0.0)
        await self._client.start()
        await asyncio.sleep(RETAINED_DELAY_S)
        self._take()
        self._client.subscribe(*self._observer.extra_subscriptions())

    async def finish(self) -> Observation:
        """Read the log file, compare with the counters, and leave. To be called when the doctor's
        other clients have left."""
        try:
            return await self._compare()
        finally:
            await self._client.stop()

    async def _compare(self) -> Observation:
        observer = self._observer
        has_log = await self._read_log()
        observer.handle_timer(now=COUNTS_WAIT_S)
        is_sampled = await self._wait_for_sample(has_log)
        if not has_log:
            known = max(observer.certain_count, len(self._client.filters))
            return Observation(max(observer.counted - known, 0) if is_sampled else None)
        is_decided = is_sampled or observer.is_complete or observer.lacks_counts
        return Observation(
            None,
            observer.certain_count,
            observer.is_complete if is_decided else None,
            observer.incomplete_reason,
            observer.has_persistence,
        )

    async def _read_log(self) -> bool:
        """Learn from the log file what was subscribed before; return whether that was possible."""
        self._take()
        self._observer.begin_resync(now=0.0)
        try:
            text = await BrokerLogFile(self._log_file).read() if self._log_file else ""
        except UsageError:
            text = ""
        self._take()
        if text:
            self._observer.resync(text, now=0.0)
        return bool(text)

    async def _wait_for_sample(self, has_log: bool) -> bool:
        """Wait for the next sample, unless the log is already confirmed or there are none."""
        observer = self._observer
        if observer.lacks_counts or (has_log and observer.is_complete):
            return False
        before = observer.sample_count

        def is_sampled() -> bool:
            self._take()
            return observer.sample_count > before

        return await wait_until(is_sampled, SAMPLE_TIMEOUT_S)

    def _take(self) -> None:
        new = self._client.arrivals[self._taken :]
        self._taken += len(new)
        for arrival in new:
            self._observer.receive_publication(arrival.topic, arrival.payload, now=0.0)
