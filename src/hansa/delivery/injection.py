"""Injection: QoS 1 and 2 publications of other nodes, from the inbox log into the broker.

    QoS 1   InboxRecord durable → PUBLISH → PUBACK → InjectionCompletedRecord
    QoS 2   InboxRecord durable → PUBLISH → PUBREC → InjectionAcceptedRecord durable
            → PUBREL → PUBCOMP → InjectionCompletedRecord

The packet id follows from the inbox index, so it survives a crash. After a crash, accepted
publications get PUBREL, which may be repeated; the others get PUBLISH with the same packet id,
which the broker recognises if it has it. Within a broker session PUBLISH never follows PUBREL. The
origin gets its acknowledgement once the InboxRecord is durable, before the broker has the
publication.

Retained publications to one topic keep their order at any QoS (`retained_order`).

If the broker loses the session, publications in flight are uncertain: `no-loss` sends them again,
`no-dup` does not, and both count them. Completions are committed soon, because without them a later
session loss would count completed publications as in flight. Nothing else waits for them, so they
share a commit with other records where possible.

If the log cannot be written any more, injection stops, with an alarm.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from hansa.delivery.context import Context
from hansa.delivery.effects import (
    FeedNode,
    Injected,
    LogName,
    PublicationDropped,
    Publish,
    PublishQos0,
    SendHandshakePackets,
)
from hansa.delivery.group_commit import GroupCommit
from hansa.delivery.inbox import PUBLISH_PACKET_IDS, InboxEntry, InboxLog
from hansa.delivery.poison_quarantine import PoisonQuarantine
from hansa.delivery.quota_backoff import QuotaBackoff
from hansa.delivery.retained_order import RetainedOrder
from hansa.delivery.settings import DeliverySettings
from hansa.errors import JournalUnusable
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import (
    AnyHandshakePacket,
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.properties import Property, encode_properties, message_expiry, without_expiry
from hansa.mqtt.types import Reason, describe_reason
from hansa.protocol.effects import Gap
from hansa.protocol.events import InboxCommitted, StoreUncertain
from hansa.protocol.model import NodeId, Publication

QUOTA_REASONS = (Reason.QUOTA_EXCEEDED, Reason.RECEIVE_MAXIMUM_EXCEEDED)
"""Reasons for which a publication is sent again later. EMQX uses the second one when it has reached
its limit of QoS 2 publications (`max_awaiting_rel`)."""

COMPLETION_DELAY_S = 0.02
"""Seconds that a completion waits at most for a commit that other records need, too."""

EXPIRES_AT_ONCE = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, 1),))


class Injection:
    """Injects publications of other nodes into one broker."""

    def __init__(
        self,
        context: Context,
        inbox: InboxLog,
        settings: DeliverySettings,
        is_local_topic: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """Publications to topics for which `is_local_topic` is true are never injected."""
        self.inbox = inbox
        self._context = context
        self._settings = settings
        self._is_local_topic = is_local_topic
        self.group_commit = GroupCommit(context, LogName.INBOX, inbox.log)
        self._limits: BrokerLimits | None = None
        self.has_failed = False
        """Whether the log cannot be written any more."""
        self._waiting_for_room: deque[Publication | Gap] = deque()
        self._not_durable: deque[tuple[int, InboxEntry | None, InboxCommitted | None]] = deque()
        self._ready: deque[InboxEntry] = deque(inbox.entries.values())
        self._in_flight: dict[int, InboxEntry] = {}
        self._to_release: deque[InboxEntry] = deque()
        self.quota_backoff = QuotaBackoff(context, inbox, self._await_durable)
        self.quarantine = PoisonQuarantine(context)
        self.retained_order = RetainedOrder[InboxEntry](self._publish_qos0)
        for entry in inbox.entries.values():
            if entry.record.retain:
                self.retained_order.add(entry.record.topic, version=0)
        inbox.on_retained_done = self.retained_order.remove
        self._completed_offsets: deque[int] = deque()
        """Offsets of QoS 1 completions that are not durable. They count as in flight, so that a
        crash causes no more duplicates than `in_flight_max`."""

    def _publish_qos0(self, publications: Sequence[Publication]) -> None:
        self._context.effects.append(PublishQos0(publications))

    @property
    def waiting_count(self) -> int:
        """Publications and gaps that wait for room in the inbox; their origins are not
        acknowledged."""
        return len(self._waiting_for_room)

    @property
    def _is_full(self) -> bool:
        return (
            self.inbox.total_bytes > self._settings.inbox_bytes
            or len(self.inbox.entries) >= PUBLISH_PACKET_IDS
        )

    @property
    def deadline(self) -> float | None:
        """When a publication is retried, or a commit is due."""
        times = (self.quota_backoff.deadline, self.quarantine.deadline, self.group_commit.deadline)
        return min((each for each in times if each is not None), default=None)

    def on_timer(self) -> None:
        """Retry what is due, in order."""
        self.group_commit.on_timer()
        for entry in self.quota_backoff.take_due():
            self._enqueue_in_order(entry)
        for entry in self.quarantine.take_due():
            self._retry_quarantined(entry)
        with self._stop_on_log_error():
            self._send_pubrels()
            self._publish_ready()

    # ------------------------------------------------------------ from the node

    def add_publications(self, batch: Sequence[Publication | Gap]) -> None:
        """Add publications and gaps to the inbox, or queue them until there is room. A gap waits
        for its turn, because the node requests nothing before a recorded gap again."""
        for each in batch:
            if isinstance(each, Publication) and each.retain:
                self.retained_order.add(each.topic, each.version)
        self._waiting_for_room.extend(batch)
        with self._stop_on_log_error():
            self._write_waiting()

    @contextmanager
    def _stop_on_log_error(self) -> Iterator[None]:
        """Stop if the log cannot be written any more: only recovery knows what it holds."""
        try:
            yield
        except JournalUnusable as error:
            self._limits, self.has_failed = None, True
            self._context.set_alarm(LogName.INBOX.alarm, str(error))

    def _write_waiting(self) -> None:
        has_written = False
        while self._waiting_for_room and not self._is_full:
            first = self._waiting_for_room[0]
            if isinstance(first, Gap):
                self.inbox.record_gap(
                    first.origin, first.epoch, first.first, first.last, first.reason
                )
            elif first.topic.startswith("$") or self._is_local_topic(first.topic):
                self._context.counters["dropped: local topic"] += 1
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
            self.group_commit.request()

    # ------------------------------------------------------------ commits

    def on_committed(self) -> None:
        """Publish and acknowledge what is durable now."""
        self.group_commit.on_committed()
        durable = self.inbox.log.durable
        committed: dict[NodeId, InboxCommitted] = {}
        while self._not_durable and self._not_durable[0][0] < durable:
            _, entry, event = self._not_durable.popleft()
            if event is not None:
                committed[event.origin] = event
            if entry is not None:
                self._enqueue_in_order(entry)
        while self._completed_offsets and self._completed_offsets[0] < durable:
            self._completed_offsets.popleft()
        with self._stop_on_log_error():
            self._send_pubrels()
            self._publish_ready()
        self._context.effects += [FeedNode(event) for event in committed.values()]
        self.group_commit.continue_if_needed()

    def _enqueue_in_order(self, entry: InboxEntry) -> None:
        """Insert by index: an entry that had to wait is not the last one."""
        if not self._ready or self._ready[-1].record.index < entry.record.index:
            self._ready.append(entry)
        else:
            insort(self._ready, entry, key=lambda each: each.record.index)

    def blocks_changes(self) -> bool:
        """Whether the broker would send back an unknown number of echoes if subscriptions changed
        now: of QoS 2 publications in flight, and of those that are not sent again yet."""
        return not self.has_failed and any(
            each.is_echo_expected
            and (each.record.qos == 2 or each.packet_id not in self._in_flight)
            and each not in self.quarantine
            for each in self.inbox.entries.values()
        )

    def resume(self) -> None:
        """Publish what waited for a change of subscriptions."""
        with self._stop_on_log_error():
            self._publish_ready()

    def _send_pubrels(self) -> None:
        """Send PUBREL for durably accepted publications, in order. The limit of the back-off holds
        for them, too: it isolates a poison message."""
        durable, room = self.inbox.log.durable, len(self._to_release)
        if self.quota_backoff.in_flight_max is not None:
            released = sum(each.is_released for each in self._in_flight.values())
            room = self.quota_backoff.in_flight_max - released
        steps: list[AnyHandshakePacket] = []
        while self._to_release and self._limits is not None:
            entry = self._to_release[0]
            assert entry.accepted_offset is not None
            if entry.accepted_offset >= durable or len(steps) >= room:
                break
            self._to_release.popleft().is_released = True
            steps.append(PubRelPacket(entry.packet_id))
        if steps:
            self._context.effects.append(SendHandshakePackets(steps))

    def _publish_ready(self) -> None:
        """Publish ready entries while fewer than the allowed number are in flight. Then there may
        be room for publications that wait, also because expired entries were dropped."""
        if self._limits is None:
            return
        in_flight_max = self._in_flight_limit(self._limits)
        if self.quota_backoff.in_flight_max is not None:
            in_flight_max = min(in_flight_max, self.quota_backoff.in_flight_max)
        batch: list[PublishPacket] = []
        while self._ready and len(self._in_flight) + len(self._completed_offsets) < in_flight_max:
            entry = self._take_ready()
            if entry is None:
                break
            assert entry.packet_id not in self._in_flight
            properties = entry.properties(self._context.wall_ns())
            is_at_broker = entry.was_sent and entry.record.qos == 2  # it waits for PUBREL there
            if message_expiry(properties) == 0 and not is_at_broker:
                self._drop_entry(entry)
                self._context.counters["dropped: expired"] += 1  # as the publisher asked for
                continue
            assert entry.accepted_offset is None and entry.offset < self.inbox.log.durable
            if entry.record.retain and self._must_wait(entry, self._limits):
                continue
            self.quota_backoff.demote_older(entry.record)
            batch.append(self._make_publish(entry, self._limits))
            if batch[-1].qos:
                entry.was_redelivered = batch[-1].dup
                entry.was_sent, entry.is_recovered = True, False
                self._in_flight[entry.packet_id] = entry
            else:
                self.inbox.mark_completed(entry)
                self._report_injected(entry)
        if batch:
            self._context.counters["injected"] += len(batch)
            self._context.effects.append(Publish(batch))
        self._write_waiting()

    def _take_ready(self) -> InboxEntry | None:
        """Return the next entry to publish. While a change of subscriptions waits, only those that
        were sent before in this broker session follow; their echoes are accounted for."""
        if not self._context.is_change_waiting:
            return self._ready.popleft()
        entry = next((each for each in self._ready if each.is_echo_expected), None)
        if entry is not None:
            self._ready.remove(entry)
        return entry

    def _make_publish(self, entry: InboxEntry, limits: BrokerLimits) -> PublishPacket:
        record, qos = entry.record, _effective_qos(entry, limits)
        properties = entry.properties(self._context.wall_ns())
        if message_expiry(properties) == 0:  # to Mosquitto 0 means that it never expires
            properties = EXPIRES_AT_ONCE + without_expiry(properties)
        dup = entry.was_sent and qos > 0
        packet_id = entry.packet_id if qos else 0
        return PublishPacket(
            record.topic, record.payload, qos, record.retain, dup, packet_id, (), properties
        )

    # ------------------------------------------------------------ connection

    def on_connected(self, session_present: bool, limits: BrokerLimits) -> None:
        """Start a connection: release accepted publications and publish the others again."""
        if self.has_failed:
            return
        self._limits = limits
        self.retained_order.on_disconnected()
        self._report_retained_uncertain(each for each in self._durable_entries() if each.was_sent)
        with self._stop_on_log_error():
            if not session_present:
                self._handle_session_loss(self._in_flight_limit(limits))
            self.quota_backoff.reset()
            if self.quarantine.must_isolate:
                self.quota_backoff.in_flight_max = 1
            known = [each for each in self._durable_entries() if each not in self.quarantine]
            self._to_release = deque(each for each in known if each.accepted_offset is not None)
            # Mosquitto counts unreleased publications of earlier connections towards its limit.
            self._in_flight = {each.packet_id: each for each in self._to_release}
            for entry in self._to_release:
                entry.is_released = False
                if entry.record.retain:
                    self.retained_order.on_sent(entry.record.topic, entry.record.index)
            self._ready = deque(each for each in known if each.accepted_offset is None)
            self._send_pubrels()
            self._publish_ready()

    def on_disconnected(self) -> None:
        """End a connection; the next one resumes the publications in flight."""
        self._limits = None
        unanswered = [
            each
            for each in self._in_flight.values()
            if each.accepted_offset is None or each.is_released
        ]
        if unanswered and self.quarantine.on_disconnected(unanswered):
            self._quarantine_entry(unanswered[0])
        self._in_flight.clear()

    def _quarantine_entry(self, entry: InboxEntry) -> None:
        """Clear the retain flag of a quarantined publication: when it is sent later, in this
        incarnation or the next, it must not replace a newer value. If it does, because the broker
        had received it with the flag, the node repairs the value."""
        self._context.counters["quarantined: broker closed the connection"] += 1
        self._report_retained_uncertain((entry,))
        if entry.record.retain:
            with self._stop_on_log_error():
                self.inbox.clear_retain_flag(entry)
                self.group_commit.request()

    def _in_flight_limit(self, limits: BrokerLimits) -> int:
        return min(self._settings.in_flight_max, limits.receive_maximum)

    def _handle_session_loss(self, in_flight_max: int) -> None:
        """Send publications that the broker may have seen again, or complete them, by the session
        loss policy. What a previous incarnation sent is unknown, but it was at most the oldest
        `in_flight_max` entries."""
        self._not_durable = deque(  # rewritten ones are in doubt, too, and rewritten once more
            each for each in self._not_durable if each[1] is None or not each[1].was_sent
        )
        entries = self._durable_entries()
        recovered = [each for each in entries if each.is_recovered and each.accepted_offset is None]
        for entry in recovered[in_flight_max:]:
            entry.was_sent = entry.is_recovered = False
        uncertain = [each for each in entries if each.was_sent]
        self._context.counters["injections uncertain"] += len(uncertain)
        if not uncertain:
            return
        if self._settings.session_loss_policy == "no-dup":
            for entry in uncertain:
                self.quarantine.forget(entry)
                self.inbox.mark_completed(entry)
        else:
            for entry in uncertain:
                self.inbox.mark_redelivered(entry)
            # The others wait until that is durable, to keep the order.
            waiting = [(each.offset, each, None) for each in entries if each not in self.quarantine]
            self._not_durable = deque([*waiting, *self._not_durable])
        self.group_commit.request()

    def _durable_entries(self) -> list[InboxEntry]:
        """Return the entries whose InboxRecord is durable, in order."""
        not_durable = {id(entry) for _, entry, _ in self._not_durable}
        return [each for each in self.inbox.entries.values() if id(each) not in not_durable]

    def find_in_flight(self, packet_id: int) -> InboxEntry | None:
        """Return the publication in flight with a packet id."""
        return self._in_flight.get(packet_id)

    # ------------------------------------------------------------ packets from the broker

    def on_handshake_packets(self, batch: Sequence[AnyHandshakePacket]) -> None:
        """Handle PUBACK, PUBREC or PUBCOMP; all packets of a batch are of one kind."""
        with self._stop_on_log_error():
            is_awaited = self.quota_backoff.in_flight_max is not None
            for step in batch:
                entry = self._in_flight.get(step.packet_id)
                if entry is not None and self._apply_step(entry, step):
                    is_awaited = True
            if is_awaited or self._do_completions_block():
                self.group_commit.request()
            else:
                self.group_commit.request_within(COMPLETION_DELAY_S)
            self._publish_ready()

    def _do_completions_block(self) -> bool:
        """Whether completions that are not durable take the place of many publications in
        flight."""
        limits = self._limits
        return limits is not None and (
            2 * len(self._completed_offsets) >= self._in_flight_limit(limits)
        )

    def _apply_step(self, entry: InboxEntry, step: AnyHandshakePacket) -> bool:
        """Return whether something waits until that is durable."""
        if type(step) is PubRecPacket and _is_accepted(entry, step):
            self.quota_backoff.remove(entry)
            self.inbox.mark_pubrec_received(entry)
            self._to_release.append(entry)
            return True
        return self._finish_handshake(entry, step)

    def _finish_handshake(self, entry: InboxEntry, step: AnyHandshakePacket) -> bool:
        """Return whether something waits until that is durable."""
        del self._in_flight[entry.packet_id]
        self.quarantine.forget(entry)
        self._enqueue_followers(entry)
        if step.reason in QUOTA_REASONS and type(step) is not PubCompPacket:
            self._context.counters["retried: broker quota exceeded"] += 1
            self._report_retained_uncertain((entry,))
            self.quota_backoff.on_quota_exceeded(
                entry, (*self._in_flight.values(), *self._to_release)
            )
            return True
        self.quota_backoff.on_completed(entry)
        if step.is_refused and type(step) is not PubCompPacket:
            reason = f"the broker refuses it ({describe_reason(step.reason)})"
            self._context.effects.append(
                PublicationDropped(reason, entry.record.topic, entry.record.qos)
            )
            self._report_retained_uncertain((entry,))
        else:
            self._report_injected(entry)
            if entry.was_sent_retained:
                self._report_retained_uncertain((entry,))
        offset = self.inbox.mark_completed(entry)
        if type(step) is PubAckPacket:
            self._completed_offsets.append(offset)
        return False

    def _report_injected(self, entry: InboxEntry) -> None:
        """Report that the broker has a publication, with those before it in one effect."""
        effects = self._context.effects
        last = effects[-1] if effects else None
        if isinstance(last, Injected):
            last.records.append(entry.record)
        else:
            effects.append(Injected([entry.record]))

    def _must_wait(self, entry: InboxEntry, limits: BrokerLimits) -> bool:
        record = entry.record
        return self.retained_order.wait_or_send(
            entry, record.topic, record.index, _effective_qos(entry, limits)
        )

    def _enqueue_followers(self, entry: InboxEntry) -> None:
        """Enqueue the retained publications that waited for this one."""
        if entry.record.retain:
            for follower in self.retained_order.on_completed(
                entry.record.topic, entry.record.index
            ):
                self._enqueue_in_order(follower)

    def _report_retained_uncertain(self, entries: Iterable[InboxEntry]) -> None:
        """Have the broker's values checked for the topics of retained entries."""
        topics = dict.fromkeys(
            each.record.topic for each in entries if each.record.retain or each.was_sent_retained
        )
        if topics:
            self._context.effects.append(FeedNode(StoreUncertain(tuple(topics))))

    def _await_durable(self, entry: InboxEntry) -> None:
        """Publish a rewritten entry when it is durable."""
        self._not_durable.append((entry.offset, entry, None))
        self.group_commit.request()

    def _retry_quarantined(self, entry: InboxEntry) -> None:
        if entry.offset >= self.inbox.log.durable:  # it was rewritten
            self._await_durable(entry)
        elif entry.accepted_offset is None:
            self._enqueue_in_order(entry)
        elif self._limits is not None:  # otherwise the next connection releases it
            entry.is_released = False
            self._in_flight[entry.packet_id] = entry
            self._to_release.append(entry)

    def _drop_entry(self, entry: InboxEntry) -> None:
        self.quota_backoff.remove(entry)
        self.quarantine.forget(entry)
        self.inbox.mark_completed(entry)

    def on_not_sent(self, batch: Sequence[PublishPacket], reason: str) -> None:
        """Drop publications that this broker can never take."""
        with self._stop_on_log_error():
            for publish in batch:
                entry = self._in_flight.pop(publish.packet_id, None)
                if entry is not None:
                    self._enqueue_followers(entry)
                    self._report_retained_uncertain((entry,))
                    self._drop_entry(entry)
                    self._context.effects.append(
                        PublicationDropped(reason, publish.topic, publish.qos)
                    )
            self.group_commit.request()  # the commit publishes the following entries


def _effective_qos(entry: InboxEntry, limits: BrokerLimits) -> int:
    return min(entry.record.qos, limits.qos_max)


def _is_accepted(entry: InboxEntry, pubrec: PubRecPacket) -> bool:
    """Whether the broker has a QoS 2 publication. EMQX refuses one that it has already, because the
    packet id is in use."""
    is_id_in_use = pubrec.reason == Reason.PACKET_IDENTIFIER_IN_USE
    return not pubrec.is_refused or (is_id_in_use and entry.was_redelivered)


def _inbox_committed_event(publication: Publication) -> InboxCommitted | None:
    """Return the event for the origin's acknowledgement; a requested retained value has none."""
    if not publication.sequence:
        return None
    return InboxCommitted(publication.origin, publication.epoch, publication.sequence)
