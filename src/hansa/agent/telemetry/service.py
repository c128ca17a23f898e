"""Telemetry and recorded messages of an agent, assembled."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hansa.agent.alarms import Alarms
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.driver import BrokerPort, Driver
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.telemetry.message_recorder import MessageRecorder
from hansa.agent.telemetry.settings import TelemetrySettings
from hansa.agent.telemetry.writer import TelemetryWriter
from hansa.errors import JournalUnusable
from hansa.journal.records import InboxRecord
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.events import Event
from hansa.protocol.model import Identity


class TelemetryService:
    def __init__(self, driver: Driver, identity: Identity, recorded_topics: RecordedTopics) -> None:
        self._driver = driver
        self._identity = identity
        self._recorded_topics = recorded_topics
        self._recorder: MessageRecorder | None = None
        self._writer: TelemetryWriter | None = None

    # ------------------------------------------------------------ events of the broker client

    def feed(self, *events: Event) -> None:
        """Pass events to the node, through the message recorder if there is one."""
        (self._recorder or self._driver).feed(*events)

    def capture_qos0(self, publications: Iterable[PublishPacket]) -> None:
        """Clients published at QoS 0."""
        (self._recorder or self._driver).capture_qos0(publications)

    # ------------------------------------------------------------ start and stop

    def enable(
        self,
        state: Path,
        settings: TelemetrySettings,
        counters: Callable[[], Counter[str]],
        alarms: Alarms,
    ) -> None:
        if not settings.is_enabled:
            return
        path = settings.path(state)
        try:
            self._writer = TelemetryWriter(path, settings, self._identity, counters, alarms)
        except JournalUnusable as error:
            alarms.set("telemetry not written", f"{error}; there is none until the agent restarts")
        else:
            self._driver.sampler = self._writer.sampler

    def attach(self, client: BrokerPort, delivery: DeliveryService) -> None:
        """Record publications to the configured topics; the recorder takes the place of the
        broker client."""
        if self._recorded_topics:
            incarnation = self._identity.incarnation
            recorder = MessageRecorder(self._recorded_topics, self._driver, incarnation, delivery)
            self._recorder = self._driver.broker = recorder
            self._driver.recorded_topics = self._recorded_topics
            recorder.attach(client)

    def on_injected(self, records: Sequence[InboxRecord]) -> None:
        """Sample QoS 1 and 2 publications that the broker acknowledged."""
        if self._writer:
            for record in records:
                self._writer.sampler.on_injected(record)

    def record_alarm(self, name: str, text: str, change: str) -> None:
        """An alarm was `raised`, `changed` or `cleared`."""
        if self._writer:
            self._writer.record_alarm(name, text, change)

    def start(self) -> None:
        if self._writer:
            self._writer.start()

    async def stop(self) -> None:
        """Write the last records and stop."""
        if self._recorder:
            self._recorder.stop()
        if self._writer:
            await self._writer.stop()

    @property
    def counters(self) -> Counter[str]:
        """Counters of recorded and dropped records."""
        counted = Counter(self._recorder.counters if self._recorder else {})
        if self._writer:
            counted["telemetry dropped"] = self._writer.dropped
            if exporter := self._writer.exporter:
                counted["spans exported"] = exporter.exported
                counted["spans dropped"] = exporter.dropped
        return counted
