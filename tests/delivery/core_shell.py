"""One incarnation of the whole core, and a disk that outlives it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.delivery.shell import ME, YOU, Shell, build_epoch, limits

from hansa.delivery import inputs
from hansa.delivery.core import BrokerTraits, DeliveryCore
from hansa.delivery.dedup.echo import SavedEchoes
from hansa.delivery.effects import Effect, LogName, RemoveConnectMarker
from hansa.delivery.inbox import InboxLog
from hansa.delivery.outbox import OutboxLog
from hansa.delivery.settings import DeliverySettings
from hansa.delivery.subscriptions.saved import SavedSubscriptions, SubscriptionChange
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.options import NEVER_EXPIRES
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket, Subscription
from hansa.mqtt.types import Version
from hansa.protocol.effects import Gap
from hansa.protocol.events import EpochStarted
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.memory_log import MemoryLog

V5 = limits()
V311_LASTING = limits(
    version=Version.V311, subscription_ids_available=False, session_expiry=NEVER_EXPIRES
)


@dataclass
class Disk:
    """Both logs, the saved subscriptions and the connect marker."""

    outbox: MemoryLog = field(default_factory=lambda: MemoryLog(7))
    inbox: MemoryLog = field(default_factory=lambda: MemoryLog(5))
    subscriptions: list[SubscriptionChange] | None = None
    """None without a session."""
    has_marker: bool = False
    echoes: SavedEchoes | None = None
    """Saved by an incarnation that was stopped in order."""

    def log(self, name: LogName) -> MemoryLog:
        return self.outbox if name is LogName.OUTBOX else self.inbox


class CoreIncarnation(Shell):
    """The core, started. Nothing is done with the disk before the test says so."""

    def __init__(
        self,
        disk: Disk | None = None,
        settings: DeliverySettings | None = None,
        is_cloned: bool = False,
        sends_overlap_copies: bool = True,
        local_topics: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.disk = disk or Disk()
        self.now = 0.0
        self.progress: dict[NodeId, int] = {}
        """What receivers have acknowledged, as the node knows it."""
        outbox = OutboxLog(
            self.disk.outbox, self.disk.outbox.replay(), lambda: self.wall_ns, is_cloned=is_cloned
        )
        outbox.start_incarnation()
        saved = self.disk.subscriptions
        self.saved_subscriptions = SavedSubscriptions(saved or (), has_session=saved is not None)
        self.saved_subscriptions.echoes = self.disk.echoes
        self.core = DeliveryCore(
            self.context,
            outbox,
            InboxLog(self.disk.inbox, self.disk.inbox.replay(), lambda: self.wall_ns),
            self.saved_subscriptions,
            settings or DeliverySettings(),
            BrokerTraits(local_topics, sends_overlap_copies, self.disk.has_marker),
        )
        self.disk.echoes = None
        restored = self.core.restored_state()
        self._position = restored.epoch, restored.next_sequence
        self.perform(self.core.start(self, 8, self.now))

    def _perform_on_disk(self, effect: Effect) -> None:
        super()._perform_on_disk(effect)
        if isinstance(effect, RemoveConnectMarker):
            self.disk.has_marker = False

    # ------------------------------------------------------------ the node

    def assign_position(self, publish: PublishPacket) -> Publication | None:
        if publish.topic == "no":
            return None
        epoch, number = self._position
        self._position = epoch, number + 1
        previous = ((YOU, number - 1),)
        return Publication(
            ME, epoch, number, publish.qos, publish.topic, publish.payload, receivers=previous
        )

    def acknowledged(self) -> Mapping[NodeId, int]:
        return self.progress

    # ------------------------------------------------------------ state

    def has_marker(self) -> bool:
        return self.disk.has_marker

    def deadline(self) -> float | None:
        return self.core.next_deadline()

    # ------------------------------------------------------------ inputs

    def handle(self, happened: inputs.Input) -> list[Effect]:
        """Hand an input to the core and perform the effects; return them."""
        caused = self.core.handle(happened, self.now)
        self.perform(caused)
        for event in self.events:
            if isinstance(event, EpochStarted) and event.epoch > self._position[0]:
                self._position = event.epoch, event.next_sequence
        return caused

    def connect(self, session_present: bool = True, granted: BrokerLimits = V5) -> None:
        self.disk.has_marker = True
        self.handle(inputs.ConnectStarted())
        self.handle(inputs.Connected(session_present, granted))

    def disconnect(self) -> None:
        self.handle(inputs.Disconnected())

    def receive(self, *batch: PublishPacket) -> None:
        self.handle(inputs.PublicationsReceived(batch))

    def answer(self, *batch: AnyHandshakePacket) -> None:
        self.handle(inputs.HandshakePacketsReceived(batch))

    def deliver(self, *batch: Publication | Gap) -> None:
        self.handle(inputs.Deliver(batch))

    def require(self, *filters: str) -> None:
        self.handle(inputs.RequireFilters(filters))

    def release(self, *filters: str) -> None:
        self.handle(inputs.ReleaseFilters(filters))

    def grant(self, name: str, reason: int = 2) -> None:
        self.handle(inputs.SubscribeAnswered((Subscription(name),), bytes((reason,))))

    def unsubscribed(self, *names: str) -> None:
        self.handle(inputs.UnsubscribeAnswered(names))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.handle(inputs.TimerFired())

    # ------------------------------------------------------------ the disk

    def commit(self) -> None:
        """Carry out all commits."""
        while self.commits:
            name = self.commits.pop(0)
            log = self.disk.log(name)
            log.commit(log.end)
            self.handle(inputs.Committed(name))

    def save(self) -> None:
        """Carry out all saves of the subscriptions."""
        while self.saves:
            self.saves -= 1
            changes = self.saved_subscriptions.take_unsaved()
            if not self.saved_subscriptions.has_session:
                self.disk.subscriptions = None
            elif changes is None or self.disk.subscriptions is None:
                self.disk.subscriptions = self.saved_subscriptions.summary()
            else:
                self.disk.subscriptions += changes
            self.handle(inputs.SubscriptionsSaved(True))

    def build_epoch(self) -> None:
        """Carry out `BuildEpoch`."""
        self.disk.outbox = build_epoch(self.disk.outbox, self.plans.pop())
        if LogName.OUTBOX in self.commits:
            self.commits.remove(LogName.OUTBOX)
        self.handle(inputs.EpochBuilt(self.disk.outbox))

    def stopped(self) -> Disk:
        """Return the disk after a stop in order."""
        self.disconnect()
        self.commit()
        self.save()
        self.core.save_echoes()
        self.disk.echoes = self.saved_subscriptions.echoes
        return self.disk

    def crashed(self) -> Disk:
        """Return the disk after a crash: what is not durable is lost."""
        self.disk.outbox.crash()
        self.disk.inbox.crash()
        return self.disk

    def subscribe(self, *filters: str) -> None:
        """Require filters, and have the broker grant them."""
        self.require(*filters)
        self.save()
        for name in filters:
            self.grant(name)
        self.save()
        self.requests.clear()


def copies(
    *identifiers: int,
    topic: str = "a/b",
    payload: bytes = b"x",
    qos: int = 1,
    first_packet_id: int = 1,
    dup: bool = False,
) -> Sequence[PublishPacket]:
    """Return one copy of a publication per subscription identifier."""
    return [
        PublishPacket(topic, payload, qos, False, dup, packet_id, (identifier,))
        for packet_id, identifier in enumerate(identifiers, first_packet_id)
    ]
