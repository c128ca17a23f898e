"""From the broker into the journal: publications of QoS 1 and 2 by clients here.

A publication is acknowledged when it is durable, and in the order in which it came; one that nobody
is owed, at once, but not before those ahead of it. What was captured and comes again, because the
broker did not get our answer, is recognised by its packet id and content: acknowledged, not kept.

    QoS 1   PUBLISH → Captured durable → PUBACK
    QoS 2   PUBLISH → Captured durable → PUBREC → PUBREL → Settled durable → PUBCOMP
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hansa.agent import tasks
from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.dedup.reconnect_overlap import ReconnectOverlapDedup
from hansa.agent.delivery.dedup.redelivery import (
    ALREADY_DURABLE,
    RedeliveryCandidate,
    RedeliveryFilter,
)
from hansa.agent.delivery.epoch_rollover import EpochRollover
from hansa.agent.delivery.group_commit import GroupCommit
from hansa.agent.delivery.outbox_journal import OutboxJournal
from hansa.agent.storage.retry import run_write
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

ROLLOVER_POLL_S = 0.1
"""Seconds between two looks whether a new epoch may begin."""

BROKER_STATE_RESTORED = (
    "it has gone back to a state that it saved before it was killed: publications that it had "
    "acknowledged may be lost"
)


class PendingAck(NamedTuple):
    """An answer that waits for the disk."""

    offset: int
    step: AnyHandshakePacket
    candidate: RedeliveryCandidate | None = None


class Capture:
    """One node's publications on their way into its journal."""

    def __init__(
        self,
        journal: OutboxJournal,
        assign_position: Callable[[PublishPacket], Publication | None],
        send_steps: Callable[[Sequence[AnyHandshakePacket]], None],
        feed: Callable[[JournalCommitted | HeardPersisted | EpochStarted], None],
        set_alarm: Callable[[str], None],
        on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """`start` gives a publication its position, None if nobody is owed it; `answer` writes to
        the broker; `tell` tells the node what the journal has; `problem` is told what is wrong with
        the disk, `committed` of every commit."""
        self.journal = journal
        self.counters: Counter[str] = Counter()
        self.newest_subscription: Callable[[], int] = lambda: 0
        """Returns the last identifier of a subscription that can have brought something."""
        self.report_broker_problem: Callable[[str], None] = lambda text: None
        """Told what is wrong with the broker."""
        self._assign_position = assign_position
        self._send_steps = send_steps
        self._feed = feed
        self._set_alarm = set_alarm
        self._on_commit = on_commit
        self._next_epoch = 0
        """The epoch that is to begin next."""
        self._rollover_due = 0.0
        self._rollover_task: asyncio.Task[None] | None = None
        self._rollover: EpochRollover | None = None
        self._is_new_session = False
        """Whether the broker has begun another session since then."""
        self._expired_nodes: list[NodeId] = []
        """Who was forgotten since then."""
        self._is_paused = False
        self._postponed: list[Callable[[], None]] = []
        """What the broker sends until then: no more than the window."""
        self._has_failed = False
        self._redelivery_filter = RedeliveryFilter(
            journal.recovered_candidates, journal.packet_id_order
        )
        self._overlap_dedup = ReconnectOverlapDedup(journal.previous_captures)
        self._last_completed_offset = ALREADY_DURABLE  # where the last settlement is
        self._pending_acks: deque[PendingAck] = deque()
        self._not_durable: deque[tuple[int, Publication]] = deque()
        self._heard_offsets: deque[tuple[int, NodeId]] = deque()
        journal.redelivery_candidates = self._redelivery_filter.candidates
        journal.carried_redeliveries = lambda: self._overlap_dedup.carried_records(
            self._redelivery_filter.candidates()
        )
        self._group_commit = GroupCommit(journal.writer, self._on_durable, set_alarm)

    # ------------------------------------------------------------ the connection

    def on_connected(self, session_present: bool) -> None:
        """The broker is there; if it has forgotten us, nothing comes again."""
        self._postponed.clear()
        self._pending_acks.clear()
        self._redelivery_filter.on_connected(session_present)
        self._overlap_dedup.on_connected(session_present)
        if not session_present:
            self._start_session()

    def _start_session(self) -> None:
        """Or a later life would take what the new session sends for what is known."""
        self._is_new_session = self._rollover is not None
        self._write_and_commit(self.journal.append_session_started)

    def on_disconnected(self) -> None:
        """What was not answered will come again."""
        self._pending_acks.clear()
        self._postponed.clear()

    def captured_subscription(self, publish: PublishPacket) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did."""
        other = self._overlap_dedup.captured_subscription(publish)
        self.counters["overlap copies after reconnect"] += other > 0
        return other

    def append_if_room(self, record: RecordedPublication) -> bool:
        """Write down a publication of QoS 0, unless the disk is behind; nobody waits for it."""
        return self.journal.writer.append_if_room(record)

    def schedule_commit(self) -> None:
        """Make durable what was offered."""
        self._group_commit.schedule()

    async def stop(self) -> None:
        """Acknowledge nothing more, and close the journal."""
        if self._rollover is not None:
            self._rollover.is_cancelled = True
        if self._rollover_task is not None:
            self._rollover_task.cancel()
            await asyncio.gather(self._rollover_task, return_exceptions=True)
        await self._group_commit.stop()

    # ------------------------------------------------------------ what the broker sends

    def receive_publications(self, batch: Iterable[tuple[PublishPacket, bool]]) -> None:
        """Publications came, in order; of each, whether it is one to take and not another copy."""
        if self._is_paused:
            self._postponed.append(partial(self.receive_publications, list(batch)))
            return
        for publish, is_selected in batch:
            self._overlap_dedup.on_publication()
            candidate = self._redelivery_filter.match_redelivery(publish)
            if candidate is not None:
                self.counters["redeliveries"] += 1
            elif not is_selected:
                self._overlap_dedup.on_duplicate(publish)
            elif self._has_failed:
                continue  # without an answer it stays with the broker, and comes again
            else:
                candidate = self._capture(publish)
            kind = PubAckPacket if publish.qos == 1 else PubRecPacket
            offset = candidate.offset if candidate else ALREADY_DURABLE
            self._pending_acks.append(PendingAck(offset, kind(publish.packet_id), candidate))
        if self._redelivery_filter.is_broker_state_older:
            self.report_broker_problem(BROKER_STATE_RESTORED)
        pass_crash_point(DeliveryCrashPoint.CAPTURE_APPENDED)
        if self._not_durable:
            self._group_commit.schedule()
        self._send_due_acks()

    def receive_pubrel(self, packet_ids: Iterable[int]) -> None:
        """PUBREL came: the broker has our PUBREC, and may use these ids again after PUBCOMP."""
        released = list(packet_ids)
        self._overlap_dedup.on_handshakes_resumed(released)
        if self._is_paused:
            self._postponed.append(partial(self.receive_pubrel, released))
            return
        for packet_id in released:
            candidate = self._redelivery_filter.on_pubrel(packet_id)
            if candidate:
                self._overlap_dedup.on_completed(candidate)
                self._last_completed_offset = self._append_completed(candidate.sequence)
            # A PUBREL that is repeated waits like the first: its record may not be durable yet.
            offset = self._last_completed_offset
            self._pending_acks.append(PendingAck(offset, PubCompPacket(packet_id)))
        pass_crash_point(DeliveryCrashPoint.COMPLETED_APPENDED)
        self._group_commit.schedule()
        self._send_due_acks()

    def _capture(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        publication = self._assign_position(publish)
        if publication is None:
            return None
        subscriptions = (
            publish.subscription_ids[0] if publish.subscription_ids else 0,
            self.newest_subscription(),
        )
        try:
            offset = self.journal.append_publication(publication, publish.packet_id, subscriptions)
        except JournalUnusable as error:
            self._stop_capturing(error)
            offset = self.journal.writer.end  # never durable
        else:
            self._not_durable.append((offset, publication))
            self.counters["journaled"] += 1
        seen = self._redelivery_filter.add_captured(
            publish, publication.sequence, offset, subscriptions
        )
        self._overlap_dedup.on_captured(seen)
        return seen

    def _append_completed(self, number: int) -> int:
        try:
            return self.journal.append_completed(number)
        except JournalUnusable as error:
            self._stop_capturing(error)
            return self.journal.writer.end

    # ------------------------------------------------------------ what the disk has

    def _on_durable(self) -> None:
        durable = self.journal.writer.durable
        last: Publication | None = None
        while self._not_durable and self._not_durable[0][0] < durable:
            _, last = self._not_durable.popleft()
        if last is not None:
            pass_crash_point(DeliveryCrashPoint.CAPTURE_DURABLE)
        self._send_due_acks()
        if last is not None:
            self._feed(JournalCommitted(last.epoch, last.sequence))
        while self._heard_offsets and self._heard_offsets[0][0] < durable:
            self._feed(HeardPersisted(self._heard_offsets.popleft()[1]))
        self._on_commit()

    def _send_due_acks(self) -> None:
        """Answer what is durable, up to the first that is not."""
        durable, waiting = self.journal.writer.durable, self._pending_acks
        answers: list[AnyHandshakePacket] = []
        while waiting and waiting[0].offset < durable:
            receipt = waiting.popleft()
            answers.append(receipt.step)
            if receipt.candidate is not None:
                receipt.candidate.is_acknowledged = True
        if answers:
            settled = any(isinstance(each, PubCompPacket) for each in answers)
            if settled:
                pass_crash_point(DeliveryCrashPoint.COMPLETED_DURABLE)
            self._send_steps(answers)
            pass_crash_point(
                DeliveryCrashPoint.PUBCOMP_SENT
                if settled
                else DeliveryCrashPoint.CAPTURE_ACKNOWLEDGED
            )

    # ------------------------------------------------------------ another epoch

    def record_acknowledged(self, acknowledged_upto: Mapping[NodeId, int]) -> None:
        """Note up to where receivers have what they were owed; nobody waits for it."""
        self._write_unless_rollover(partial(self.journal.append_acknowledged, acknowledged_upto))

    def record_heard(self, node: NodeId) -> None:
        """Note that a receiver has said in this life what it has; `Heard` is told then."""

        self._write_unless_rollover(
            lambda: self._heard_offsets.append((self.journal.mark_heard(node), node))
        )

    def expire_node(self, node: NodeId) -> None:
        """Note that a node is owed nothing any more; nobody waits for it."""
        if self._rollover is None:
            self._write_and_commit(partial(self.journal.expire_node, node))
        else:
            self._expired_nodes.append(node)

    def _write_unless_rollover(self, write: Callable[[], bool | None]) -> None:
        """Write what nobody waits for, or only while this journal lasts."""
        if self._rollover is None:
            self._write_and_commit(write)

    def _write_and_commit(self, write: Callable[[], bool | None]) -> None:
        """Write and commit, unless it turns out that there is nothing to write."""
        if self._has_failed:
            return
        try:
            if write() is not False:
                self._group_commit.schedule()
        except JournalUnusable as error:
            self._stop_capturing(error)

    def schedule_rollover(self, epoch: int, delay_s: float = 0.0) -> None:
        """Begin a new epoch with what is not acknowledged; what the broker sends waits for it."""
        self._next_epoch = max(self._next_epoch, epoch)
        due = asyncio.get_running_loop().time() + delay_s
        self._rollover_due = min(self._rollover_due, due) if self._is_paused else due
        if not self._is_paused and not self._has_failed:
            self._is_paused = True
            self._rollover_task = tasks.start_task(self._roll_over())

    async def _roll_over(self) -> None:
        while (left_s := self._rollover_due - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, ROLLOVER_POLL_S))  # it may be wanted sooner meanwhile
        renewal = self._rollover = self.journal.plan_rollover(self._next_epoch)
        made: list[JournalWriter] = []
        while not await run_write(
            lambda: made.append(self.journal.build_rollover(renewal)), self._set_alarm
        ):
            pass
        former = self._group_commit
        self._adopt_journal(renewal, made[0])
        await former.stop()
        await asyncio.to_thread(self.journal.remove_ended_epochs)
        pass_crash_point(DeliveryCrashPoint.ROLLOVER_FINISHED)

    def _adopt_journal(self, renewal: EpochRollover, writer: JournalWriter) -> None:
        """Go on with the new journal, which holds all that was appended to the old one."""
        self._rollover, self._is_paused = None, False
        self.journal.adopt_epoch(renewal, writer)
        self._group_commit = GroupCommit(writer, self._on_durable, self._set_alarm)
        self._not_durable.clear()
        self._heard_offsets.clear()
        self._last_completed_offset = ALREADY_DURABLE
        self._pending_acks = deque(
            each._replace(offset=ALREADY_DURABLE) for each in self._pending_acks
        )
        numbers = {
            position: renewal.new_sequences.get(position, -unsettled.packet_id)
            for position, unsettled in renewal.redeliverable.items()
        }
        self._overlap_dedup.reassign_sequences(numbers)
        for number in self._redelivery_filter.reassign_sequences(
            numbers
        ):  # whose session is lost meanwhile
            self._append_completed(number)
        self._write_and_commit(self.journal.append_carried_redeliveries)
        if self._is_new_session:
            self._start_session()
        while self._expired_nodes:
            self.expire_node(self._expired_nodes.pop())
        self._group_commit.schedule()
        self._feed(
            EpochStarted(writer.epoch, writer.next_sequence, tuple(renewal.last_assigned.items()))
        )
        self._send_due_acks()
        held, self._postponed = self._postponed, []
        for step in held:
            step()

    def _stop_capturing(self, error: JournalUnusable) -> None:
        """Take nothing more: only a new life knows what the journal holds."""
        self._has_failed = True
        self._set_alarm(str(error))
