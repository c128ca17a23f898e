"""A shell around a real delivery core, with a disk in memory that works at once or when a test says
so."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from hansa.agent.broker.client import BrokerClient
from hansa.delivery import effects, inputs
from hansa.delivery.context import Context
from hansa.delivery.core import BrokerTraits, DeliveryCore
from hansa.delivery.effects import LogName
from hansa.delivery.inbox import InboxLog
from hansa.delivery.outbox import OutboxLog
from hansa.delivery.settings import DeliverySettings
from hansa.delivery.subscriptions.saved import SavedSubscriptions, SubscriptionChange
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.events import Event
from hansa.protocol.model import NodeId, PlainMessage, Publication
from hansa.simulator.world.memory_log import MemoryLog

ME = NodeId(1)


class Disk:
    """What survives an incarnation: the subscriptions at the broker."""

    def __init__(self) -> None:
        self.subscriptions: list[SubscriptionChange] = []
        self.has_session = False


class InstantShell:
    """Performs the effects of one delivery core with a client and a disk in memory."""

    def __init__(self, disk: Disk, broker: BrokerTraits) -> None:
        self.client: BrokerClient
        self.now = 0.0
        self.events: list[Event] = []
        """Events for the node."""
        self.dropped: list[str] = []
        """Reasons of dropped publications."""
        self.captured: list[PublishPacket] = []
        """Publications of QoS 1 and 2 that got a position."""
        self.holds_disk = False
        """Whether commits and saves wait for `release_disk`."""
        self._waiting: list[effects.Effect] = []
        self._disk = disk
        self._logs = {name: MemoryLog(1) for name in LogName}
        self.core = DeliveryCore(
            Context(lambda: 0),
            OutboxLog(self._logs[LogName.OUTBOX], (), lambda: 0, lambda topic: False),
            InboxLog(self._logs[LogName.INBOX], (), lambda: 0),
            SavedSubscriptions(disk.subscriptions, disk.has_session),
            DeliverySettings(),
            broker,
        )
        self._effects: deque[effects.Effect] = deque()
        self._is_performing = False
        self._perform_all(self.core.start(self, 1, self.now))

    # ------------------------------------------------------------ for the client

    async def before_connect(self) -> None:
        self.handle(inputs.ConnectStarted())

    def on_connect_refused(self) -> None:
        self.handle(inputs.ConnectRefused())

    def handle(self, happened: inputs.Input) -> None:
        self._perform_all(self.core.handle(happened, self.now))

    @property
    def has_pending_retained(self) -> bool:
        return self.core.has_pending_retained

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        others, caused = self.core.hold_back(publications)
        self._perform_all(caused)
        return others

    # ------------------------------------------------------------ for the core

    def assign_position(self, publish: PublishPacket) -> Publication:
        self.captured.append(publish)
        sequence = self._logs[LogName.OUTBOX].next_sequence
        return Publication(ME, 1, sequence, publish.qos, publish.topic, publish.payload)

    def acknowledged(self) -> Mapping[NodeId, int]:
        return {}

    # ------------------------------------------------------------ for tests

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.handle(inputs.TimerFired())

    def release_disk(self) -> None:
        """Do what waits for the disk, and hold nothing any more."""
        self.holds_disk = False
        waiting, self._waiting = self._waiting, []
        self._perform_all(waiting)

    def _perform_all(self, caused: Iterable[effects.Effect]) -> None:
        self._effects.extend(caused)
        if self._is_performing:
            return
        self._is_performing = True
        while self._effects:
            self._perform(self._effects.popleft())
        self._is_performing = False

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Commit() | effects.SaveSubscriptions():
                self._write(effect)
            case effects.Publish(batch):
                self.client.inject(batch)
            case effects.PublishQos0(publications):
                self.client.publish(publications)
            case effects.SendHandshakePackets(packets):
                self.client.send_handshake_packets(packets)
            case effects.Subscribe(subscription, identifier):
                self.client.send_subscribe(subscription, identifier)
            case effects.Unsubscribe(topic_filter):
                self.client.send_unsubscribe(topic_filter)
            case effects.FeedNode(event):
                self.events.append(event)
            case effects.PublicationDropped(reason):
                self.dropped.append(reason)

    def _write(self, effect: effects.Commit | effects.SaveSubscriptions) -> None:
        if self.holds_disk:
            self._waiting.append(effect)
        elif isinstance(effect, effects.Commit):
            self._logs[effect.log].commit(self._logs[effect.log].end)
            self.handle(inputs.Committed(effect.log))
        else:
            saved = self.core.saved_subscriptions
            saved.take_unsaved()
            self._disk.subscriptions = saved.summary()
            self._disk.has_session = saved.has_session
            self.handle(inputs.SubscriptionsSaved(True))
