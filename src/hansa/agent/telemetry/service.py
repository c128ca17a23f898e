"""All that an agent writes down for others, put together: telemetry and recorded messages."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from hansa.agent.alarms import Alarms
from hansa.agent.delivery.service import Safekeeping
from hansa.agent.driver import BrokerPort, Driver
from hansa.agent.telemetry.message_recorder import Recording
from hansa.agent.telemetry.recorded_topics import Topics
from hansa.agent.telemetry.settings import TelemetrySettings
from hansa.agent.telemetry.writer import Telemetry
from hansa.errors import JournalUnusable
from hansa.mqtt.packets import Publish
from hansa.protocol.events import Event
from hansa.protocol.model import Identity


class Bookkeeping:
    """What one agent writes down, in one life."""

    def __init__(self, driver: Driver, identity: Identity, topics: Topics) -> None:
        """Write nothing yet."""
        self._driver = driver
        self._identity = identity
        self._topics = topics
        self._recording: Recording | None = None
        self._telemetry: Telemetry | None = None

    # ------------------------------------------------------------ what the broker's client tells

    def feed(self, *events: Event) -> None:
        """Something happened."""
        (self._recording or self._driver).feed(*events)

    def captured(self, publications: Iterable[Publish]) -> None:
        """Clients published at QoS 0."""
        (self._recording or self._driver).captured(publications)

    # ------------------------------------------------------------ its life

    def tell(
        self,
        state: Path,
        settings: TelemetrySettings,
        counters: Callable[[], Counter[str]],
        alarms: Alarms,
    ) -> None:
        """Let telemetry see everything, if it is wanted. An agent works without it, too."""
        if not settings.is_on:
            return
        path = settings.path(state)
        try:
            self._telemetry = Telemetry(path, settings, self._identity, counters, alarms)
        except JournalUnusable as error:
            alarms.set("telemetry", f"{error}; there is none until the agent is started again")
        else:
            self._driver.witness = self._telemetry.witness

    def attach(self, client: BrokerPort, safekeeping: Safekeeping) -> None:
        """Keep what clients publish to the topics; from now on the node orders through this."""
        if self._telemetry:
            safekeeping.injection.delivered = self._telemetry.witness.injected
        if self._topics:
            incarnation = self._identity.incarnation
            recording = Recording(self._topics, self._driver, incarnation, safekeeping.capture)
            self._recording = self._driver.broker = recording
            self._driver.recorded = self._topics
            recording.attach(client)

    def start(self) -> None:
        """Write from now on."""
        if self._telemetry:
            self._telemetry.start()

    async def stop(self) -> None:
        """Write the last words."""
        if self._recording:
            self._recording.stop()
        if self._telemetry:
            await self._telemetry.stop()

    @property
    def counters(self) -> Counter[str]:
        """What was written, and what was not."""
        counted = Counter(self._recording.counters if self._recording else {})
        if self._telemetry:
            counted["telemetry dropped"] = self._telemetry.dropped
        return counted
