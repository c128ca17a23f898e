"""Guaranteed delivery at one agent, put together: what the node orders and the broker brings goes
to capture, injection, the journals and the file of acquaintances."""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

from hansa.agent import tasks
from hansa.agent.alarms import Alarms
from hansa.agent.delivery.capture import Capture
from hansa.agent.delivery.crash_points import DeliveryCrashPoint
from hansa.agent.delivery.inbox_journal import InboxJournal, gap_status
from hansa.agent.delivery.injection import Injection, InjectionPort
from hansa.agent.delivery.outbox_journal import OutboxJournal
from hansa.agent.delivery.settings import DeliverySettings
from hansa.agent.error_text import quote_text
from hansa.agent.status import node_name
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
from hansa.agent.telemetry.recorded_topics import RecordedTopics
from hansa.journal.crash import pass_crash_point
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.packets import AnyHandshakePacket, PublishPacket, PubRelPacket
from hansa.protocol import effects
from hansa.protocol.delivery.state import RestoredState
from hansa.protocol.effects import (
    DeliveryAbandoned,
    Effect,
    EpochRolloverRequired,
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
    JournalRead,
    StoreUncertain,
)
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import Identity, NodeId, PlainMessage, Publication
from hansa.protocol.node import Node

log = logging.getLogger("hansa.agent")

JOURNAL_READERS_MAX = 2
"""Threads that read the journal at a time: the rest of the pool is for commits."""

ACK_RECORD_INTERVAL_S = 0.2
"""Seconds between two notes of what others have."""

CLONE_CHECK_S = 5.0
"""Seconds from the first meeting with another node until an agent whose journal is a copy begins a
new epoch: if the original runs, this one hears of it by then, and stops before it sends a thing."""

CLONE_CHECK_ALONE_S = 30.0
"""The same from the start, if there is nobody to meet."""

LOSS_POLL_MIN_S = 0.01
"""Seconds until it is first looked whether the loss of a session is durable, then twice as long
each time; while the disk is full, as often as that is tried."""

ALARM_NODES_MAX = 3
"""Nodes that an alarm names; of more it says how many."""


class DeliveryNodePort(Protocol):
    """What guaranteed delivery asks of the loop around the node."""

    @property
    def node(self) -> Node:
        """The node itself."""

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""

    def capture_guaranteed(self, publication: PublishPacket) -> Publication | None:
        """Give a publication of QoS 1 or 2 its position, None if nobody is owed it."""


class DeliveryBrokerPort(InjectionPort, Protocol):
    """What guaranteed delivery asks of the broker's client."""

    @property
    def newest_subscription(self) -> int:
        """The last identifier of a subscription of the agent's that can have brought something."""

    def discard_delayed(self, topics: Iterable[str]) -> None:
        """Newer values of these topics have come at QoS 1 or 2."""


class DeliveryService:
    """Everything that is behind QoS 1 and 2."""

    def __init__(
        self,
        state: StateDirectory,
        identity: Identity,
        settings: DeliverySettings,
        alarms: Alarms,
        recorded_topics: RecordedTopics,
    ) -> None:
        """Open the journals of this agent; publications to some topics are kept in any case."""
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
        self._before_rollover: list[Publication | effects.Gap] = []
        """What came before a new epoch began; the node sends no more than it may hold."""
        self._loss_tasks: set[asyncio.Task[None]] = set()
        self._first_sequence = self._outbox.writer.first_sequence
        self._peers = load_peers(state)
        self._uncertain_topics: dict[str, None] = {}
        """Topics that are reported to the node in the next round of the loop."""
        self._read_tasks: set[asyncio.Task[None]] = set()
        self._read_slots = asyncio.Semaphore(JOURNAL_READERS_MAX)
        self._is_stopping = False

    def _count_truncated(self, name: str, count: int) -> None:
        if count:
            log.info("torn records truncated in %s bytes=%d", name, count)
            self.counters[f"truncated bytes in {name}"] += count

    def restored_state(self) -> RestoredState:
        """Return what the node starts with."""
        keeping, writer = self._outbox, self._outbox.writer
        return RestoredState(
            writer.epoch,
            writer.next_sequence,
            last_assigned=dict(keeping.last_assigned),
            acknowledged=dict(keeping.acknowledged),
            unheard_since=dict(keeping.unheard_since),
            accepted=dict(self._inbox.accepted),
        )

    def attach(self, driver: DeliveryNodePort, broker: DeliveryBrokerPort) -> None:
        """Meet the node and the broker's client; the node learns what was known."""
        self._driver, self._client = driver, broker
        self.capture = Capture(
            self._outbox,
            assign_position=driver.capture_guaranteed,
            send_steps=broker.send_handshake_steps,
            feed=self._on_outbox_event,
            set_alarm=self._alarms.setter("journal"),
            on_commit=self._report_trimmed,
        )
        self.capture.newest_subscription = lambda: broker.newest_subscription
        self.capture.report_broker_problem = self._alarms.setter("broker state rolled back")
        self.injection = Injection(
            self._inbox,
            broker,
            on_inbox_committed=driver.feed,
            set_alarm=self._alarms.setter("inbox"),
            settings=self._settings,
        )
        self.injection.quota_backoff.set_alarm = self._alarms.setter("broker quota")
        self.injection.quarantine.set_alarm = self._alarms.setter("message quarantined")
        self.injection.on_dropped = self.report_dropped
        self.injection.on_retained_uncertain = self._report_uncertain
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
        driver.feed(self._lease_store.peers_restored(chain.from_iterable(self._peers.values())))

    async def stop(self) -> None:
        """Write what is left, and let the files go."""
        self._is_stopping = self._outbox.is_stopping = True
        for task in (*self._read_tasks, *self._loss_tasks, self._ack_task):
            task.cancel()
        self.capture.record_acknowledged(self._driver.node.delivery.acknowledged)
        await self._peer_store.stop()
        await self._lease_store.stop()
        await self.capture.stop()
        await self.injection.stop()

    # ------------------------------------------------------------ what the node orders

    def perform(
        self, command: ReadJournal | PersistPeer | PersistHeard | EpochRolloverRequired
    ) -> None:
        """Do what the node wants of the disk."""
        match command:
            case ReadJournal():
                if not self._is_stopping:
                    _start_task(self._read_journal(command), self._read_tasks)
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
        text = f"it was an old copy; epoch {epoch} begins, publications may be lost"
        self._alarms.set("journal restored from copy", text)

    def on_notification(self, notification: Effect) -> None:
        """Note what the node tells of guaranteed delivery."""
        match notification:
            case effects.Gap(origin, _, first, last, reason):
                self.counters["gaps"] += 1
                who = self._label_node(origin)
                text = f"of what {who} published, positions {first} to {last} are lost: {reason}"
                self._alarms.set("delivery gap", text)
            case DeliveryAbandoned(node, _, first, last):
                self.counters["deliveries abandoned"] += 1
                lost = f"positions {first} to {last} were not delivered"
                self._alarms.set(
                    "delivery abandoned", f"{self._label_node(node)} was away too long: {lost}"
                )
            case NodeReachable(node):
                self._lease_store.on_node_reachable(node)
                if self._outbox.is_cloned:
                    self._schedule_rollover(self._identity.incarnation, CLONE_CHECK_S)
            case effects.Ignored(reason) if reason == TOO_LARGE:
                self._alarms.add_dropped(reason, "", 0)
            case Repaired(_, count):
                self.counters["repaired"] += count
            case _:
                pass

    def _label_node(self, node: NodeId) -> str:
        """Return the id of a node, and its name if that is known."""
        name = node_name(self._driver.node, node)
        return f"{node:016x} ({quote_text(name)})" if name else f"{node:016x}"

    @property
    def delivery_mark(self) -> int:
        """What stands for all that was delivered so far: the place of the next one, at most."""
        waiting = self.injection.waiting_count + len(self._before_rollover)
        return self._inbox.index_after(waiting)

    def has_passed(self, mark: int) -> bool:
        """Whether all that was delivered before a mark has reached the broker, or is set aside."""
        entries, aside = self._inbox.entries, self.injection.quarantine
        under_way = (index for index, each in entries.items() if each not in aside)
        oldest = next(under_way, self._inbox.next_index)
        return oldest >= min(mark, self.delivery_mark)

    def deliver(self, batch: Sequence[Publication | effects.Gap]) -> None:
        """Give publications of QoS 1 and 2 to the broker, surely, and keep in mind which of them
        will never come. A copy takes nothing before it is clear that its original is gone, which is
        owed all of it."""
        self._client.discard_delayed(
            p.topic for p in batch if isinstance(p, Publication) and p.retain
        )
        if self._outbox.is_cloned:
            self._before_rollover += batch
        else:
            self.injection.add_publications(batch)

    def _report_uncertain(self, topics: Sequence[str]) -> None:
        """Report them in the next round of the loop: the node's orders may reach injection."""
        if not self._uncertain_topics:
            asyncio.get_running_loop().call_soon(self._feed_uncertain)
        self._uncertain_topics.update(dict.fromkeys(topics))

    def _feed_uncertain(self) -> None:
        topics, self._uncertain_topics = tuple(self._uncertain_topics), {}
        self._driver.feed(StoreUncertain(topics))

    async def _read_journal(self, command: ReadJournal) -> None:
        result = JournalRead(command.receiver, command.epoch, command.after, command.after, ())
        try:
            async with self._read_slots:
                result = await asyncio.to_thread(self._outbox.read_journal, command)
            self._alarms.set("journal damaged", self._outbox.damage_text)
            self._alarms.set("journal unreadable", self._outbox.read_error)
        finally:  # whatever happens: without an answer the node would never read for it again
            if not self._is_stopping:
                self._driver.feed(result)

    def _on_outbox_event(self, event: JournalCommitted | HeardPersisted | EpochStarted) -> None:
        if isinstance(event, EpochStarted):
            self.counters["epoch rollovers"] += 1
            self._alarms.set("journal damaged", self._outbox.damage_text)
            self._first_sequence = 1
            early, self._before_rollover = self._before_rollover, []
            self.injection.add_publications(early)
        self._driver.feed(event)

    async def _record_acknowledged(self) -> None:
        """Write down now and then what others have: less is copied should a new epoch begin."""
        while True:
            await asyncio.sleep(ACK_RECORD_INTERVAL_S)
            self.capture.record_acknowledged(self._driver.node.delivery.acknowledged)

    def _report_trimmed(self) -> None:
        """Retention may have dropped something: some of it may not have been delivered."""
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
            text = f"positions before {first} are dropped, not acknowledged by {names}{more}"
            self._alarms.set("undelivered publications trimmed", text)
        self._first_sequence = first

    # ------------------------------------------------------------ what the broker's client tells

    def on_connected(
        self, session_present: bool, session_expected: bool, limits: BrokerLimits
    ) -> None:
        """The broker is there, and perhaps has forgotten the agent's session."""
        is_uncertain = session_present and self.connect_marker.is_uncertain
        self.counters["broker sessions uncertain"] += is_uncertain
        self._alarms.set("broker session uncertain", SESSION_UNCERTAIN if is_uncertain else "")
        if session_expected and not session_present:
            self.counters["broker sessions lost"] += 1
            text = "the broker has forgotten the agent's session: publications may be lost"
            self._alarms.set("broker session lost", text)
        self.capture.on_connected(session_present)
        self.injection.on_connected(session_present, limits)
        asyncio.get_running_loop().call_soon(self._driver.feed, StoreUncertain((), True))
        if session_present:
            self.connect_marker.on_session_kept()
        else:
            pass_crash_point(DeliveryCrashPoint.SESSION_LOST)
            self.connect_marker.on_session_lost()
            for former in self._loss_tasks:
                former.cancel()  # what it waits for is durable before what this one waits for
            _start_task(self._await_loss_durable(), self._loss_tasks)

    async def _await_loss_durable(self) -> None:
        """Until it is durable that the session is lost, a crash would leave that in doubt."""
        ends = [(writer, writer.end) for writer in (self._outbox.writer, self._inbox.writer)]
        self.capture.schedule_commit()
        self.injection.schedule_commit()
        pause_s = LOSS_POLL_MIN_S
        while any(writer.durable < end for writer, end in ends):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S)
        pass_crash_point(DeliveryCrashPoint.SESSION_LOSS_DURABLE)
        self.connect_marker.on_loss_durable()

    def on_disconnected(self) -> None:
        """The broker is gone."""
        self.capture.on_disconnected()
        self.injection.on_disconnected()

    @property
    def has_pending_retained(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""
        return not self.injection.retained_order.is_empty

    def hold_back(
        self, publications: Sequence[PlainMessage | Publication]
    ) -> Sequence[PlainMessage | Publication]:
        """Keep retained publications of QoS 0 that must not be stored before these."""
        return self.injection.retained_order.hold_back(publications)

    def captured_subscription(self, publish: PublishPacket) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did."""
        return self.capture.captured_subscription(publish)

    def on_publications(self, batch: Sequence[tuple[PublishPacket, bool]]) -> None:
        """Publications of QoS 1 and 2 came; of each, whether it is to be taken."""
        self.capture.receive_publications(batch)

    def on_handshake_steps(self, batch: Sequence[AnyHandshakePacket]) -> None:
        """Steps of handshakes came, of one kind."""
        if isinstance(batch[0], PubRelPacket):
            self.capture.receive_pubrel(step.packet_id for step in batch)
        else:
            self.injection.on_handshake_steps(batch)

    def report_dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """A publication that may be of QoS 1 or 2 will never be passed on; its topic and QoS are
        for the alarm, if they are known."""
        self.counters[f"dropped: {reason}"] += 1
        self._alarms.add_dropped(reason, topic, qos)

    def on_not_sent(self, batch: Sequence[PublishPacket], reason: str) -> None:
        """These cannot be published at this broker."""
        self.injection.on_not_sent(batch, reason)

    # ------------------------------------------------------------ inspection

    def status(self) -> dict[str, object]:
        """Return where everything stands."""
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
        """Return all counters."""
        return self.counters + self.capture.counters + self.injection.counters


def _start_task(work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
    task = tasks.start_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
