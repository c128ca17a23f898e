"""Capture: QoS 1 and 2 publications of local clients, from the broker into the outbox log.

    QoS 1   PUBLISH → CapturedRecord durable → PUBACK
    QoS 2   PUBLISH → CapturedRecord durable → PUBREC
            PUBREL → CaptureCompletedRecord durable → PUBCOMP

A publication is acknowledged when its record is durable, in the order of arrival. If no node is
interested in it and its topic is not recorded, nothing is written and it is acknowledged once all
earlier ones are. Duplicates are acknowledged and not captured (`dedup`). If the log cannot be
written any more, capture stops, with an alarm: without acknowledgements the broker keeps the
publications for the next incarnation.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from hansa.delivery.context import Context
from hansa.delivery.dedup.redelivery import ALREADY_DURABLE, RedeliveryCandidate
from hansa.delivery.effects import (
    BuildEpoch,
    FeedNode,
    LogName,
    RemoveEndedEpochs,
    SendHandshakePackets,
)
from hansa.delivery.group_commit import RETRY_S, GroupCommit
from hansa.delivery.log import RecordLog
from hansa.delivery.outbox import OutboxLog
from hansa.delivery.rollover import Rollover
from hansa.errors import JournalUnusable
from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
)
from hansa.protocol.events import EpochStarted, JournalCommitted, ProgressReportPersisted
from hansa.protocol.model import NodeId, Publication

ROLLBACK_ALARM = "broker state rolled back"
BROKER_STATE_RESTORED = (
    "the broker restored an older saved state after it was killed: publications that it had "
    "acknowledged may be lost"
)


AssignPosition = Callable[[PublishPacket], Publication | None]
"""Gives a publication its position; returns None if no node is interested and its topic is not
recorded."""


class PendingAck(NamedTuple):
    """An acknowledgement that waits until the record at `offset` is durable."""

    offset: int
    step: AnyHandshakePacket
    candidate: RedeliveryCandidate | None = None


class Capture:
    """Captures into one log and sends the acknowledgements that wait for it."""

    def __init__(
        self,
        context: Context,
        outbox: OutboxLog,
        assign_position: AssignPosition,
        newest_subscription: Callable[[], int],
    ) -> None:
        """`newest_subscription` returns the newest subscription identifier that may have matched a
        publication."""
        self.outbox = outbox
        self._context = context
        self._assign_position = assign_position
        self._newest_subscription = newest_subscription
        self.rollover = Rollover(context)
        self.has_failed = False
        """Whether the log cannot be written any more."""
        self._dedup = outbox.dedup
        self._last_completed_offset = ALREADY_DURABLE
        """Offset of the last CaptureCompletedRecord."""
        self._pending_acks: deque[PendingAck] = deque()
        self._not_durable: deque[tuple[int, Publication]] = deque()
        self._report_offsets: deque[tuple[int, NodeId]] = deque()
        self.group_commit = GroupCommit(context, LogName.OUTBOX, outbox.log)

    # ------------------------------------------------------------ connection

    def on_connected(self, session_present: bool) -> None:
        """Start a connection. Without a session the broker redelivers nothing."""
        self.on_disconnected()
        self._dedup.on_connected(session_present)
        if not session_present:
            self._start_session()

    def _start_session(self) -> None:
        """Record the new session: recovery must not take its publications for redeliveries."""
        if self.rollover.is_copying:
            # Into both logs: a crash may leave either.
            self.rollover.defer_session_start(self._start_session)
        self._write_and_commit(self.outbox.append_session_started)

    def on_disconnected(self) -> None:
        """Forget what is not acknowledged: the broker sends it again."""
        self._pending_acks.clear()
        self.rollover.clear_postponed()

    def captured_subscription(self, publish: PublishPacket) -> int:
        """If the first publication of this connection is a copy of a captured one, return the
        identifier of the subscription whose copy was captured, otherwise 0."""
        subscription = self._dedup.overlap.captured_subscription(publish)
        self._context.counters["overlap copies after reconnect"] += subscription > 0
        return subscription

    def is_redelivery(self, publish: PublishPacket) -> bool:
        """Whether a publication was captured before."""
        return self._dedup.redelivery.find_redelivered(publish) is not None

    # ------------------------------------------------------------ packets from the broker

    def receive_publications(self, batch: Iterable[tuple[PublishPacket, bool]]) -> None:
        """Capture publications in their order. The flag of each says whether it is the selected
        copy; the other copies are only acknowledged."""
        if self.rollover.is_pending:
            self.rollover.postpone(partial(self.receive_publications, list(batch)))
            return
        redelivery, overlap = self._dedup.redelivery, self._dedup.overlap
        for publish, is_selected in batch:
            overlap.on_publication()
            candidate = redelivery.match_redelivery(publish)
            if candidate is not None:
                self._context.counters["redeliveries"] += 1
            elif not is_selected:
                overlap.on_overlap_copy(publish)
            elif self.has_failed:
                continue  # not acknowledged, so the broker keeps it
            else:
                candidate = self._capture(publish)
            kind = PubAckPacket if publish.qos == 1 else PubRecPacket
            offset = candidate.offset if candidate else ALREADY_DURABLE
            self._pending_acks.append(PendingAck(offset, kind(publish.packet_id), candidate))
        if redelivery.is_broker_state_older:
            self._context.set_alarm(ROLLBACK_ALARM, BROKER_STATE_RESTORED)
        if self._not_durable:
            self.group_commit.request()
        self._send_due_acks()

    def receive_pubrel(self, packet_ids: Iterable[int]) -> None:
        """Complete handshakes: the broker has our PUBREC, and may reuse the packet ids after
        PUBCOMP."""
        released = list(packet_ids)
        self._dedup.overlap.on_handshakes_resumed(released)
        if self.rollover.is_pending:
            self.rollover.postpone(partial(self.receive_pubrel, released))
            return
        for packet_id in released:
            candidate = self._dedup.redelivery.on_pubrel(packet_id)
            if candidate:
                self._dedup.overlap.on_completed(candidate)
                self._last_completed_offset = self._append_completed(candidate.sequence)
            # A repeated PUBREL waits like the first one: the record may not be durable yet.
            offset = self._last_completed_offset
            self._pending_acks.append(PendingAck(offset, PubCompPacket(packet_id)))
        self.group_commit.request()
        self._send_due_acks()

    def _capture(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        publication = self._assign_position(publish)
        if publication is None:
            return None
        subscriptions = (
            publish.subscription_ids[0] if publish.subscription_ids else 0,
            self._newest_subscription(),
        )
        try:
            offset = self.outbox.append_publication(publication, publish.packet_id, subscriptions)
        except JournalUnusable as error:
            self._stop_capturing(error)
            offset = self.outbox.log.end  # never durable
        else:
            self._not_durable.append((offset, publication))
            self._context.counters["journaled"] += 1
        candidate = self._dedup.redelivery.add_captured(
            publish, publication.sequence, offset, subscriptions
        )
        self._dedup.overlap.on_captured(candidate)
        return candidate

    def _append_completed(self, sequence: int) -> int:
        try:
            return self.outbox.append_completed(sequence)
        except JournalUnusable as error:
            self._stop_capturing(error)
            return self.outbox.log.end

    # ------------------------------------------------------------ commits

    def on_committed(self) -> None:
        """Acknowledge what is durable now, and report it to the node."""
        self.group_commit.on_committed()
        durable, effects = self.outbox.log.durable, self._context.effects
        last: Publication | None = None
        while self._not_durable and self._not_durable[0][0] < durable:
            _, last = self._not_durable.popleft()
        self._send_due_acks()
        if last is not None:
            effects.append(FeedNode(JournalCommitted(last.epoch, last.sequence)))
        while self._report_offsets and self._report_offsets[0][0] < durable:
            effects.append(FeedNode(ProgressReportPersisted(self._report_offsets.popleft()[1])))
        self.group_commit.continue_if_needed()

    def _send_due_acks(self) -> None:
        """Send acknowledgements up to the first record that is not durable."""
        durable, pending = self.outbox.log.durable, self._pending_acks
        steps: list[AnyHandshakePacket] = []
        while pending and pending[0].offset < durable:
            ack = pending.popleft()
            steps.append(ack.step)
            if ack.candidate is not None:
                ack.candidate.is_acknowledged = True
        if steps:
            self._context.effects.append(SendHandshakePackets(steps))

    # ------------------------------------------------------------ receivers

    def record_acknowledged(self, acknowledged: Mapping[NodeId, int]) -> None:
        """Record the progress of receivers."""
        if not self.rollover.is_copying:
            self._write_and_commit(partial(self.outbox.append_acknowledged, acknowledged))

    def record_progress_report(self, node: NodeId) -> None:
        """Record that a receiver reported its progress in this incarnation; the node gets
        ProgressReportPersisted when that is durable."""
        if not self.rollover.is_copying:
            self._write_and_commit(
                lambda: self._report_offsets.append((self.outbox.mark_reported(node), node))
            )

    def expire_node(self, node: NodeId) -> None:
        """Record that a node is not a receiver any more."""
        if self.rollover.is_copying:
            if node in self.outbox.receivers.last_assigned:
                self.rollover.defer_expiry(node, partial(self.expire_node, node))
        else:
            self._write_and_commit(partial(self.outbox.expire_node, node))

    def _write_and_commit(self, write: Callable[[], bool | None]) -> None:
        """Write, and commit unless `write` returns False: it had nothing to write."""
        if self.has_failed:
            return
        try:
            if write() is not False:
                self.group_commit.request()
        except JournalUnusable as error:
            self._stop_capturing(error)

    # ------------------------------------------------------------ epoch rollover

    @property
    def deadline(self) -> float | None:
        """When a rollover or a repeated commit is due."""
        times = (self.rollover.deadline, self.group_commit.deadline)
        return min((each for each in times if each is not None), default=None)

    def on_timer(self) -> None:
        """Start a rollover or repeat a commit if it is due."""
        self.group_commit.on_timer()
        self.rollover.run_postponed()
        epoch = self.rollover.epoch_if_due()
        if epoch is not None:
            self.rollover.plan = self.outbox.plan_rollover(epoch)
            self._context.effects.append(BuildEpoch(self.rollover.plan))
        plan = self.rollover.plan_if_retry_due()
        if plan is not None:
            self._context.effects.append(BuildEpoch(plan))

    def schedule_rollover(self, epoch: int, delay_s: float = 0.0) -> None:
        """Start a new epoch with the pending publications; broker packets wait for it."""
        if self.rollover.is_pending or not self.has_failed:
            self.rollover.schedule(epoch, delay_s)

    def on_epoch_not_built(self, reason: str) -> None:
        """Try again after a pause."""
        self._context.set_alarm(LogName.OUTBOX.alarm, reason)
        self.rollover.retry_after(RETRY_S)

    def on_epoch_built(self, log: RecordLog) -> None:
        """Continue with the new log, which holds what is pending in the old one."""
        self._context.set_alarm(LogName.OUTBOX.alarm, "")
        self.has_failed = False  # only the old log cannot be written
        plan = self.rollover.finish()
        self.outbox.adopt_epoch(plan, log)
        self._not_durable.clear()
        self._report_offsets.clear()
        self._last_completed_offset = ALREADY_DURABLE
        self._pending_acks = deque(
            each._replace(offset=ALREADY_DURABLE) for each in self._pending_acks
        )
        self.group_commit.adopt(log)
        for sequence in self._dedup.reassign_sequences(plan.redeliverable_sequences()):
            self._append_completed(sequence)  # the broker lost the session meanwhile
        self._write_and_commit(self.outbox.append_carried_redeliveries)
        self.rollover.apply_deferred()
        started = EpochStarted(log.epoch, log.next_sequence, tuple(plan.last_assigned.items()))
        self._context.effects.append(FeedNode(started))
        self._send_due_acks()
        self._context.effects.append(RemoveEndedEpochs())

    def _stop_capturing(self, error: JournalUnusable) -> None:
        """Capture nothing more: only recovery knows which records are durable."""
        self.has_failed = True
        self._context.set_alarm(LogName.OUTBOX.alarm, str(error))
