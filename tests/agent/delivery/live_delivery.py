"""The delivery of an agent at a real broker, without links and a running node."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from hansa.agent.alarms import Alarms
from hansa.agent.broker.client import BrokerClient
from hansa.agent.broker.connection import BrokerAddress, Connection, ConnectionFactory
from hansa.agent.delivery.service import DeliveryService
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage.state_directory import StateDirectory
from hansa.delivery.core import BrokerTraits
from hansa.delivery.settings import DeliverySettings
from hansa.journal.records import InboxRecord
from hansa.journal.writer import JournalWriter
from hansa.mqtt import effects
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.events import Event
from hansa.protocol.model import Publication
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings


class LiveDelivery:
    """Delivery service and client of one incarnation; it is its own driver and telemetry."""

    def __init__(
        self, path: Path, port: int, options: ConnectOptions, kind: type[Connection] = Connection
    ) -> None:
        """Make a connection of `kind`; it is not started."""
        self._kind, self._options, self._port = kind, options, port
        self._state = StateDirectory(path)
        self._identity = identity = self._state.start_incarnation("n", (), 1.0)
        self.alarms = Alarms()
        self.events: list[Event] = []
        self.captured: list[tuple[str, bytes]] = []
        """Publications of all QoS levels, in order."""
        self.sessions: list[bool] = []
        """Session present flag of each connection."""
        self.service = DeliveryService(
            self._state, identity, DeliverySettings(), self.alarms, RecordedTopics(), BrokerTraits()
        )
        self.core = self.service.core
        self.inbox = self.core.inbox
        self.node = Node(identity, ProtocolSettings(), self.service.restored_state())
        make_connection: ConnectionFactory = self._make_connection
        self.client = BrokerClient(
            make_connection, self.service, self._on_captured, lambda problem: None
        )
        self.connection = self.client.connection
        self.service.attach(self, self.client, self)

    def _make_connection(self, on_effect: Any) -> Connection:
        def spy(effect: effects.Effect) -> None:
            if isinstance(effect, effects.Connected):
                self.sessions.append(effect.session_present)
            self.on_effect(effect)
            on_effect(effect)

        return self._kind(BrokerAddress("127.0.0.1", self._port), self._options, spy, Random(1))

    def on_effect(self, effect: effects.Effect) -> None:
        """An effect of the connection; the client gets it next."""

    @property
    def counters(self) -> Any:
        return self.client.counters + self.service.all_counters()

    def delay_acknowledgements(self, seconds: float) -> None:
        """Make the disk so slow that the broker's window fills and it queues."""
        writer: JournalWriter = self.service._files.outbox.writer  # noqa: SLF001
        commit = writer.commit

        def commit_slowly() -> int:
            time.sleep(seconds)
            return commit()

        writer.commit = commit_slowly  # type: ignore[method-assign]

    async def stop(self) -> None:
        await self.connection.stop()
        await self.service.stop()
        self._state.close()

    # ------------------------------------------------------------ the node and telemetry

    def feed(self, *events: Event) -> None:
        self.events += events

    def assign_position(self, publish: PublishPacket) -> Publication:
        self.captured.append((publish.topic, bytes(publish.payload)))
        me, log = self._identity.node, self.core.outbox.log
        return Publication(
            me, log.epoch, log.next_sequence, publish.qos, publish.topic, publish.payload
        )

    def _on_captured(self, batch: Iterable[PublishPacket]) -> None:
        self.captured += [(publish.topic, bytes(publish.payload)) for publish in batch]

    def on_injected(self, records: Sequence[InboxRecord]) -> None:
        """Telemetry is not tested here."""
