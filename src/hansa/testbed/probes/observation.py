"""Checks whether an agent that starts now would know every subscription at a Mosquitto.

It runs the observer of the agent: it reads the log topics and, if known, the log file, and compares
the subscriptions with the broker's counters.
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
"""Seconds to wait for the next counters; `sys_interval` is 10 s by default."""


SAMPLES_WITH_LOG = 4
"""Counters that may contradict the log until the agent counts as incomplete; fewer if they take
longer than SAMPLE_TIMEOUT_S. Counters that agree must do so twice after a contradiction."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Subscriptions that an agent would know."""

    earlier_count: int | None = None
    """Without a log file: subscriptions from before the check; None if no counters arrived."""
    known_count: int | None = None
    """With a log file: known subscriptions; None if it is not readable."""
    is_complete: bool | None = None
    """With a log file: whether all subscriptions are known; None if no counters arrived."""
    reason: str = ""
    """Why they are not."""
    has_persistence: bool = False
    """Whether the log shows that the broker saves sessions to disk."""


class ObservationProbe:
    """An observer for the duration of a check; without a log file it only reads counters."""

    def __init__(self, address: BrokerAddress, version: Version, log_file: Path | None) -> None:
        name = f"hansa-doctor-{secrets.token_hex(4)}-observer"
        self._observer = MosquittoObserver(own_prefix=name)
        self._client = RecordingClient(
            address, name, *self._observer.topics_to_subscribe(), version=version
        )
        self._log_file = log_file
        self._taken = 0

    async def start(self) -> None:
        """Subscribe, before the other probes do; raise UsageError if the broker refuses."""
        self._observer.on_connected(session_lost=True, now=0.0)
        await self._client.start()
        await asyncio.sleep(RETAINED_DELAY_S)
        self._take()
        self._client.subscribe(*self._observer.extra_subscriptions())

    async def finish(self) -> Observation:
        """Read the log file, compare with the counters, and disconnect. Call this after the other
        probes have disconnected."""
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
        """Learn earlier subscriptions from the log file; return whether it is readable."""
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
        """Wait for the next counters, unless the log is confirmed or the broker has none. Return
        whether some arrived. With a log, counters that contradict it are not the last word: they
        may be older than the end of the other probes."""
        observer = self._observer
        if observer.lacks_counts or (has_log and observer.is_complete):
            return False
        before = observer.sample_count
        enough = before + (SAMPLES_WITH_LOG if has_log else 1)

        def is_decided() -> bool:
            self._take()
            is_confirmed = has_log and observer.is_complete
            return observer.sample_count >= enough or is_confirmed

        await wait_until(is_decided, SAMPLE_TIMEOUT_S)
        return observer.sample_count > before

    def _take(self) -> None:
        new = self._client.arrivals[self._taken :]
        self._taken += len(new)
        for arrival in new:
            self._observer.receive_publication(arrival.topic, arrival.payload, now=0.0)
