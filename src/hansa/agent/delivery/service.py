"""The shell of the delivery core in one agent: performs its effects with the broker's client, the
files and the event loop, and hands it what happens.

The node's commands about the disk come here, too.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.deadline_timer import DeadlineTimer
from hansa.agent.delivery import crash_points
from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.files import DeliveryFiles
from hansa.agent.delivery.repair_reader import RepairReader
from hansa.agent.delivery.reports import DeliveryReports
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage.lease_store import LeaseStore
from hansa.agent.storage.peer_store import PeerStore, load_peers
from hansa.agent.storage.state_directory import StateDirectory
from hansa.delivery import effects, inputs
from hansa.delivery.core import BrokerTraits
from hansa.delivery.effects import LogName
from hansa.delivery.settings import DeliverySettings
from hansa.errors import UsageError
from hansa.journal.crash import pass_crash_point
from hansa.journal.records import InboxRecord, RecordedPublication
from hansa.mqtt import packets
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    Effect,
    EpochRolloverRequired,
    Gap,
    NodeReachable,
    PersistPeer,
    PersistProgressReport,
    ReadJournal,
)
from hansa.protocol.events import Event
from hansa.protocol.model import Identity, NodeId, PlainMessage, Publication
from hansa.protocol.node import Node


class DeliveryNodePort(Protocol):
    """What delivery needs of the driver."""

    @property
    def node(self) -> Node: ...

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""

    def assign_position(self, publication: packets.PublishPacket) -> Publication | None:
        """Give a QoS 1 or 2 publication its position; None if no node is interested and its
        topic is not recorded."""


class DeliveryTelemetryPort(Protocol):
    """What delivery needs of telemetry."""

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""

    def on_injected(self, records: Sequence[InboxRecord]) -> None:
        """The broker has these publications."""


class DeliveryBrokerPort(Protocol):
    """What delivery needs of the broker's client."""

    def inject(self, batch: Sequence[packets.PublishPacket]) -> None:
        """Publish with the given packet ids."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish at QoS 0."""

    def send_handshake_packets(self, batch: Sequence[packets.AnyHandshakePacket]) -> None:
        """Send acknowledgements of QoS 1 and 2."""

    def send_subscribe(self, subscription: packets.Subscription, identifier: int | None) -> None:
        """Send SUBSCRIBE."""

    def send_unsubscribe(self, topic_filter: str) -> None:
        """Send UNSUBSCRIBE."""

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Discard delayed retained values of these topics: newer ones arrived at QoS 1 or 2."""


class DeliveryService:
    """The delivery core of one agent, and its files."""

    def __init__(
        self,
        state: StateDirectory,
        identity: Identity,
        settings: DeliverySettings,
        alarms: Alarms,
        recorded_topics: RecordedTopics,
        broker: BrokerTraits,
    ) -> None:
        """Open the logs. Publications to `recorded_topics` are recorded without receivers, too."""
        self._state = state
        self._identity = identity
        self._alarms = alarms
        self._files = DeliveryFiles(state, identity, settings, alarms, recorded_topics)
        is_uncertain = self._files.connect_marker.was_left
        self.core = self._files.make_core(replace(broker, is_session_uncertain=is_uncertain))
        self.had_session = self.core.saved_subscriptions.has_session
        """Whether the broker kept a session for the previous incarnation."""
        self._inputs: deque[inputs.Input] = deque()
        self._is_handling = False
        self._after_inputs: list[Publication] = []
        """Retained publications of QoS 0 that follow inputs which wait: one of these may be an
        earlier publication to the same topic."""
        self._is_stopped = False
        self._timer = DeadlineTimer(self._on_timer)
        self._disk_tasks: set[asyncio.Task[None]] = set()
        self._performers: dict[type, Callable[..., None]] = {
            effects.Commit: self._start_commit,
            effects.Publish: lambda each: self._client.inject(each.batch),
            effects.SendHandshakePackets: lambda each: self._client.send_handshake_packets(
                each.batch
            ),
            effects.FeedNode: lambda each: self._telemetry.feed(each.event),
            effects.Injected: lambda each: self._telemetry.on_injected(each.records),
            effects.PublishQos0: lambda each: self._client.publish(each.publications),
            effects.Subscribe: lambda each: self._client.send_subscribe(
                each.subscription, each.identifier
            ),
            effects.Unsubscribe: lambda each: self._client.send_unsubscribe(each.topic_filter),
            effects.SaveSubscriptions: lambda _: self._start_disk_task(self._save_subscriptions()),
            effects.BuildEpoch: lambda each: self._start_disk_task(self._build_epoch(each)),
            effects.RemoveEndedEpochs: lambda _: self._start_disk_task(self._remove_epochs()),
            effects.RemoveConnectMarker: lambda _: self._files.connect_marker.remove(),
            effects.SetAlarm: lambda each: self._alarms.set(each.name, each.text),
            effects.PublicationDropped: lambda each: self.report_dropped(
                each.reason, each.topic, each.qos
            ),
        }

    def restored_state(self) -> RestoredState:
        """Return the state that the node starts with."""
        return self.core.restored_state()

    def attach(
        self,
        driver: DeliveryNodePort,
        broker: DeliveryBrokerPort,
        telemetry: DeliveryTelemetryPort,
    ) -> None:
        """Connect the node and the broker's client, and restore the known peers."""
        self._driver, self._client, self._telemetry = driver, broker, telemetry
        self._reports = DeliveryReports(driver.node, self.core, self._alarms)
        self._reports.counters += self._files.count_truncated()
        self._repair_reader = RepairReader(self._files.outbox, driver.feed, self._alarms)
        peers = load_peers(self._state)
        self._peer_store = PeerStore(
            peers,
            write=self._state.save_peers,
            on_persisted=driver.feed,
            set_alarm=self._alarms.setter("peers not saved"),
        )
        is_cloned = self.core.outbox.is_cloned
        self._perform_all(self.core.start(self, self._identity.incarnation, monotonic()))
        self._update_timer()
        self._lease_store = LeaseStore(
            b"" if is_cloned else self._state.load_leases(),
            driver.node.membership,
            write=self._state.save_leases,
            set_alarm=self._alarms.setter("leases not saved"),
        )
        records = (record for known in peers.values() for record in known)
        driver.feed(self._lease_store.peers_restored(records))

    async def stop(self) -> None:
        """Write pending records and close the files; later inputs are ignored."""
        self._repair_reader.stop()
        self._timer.cancel()
        self.core.capture.record_acknowledged(self.acknowledged())
        self._is_stopped = True
        await asyncio.gather(*self._disk_tasks, return_exceptions=True)
        await self._peer_store.stop()
        await self._lease_store.stop()
        self.core.save_echoes()
        await self._files.close()

    # ------------------------------------------------------------ the core

    def handle(self, happened: inputs.Input) -> None:
        """Hand an input to the core and perform the effects. If that causes further inputs, they
        wait until it is done. A fault is raised after all of them. After `stop`, inputs are
        ignored."""
        if self._is_stopped:
            return
        self._inputs.append(happened)
        if self._is_handling:
            return
        self._is_handling = True
        fault: Exception | None = None
        while self._inputs:
            try:
                self._handle_input(self._inputs.popleft())
            except Exception as error:  # noqa: BLE001
                fault = fault or error
        self._is_handling = False
        self._update_timer()
        if self._after_inputs:
            retained, self._after_inputs = self._after_inputs, []
            self._client.publish(retained)
        if fault is not None:
            raise fault

    def _handle_input(self, happened: inputs.Input) -> None:
        caused = self.core.handle(happened, monotonic())
        if crash_points.IS_ARMED:
            crash_points.pass_after_input(happened, caused)
        self._perform_all(caused)

    def _perform_all(self, caused: Iterable[effects.Effect]) -> None:
        """Perform all effects, even if one fails: a commit that does not start would stop delivery
        for good. The first fault is raised at the end."""
        fault: Exception | None = None
        for effect in caused:
            try:
                self._perform_effect(effect)
            except Exception as error:  # noqa: BLE001
                fault = fault or error
        if fault is not None:
            raise fault

    def _perform_effect(self, effect: effects.Effect) -> None:
        if crash_points.IS_ARMED:
            crash_points.pass_before_effect(effect)
        self._performers[type(effect)](effect)
        if crash_points.IS_ARMED:
            crash_points.pass_after_effect(effect)

    def _update_timer(self) -> None:
        due = self.core.next_deadline()
        if due is not None:
            self._timer.schedule(asyncio.get_running_loop().time() + max(0.0, due - monotonic()))

    def _on_timer(self) -> None:
        self.handle(inputs.TimerFired())

    # ------------------------------------------------------------ the node, as the core sees it

    def assign_position(self, publish: packets.PublishPacket) -> Publication | None:
        return self._driver.assign_position(publish)

    def acknowledged(self) -> Mapping[NodeId, int]:
        return self._driver.node.delivery.acknowledged

    # ------------------------------------------------------------ the disk

    def _start_disk_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = tasks.start_task(work)
        self._disk_tasks.add(task)
        task.add_done_callback(self._disk_tasks.discard)

    def _start_commit(self, effect: effects.Commit) -> None:
        self._files.start_commit(effect.log, self._on_commit_ended)

    def _on_commit_ended(self, name: LogName, error: Exception | None) -> None:
        if error is not None:
            if not isinstance(error, UsageError):
                tasks.report_fault(error)
            self.handle(inputs.CommitFailed(name, str(error)))
        else:
            self.handle(inputs.Committed(name))
            if name is LogName.OUTBOX:
                self._reports.report_trimmed()

    async def _build_epoch(self, effect: effects.BuildEpoch) -> None:
        try:
            writer = await asyncio.to_thread(self._files.outbox.build_epoch, effect.plan)
        except UsageError as error:
            self.handle(inputs.EpochNotBuilt(str(error)))
            return
        self._files.outbox.start_epoch(writer)
        self._alarms.set("journal damaged", self._files.outbox.damage_text)
        self._reports.on_epoch_started()
        self.handle(inputs.EpochBuilt(writer))

    async def _remove_epochs(self) -> None:
        await asyncio.to_thread(self._files.outbox.remove_ended_epochs)
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_FINISHED)

    async def _save_subscriptions(self) -> None:
        self.handle(inputs.SubscriptionsSaved(await self._files.subscriptions.save()))

    def append_if_room(self, record: RecordedPublication) -> bool:
        """Append a recorded QoS 0 publication unless too much waits for the disk."""
        return self._files.outbox.writer.append_if_room(record)

    def schedule_commit(self) -> None:
        """Make everything appended so far durable."""
        self._perform_all(self.core.request_commit(monotonic()))

    # ------------------------------------------------------------ the node's commands

    def perform(
        self, command: ReadJournal | PersistPeer | PersistProgressReport | EpochRolloverRequired
    ) -> None:
        """Execute a command that concerns the disk."""
        match command:
            case ReadJournal():
                self._repair_reader.start(command)
            case PersistPeer(_, node):
                records = self._driver.node.membership.records_of(node)
                if not records:
                    self.handle(inputs.ExpireNode(node))
                self._peer_store.persist_peer(command, records)
            case PersistProgressReport(node):
                self.handle(inputs.ProgressReported(node))
            case EpochRolloverRequired(epoch):
                self.handle(inputs.StartEpoch(epoch))

    def deliver(self, batch: Sequence[Publication | Gap]) -> None:
        """Take over publications of QoS 1 and 2 and gaps, in this order."""
        self._client.discard_delayed(
            p.topic for p in batch if isinstance(p, Publication) and p.retain
        )
        self.handle(inputs.Deliver(batch))

    def on_notification(self, notification: Effect) -> None:
        """Handle a notification of the node."""
        if isinstance(notification, NodeReachable):
            self._lease_store.on_node_reachable(notification.node)
            self.handle(inputs.NodeContacted())
        else:
            self._reports.on_notification(notification)

    # ------------------------------------------------------------ for the broker's client

    async def before_connect(self) -> None:
        """CONNECT is sent when this returns. The core learns of the attempt first: it must not
        remove the marker when an earlier session loss becomes durable meanwhile."""
        self.handle(inputs.ConnectStarted())
        await self._files.connect_marker.create()

    def on_connect_refused(self) -> None:
        """CONNECT was refused or not sent."""
        self.handle(inputs.ConnectRefused())

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending, or may be."""
        return self.core.has_pending_retained or bool(self._inputs)

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        """Hold back retained QoS 0 publications to topics with pending retained publications;
        return the others."""
        if self._is_handling and self._inputs:
            self._after_inputs += [
                each for each in publications if isinstance(each, Publication) and each.retain
            ]
            publications = [
                each for each in publications if isinstance(each, tuple) or not each.retain
            ]
        others, caused = self.core.hold_back(publications)
        self._perform_all(caused)
        return others

    def report_dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """Count a publication that will not be delivered; topic and QoS, if known, go to the
        alarm."""
        self._reports.add_dropped(reason, topic, qos)

    # ------------------------------------------------------------ for retained values

    @property
    def delivery_mark(self) -> int:
        """Upper bound of the next inbox index: `has_passed` compares it later."""
        return self.core.delivery_mark

    def has_passed(self, mark: int) -> bool:
        """Whether everything delivered before a mark has reached the broker or is set aside."""
        return self.core.has_passed(mark)

    # ------------------------------------------------------------ status

    def status(self) -> dict[str, object]:
        """Return the `delivery` section of `/status`."""
        return self._reports.status(self._files.outbox.writer)

    def all_counters(self) -> Counter[str]:
        return self._reports.counters + self.core.counters
