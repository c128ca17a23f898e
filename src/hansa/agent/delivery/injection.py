"""From the journal into the broker: each publication once, whatever crashes in between.

    QoS 1   Bound durable → PUBLISH → PUBACK → Completed durable
    QoS 2   Bound durable → PUBLISH → PUBREC → Accepted durable → PUBREL → PUBCOMP → Completed

A publication's packet id follows from its place in the journal. So after a crash: what was accepted
gets PUBREL, which can be said twice; what was not gets PUBLISH with the same id, which the broker
recognises if it had come before. PUBLISH never follows PUBREL. What was bound is safe here, so its
origin gets a receipt before the broker has it.

Retained publications to one topic keep their order whatever their QoS (`retained_order`).

When the broker has lost the session, nobody knows what became of those under way: `no-loss` sends
them again, `no-dup` does not; both count them. What is completed is made durable soon, although
only such a loss needs it: or the last ones, however long ago, would count as under way.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.group_commit import GroupCommit
from hansa.agent.delivery.inbox_journal import PUBLISH_PACKET_IDS, InboxEntry, InboxJournal
from hansa.agent.delivery.poison_quarantine import PoisonQuarantine
from hansa.agent.delivery.quota_backoff import QuotaBackoff
from hansa.agent.delivery.settings import DeliverySettings
from hansa.errors import JournalUnusable
from hansa.journal.crash import pass_crash_point
from hansa.journal.records import InboxRecord
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.properties import message_expiry
from hansa.mqtt.types import Reason, describe_reason
from hansa.protocol.effects import Gap
from hansa.protocol.events import InboxCommitted
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.write_order import RetainedOrder

QUOTA_REASONS = (Reason.QUOTA_EXCEEDED, Reason.RECEIVE_MAXIMUM_EXCEEDED)
"""Why a broker does not take a publication now. The latter is EMQX's, when it holds as many of
QoS 2 as it can (`max_awaiting_rel`)."""


class InjectionPort(Protocol):
    """What injection asks of the broker's client."""

    def inject(self, batch: Sequence[PublishPacket]) -> None:
        """Publish these."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish these at QoS 0."""

    def send_handshake_steps(self, batch: Sequence[AnyHandshakePacket]) -> None:
        """Write steps of handshakes."""

    def is_local_topic(self, topic: str) -> bool:
        """Whether publications to a topic never enter."""


class Injection:
    """Other nodes' publications on their way into the broker here."""

    def __init__(
        self,
        inbox: InboxJournal,
        port: InjectionPort,
        on_inbox_committed: Callable[[InboxCommitted], None],
        set_alarm: Callable[[str], None],
        settings: DeliverySettings,
    ) -> None:
        """`stored` is told what is safe here, `problem` what is wrong with the disk."""
        self.inbox = inbox
        self.counters: Counter[str] = Counter()
        self.on_delivered: Callable[[InboxRecord], None] = lambda bound: None
        """Told what the broker has."""
        self.on_dropped: Callable[[str, str, int], None] = self._count_dropped
        """Called with the reason, the topic and the QoS of what the broker will never have."""
        self.on_retained_uncertain: Callable[[Sequence[str]], None] = lambda topics: None
        """Told for which topics the broker may store another value than the newest."""
        self._settings = settings
        self._port = port
        self._on_inbox_committed = on_inbox_committed
        self._set_alarm = set_alarm
        self._group_commit = GroupCommit(inbox.writer, self._on_durable, set_alarm)
        self._limits: BrokerLimits | None = None
        self._has_failed = False
        self._waiting_for_room: deque[Publication | Gap] = deque()
        self._not_durable: deque[tuple[int, InboxEntry | None, InboxCommitted | None]] = deque()
        self._ready: deque[InboxEntry] = deque(inbox.entries.values())
        self._in_flight: dict[int, InboxEntry] = {}
        self._to_release: deque[InboxEntry] = deque()
        self.quota_backoff = QuotaBackoff(inbox, self._retry, self._await_durable)
        self.quarantine = PoisonQuarantine(self._retry_quarantined)
        self.retained_order = RetainedOrder[InboxEntry](port.publish)
        for entry in inbox.entries.values():
            if entry.record.retain:
                self.retained_order.add(entry.record.topic, version=0)
        inbox.on_retained_done = self.retained_order.remove
        self._completed_offsets: deque[int] = deque()
        """Offsets of completions of QoS 1 that are not durable; they still count as under way, so
        that a crash makes no more duplicates than the window."""

    @property
    def waiting_count(self) -> int:
        """Publications for which there was no room; their origins have no receipt."""
        return len(self._waiting_for_room)

    @property
    def _is_full(self) -> bool:
        backlog = self.inbox
        return (
            backlog.total_bytes > self._settings.inbox_bytes
            or len(backlog.entries) >= PUBLISH_PACKET_IDS
        )

    async def stop(self) -> None:
        """Publish nothing more, and close the journal."""
        self.quota_backoff.reset()
        self.quarantine.stop()
        await self._group_commit.stop()

    def schedule_commit(self) -> None:
        """Make durable what is noted."""
        self._group_commit.schedule()

    # ------------------------------------------------------------ from the node

    def add_publications(self, batch: Sequence[Publication | Gap]) -> None:
        """Take publications over, or let them wait until there is room. What will never come waits
        behind them: once it is noted, nothing before it is asked for again."""
        for each in batch:
            if isinstance(each, Publication) and each.retain:
                self.retained_order.add(each.topic, each.version)
        self._waiting_for_room.extend(batch)
        with self._stop_on_journal_error():
            self._write_waiting()

    @contextmanager
    def _stop_on_journal_error(self) -> Iterator[None]:
        """Stop for good if the journal can no longer be written: only a new life knows what it
        holds, and here nothing can be noted that the broker acknowledges."""
        try:
            yield
        except JournalUnusable as error:
            self._limits, self._has_failed = None, True
            self._set_alarm(str(error))

    def _write_waiting(self) -> None:
        has_written = False
        while self._waiting_for_room and not self._is_full:
            first = self._waiting_for_room[0]
            if isinstance(first, Gap):
                self.inbox.record_gap(
                    first.origin, first.epoch, first.first, first.last, first.reason
                )
            elif first.topic.startswith("$") or self._port.is_local_topic(first.topic):
                self.counters["dropped: local topic"] += 1
                self._not_durable.append(
                    (self.inbox.skip_publication(first), None, _inbox_committed_event(first))
                )
                if first.retain:
                    self.retained_order.remove(first.topic)
            else:
                entry = self.inbox.add(first)
                self._not_durable.append((entry.offset, entry, _inbox_committed_event(first)))
            self._waiting_for_room.popleft()
            has_written = True
        if has_written:
            pass_crash_point(DeliveryCrashPoint.INBOX_APPENDED)
            self._group_commit.schedule()

    # ------------------------------------------------------------ what the disk has

    def _on_durable(self) -> None:
        durable = self.inbox.writer.durable
        stored: dict[NodeId, InboxCommitted] = {}
        while self._not_durable and self._not_durable[0][0] < durable:
            _, entry, receipt = self._not_durable.popleft()
            if receipt is not None:
                stored[receipt.origin] = receipt
            if entry is not None:
                self._enqueue_in_order(entry)
        if stored:
            pass_crash_point(DeliveryCrashPoint.INBOX_DURABLE)
        while self._completed_offsets and self._completed_offsets[0] < durable:
            self._completed_offsets.popleft()
        with self._stop_on_journal_error():
            self._send_pubrels()
            self._publish_ready()
        for receipt in stored.values():
            self._on_inbox_committed(receipt)

    def _enqueue_in_order(self, entry: InboxEntry) -> None:
        """Let one be published in its turn, which is not the last one if it had to wait."""
        if not self._ready or self._ready[-1].record.index < entry.record.index:
            self._ready.append(entry)
        else:
            insort(self._ready, entry, key=lambda each: each.record.index)

    def _send_pubrels(self) -> None:
        """Send PUBREL for what is durably accepted, in order."""
        durable = self.inbox.writer.durable
        steps: list[AnyHandshakePacket] = []
        while self._to_release and self._limits is not None:
            entry = self._to_release[0]
            assert entry.accepted_offset is not None
            if entry.accepted_offset >= durable:
                break
            self._to_release.popleft()
            steps.append(PubRelPacket(entry.packet_id))
        if steps:
            pass_crash_point(DeliveryCrashPoint.ACCEPTED_DURABLE)
            self._port.send_handshake_steps(steps)
            pass_crash_point(DeliveryCrashPoint.RELEASED)

    def _publish_ready(self) -> None:
        """Publish what is ready, as far as the window lets it."""
        if self._limits is None:
            return
        window = self._in_flight_limit(self._limits)
        if self.quota_backoff.in_flight_max is not None:
            window = min(window, self.quota_backoff.in_flight_max)
        batch: list[PublishPacket] = []
        while self._ready and len(self._in_flight) + len(self._completed_offsets) < window:
            entry = self._ready[0]
            if entry.packet_id in self._in_flight:
                break
            self._ready.popleft()
            if not entry.was_sent and message_expiry(entry.properties) == 0:
                self._drop_entry(entry)
                self.counters["dropped: expired"] += 1  # as its publisher wanted
                continue
            assert entry.accepted_offset is None and entry.offset < self.inbox.writer.durable
            if entry.record.retain and self._must_wait(entry, self._limits):
                continue
            self.quota_backoff.demote_older(entry.record)
            batch.append(self._make_publish(entry, self._limits))
            if batch[-1].qos:
                entry.was_redelivered, entry.was_sent, entry.is_recovered = (
                    batch[-1].dup,
                    True,
                    False,
                )
                self._in_flight[entry.packet_id] = entry
            else:
                self.inbox.mark_completed(entry)
                self.on_delivered(entry.record)
        if batch:
            self.counters["injected"] += len(batch)
            self._port.inject(batch)
            pass_crash_point(DeliveryCrashPoint.PUBLISHED)

    def _make_publish(self, entry: InboxEntry, limits: BrokerLimits) -> PublishPacket:
        bound, qos = entry.record, _effective_qos(entry, limits)
        is_again = entry.was_sent and qos > 0
        packet_id = entry.packet_id if qos else 0
        return PublishPacket(
            bound.topic, bound.payload, qos, bound.retain, is_again, packet_id, (), entry.properties
        )

    # ------------------------------------------------------------ what the broker says

    def on_connected(self, session_present: bool, limits: BrokerLimits) -> None:
        """The broker is there: end what was begun, begin again what it may not have."""
        if self._has_failed:
            return
        self._limits = limits
        self.retained_order.on_disconnected()
        self._report_retained_uncertain(each for each in self._durable_entries() if each.was_sent)
        with self._stop_on_journal_error():
            if not session_present:
                self._handle_session_loss(self._in_flight_limit(limits))
            self.quota_backoff.reset()
            if self.quarantine.must_isolate:
                self.quota_backoff.in_flight_max = 1
            known = [each for each in self._durable_entries() if each not in self.quarantine]
            self._to_release = deque(each for each in known if each.accepted_offset is not None)
            # Mosquitto counts what it has of an earlier connection, and refuses what is too much.
            self._in_flight = {each.packet_id: each for each in self._to_release}
            for entry in self._to_release:
                if entry.record.retain:
                    self.retained_order.on_sent(entry.record.topic, entry.record.index)
            self._ready = deque(each for each in known if each.accepted_offset is None)
            self._send_pubrels()
            self._publish_ready()

    def on_disconnected(self) -> None:
        """What is under way will be resumed."""
        self._limits = None
        unanswered = [each for each in self._in_flight.values() if each.accepted_offset is None]
        if unanswered and self.quarantine.on_disconnected(unanswered):
            self._quarantine_entry(unanswered[0])
        self._in_flight.clear()

    def _quarantine_entry(self, entry: InboxEntry) -> None:
        """Let the others pass. A value must not replace a newer one when it comes after all, not
        even in another life."""
        self.counters["quarantined: broker closed the connection"] += 1
        self._report_retained_uncertain((entry,))
        if entry.record.retain:
            with self._stop_on_journal_error():
                self.inbox.clear_retain_flag(entry)
                self._group_commit.schedule()

    def _in_flight_limit(self, limits: BrokerLimits) -> int:
        return min(self._settings.in_flight_max, limits.receive_maximum)

    def _handle_session_loss(self, window: int) -> None:
        """The session is gone: what the broker had accepted has to be published anew or given up,
        and so has what it may have seen. What a former life sent is unknown; it was no more than
        the window, the oldest first."""
        bound = self._durable_entries()
        recovered = [each for each in bound if each.is_recovered and each.accepted_offset is None]
        for entry in recovered[window:]:
            entry.was_sent = entry.is_recovered = False
        uncertain = [each for each in bound if each.was_sent]
        self.counters["injections uncertain"] += len(uncertain)
        if not uncertain:
            return
        if self._settings.session_loss_policy == "no-dup":
            for entry in uncertain:
                self.quarantine.release(entry)
                self.inbox.mark_completed(entry)
        else:
            for entry in uncertain:
                self.inbox.mark_redelivered(entry)
            # Until that is durable the others wait behind them, or they would change their order.
            waiting = [(each.offset, each, None) for each in bound if each not in self.quarantine]
            self._not_durable = deque([*waiting, *self._not_durable])
        self._group_commit.schedule()

    def _durable_entries(self) -> list[InboxEntry]:
        """Return what is durably bound and not completed, in order."""
        not_durable = {id(entry) for _, entry, _ in self._not_durable}
        return [each for each in self.inbox.entries.values() if id(each) not in not_durable]

    def on_handshake_steps(self, batch: Sequence[AnyHandshakePacket]) -> None:
        """PUBACK, PUBREC or PUBCOMP came: a batch is of one kind."""
        kind = type(batch[0])
        with self._stop_on_journal_error():
            for step in batch:
                entry = self._in_flight.get(step.packet_id)
                if entry is not None:
                    self._apply_step(entry, step)
            pass_crash_point(
                DeliveryCrashPoint.ACCEPTED_APPENDED
                if kind is PubRecPacket
                else DeliveryCrashPoint.INJECTION_COMPLETED
            )
            self._group_commit.schedule()
            self._write_waiting()
            self._publish_ready()

    def _apply_step(self, entry: InboxEntry, step: AnyHandshakePacket) -> None:
        self.quarantine.release(entry)
        if type(step) is PubRecPacket and _is_accepted(entry, step):
            self.quota_backoff.on_accepted(entry)
            self.inbox.mark_accepted(entry)
            self._to_release.append(entry)
        else:
            self._finish_handshake(entry, step)

    def _finish_handshake(self, entry: InboxEntry, step: AnyHandshakePacket) -> None:
        del self._in_flight[entry.packet_id]
        self._enqueue_followers(entry)
        if step.reason in QUOTA_REASONS and type(step) is not PubCompPacket:
            self.counters["retried: broker quota exceeded"] += 1
            self._report_retained_uncertain((entry,))
            self.quota_backoff.on_quota_exceeded(
                entry, (*self._in_flight.values(), *self._to_release)
            )
            return
        self.quota_backoff.on_accepted(entry)
        if step.is_refused and type(step) is not PubCompPacket:
            reason = f"the broker refuses it ({describe_reason(step.reason)})"
            self.on_dropped(reason, entry.record.topic, entry.record.qos)
            self._report_retained_uncertain((entry,))
        else:
            self.on_delivered(entry.record)
        offset = self.inbox.mark_completed(entry)
        if type(step) is PubAckPacket:
            self._completed_offsets.append(offset)

    def _must_wait(self, entry: InboxEntry, limits: BrokerLimits) -> bool:
        bound = entry.record
        return self.retained_order.wait_or_send(
            entry, bound.topic, bound.index, _effective_qos(entry, limits)
        )

    def _enqueue_followers(self, entry: InboxEntry) -> None:
        """One is no longer in flight: line up those that had to wait for it."""
        if entry.record.retain:
            for follower in self.retained_order.on_completed(
                entry.record.topic, entry.record.index
            ):
                self._enqueue_in_order(follower)

    def _report_retained_uncertain(self, entries: Iterable[InboxEntry]) -> None:
        """Have it checked what the broker stores instead of these, if they are retained."""
        topics = dict.fromkeys(each.record.topic for each in entries if each.record.retain)
        if topics:
            self.on_retained_uncertain(tuple(topics))

    def _await_durable(self, entry: InboxEntry) -> None:
        """Publish what was written anew when that is durable."""
        self._not_durable.append((entry.offset, entry, None))
        self._group_commit.schedule()

    def _retry(self, entry: InboxEntry) -> None:
        """Give the broker what it had no room for."""
        self._enqueue_in_order(entry)
        with self._stop_on_journal_error():
            self._publish_ready()

    def _retry_quarantined(self, entry: InboxEntry) -> None:
        """Try what was set aside."""
        if entry.offset < self.inbox.writer.durable:
            self._retry(entry)
        else:  # it was written anew
            self._await_durable(entry)

    def _drop_entry(self, entry: InboxEntry) -> None:
        self.quota_backoff.remove(entry)
        self.quarantine.release(entry)
        self.inbox.mark_completed(entry)

    def _count_dropped(self, reason: str, topic: str, qos: int) -> None:
        self.counters[f"dropped: {reason}"] += 1

    def on_not_sent(self, batch: Sequence[PublishPacket], reason: str) -> None:
        """These cannot be published at this broker, now or ever."""
        with self._stop_on_journal_error():
            for publish in batch:
                entry = self._in_flight.pop(publish.packet_id, None)
                if entry is not None:
                    self._enqueue_followers(entry)
                    self._report_retained_uncertain((entry,))
                    self._drop_entry(entry)
                    self.on_dropped(reason, publish.topic, publish.qos)
            self._group_commit.schedule()  # then those behind them get their turn


def _effective_qos(entry: InboxEntry, limits: BrokerLimits) -> int:
    return min(entry.record.qos, limits.qos_max)


def _is_accepted(entry: InboxEntry, pubrec: PubRecPacket) -> bool:
    """Whether the broker has a publication of QoS 2. EMQX refuses one that it had before, as its
    packet id is taken."""
    is_id_in_use = pubrec.reason == Reason.PACKET_IDENTIFIER_IN_USE
    return not pubrec.is_refused or (is_id_in_use and entry.was_redelivered)


def _inbox_committed_event(publication: Publication) -> InboxCommitted | None:
    """Return what its origin waits for; nobody waits for a retained value that was asked for."""
    if not publication.sequence:
        return None
    return InboxCommitted(publication.origin, publication.epoch, publication.sequence)
