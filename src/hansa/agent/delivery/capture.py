"""Capture: QoS 1 and 2 publications of local clients, from the broker into the journal.

    QoS 1   PUBLISH → CapturedRecord durable → PUBACK
    QoS 2   PUBLISH → CapturedRecord durable → PUBREC
            PUBREL → CaptureCompletedRecord durable → PUBCOMP

A publication is acknowledged when its record is durable, in the order of arrival. If no node is
interested in it and its topic is not recorded, nothing is written and it is acknowledged once all
earlier ones are. Duplicates are acknowledged and not captured (`dedup`). If the journal cannot be
written any more, capture stops, with an alarm: without acknowledgements the broker keeps the
publications for the next incarnation.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.dedup.redelivery import ALREADY_DURABLE, RedeliveryCandidate
from hansa.agent.delivery.epoch_rollover import EpochRollover
from hansa.agent.delivery.group_commit import GroupCommit
from hansa.agent.delivery.outbox_journal import OutboxJournal
from hansa.agent.delivery.rollover_runner import RolloverRunner
from hansa.errors import JournalUnusable
from hansa.journal.crash import pass_crash_point
from hansa.journal.records import RecordedPublication
from hansa.journal.writer import JournalWriter
from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
)
from hansa.protocol.events import EpochStarted, HeardPersisted, JournalCommitted
from hansa.protocol.model import NodeId, Publication

BROKER_STATE_RESTORED = (
    "the broker restored an older saved state after it was killed: publications that it had "
    "acknowledged may be lost"
)


class CaptureCallbacks(NamedTuple):
    """What capture calls."""

    assign_position: Callable[[PublishPacket], Publication | None]
    """Gives a publication its position; returns None if no node is interested and its topic is not
    recorded."""
    send_steps: Callable[[Sequence[AnyHandshakePacket]], None]
    """Sends acknowledgements to the broker."""
    feed: Callable[[JournalCommitted | HeardPersisted | EpochStarted], None]
    """Hands an event to the node."""
    set_journal_alarm: Callable[[str], None]
    set_rollback_alarm: Callable[[str], None] = lambda text: None
    newest_subscription: Callable[[], int] = lambda: 0
    """Returns the newest subscription identifier that may have matched a publication."""
    on_commit: Callable[[], None] = lambda: None


class PendingAck(NamedTuple):
    """An acknowledgement that waits until the record at `offset` is durable."""

    offset: int
    step: AnyHandshakePacket
    candidate: RedeliveryCandidate | None = None


class Capture:
    """Captures into one journal and sends the acknowledgements that wait for it."""

    def __init__(self, journal: OutboxJournal, callbacks: CaptureCallbacks) -> None:
        self.journal = journal
        self.counters: Counter[str] = Counter()
        self._callbacks = callbacks
        self._rollover = RolloverRunner(journal, self._adopt_epoch, callbacks.set_journal_alarm)
        self._has_failed = False
        self._dedup = journal.dedup
        self._last_completed_offset = ALREADY_DURABLE
        """Offset of the last CaptureCompletedRecord."""
        self._pending_acks: deque[PendingAck] = deque()
        self._not_durable: deque[tuple[int, Publication]] = deque()
        self._heard_offsets: deque[tuple[int, NodeId]] = deque()
        self._group_commit = self._make_commit(journal.writer)

    def _make_commit(self, writer: JournalWriter) -> GroupCommit:
        return GroupCommit(writer, self._on_durable, self._callbacks.set_journal_alarm)

    # ------------------------------------------------------------ connection

    def on_connected(self, session_present: bool) -> None:
        """Start a connection. Without a session the broker redelivers nothing."""
        self.on_disconnected()
        self._dedup.on_connected(session_present)
        if not session_present:
            self._start_session()

    def _start_session(self) -> None:
        """Record the new session: recovery must not take its publications for redeliveries."""
        if self._rollover.is_copying:
            self._rollover.defer(self._start_session)
        self._write_and_commit(self.journal.append_session_started)

    def on_disconnected(self) -> None:
        """Forget what is not acknowledged: the broker sends it again."""
        self._pending_acks.clear()
        self._rollover.clear_postponed()

    def captured_subscription(self, publish: PublishPacket) -> int:
        """If the first publication of this connection is a copy of a captured one, return the
        identifier of the subscription whose copy was captured, otherwise 0."""
        subscription = self._dedup.overlap.captured_subscription(publish)
        self.counters["overlap copies after reconnect"] += subscription > 0
        return subscription

    def append_if_room(self, record: RecordedPublication) -> bool:
        """Append a recorded QoS 0 publication unless too much waits for the disk."""
        return self.journal.writer.append_if_room(record)

    def schedule_commit(self) -> None:
        """Start a commit of everything appended so far."""
        self._group_commit.schedule()

    async def stop(self) -> None:
        """Send no more acknowledgements and close the journal."""
        await self._rollover.stop()
        await self._group_commit.stop()

    # ------------------------------------------------------------ packets from the broker

    def receive_publications(self, batch: Iterable[tuple[PublishPacket, bool]]) -> None:
        """Capture publications in their order. The flag of each says whether it is the selected
        copy; the other copies are only acknowledged."""
        if self._rollover.is_pending:
            self._rollover.postpone(partial(self.receive_publications, list(batch)))
            return
        redelivery, overlap = self._dedup.redelivery, self._dedup.overlap
        for publish, is_selected in batch:
            overlap.on_publication()
            candidate = redelivery.match_redelivery(publish)
            if candidate is not None:
                self.counters["redeliveries"] += 1
            elif not is_selected:
                overlap.on_duplicate(publish)
            elif self._has_failed:
                continue  # not acknowledged, so the broker keeps it
            else:
                candidate = self._capture(publish)
            kind = PubAckPacket if publish.qos == 1 else PubRecPacket
            offset = candidate.offset if candidate else ALREADY_DURABLE
            self._pending_acks.append(PendingAck(offset, kind(publish.packet_id), candidate))
        if redelivery.is_broker_state_older:
            self._callbacks.set_rollback_alarm(BROKER_STATE_RESTORED)
        pass_crash_point(DeliveryCrashPoint.CAPTURE_APPENDED)
        if self._not_durable:
            self._group_commit.schedule()
        self._send_due_acks()

    def receive_pubrel(self, packet_ids: Iterable[int]) -> None:
        """Complete handshakes: the broker has our PUBREC, and may reuse the packet ids after
        PUBCOMP."""
        released = list(packet_ids)
        self._dedup.overlap.on_handshakes_resumed(released)
        if self._rollover.is_pending:
            self._rollover.postpone(partial(self.receive_pubrel, released))
            return
        for packet_id in released:
            candidate = self._dedup.redelivery.on_pubrel(packet_id)
            if candidate:
                self._dedup.overlap.on_completed(candidate)
                self._last_completed_offset = self._append_completed(candidate.sequence)
            # A repeated PUBREL waits like the first one: the record may not be durable yet.
            offset = self._last_completed_offset
            self._pending_acks.append(PendingAck(offset, PubCompPacket(packet_id)))
        pass_crash_point(DeliveryCrashPoint.COMPLETED_APPENDED)
        self._group_commit.schedule()
        self._send_due_acks()

    def _capture(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        publication = self._callbacks.assign_position(publish)
        if publication is None:
            return None
        subscriptions = (
            publish.subscription_ids[0] if publish.subscription_ids else 0,
            self._callbacks.newest_subscription(),
        )
        try:
            offset = self.journal.append_publication(publication, publish.packet_id, subscriptions)
        except JournalUnusable as error:
            self._stop_capturing(error)
            offset = self.journal.writer.end  # never durable
        else:
            self._not_durable.append((offset, publication))
            self.counters["journaled"] += 1
        candidate = self._dedup.redelivery.add_captured(
            publish, publication.sequence, offset, subscriptions
        )
        self._dedup.overlap.on_captured(candidate)
        return candidate

    def _append_completed(self, sequence: int) -> int:
        try:
            return self.journal.append_completed(sequence)
        except JournalUnusable as error:
            self._stop_capturing(error)
            return self.journal.writer.end

    # ------------------------------------------------------------ commits

    def _on_durable(self) -> None:
        durable = self.journal.writer.durable
        last: Publication | None = None
        while self._not_durable and self._not_durable[0][0] < durable:
            _, last = self._not_durable.popleft()
        if last is not None:
            pass_crash_point(DeliveryCrashPoint.CAPTURE_DURABLE)
        self._send_due_acks()
        if last is not None:
            self._callbacks.feed(JournalCommitted(last.epoch, last.sequence))
        while self._heard_offsets and self._heard_offsets[0][0] < durable:
            self._callbacks.feed(HeardPersisted(self._heard_offsets.popleft()[1]))
        self._callbacks.on_commit()

    def _send_due_acks(self) -> None:
        """Send acknowledgements up to the first record that is not durable."""
        durable, pending = self.journal.writer.durable, self._pending_acks
        steps: list[AnyHandshakePacket] = []
        while pending and pending[0].offset < durable:
            ack = pending.popleft()
            steps.append(ack.step)
            if ack.candidate is not None:
                ack.candidate.is_acknowledged = True
        if steps:
            has_pubcomp = any(isinstance(each, PubCompPacket) for each in steps)
            if has_pubcomp:
                pass_crash_point(DeliveryCrashPoint.COMPLETED_DURABLE)
            self._callbacks.send_steps(steps)
            pass_crash_point(
                DeliveryCrashPoint.PUBCOMP_SENT
                if has_pubcomp
                else DeliveryCrashPoint.CAPTURE_ACKNOWLEDGED
            )

    # ------------------------------------------------------------ receivers

    def record_acknowledged(self, acknowledged: Mapping[NodeId, int]) -> None:
        """Record the progress of receivers."""
        if not self._rollover.is_copying:
            self._write_and_commit(partial(self.journal.append_acknowledged, acknowledged))

    def record_heard(self, node: NodeId) -> None:
        """Record that a receiver reported its progress in this incarnation; feeds HeardPersisted
        when that is durable."""
        if not self._rollover.is_copying:
            self._write_and_commit(
                lambda: self._heard_offsets.append((self.journal.mark_heard(node), node))
            )

    def expire_node(self, node: NodeId) -> None:
        """Record that a node is not a receiver any more."""
        if self._rollover.is_copying:
            self._rollover.defer(partial(self.expire_node, node))
        else:
            self._write_and_commit(partial(self.journal.expire_node, node))

    def _write_and_commit(self, write: Callable[[], bool | None]) -> None:
        """Write, and commit unless `write` returns False: it had nothing to write."""
        if self._has_failed:
            return
        try:
            if write() is not False:
                self._group_commit.schedule()
        except JournalUnusable as error:
            self._stop_capturing(error)

    # ------------------------------------------------------------ epoch rollover

    def schedule_rollover(self, epoch: int, delay_s: float = 0.0) -> None:
        """Start a new epoch with the pending publications; broker packets wait for it."""
        if self._rollover.is_pending or not self._has_failed:
            self._rollover.schedule(epoch, delay_s)

    def _adopt_epoch(self, plan: EpochRollover, writer: JournalWriter) -> GroupCommit:
        """Continue with the new journal, which holds everything appended to the old one."""
        old_commit, self._group_commit = self._group_commit, self._make_commit(writer)
        self.journal.adopt_epoch(plan, writer)
        self._not_durable.clear()
        self._heard_offsets.clear()
        self._last_completed_offset = ALREADY_DURABLE
        self._pending_acks = deque(
            each._replace(offset=ALREADY_DURABLE) for each in self._pending_acks
        )
        for sequence in self._dedup.reassign_sequences(plan.redeliverable_sequences()):
            self._append_completed(sequence)  # the broker lost the session meanwhile
        self._write_and_commit(self.journal.append_carried_redeliveries)
        self._rollover.apply_deferred()
        self._group_commit.schedule()
        self._callbacks.feed(
            EpochStarted(writer.epoch, writer.next_sequence, tuple(plan.last_assigned.items()))
        )
        self._send_due_acks()
        return old_commit

    def _stop_capturing(self, error: JournalUnusable) -> None:
        """Capture nothing more: only recovery knows which records are durable."""
        self._has_failed = True
        self._callbacks.set_journal_alarm(str(error))
