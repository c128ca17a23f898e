"""Guaranteed delivery of one agent: connects the node, the broker's client, both journals and the
stores.

The node's commands go to the journals and stores, the broker's packets to capture and injection,
and durable results back to the node. Losses and faults become alarms and counters.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from hansa.agent import tasks
from hansa.agent.admin.status import node_name
from hansa.agent.alarms import Alarms
from hansa.agent.delivery.capture import Capture, CaptureCallbacks
from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.inbox_journal import InboxJournal, gap_status
from hansa.agent.delivery.injection import (
    Injection,
    InjectionCallbacks,
    InjectionPort,
    OnDelivered,
)
from hansa.agent.delivery.outbox_journal import OutboxJournal
from hansa.agent.delivery.repair_reader import RepairReader
from hansa.agent.delivery.settings import DeliverySettings
from hansa.agent.error_text import quote_text
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage.connect_marker import SESSION_UNCERTAIN, ConnectMarker
from hansa.agent.storage.lease_store import LeaseStore
from hansa.agent.storage.peer_store import PeerStore, load_peers
from hansa.agent.storage.retry import RETRY_S
from hansa.agent.storage.state_directory import (
    CONNECT_MARKER_FILE,
    INBOX_DIRECTORY,
    JOURNAL_DIRECTORY,
    StateDirectory,
)
from hansa.journal.crash import pass_crash_point
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket, PubRelPacket
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    DeliveryAbandoned,
    Effect,
    EpochRolloverRequired,
    Gap,
    Ignored,
    NodeReachable,
    PersistHeard,
    PersistPeer,
    ReadJournal,
    Repaired,
)
from hansa.protocol.events import (
    EpochStarted,
    Event,
    HeardPersisted,
    JournalCommitted,
    StoreUncertain,
)
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import Identity, NodeId, PlainMessage, Publication
from hansa.protocol.node import Node

log = logging.getLogger("hansa.agent")

ACK_RECORD_INTERVAL_S = 0.2
"""Seconds between two records of the receivers' progress."""

CLONE_CHECK_S = 5.0
"""Seconds from the first contact with another node until an agent with a copied journal starts a
new epoch. If the original runs, this agent detects the id conflict by then: alarm
`incarnation raised`."""

CLONE_CHECK_ALONE_S = 30.0
"""The same from the start, without contact to another node."""

LOSS_POLL_MIN_S = 0.01
"""Seconds until the first check whether a session loss is durable; doubles up to RETRY_S."""

ALARM_NODES_MAX = 3
"""Nodes that an alarm names; it counts the others."""


class DeliveryNodePort(Protocol):
    """What delivery needs of the driver."""

    @property
    def node(self) -> Node: ...

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""

    def capture_guaranteed(self, publication: PublishPacket) -> Publication | None:
        """Give a QoS 1 or 2 publication its position; None if no node is interested and its
        topic is not recorded."""


class DeliveryBrokerPort(InjectionPort, Protocol):
    """What delivery needs of the broker's client."""

    @property
    def newest_subscription(self) -> int:
        """The newest subscription identifier that may have matched a publication."""

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Discard delayed retained values of these topics: newer ones arrived at QoS 1 or 2."""


class DeliveryService:
    """Capture, injection, journals and stores of one agent. `attach` completes the construction:
    the node needs `restored_state` first."""

    def __init__(
        self,
        state: StateDirectory,
        identity: Identity,
        settings: DeliverySettings,
        alarms: Alarms,
        recorded_topics: RecordedTopics,
    ) -> None:
        """Open the journals; publications to `recorded_topics` are recorded without receivers,
        too."""
        self._state = state
        self._identity = identity
        self._settings = settings
        self._alarms = alarms
        self._outbox = OutboxJournal(
            state.path / JOURNAL_DIRECTORY,
            identity.node,
            identity.incarnation,
            settings.outbox_settings(),
            recorded_topics,
        )
        self._inbox = InboxJournal(
            state.path / INBOX_DIRECTORY,
            identity.node,
            identity.incarnation,
            settings.inbox_settings(),
        )
        self.counters: Counter[str] = Counter()
        alarms.set("journal damaged", self._outbox.damage_text)
        alarms.set("inbox damaged", self._inbox.damage_text)
        self._count_truncated(JOURNAL_DIRECTORY, self._outbox.writer.truncated_bytes)
        self._count_truncated(INBOX_DIRECTORY, self._inbox.writer.truncated_bytes)
        self.connect_marker = ConnectMarker(
            state.path / CONNECT_MARKER_FILE, alarms.setter("connect marker")
        )
        self._before_rollover: list[Publication | Gap] = []
        """Publications that wait for a new epoch; the node bounds them."""
        self._loss_tasks: set[asyncio.Task[None]] = set()
        self._first_sequence = self._outbox.writer.first_sequence
        self._peers = load_peers(state)
        self._uncertain_topics: dict[str, None] = {}
        """Topics that the next round of the event loop reports to the node."""

    def _count_truncated(self, name: str, count: int) -> None:
        if count:
            log.info("torn records truncated in %s bytes=%d", name, count)
            self.counters[f"truncated bytes in {name}"] += count

    def restored_state(self) -> RestoredState:
        """Return the state that the node starts with."""
        receivers, writer = self._outbox.receivers, self._outbox.writer
        return RestoredState(
            writer.epoch,
            writer.next_sequence,
            last_assigned=dict(receivers.last_assigned),
            acknowledged=dict(receivers.acknowledged),
            unheard_since=dict(receivers.unheard_since),
            accepted=dict(self._inbox.accepted),
        )

    def attach(
        self,
        driver: DeliveryNodePort,
        broker: DeliveryBrokerPort,
        on_delivered: OnDelivered = lambda record: None,
    ) -> None:
        """Connect the node and the broker's client, and restore the known peers. `on_delivered` is
        called for each publication that the broker has."""
        self._driver, self._client = driver, broker
        setter = self._alarms.setter
        self.capture = Capture(
            self._outbox,
            CaptureCallbacks(
                assign_position=driver.capture_guaranteed,
                send_steps=broker.send_handshake_steps,
                feed=self._on_outbox_event,
                set_journal_alarm=setter("journal"),
                set_rollback_alarm=setter("broker state rolled back"),
                newest_subscription=lambda: broker.newest_subscription,
                on_commit=self._report_trimmed,
            ),
        )
        self.injection = Injection(
            self._inbox,
            broker,
            self._settings,
            InjectionCallbacks(
                on_inbox_committed=driver.feed,
                set_inbox_alarm=setter("inbox"),
                set_quota_alarm=setter("broker quota"),
                set_quarantine_alarm=setter("message quarantined"),
                on_delivered=on_delivered,
                on_dropped=self.report_dropped,
                on_retained_uncertain=self._report_uncertain,
            ),
        )
        self._repair_reader = RepairReader(self._outbox, driver.feed, self._alarms)
        self._peer_store = PeerStore(
            self._peers,
            write=self._state.save_peers,
            on_persisted=driver.feed,
            set_alarm=self._alarms.setter("peer store"),
        )
        if self._outbox.is_cloned:
            self._schedule_rollover(self._identity.incarnation, CLONE_CHECK_ALONE_S)
        self._ack_task = tasks.start_task(self._record_acknowledged())
        self._lease_store = LeaseStore(
            b"" if self._outbox.is_cloned else self._state.load_leases(),
            driver.node.membership,
            write=self._state.save_leases,
            set_alarm=self._alarms.setter("leases"),
        )
        records = (record for known in self._peers.values() for record in known)
        driver.feed(self._lease_store.peers_restored(records))

    async def stop(self) -> None:
        """Write pending records and close the files."""
        self._repair_reader.stop()
        for task in (*self._loss_tasks, self._ack_task):
            task.cancel()
        self.capture.record_acknowledged(self._driver.node.delivery.acknowledged)
        await self._peer_store.stop()
        await self._lease_store.stop()
        await self.capture.stop()
        await self.injection.stop()

    # ------------------------------------------------------------ the node's commands

    def perform(
        self, command: ReadJournal | PersistPeer | PersistHeard | EpochRolloverRequired
    ) -> None:
        """Execute a command that concerns the disk."""
        match command:
            case ReadJournal():
                self._repair_reader.start(command)
            case PersistPeer(_, node):
                records = self._driver.node.records_of(node)
                if not records:
                    self.capture.expire_node(node)
                self._peer_store.persist_peer(command, records)
            case PersistHeard(node):
                self.capture.record_heard(node)
            case EpochRolloverRequired(epoch):
                self._schedule_rollover(epoch, CLONE_CHECK_S if self._outbox.is_cloned else 0.0)

    def _schedule_rollover(self, epoch: int, delay_s: float) -> None:
        epoch = max(epoch, self._outbox.writer.epoch + 1)
        self.capture.record_acknowledged(self._driver.node.delivery.acknowledged)
        self.capture.schedule_rollover(epoch, delay_s)
        text = f"the journal was an old copy: epoch {epoch} starts, publications may be lost"
        self._alarms.set("journal restored from copy", text)

    def on_notification(self, notification: Effect) -> None:
        """Turn a notification of the node into alarms and counters."""
        match notification:
            case Gap(origin, _, first, last, reason):
                self.counters["gaps"] += 1
                label = self._label_node(origin)
                text = f"positions {first} to {last} of {label} are lost: {reason}"
                self._alarms.set("delivery gap", text)
            case DeliveryAbandoned(node, _, first, last):
                self.counters["deliveries abandoned"] += 1
                lost = f"positions {first} to {last} were not delivered"
                self._alarms.set(
                    "delivery abandoned",
                    f"{self._label_node(node)} was unreachable for too long: {lost}",
                )
            case NodeReachable(node):
                self._lease_store.on_node_reachable(node)
                if self._outbox.is_cloned:
                    self._schedule_rollover(self._identity.incarnation, CLONE_CHECK_S)
            case Ignored(reason) if reason == TOO_LARGE:
                self._alarms.add_dropped(reason, "", 0)
            case Repaired(_, count):
                self.counters["repaired"] += count
            case _:
                pass

    def _label_node(self, node: NodeId) -> str:
        name = node_name(self._driver.node, node)
        return f"{node:016x} ({quote_text(name)})" if name else f"{node:016x}"

    @property
    def delivery_mark(self) -> int:
        """Upper bound of the next inbox index: `has_passed` compares it later."""
        waiting = self.injection.waiting_count + len(self._before_rollover)
        return self._inbox.index_after(waiting)

    def has_passed(self, mark: int) -> bool:
        """Whether everything delivered before a mark has reached the broker or is quarantined."""
        entries, quarantine = self._inbox.entries, self.injection.quarantine
        pending = (index for index, each in entries.items() if each not in quarantine)
        oldest = next(pending, self._inbox.next_index)
        return oldest >= min(mark, self.delivery_mark)

    def deliver(self, batch: Sequence[Publication | Gap]) -> None:
        """Inject publications of QoS 1 and 2, and record gaps. With a copied journal they wait for
        the new epoch: if the original runs, it is the receiver."""
        self._client.discard_delayed(
            p.topic for p in batch if isinstance(p, Publication) and p.retain
        )
        if self._outbox.is_cloned:
            self._before_rollover += batch
        else:
            self.injection.add_publications(batch)

    def _report_uncertain(self, topics: Sequence[str]) -> None:
        """Report in the next round of the event loop, because the node's commands call
        injection."""
        if not self._uncertain_topics:
            asyncio.get_running_loop().call_soon(self._feed_uncertain)
        self._uncertain_topics.update(dict.fromkeys(topics))

    def _feed_uncertain(self) -> None:
        topics, self._uncertain_topics = tuple(self._uncertain_topics), {}
        self._driver.feed(StoreUncertain(topics))

    def _on_outbox_event(self, event: JournalCommitted | HeardPersisted | EpochStarted) -> None:
        if isinstance(event, EpochStarted):
            self.counters["epoch rollovers"] += 1
            self._alarms.set("journal damaged", self._outbox.damage_text)
            self._first_sequence = 1
            early, self._before_rollover = self._before_rollover, []
            self.injection.add_publications(early)
        self._driver.feed(event)

    async def _record_acknowledged(self) -> None:
        """Record the progress of receivers regularly, so that an epoch rollover copies less."""
        while True:
            await asyncio.sleep(ACK_RECORD_INTERVAL_S)
            self.capture.record_acknowledged(self._driver.node.delivery.acknowledged)

    def _report_trimmed(self) -> None:
        """After a commit: report pending publications that retention deleted."""
        first = self._outbox.writer.first_sequence
        if first <= self._first_sequence:
            return
        pending = self._driver.node.delivery.first_pending_before(first)
        if pending:
            oldest = max(self._first_sequence, min(pending.values()))
            self.counters["dropped: retention, not acknowledged"] += first - oldest
            names = ", ".join(self._label_node(node) for node in list(pending)[:ALARM_NODES_MAX])
            more = (
                f" and {len(pending) - ALARM_NODES_MAX} more"
                if len(pending) > ALARM_NODES_MAX
                else ""
            )
            text = f"positions before {first} were deleted, not acknowledged by {names}{more}"
            self._alarms.set("undelivered publications trimmed", text)
        self._first_sequence = first

    # ------------------------------------------------------------ events of the broker's client

    def on_connected(
        self, session_present: bool, session_expected: bool, limits: BrokerLimits
    ) -> None:
        """Start a connection; report a lost or uncertain session."""
        is_uncertain = session_present and self.connect_marker.is_uncertain
        self.counters["broker sessions uncertain"] += is_uncertain
        self._alarms.set("broker session uncertain", SESSION_UNCERTAIN if is_uncertain else "")
        if session_expected and not session_present:
            self.counters["broker sessions lost"] += 1
            text = "the broker lost the agent's session: publications may be lost"
            self._alarms.set("broker session lost", text)
        self.capture.on_connected(session_present)
        self.injection.on_connected(session_present, limits)
        asyncio.get_running_loop().call_soon(self._driver.feed, StoreUncertain((), True))
        if session_present:
            self.connect_marker.on_session_kept()
        else:
            pass_crash_point(DeliveryCrashPoint.SESSION_LOST)
            self.connect_marker.on_session_lost()
            for task in self._loss_tasks:
                task.cancel()  # the new task waits for later records
            loss_task = tasks.start_task(self._await_loss_durable())
            self._loss_tasks.add(loss_task)
            loss_task.add_done_callback(self._loss_tasks.discard)

    async def _await_loss_durable(self) -> None:
        """Keep the connect marker until the session loss is durable in both journals."""
        ends = [(writer, writer.end) for writer in (self._outbox.writer, self._inbox.writer)]
        self.capture.schedule_commit()
        self.injection.schedule_commit()
        delay_s = LOSS_POLL_MIN_S
        while any(writer.durable < end for writer, end in ends):
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_S)
        pass_crash_point(DeliveryCrashPoint.SESSION_LOSS_DURABLE)
        self.connect_marker.on_loss_durable()

    def on_disconnected(self) -> None:
        self.capture.on_disconnected()
        self.injection.on_disconnected()

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""
        return not self.injection.retained_order.is_empty

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        """Hold back retained QoS 0 publications to topics with pending retained publications;
        return the others."""
        return self.injection.retained_order.hold_back(publications)

    def captured_subscription(self, publish: PublishPacket) -> int:
        """If the first publication of this connection is a copy of a captured one, return the
        identifier of the subscription whose copy was captured, otherwise 0."""
        return self.capture.captured_subscription(publish)

    def on_publications(self, batch: Sequence[tuple[PublishPacket, bool]]) -> None:
        """Capture publications of QoS 1 and 2; the flag of each says whether it is the selected
        copy."""
        self.capture.receive_publications(batch)

    def on_handshake_steps(self, batch: Sequence[AnyHandshakePacket]) -> None:
        """Handle handshake packets of one kind."""
        if isinstance(batch[0], PubRelPacket):
            self.capture.receive_pubrel(step.packet_id for step in batch)
        else:
            self.injection.on_handshake_steps(batch)

    def report_dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """Count a publication that will not be delivered; topic and QoS, if known, go to the
        alarm."""
        self.counters[f"dropped: {reason}"] += 1
        self._alarms.add_dropped(reason, topic, qos)

    def on_not_sent(self, batch: Sequence[PublishPacket], reason: str) -> None:
        self.injection.on_not_sent(batch, reason)

    # ------------------------------------------------------------ status

    def status(self) -> dict[str, object]:
        """Return the `delivery` section of `/status`."""
        delivery = self._driver.node.delivery
        epoch, position = delivery.next_position
        writer = self._outbox.writer
        return {
            "epoch": epoch,
            "position": position - 1,
            "first_position": writer.first_sequence,
            "acknowledged_by_all": delivery.acknowledged_by_all,
            "pending": {f"{node:016x}": count for node, count in delivery.pending.items()},
            "unsynced_bytes": writer.end - writer.durable,
            "inbox": len(self._inbox.entries),
            "inbox_bytes": self._inbox.total_bytes,
            "inbox_waiting": self.injection.waiting_count,
            "gaps": [gap_status(each) for each in self._inbox.gaps],
        }

    def all_counters(self) -> Counter[str]:
        return self.counters + self.capture.counters + self.injection.counters
