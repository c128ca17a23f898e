"""A shell without IO: it sorts effects into lists; commits and new epochs wait for the test."""

from collections import Counter
from collections.abc import Iterable

from hansa.delivery import effects
from hansa.delivery.context import Context
from hansa.delivery.effects import LogName
from hansa.delivery.rollover_plan import RolloverPlan
from hansa.journal.records import InboxRecord
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket
from hansa.mqtt.types import Version
from hansa.protocol.events import Event
from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.memory_log import MemoryLog

ME, YOU, OTHER = NodeId(1), NodeId(2), NodeId(3)
WALL_NS = 1_700_000_000_000_000_000


def limits(
    receive_maximum: int = 100,
    qos_max: int = 2,
    version: Version = Version.V5,
    subscription_ids_available: bool = True,
    session_expiry: int = 0,
) -> BrokerLimits:
    return BrokerLimits(
        version=version,
        client_id="",
        keep_alive=30,
        session_expiry=session_expiry,
        receive_maximum=receive_maximum,
        qos_max=qos_max,
        subscription_ids_available=subscription_ids_available,
    )


class Shell:
    """The effects of one incarnation, by kind."""

    def __init__(self) -> None:
        self.wall_ns = WALL_NS
        self.context = Context(lambda: self.wall_ns)
        self.counters = self.context.counters
        self.sent: list[PublishPacket | AnyHandshakePacket] = []
        self.published_qos0: list[Publication] = []
        self.events: list[Event] = []
        self.alarms: dict[str, list[str]] = {}
        """Texts by alarm, in the order of their changes."""
        self.dropped: Counter[str] = Counter()
        self.injected: list[InboxRecord] = []
        self.commits: list[LogName] = []
        """Commits that are not carried out yet."""
        self.plans: list[RolloverPlan] = []
        """Epochs that are not built yet."""
        self.requests: list[effects.Subscribe | effects.Unsubscribe] = []
        self.saves = 0
        """Saves of the subscriptions that are not carried out yet."""
        self.removed_markers = 0
        self.removed_epochs = 0

    def perform(self, caused: Iterable[effects.Effect]) -> None:
        for effect in caused:
            self._perform_at_broker(effect)
            self._perform_on_disk(effect)
            self._perform_report(effect)

    def _perform_at_broker(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Publish(batch) | effects.SendHandshakePackets(batch):
                self.sent += batch
            case effects.PublishQos0(publications):
                self.published_qos0 += publications
            case effects.Subscribe() | effects.Unsubscribe():
                self.requests.append(effect)

    def _perform_on_disk(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Commit(log):
                assert log not in self.commits, "two commits of one log at a time"
                self.commits.append(log)
            case effects.BuildEpoch(plan):
                self.plans.append(plan)
            case effects.RemoveEndedEpochs():
                self.removed_epochs += 1
            case effects.SaveSubscriptions():
                self.saves += 1
            case effects.RemoveConnectMarker():
                self.removed_markers += 1

    def _perform_report(self, effect: effects.Effect) -> None:
        match effect:
            case effects.FeedNode(event):
                self.events.append(event)
            case effects.SetAlarm(name, text):
                self.alarms.setdefault(name, []).append(text)
            case effects.PublicationDropped(reason):
                self.dropped[reason] += 1
            case effects.Injected(records):
                self.injected += records

    def alarm(self, name: str) -> str:
        """Return the text of an alarm; empty if it is not raised."""
        return self.alarms.get(name, [""])[-1]

    def expect_sent(self, *expected: PublishPacket | AnyHandshakePacket) -> None:
        """Exactly these packets were sent; forget them."""
        assert self.sent == list(expected)
        self.sent.clear()


def build_epoch(log: MemoryLog, plan: RolloverPlan) -> MemoryLog:
    """Carry out `BuildEpoch`."""
    log.commit(log.end)
    built = MemoryLog(plan.epoch)
    source = log.captured_records(plan.first_pending, log.next_sequence - 1)
    for _ in plan.copy_records(source, built, WALL_NS):
        pass
    built.commit(built.end)
    return built
