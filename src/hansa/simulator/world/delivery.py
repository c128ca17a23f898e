"""The shell of the delivery core in the simulator: model broker, model disk, virtual time.

One object serves one process of an agent. It performs the effects of the live shell
(`agent/delivery/service`) with models of broker, disk and clock. These do not occur: refused
connections, publications that are too large, message expiry, recorded QoS 0 publications, copied
logs that are found by their files, alarms.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from hansa.delivery import effects, inputs
from hansa.delivery.context import Context
from hansa.delivery.core import BrokerTraits, DeliveryCore
from hansa.delivery.effects import Effect, LogName
from hansa.delivery.group_commit import RETRY_S
from hansa.delivery.inbox import ENTRY_OVERHEAD_BYTES, InboxLog
from hansa.delivery.outbox import OutboxLog
from hansa.delivery.settings import DeliverySettings
from hansa.delivery.subscriptions.saved import SavedSubscriptions, SubscriptionChange
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import Property, encode_properties
from hansa.protocol import effects as node_effects
from hansa.protocol import events
from hansa.protocol.effects import Gap
from hansa.protocol.model import NodeId, PlainMessage, Publication
from hansa.simulator.options import DiskOptions
from hansa.simulator.world.connection import SimulatedConnection
from hansa.simulator.world.ledger import Ledger, LedgerEntry, RepeatedPayload, ledger_number
from hansa.simulator.world.scheduler import Scheduler
from hansa.simulator.world.site import Site

STORED_ONLY = encode_properties(((Property.USER_PROPERTY, ("simulator", "stored only")),))
"""Marks a retained value that a node publishes only so that its broker stores it."""

DISK_FULL = "the disk is full"


class DeliveryHost(Protocol):
    """What the shell needs of the world."""

    def handle_event(self, site: Site, event: events.Event) -> None:
        """Let the node of a site handle an event."""

    @property
    def on_effect_performed(self) -> Callable[[Site, Effect], None]:
        """Called after every effect of the delivery core; it may stop the agent."""


class SimulatedDelivery:
    """The delivery core of one agent process."""

    def __init__(
        self,
        scheduler: Scheduler,
        ledger: Ledger,
        disk: DiskOptions | None,
        broker_s: float,
        host: DeliveryHost,
        site: Site,
    ) -> None:
        """Restore the core from the disk of a site. `broker_s` is the one-way delay to its
        broker."""
        self._scheduler = scheduler
        self._ledger = ledger
        self._sync_s = disk.sync_ms / 1000 if disk else 0.0
        self._host = host
        self._site = site
        self._process_run = site.process_run
        self._disk = site.state.disk
        options = disk or DiskOptions()
        settings = DeliverySettings(
            in_flight_max=options.in_flight_max,
            inbox_bytes=options.inbox_max * ENTRY_OVERHEAD_BYTES,
        )
        context = Context(self._wall_ns)
        outbox = self._open_outbox()
        inbox = InboxLog(self._disk.inbox, self._disk.inbox.replay(), self._wall_ns)
        saved = SavedSubscriptions(self._disk.subscriptions, self._disk.has_session)
        traits = BrokerTraits(is_session_uncertain=self._disk.has_connect_marker)
        self.core = DeliveryCore(context, outbox, inbox, saved, settings, traits)
        self._inputs: deque[inputs.Input] = deque()
        self._is_handling = False
        self._timer_at: float | None = None
        self._assigned: Publication | None = None
        self.connection = SimulatedConnection(
            scheduler, site, broker_s, options.in_flight_max, self
        )
        self._save_id = 0
        self._performers: dict[type, Callable[..., None]] = {
            effects.Commit: self._start_commit,
            effects.Publish: lambda each: self.connection.send(each.batch),
            effects.SendHandshakePackets: lambda each: self.connection.send(each.batch),
            effects.PublishQos0: lambda each: self.publish_qos0(each.publications),
            effects.FeedNode: lambda each: self._feed_node(each.event),
            effects.Subscribe: self.connection.send_subscribe,
            effects.Unsubscribe: self.connection.send_unsubscribe,
            effects.SaveSubscriptions: self._start_save,
            effects.BuildEpoch: self._start_epoch,
            effects.RemoveConnectMarker: self._remove_connect_marker,
        }

    def _open_outbox(self) -> OutboxLog:
        incarnation = self._site.state.incarnation
        log = self._disk.open_outbox(incarnation)
        outbox = OutboxLog(log, log.replay(), self._wall_ns)
        outbox.replace_if_empty(incarnation, self._disk.build_epoch)
        outbox.start_incarnation()
        return outbox

    def _wall_ns(self) -> int:
        return 0  # without message expiry the wall clock does not matter

    def start(self) -> None:
        """Start with the node of the site."""
        started = self.core.start(self, self._site.state.incarnation, self._scheduler.now)
        self._perform_all(started)
        self.connection.connect()

    # ------------------------------------------------------------ the core

    def handle(self, happened: inputs.Input) -> None:
        """Let the core handle an input and perform its effects; then the inputs they caused."""
        self._inputs.append(happened)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._inputs and self.is_running():
                self._perform_all(self.core.handle(self._inputs.popleft(), self._scheduler.now))
        finally:
            self._is_handling = False
        self._update_timer()

    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self._site.process_run == self._process_run

    def _perform_all(self, caused: Sequence[Effect]) -> None:
        for effect in caused:
            performer = self._performers.get(type(effect))
            if performer is not None:
                performer(effect)
            if not self.is_running():
                return
            self._host.on_effect_performed(self._site, effect)
            if not self.is_running():
                return

    def _update_timer(self) -> None:
        due = self.core.next_deadline()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._scheduler.at(due, self._on_timer, due)

    def _on_timer(self, scheduled_at: float) -> None:
        if self._timer_at != scheduled_at or not self.is_running():
            return
        self._timer_at = None
        self.call_when_awake(self.handle, inputs.TimerFired())

    def call_when_awake(self, call: Callable[..., None], *arguments: object) -> None:
        """Call now, or when the agent is resumed."""
        if not self.is_running():
            return
        if self._site.is_frozen:
            self._site.postponed_calls.append(partial(self.call_when_awake, call, *arguments))
        else:
            call(*arguments)

    # ------------------------------------------------------------ the node

    def assign_position(self, publish: PublishPacket) -> Publication | None:
        entry = self._ledger.entries[ledger_number(publish.payload)]
        self._host.handle_event(
            self._site,
            events.ClientPublished(publish.topic, publish.payload, publish.qos, publish.retain),
        )
        assigned, self._assigned = self._assigned, None
        if assigned is None:
            entry.was_passed_over = True
        else:
            self._record_position(entry, assigned.epoch, assigned.sequence, assigned.receivers)
        return assigned

    def on_append_to_journal(self, publication: Publication) -> None:
        """The node gave the publication a position; `assign_position` returns it."""
        self._assigned = publication

    def _record_position(
        self, entry: LedgerEntry, epoch: int, sequence: int, receivers: Sequence[tuple[int, int]]
    ) -> None:
        entry.journal_position = (epoch, sequence)
        entry.receivers = frozenset(NodeId(node) for node, _ in receivers)
        if isinstance(entry.payload, RepeatedPayload):
            position = (self._site.state.id, epoch, sequence)
            self._ledger.repeated_payloads[position] = entry.payload

    def acknowledged(self) -> Mapping[NodeId, int]:
        assert self._site.node is not None
        return self._site.node.delivery.acknowledged

    def receive_qos0(self, publish: PublishPacket) -> None:
        """A publication of QoS 0 has arrived."""
        for each in self.core.select_qos0((publish,), self._scheduler.now):
            self._feed_node(events.ClientPublished(each.topic, each.payload, 0, each.retain))

    def _feed_node(self, event: events.Event) -> None:
        self._host.handle_event(self._site, event)

    def deliver(self, batch: Sequence[Publication | Gap]) -> None:
        """Take over publications of other nodes at QoS 1 and 2, and gaps."""
        prepared = (each if isinstance(each, Gap) else self._prepare(each) for each in batch)
        self.handle(inputs.Deliver(tuple(prepared)))

    def _prepare(self, each: Publication) -> Publication:
        """Note a publication for the ledger, or mark one that is only stored."""
        if not each.sequence:
            return replace(each, properties=STORED_ONLY)
        repeated = self._ledger.repeated_payloads.get((each.origin, each.epoch, each.sequence))
        if repeated is not None and repeated == each.payload:
            each = replace(each, payload=repeated)
        self._site.delivered_publications[ledger_number(each.payload)] = each
        return each

    def publish_qos0(self, publications: Sequence[PlainMessage | Publication]) -> None:
        """Publish at QoS 0, now or after earlier retained publications; dropped if the broker is
        not connected."""
        if self.core.has_pending_retained:
            publications, caused = self.core.hold_back(publications)
            self._perform_all(caused)
        batch: list[PublishPacket] = []
        for publication in publications:
            assert isinstance(publication, Publication)
            each = self._prepare(publication)
            batch.append(
                PublishPacket(each.topic, each.payload, 0, each.retain, properties=each.properties)
            )
        if batch:
            self.connection.send(batch)

    def perform_storage_command(self, command: node_effects.Effect) -> None:
        """Perform a command of the node that concerns the disk."""
        match command:
            case node_effects.ReadJournal():
                assert self._site.node is not None
                result = self._disk.read_journal(command, self._site.node.id)
                self._after_sync(self._feed_node, result)
            case node_effects.PersistPeer(save_id, node):
                assert self._site.node is not None
                records = tuple(self._site.node.membership.records_of(node))
                if not records:
                    self.handle(inputs.ExpireNode(node))
                self._disk.write_records(node, records)
                self._save_id = save_id
                self._start_record_sync(save_id)
            case node_effects.PersistProgressReport(node):
                self.handle(inputs.ProgressReported(node))
            case node_effects.EpochRolloverRequired(epoch):
                self.handle(inputs.StartEpoch(epoch))
            case _:
                raise AssertionError(command)

    def _start_record_sync(self, save_id: int) -> None:
        def try_again() -> None:
            self._scheduler.after(RETRY_S, self.call_when_awake, self._start_record_sync, save_id)

        self._after_sync(self._sync_records, save_id, if_full=try_again)

    def _sync_records(self, save_id: int) -> None:
        if save_id == self._save_id:  # later ones are synced with the last one
            self._disk.sync_records()
            self._feed_node(events.PeersPersisted(save_id))

    # ------------------------------------------------------------ the disk

    def _after_sync(
        self,
        call: Callable[..., None],
        *arguments: object,
        if_full: Callable[[], None] | None = None,
    ) -> None:
        """Call when a sync that starts now is complete, `if_full` instead if the disk is full
        then. Without `if_full` it is a read."""
        self._scheduler.after(self._sync_s, self._complete_sync, if_full, call, *arguments)

    def _complete_sync(
        self, if_full: Callable[[], None] | None, call: Callable[..., None], *arguments: object
    ) -> None:
        now, disk = self._scheduler.now, self._disk
        if not self.is_running() or (if_full is not None and disk.has_failed):
            return
        if now < disk.stalled_until:
            self._scheduler.at(disk.stalled_until, self._complete_sync, if_full, call, *arguments)
        elif if_full is not None and now < disk.full_until:
            self.call_when_awake(if_full)
        else:
            self.call_when_awake(call, *arguments)

    def _start_commit(self, effect: effects.Commit) -> None:
        log = self.core.outbox.log if effect.log is LogName.OUTBOX else self._disk.inbox
        failed = partial(self.handle, inputs.CommitFailed(effect.log, DISK_FULL))
        self._after_sync(self._commit, effect.log, log, log.end, if_full=failed)

    def _commit(self, name: LogName, log: object, upto: int) -> None:
        if name is LogName.INBOX:
            self._disk.inbox.commit(upto)
        elif log is self._disk.outbox:
            self._disk.commit_outbox(upto)
        self.handle(inputs.Committed(name))

    def _start_epoch(self, effect: effects.BuildEpoch) -> None:
        failed = partial(self.handle, inputs.EpochNotBuilt(DISK_FULL))
        self._after_sync(self._build_epoch, effect, if_full=failed)

    def _build_epoch(self, effect: effects.BuildEpoch) -> None:
        log = self._disk.build_epoch(effect.plan)
        for record in log.captured_records(1, log.next_sequence):
            entry = self._ledger.entries[ledger_number(record.payload)]
            self._record_position(entry, log.epoch, record.sequence, record.receivers)
        self.handle(inputs.EpochBuilt(log))

    def _start_save(self, _: effects.SaveSubscriptions) -> None:
        saved = self.core.saved_subscriptions
        saved.take_unsaved()
        failed = partial(self.handle, inputs.SubscriptionsSaved(False))
        # Without a durable disk nothing restores them.
        summary = saved.summary() if self._site.is_durable else ()
        self._after_sync(self._save, summary, saved.has_session, if_full=failed)

    def _save(self, changes: Sequence[SubscriptionChange], has_session: bool) -> None:
        self._disk.subscriptions, self._disk.has_session = changes, has_session
        self.handle(inputs.SubscriptionsSaved(True))

    def _remove_connect_marker(self, _: effects.RemoveConnectMarker) -> None:
        self._disk.has_connect_marker = False
