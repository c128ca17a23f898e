"""The delivery core: takes inputs, returns effects. Shells also read its parts, for QoS 0 and for
status."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hansa.delivery import inputs
from hansa.delivery.capture import Capture
from hansa.delivery.connect_attempts import ConnectAttempts
from hansa.delivery.context import Context
from hansa.delivery.dedup.selection import CopySelection
from hansa.delivery.effects import Effect, FeedNode, LogName, PublicationDropped
from hansa.delivery.inbox import InboxLog
from hansa.delivery.injection import Injection
from hansa.delivery.outbox import OutboxLog
from hansa.delivery.settings import DeliverySettings
from hansa.delivery.subscriptions.reconciler import SubscriptionReconciler
from hansa.delivery.subscriptions.saved import SavedSubscriptions
from hansa.delivery.subscriptions.table import SubscriptionTable
from hansa.mqtt.packets import PublishPacket, PubRelPacket
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import Gap
from hansa.protocol.events import StoreUncertain
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import NodeId, PlainMessage, Publication

ACK_RECORD_INTERVAL_S = 0.2
"""Seconds between two records of the receivers' progress."""

CLONE_CHECK_S = 5.0
"""Seconds from the first contact with another node until an agent with a copied journal starts a
new epoch. If the original runs, this agent detects the id conflict by then: alarm
`incarnation raised`."""

CLONE_CHECK_ALONE_S = 30.0
"""The same from the start, without contact to another node."""

SESSION_LOST_ALARM = "broker session lost"
SESSION_LOST = "the broker lost the agent's session: publications may be lost"

COPY_ALARM = "journal restored from copy"


class NodePort(Protocol):
    """What delivery asks the node while it handles an input. Neither call may call delivery."""

    def assign_position(self, publish: PublishPacket) -> Publication | None:
        """Give a publication its position; None if no node is interested and its topic is not
        recorded."""

    def acknowledged(self) -> Mapping[NodeId, int]:
        """Return the position up to which each receiver has everything."""


@dataclass(frozen=True, slots=True)
class BrokerTraits:
    """What the shell knows of the broker before the first connection."""

    local_topics: tuple[str, ...] = ()
    """Filters whose publications are neither captured nor injected."""
    sends_overlap_copies: bool = True
    """Whether a broker of MQTT 3.1.1 sends one copy for each matching subscription."""
    is_session_uncertain: bool = False
    """Whether a connection attempt of a previous incarnation was interrupted."""


class DeliveryCore:
    """Guaranteed delivery of one node in one incarnation."""

    def __init__(
        self,
        context: Context,
        outbox: OutboxLog,
        inbox: InboxLog,
        saved_subscriptions: SavedSubscriptions,
        settings: DeliverySettings,
        broker: BrokerTraits,
    ) -> None:
        """`outbox`, `inbox` and `saved_subscriptions` are restored from disk."""
        self._context = context
        self.counters = context.counters
        self.outbox = outbox
        self.inbox = inbox
        self.saved_subscriptions = saved_subscriptions
        self.subscriptions = SubscriptionTable(broker.local_topics)
        self._reconciler = SubscriptionReconciler(
            context,
            self.subscriptions,
            saved_subscriptions,
            lambda: self.injection.blocks_changes(),
            outbox.is_cloned,
        )
        self.capture = Capture(
            context, outbox, self._assign_position, lambda: self.subscriptions.last_confirmed
        )
        self.selection = CopySelection(
            context,
            self.subscriptions,
            self.capture.captured_subscription,
            broker.sends_overlap_copies,
            self.capture.is_redelivery,
            None if outbox.is_cloned else saved_subscriptions.echoes,
        )
        self.injection = Injection(context, inbox, settings, self.subscriptions.is_local_topic)
        self.selection.track_injected(inbox, self.injection.find_in_flight, settings.in_flight_max)
        self._connect_attempts = ConnectAttempts(context, broker.is_session_uncertain)
        self._node: NodePort | None = None
        self._incarnation = 0
        self._before_rollover: list[Publication | Gap] = []
        """Publications that wait for a new epoch; the node bounds them."""
        self._loss_ends: tuple[int, int] | None = None
        """Ends of both logs with the record of a session loss that is not durable yet."""
        self._acks_due_at: float | None = None
        self._handlers: dict[type, Callable[..., None]] = {
            inputs.PublicationsReceived: self._on_publications_received,
            inputs.HandshakePacketsReceived: self._on_handshake_packets_received,
            inputs.Committed: self._on_committed,
            inputs.Deliver: self._on_deliver,
            inputs.CommitFailed: self._on_commit_failed,
            inputs.ConnectStarted: lambda _: self._connect_attempts.on_connect_started(),
            inputs.ConnectRefused: lambda _: self._connect_attempts.on_connect_refused(),
            inputs.Connected: self._on_connected,
            inputs.Disconnected: self._on_disconnected,
            inputs.OversizedReceived: self._on_oversized_received,
            inputs.PublicationsNotSent: lambda each: self.injection.on_not_sent(
                each.batch, each.reason
            ),
            inputs.SubscribeAnswered: lambda each: self._reconciler.on_subscribed(
                each.subscriptions, each.reasons
            ),
            inputs.UnsubscribeAnswered: lambda each: self._reconciler.on_unsubscribed(each.filters),
            inputs.SubscriptionsSaved: lambda each: self._reconciler.on_saved(each.succeeded),
            inputs.RequireFilters: self._on_require_filters,
            inputs.ReleaseFilters: self._on_release_filters,
            inputs.ProgressReported: lambda each: self.capture.record_progress_report(each.node),
            inputs.ExpireNode: lambda each: self.capture.expire_node(each.node),
            inputs.NodeContacted: self._on_node_contacted,
            inputs.StartEpoch: self._on_start_epoch,
            inputs.EpochBuilt: self._on_epoch_built,
            inputs.EpochNotBuilt: lambda each: self.capture.on_epoch_not_built(each.reason),
            inputs.TimerFired: self._on_timer,
        }

    def restored_state(self) -> RestoredState:
        """Return the state that the node of this incarnation starts with."""
        receivers, log = self.outbox.receivers, self.outbox.log
        return RestoredState(
            log.epoch,
            log.next_sequence,
            last_assigned=dict(receivers.last_assigned),
            acknowledged=dict(receivers.acknowledged),
            unreported_since=dict(receivers.unreported_since),
            accepted=dict(self.inbox.origin_progress),
        )

    def start(self, node: NodePort, incarnation: int, now: float) -> list[Effect]:
        """Start with the node that was made from `restored_state`."""
        self._node, self._context.now = node, now
        self._incarnation = incarnation
        if self.outbox.is_cloned:
            self._schedule_rollover(incarnation, CLONE_CHECK_ALONE_S)
        if self.outbox.has_unacknowledged:
            self._acks_due_at = now + ACK_RECORD_INTERVAL_S
        return self._context.take_effects()

    def handle(self, happened: inputs.Input, now: float) -> list[Effect]:
        """Handle an input and return its effects, in the order to perform."""
        self._context.now = now
        was_change_waiting = self._context.is_change_waiting
        self._handlers[type(happened)](happened)
        effects = self._context.take_effects()
        if self.selection.expects_echoes:
            self.selection.expect_injected(effects)
            is_change_waiting = was_change_waiting or self._context.is_change_waiting
            if is_change_waiting and self._reconciler.resume():
                self.injection.resume()
                following = self._context.take_effects()
                self.selection.expect_injected(following)
                effects += following
        return effects

    def next_deadline(self) -> float | None:
        """Return when `TimerFired` is due; None for never."""
        times = (
            self.capture.deadline,
            self.injection.deadline,
            self.selection.deadline,
            self._reconciler.retry_at,
            self._reconciler.gate.deadline,
            self._acks_due_at,
        )
        return min((each for each in times if each is not None), default=None)

    # ------------------------------------------------------------ the broker

    def _on_connected(self, happened: inputs.Connected) -> None:
        """Resume all handshakes; report a lost or uncertain session."""
        is_present, limits = happened.session_present, happened.limits
        self.selection.on_connected(is_present, limits)
        is_expected = self._reconciler.on_connected(is_present, limits)
        if is_expected and not is_present:
            self.counters["broker sessions lost"] += 1
            self._context.set_alarm(SESSION_LOST_ALARM, SESSION_LOST)
        self.capture.on_connected(is_present)
        # First: at MQTT 3.1.1, echoes were counted with what is requested again.
        self._reconciler.reconcile_all()
        self.injection.on_connected(is_present, limits)
        self._context.effects.append(FeedNode(StoreUncertain((), True)))
        if is_present:
            self._connect_attempts.on_session_kept()
        else:
            self._connect_attempts.on_session_lost()
            self._await_loss_durable()

    def _await_loss_durable(self) -> None:
        """Keep the connect marker until the session loss is durable in both logs."""
        self._loss_ends = self.outbox.log.end, self.inbox.log.end
        self.capture.group_commit.request()
        self.injection.group_commit.request()
        self._check_loss_durable()

    def _check_loss_durable(self) -> None:
        if self._loss_ends is None or self.capture.rollover.is_copying:
            return  # while a log is copied, the new one does not have the record
        if self.capture.has_failed or self.injection.has_failed:
            return  # the record was not written
        outbox_end, inbox_end = self._loss_ends
        if self.outbox.log.durable >= outbox_end and self.inbox.log.durable >= inbox_end:
            self._loss_ends = None
            self._connect_attempts.on_loss_durable()

    def _on_disconnected(self, _: inputs.Disconnected) -> None:
        self.selection.on_disconnected()
        self._reconciler.on_disconnected()
        self.capture.on_disconnected()
        self.injection.on_disconnected()

    def _on_publications_received(self, happened: inputs.PublicationsReceived) -> None:
        self.capture.receive_publications(self.selection.select_guaranteed(happened.batch))

    def _on_oversized_received(self, happened: inputs.OversizedReceived) -> None:
        """Drop and acknowledge it: otherwise the broker sends it again after every
        reconnection."""
        publication = happened.publication
        self._context.effects.append(
            PublicationDropped(TOO_LARGE, publication.topic, publication.qos)
        )
        placeholder = PublishPacket("", b"", publication.qos, packet_id=publication.packet_id)
        self.capture.receive_publications([(placeholder, False)])

    def _on_handshake_packets_received(self, happened: inputs.HandshakePacketsReceived) -> None:
        batch = happened.batch
        if isinstance(batch[0], PubRelPacket):
            self.selection.on_released(packet.packet_id for packet in batch)
            self.capture.receive_pubrel(packet.packet_id for packet in batch)
        else:
            self.injection.on_handshake_packets(batch)

    def _assign_position(self, publish: PublishPacket) -> Publication | None:
        assert self._node is not None
        if self._acks_due_at is None:
            self._acks_due_at = self._context.now + ACK_RECORD_INTERVAL_S
        return self._node.assign_position(publish)

    # ------------------------------------------------------------ QoS 0

    def select_qos0(self, batch: Sequence[PublishPacket], now: float) -> Sequence[PublishPacket]:
        """Return the copies of QoS 0 that count."""
        self._context.now = now
        return self.selection.select_qos0(batch)

    def is_awaiting_echoes(self, now: float) -> bool:
        """Whether no more should be published before the broker has sent some echoes."""
        self._context.now = now
        return self.selection.is_echo_filter_full

    def expect_echoes(self, published: Iterable[tuple[str, bytes]], now: float) -> None:
        """Topics and payloads are published at QoS 0 now: what a broker of MQTT 3.1.1 sends back
        does not count."""
        self._context.now = now
        for topic, payload in published:
            self.selection.expect_echo(topic, payload, 0)

    def save_echoes(self) -> None:
        """Save the echoes that the next incarnation has to expect; nothing may follow."""
        self.saved_subscriptions.echoes = self.selection.save_echoes()

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""
        return not self.injection.retained_order.is_empty

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> tuple[Sequence[PlainMessage | Publication], list[Effect]]:
        """Hold back retained QoS 0 publications to topics with pending retained publications.
        Return the others, and effects that come before them."""
        others = self.injection.retained_order.hold_back(publications)
        return others, self._context.take_effects()

    # ------------------------------------------------------------ the disk

    def _on_committed(self, happened: inputs.Committed) -> None:
        if happened.log is LogName.OUTBOX:
            self.capture.on_committed()
        else:
            self.injection.on_committed()
        self._check_loss_durable()

    def _on_commit_failed(self, happened: inputs.CommitFailed) -> None:
        part = self.capture if happened.log is LogName.OUTBOX else self.injection
        part.group_commit.on_failed(happened.reason)

    def _on_epoch_built(self, happened: inputs.EpochBuilt) -> None:
        self.counters["epoch rollovers"] += 1
        self.capture.on_epoch_built(happened.log)
        if self._loss_ends is not None:
            self._loss_ends = happened.log.end, self._loss_ends[1]
        early, self._before_rollover = self._before_rollover, []
        self.injection.add_publications(early)

    def request_commit(self, now: float) -> list[Effect]:
        """Make everything in the outbox log durable, also what the shell has appended itself."""
        self._context.now = now
        self.capture.group_commit.request()
        return self._context.take_effects()

    # ------------------------------------------------------------ the node

    def _on_require_filters(self, happened: inputs.RequireFilters) -> None:
        for name in happened.filters:
            self.subscriptions.require(name)
        self._reconciler.reconcile(happened.filters)

    def _on_release_filters(self, happened: inputs.ReleaseFilters) -> None:
        for name in happened.filters:
            self.subscriptions.stop_requiring(name)
        self._reconciler.reconcile(happened.filters)

    def _on_deliver(self, happened: inputs.Deliver) -> None:
        """Inject publications and record gaps. With a copied log they wait for the new epoch: if
        the original runs, it is the receiver."""
        if self.outbox.is_cloned:
            self._before_rollover += happened.batch
        else:
            self.injection.add_publications(happened.batch)

    def _on_node_contacted(self, _: inputs.NodeContacted) -> None:
        if self.outbox.is_cloned:
            self._schedule_rollover(self._incarnation, CLONE_CHECK_S)

    def _on_start_epoch(self, happened: inputs.StartEpoch) -> None:
        self._schedule_rollover(happened.epoch, CLONE_CHECK_S if self.outbox.is_cloned else 0.0)

    def _schedule_rollover(self, epoch: int, delay_s: float) -> None:
        epoch = max(epoch, self.outbox.log.epoch + 1)
        self._record_acknowledged()
        self.capture.schedule_rollover(epoch, delay_s)
        text = f"the journal was an old copy: epoch {epoch} starts, publications may be lost"
        self._context.set_alarm(COPY_ALARM, text)

    def _record_acknowledged(self) -> None:
        assert self._node is not None
        self.capture.record_acknowledged(self._node.acknowledged())

    @property
    def delivery_mark(self) -> int:
        """Upper bound of the next inbox index: `has_passed` compares it later."""
        waiting = self.injection.waiting_count + len(self._before_rollover)
        return self.inbox.index_after(waiting)

    def has_passed(self, mark: int) -> bool:
        """Whether everything delivered before a mark has reached the broker, is refused for quota
        or is quarantined."""
        set_aside = self.injection.quarantine, self.injection.quota_backoff
        pending = (
            index
            for index, each in self.inbox.entries.items()
            if not any(each in part for part in set_aside)
        )
        oldest = next(pending, self.inbox.next_index)
        return oldest >= min(mark, self.delivery_mark)

    # ------------------------------------------------------------ time

    def _on_timer(self, _: inputs.TimerFired) -> None:
        """Do what is due; the timer may fire a little early."""
        self.capture.on_timer()
        self._reconciler.on_timer()
        self.injection.on_timer()
        decided = self.selection.decide_waiting()
        if decided:
            self.capture.receive_publications(decided)
        if self._acks_due_at is not None and self._context.now >= self._acks_due_at:
            self._record_acknowledged()
            is_behind = self.outbox.has_unacknowledged
            self._acks_due_at = self._context.now + ACK_RECORD_INTERVAL_S if is_behind else None
