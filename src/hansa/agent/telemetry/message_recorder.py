"""Journals publications of local clients to certain topics, subscribed elsewhere or not.

At QoS 1 and 2 they are captured as if a receiver were pending, and acknowledged to the broker when
durable; at QoS 0 they become durable soon after, or are counted as dropped. The agent stays
subscribed to the recorded filters whatever the node requests: the recorder stands between the node
and the broker client.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Protocol

from hansa.agent.driver import BrokerPort, Driver
from hansa.agent.recorded_topics import RecordedTopics
from hansa.errors import JournalUnusable
from hansa.journal.records import RecordedPublication
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.events import Event, SubscriptionsGranted
from hansa.protocol.model import PlainMessage, Publication

COMMIT_S = 0.2
"""Longest seconds until recorded QoS 0 publications are durable."""


class RecordingPort(Protocol):
    """Appends publications of QoS 0."""

    def append_if_room(self, record: RecordedPublication) -> bool:
        """Append a record, or return False if the disk is too slow."""

    def schedule_commit(self) -> None:
        """Make all of them durable soon."""


class MessageRecorder:
    """Records publications of one incarnation."""

    def __init__(
        self, topics: RecordedTopics, driver: Driver, incarnation: int, journal: RecordingPort
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._topics = topics
        self._filters = dict.fromkeys(topics.filters)
        self._granted: set[str] = set()
        self._driver = driver
        self._incarnation = incarnation
        self._next_sequence = count(1).__next__
        self._journal = journal
        self._commit_timer: asyncio.TimerHandle | None = None

    def attach(self, client: BrokerPort) -> None:
        """Take the place of the broker client, and let it subscribe."""
        self._client = client
        client.subscribe(tuple(self._filters))

    # ------------------------------------------------------------ commands of the node

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe to filters that are not recorded."""
        new = [name for name in filters if name not in self._filters]
        if new:
            self._client.subscribe(new)
        granted = tuple(name for name in filters if name in self._granted)
        if granted:
            self._driver.feed(SubscriptionsGranted(granted))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Unsubscribe from filters that are not recorded."""
        ended = [name for name in filters if name not in self._filters]
        if ended:
            self._client.unsubscribe(ended)

    def publish(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Publish to the broker's clients."""
        self._client.publish(publications)

    # ------------------------------------------------------------ events of the broker client

    def feed(self, *events: Event) -> None:
        """Pass events on; note the granted filters."""
        for event in events:
            if isinstance(event, SubscriptionsGranted):
                self._granted.update(name for name in event.filters if name in self._filters)
        self._driver.feed(*events)

    def capture_qos0(self, publications: Iterable[PublishPacket]) -> None:
        """Clients published at QoS 0."""
        batch = list(publications)
        recorded = [each for each in batch if each.topic in self._topics]
        if recorded:
            self._record(recorded)
        self._driver.capture_qos0(batch)

    def _record(self, batch: Sequence[PublishPacket]) -> None:
        now = time.time_ns()
        for each in batch:
            sequence = self._next_sequence()
            content = (each.topic, each.payload, each.retain, each.properties)
            try:
                is_recorded = self._journal.append_if_room(
                    RecordedPublication(self._incarnation, sequence, *content, now)
                )
            except JournalUnusable:  # the commit reports why
                is_recorded = False
            self.counters["recorded" if is_recorded else "dropped: recording, disk too slow"] += 1
        if self._commit_timer is None:
            loop = asyncio.get_running_loop()
            self._commit_timer = loop.call_later(COMMIT_S, self._commit)

    def _commit(self) -> None:
        self._commit_timer = None
        self._journal.schedule_commit()

    def stop(self) -> None:
        """Cancel the timer; closing the journal commits."""
        if self._commit_timer is not None:
            self._commit_timer.cancel()
