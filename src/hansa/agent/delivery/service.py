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
from hansa.agent.delivery.connect_marker import UNSURE, Greeting
from hansa.agent.delivery.crash_points import Point
from hansa.agent.delivery.group_commit import RETRY_S
from hansa.agent.delivery.inbox_journal import Backlog, gap_page
from hansa.agent.delivery.injection import Injection, InjectionPort
from hansa.agent.delivery.lease_store import Absences
from hansa.agent.delivery.outbox_journal import Keeping
from hansa.agent.delivery.peer_store import Acquaintances, known
from hansa.agent.delivery.settings import DeliverySettings
from hansa.agent.error_text import quoted
from hansa.agent.state import GREETING, INBOX, JOURNAL, StateDirectory
from hansa.agent.status import name_of
from hansa.agent.telemetry.recorded_topics import Topics
from hansa.journal.crash import reached
from hansa.mqtt.limits import Limits
from hansa.mqtt.packets import Handshake, Publish, PubRel
from hansa.protocol import effects
from hansa.protocol.delivery.state import Remembered
from hansa.protocol.effects import (
    Effect,
    EpochRenewed,
    GivenUp,
    Hear,
    MemberJoined,
    Recall,
    Remember,
    Repaired,
)
from hansa.protocol.events import Event, Heard, Kept, Recalled, Reopened, StoreUncertain
from hansa.protocol.forwarding.engine import TOO_LARGE
from hansa.protocol.model import Identity, NodeId, Plain, Publication
from hansa.protocol.node import Node

log = logging.getLogger("hansa.agent")

RECALLS_MAX = 2
"""Threads that read the journal at a time: the rest of the pool is for commits."""

ACKNOWLEDGED_S = 0.2
"""Seconds between two notes of what others have."""

COPY_S = 5.0
"""Seconds from the first meeting with another node until an agent whose journal is a copy begins a
new epoch: if the original runs, this one hears of it by then, and stops before it sends a thing."""

COPY_ALONE_S = 30.0
"""The same from the start, if there is nobody to meet."""

FORGETTING_S = 0.01
"""Seconds until it is first looked whether the loss of a session is durable, then twice as long
each time; while the disk is full, as often as that is tried."""

NAMED_MAX = 3
"""Nodes that an alarm names; of more it says how many."""


class NodePort(Protocol):
    """What guaranteed delivery asks of the loop around the node."""

    @property
    def node(self) -> Node:
        """The node itself."""

    def feed(self, *events: Event) -> None:
        """Hand events to the node."""

    def captured_surely(self, publication: Publish) -> Publication | None:
        """Give a publication of QoS 1 or 2 its position, None if nobody is owed it."""


class ClientPort(InjectionPort, Protocol):
    """What guaranteed delivery asks of the broker's client."""

    @property
    def newest_subscription(self) -> int:
        """The last identifier of a subscription of the agent's that can have brought something."""

    def supersede(self, topics: Iterable[str]) -> None:
        """Newer values of these topics have come at QoS 1 or 2."""


class Safekeeping:
    """Everything that is behind QoS 1 and 2."""

    def __init__(
        self,
        state: StateDirectory,
        identity: Identity,
        settings: DeliverySettings,
        alarms: Alarms,
        recorded: Topics,
    ) -> None:
        """Open the journals of this agent; publications to some topics are kept in any case."""
        self._state = state
        self._identity = identity
        self._settings = settings
        self._alarms = alarms
        self._keeping = Keeping(
            state.path / JOURNAL, identity.node, identity.incarnation, settings.journal(), recorded
        )
        self._backlog = Backlog(
            state.path / INBOX, identity.node, identity.incarnation, settings.inbox()
        )
        self.counters: Counter[str] = Counter()
        alarms.set("journal damaged", self._keeping.damage)
        alarms.set("inbox damaged", self._backlog.damage)
        self._note_cut(JOURNAL, self._keeping.writer.cut_bytes)
        self._note_cut(INBOX, self._backlog.writer.cut_bytes)
        self.greeting = Greeting(state.path / GREETING, alarms.named("greeting"))
        self._early: list[Publication | effects.Gap] = []
        """What came before a new epoch began; the node sends no more than it may hold."""
        self._forgetting: set[asyncio.Task[None]] = set()
        self._first = self._keeping.writer.first_number
        self._known = known(state)
        self._uncertain: dict[str, None] = {}
        """Topics that are reported to the node in the next round of the loop."""
        self._recalls: set[asyncio.Task[None]] = set()
        self._recalling = asyncio.Semaphore(RECALLS_MAX)
        self._is_stopping = False

    def _note_cut(self, name: str, count: int) -> None:
        if count:
            log.info("torn end cut from the %s bytes=%d", name, count)
            self.counters[f"torn bytes cut from the {name}"] += count

    def past(self) -> Remembered:
        """Return what the node starts with."""
        keeping, writer = self._keeping, self._keeping.writer
        return Remembered(
            writer.epoch,
            writer.next_number,
            owed=dict(keeping.owed),
            acknowledged=dict(keeping.acknowledged),
            unheard=dict(keeping.unheard),
            taken=dict(self._backlog.taken),
        )

    def attach(self, driver: NodePort, broker: ClientPort) -> None:
        """Meet the node and the broker's client; the node learns what was known."""
        self._driver, self._client = driver, broker
        self.capture = Capture(
            self._keeping,
            start=driver.captured_surely,
            answer=broker.answer,
            tell=self._captured,
            problem=self._alarms.named("journal"),
            committed=self._note_dropped,
        )
        self.capture.newest_subscription = lambda: broker.newest_subscription
        self.capture.distrust = self._alarms.named("broker went back")
        self.injection = Injection(
            self._backlog,
            broker,
            stored=driver.feed,
            problem=self._alarms.named("inbox"),
            settings=self._settings,
        )
        self.injection.crowding.told = self._alarms.named("broker quota")
        self.injection.suspicion.told = self._alarms.named("broker ends connections")
        self.injection.dropped = self.dropped
        self.injection.uncertain = self._report_uncertain
        self._acquaintances = Acquaintances(
            self._known,
            write=self._state.remember_nodes,
            noted=driver.feed,
            problem=self._alarms.named("acquaintances"),
        )
        if self._keeping.is_copy:
            self._renew(self._identity.incarnation, COPY_ALONE_S)
        self._noting = tasks.start(self._note_acknowledged())
        self._absences = Absences(
            b"" if self._keeping.is_copy else self._state.leases(),
            driver.node.chart.leases,
            write=self._state.remember_leases,
            problem=self._alarms.named("leases"),
        )
        driver.feed(self._absences.past(chain.from_iterable(self._known.values())))

    async def stop(self) -> None:
        """Write what is left, and let the files go."""
        self._is_stopping = self._keeping.is_stopping = True
        for task in (*self._recalls, *self._forgetting, self._noting):
            task.cancel()
        self.capture.acknowledged(self._driver.node.custody.outbox.acknowledged)
        await self._acquaintances.stop()
        await self._absences.stop()
        await self.capture.stop()
        await self.injection.stop()

    # ------------------------------------------------------------ what the node orders

    def perform(self, order: Recall | Remember | Hear | EpochRenewed) -> None:
        """Do what the node wants of the disk."""
        match order:
            case Recall():
                if not self._is_stopping:
                    _start(self._recall(order), self._recalls)
            case Remember(_, node):
                records = self._driver.node.records_of(node)
                if not records:
                    self.capture.forget(node)
                self._acquaintances.remember(order, records)
            case Hear(node):
                self.capture.hear(node)
            case EpochRenewed(epoch):
                self._renew(epoch, COPY_S if self._keeping.is_copy else 0.0)

    def _renew(self, epoch: int, delay_s: float) -> None:
        epoch = max(epoch, self._keeping.writer.epoch + 1)
        self.capture.acknowledged(self._driver.node.custody.outbox.acknowledged)
        self.capture.renew(epoch, delay_s)
        text = f"it was an old copy; epoch {epoch} begins, publications may be lost"
        self._alarms.set("journal restored", text)

    def told(self, news: Effect) -> None:
        """Note what the node tells of guaranteed delivery."""
        match news:
            case effects.Gap(origin, _, first, last, reason):
                self.counters["gaps"] += 1
                who = self._named(origin)
                text = f"of what {who} published, positions {first} to {last} are lost: {reason}"
                self._alarms.set("gap", text)
            case GivenUp(node, _, first, last):
                self.counters["given up"] += 1
                lost = f"positions {first} to {last} were not delivered"
                self._alarms.set("given up", f"{self._named(node)} was away too long: {lost}")
            case MemberJoined(node):
                self._absences.returned(node)
                if self._keeping.is_copy:
                    self._renew(self._identity.incarnation, COPY_S)
            case effects.Ignored(reason) if reason == TOO_LARGE:
                self._alarms.add_dropped(reason, "", 0)
            case Repaired(_, count):
                self.counters["repaired"] += count
            case _:
                pass

    def _named(self, node: NodeId) -> str:
        """Return the id of a node, and its name if that is known."""
        name = name_of(self._driver.node, node)
        return f"{node:016x} ({quoted(name)})" if name else f"{node:016x}"

    @property
    def mark(self) -> int:
        """What stands for all that was delivered so far: the place of the next one, at most."""
        waiting = self.injection.waiting + len(self._early)
        return self._backlog.index_after(waiting)

    def has_passed(self, mark: int) -> bool:
        """Whether all that was delivered before a mark has reached the broker, or is set aside."""
        entries, aside = self._backlog.entries, self.injection.suspicion
        under_way = (index for index, each in entries.items() if each not in aside)
        oldest = next(under_way, self._backlog.next_index)
        return oldest >= min(mark, self.mark)

    def deliver(self, batch: Sequence[Publication | effects.Gap]) -> None:
        """Give publications of QoS 1 and 2 to the broker, surely, and keep in mind which of them
        will never come. A copy takes nothing before it is clear that its original is gone, which is
        owed all of it."""
        self._client.supersede(p.topic for p in batch if isinstance(p, Publication) and p.retain)
        if self._keeping.is_copy:
            self._early += batch
        else:
            self.injection.deliver(batch)

    def _report_uncertain(self, topics: Sequence[str]) -> None:
        """Report them in the next round of the loop: the node's orders may reach injection."""
        if not self._uncertain:
            asyncio.get_running_loop().call_soon(self._feed_uncertain)
        self._uncertain.update(dict.fromkeys(topics))

    def _feed_uncertain(self) -> None:
        topics, self._uncertain = tuple(self._uncertain), {}
        self._driver.feed(StoreUncertain(topics))

    async def _recall(self, order: Recall) -> None:
        recalled = Recalled(order.to, order.epoch, order.after, order.after, ())
        try:
            async with self._recalling:
                recalled = await asyncio.to_thread(self._keeping.recall, order)
            self._alarms.set("journal damaged", self._keeping.damage)
            self._alarms.set("journal unreadable", self._keeping.unreadable)
        finally:  # whatever happens: without an answer the node would never read for it again
            if not self._is_stopping:
                self._driver.feed(recalled)

    def _captured(self, news: Kept | Heard | Reopened) -> None:
        if isinstance(news, Reopened):
            self.counters["epochs renewed"] += 1
            self._alarms.set("journal damaged", self._keeping.damage)
            self._first = 1
            early, self._early = self._early, []
            self.injection.deliver(early)
        self._driver.feed(news)

    async def _note_acknowledged(self) -> None:
        """Write down now and then what others have: less is copied should a new epoch begin."""
        while True:
            await asyncio.sleep(ACKNOWLEDGED_S)
            self.capture.acknowledged(self._driver.node.custody.outbox.acknowledged)

    def _note_dropped(self) -> None:
        """Retention may have dropped something: some of it may not have been delivered."""
        first = self._keeping.writer.first_number
        if first <= self._first:
            return
        unpaid = self._driver.node.custody.outbox.unpaid(first)
        if unpaid:
            oldest = max(self._first, min(unpaid.values()))
            self.counters["dropped: retention, not acknowledged"] += first - oldest
            names = ", ".join(self._named(node) for node in list(unpaid)[:NAMED_MAX])
            more = f" and {len(unpaid) - NAMED_MAX} more" if len(unpaid) > NAMED_MAX else ""
            text = f"positions before {first} are dropped, not acknowledged by {names}{more}"
            self._alarms.set("retention", text)
        self._first = first

    # ------------------------------------------------------------ what the broker's client tells

    def connected(self, session_present: bool, session_expected: bool, limits: Limits) -> None:
        """The broker is there, and perhaps has forgotten the agent's session."""
        unsure = session_present and self.greeting.in_doubt
        self.counters["broker_session_unsure"] += unsure
        self._alarms.set("broker session unsure", UNSURE if unsure else "")
        if session_expected and not session_present:
            self.counters["broker_session_lost"] += 1
            text = "the broker has forgotten the agent's session: publications may be lost"
            self._alarms.set("broker session lost", text)
        self.capture.connected(session_present)
        self.injection.connected(session_present, limits)
        asyncio.get_running_loop().call_soon(self._driver.feed, StoreUncertain((), True))
        if session_present:
            self.greeting.kept()
        else:
            reached(Point.SESSION_LOST)
            self.greeting.lost()
            for former in self._forgetting:
                former.cancel()  # what it waits for is durable before what this one waits for
            _start(self._forget_session(), self._forgetting)

    async def _forget_session(self) -> None:
        """Until it is durable that the session is lost, a crash would leave that in doubt."""
        ends = [(writer, writer.end) for writer in (self._keeping.writer, self._backlog.writer)]
        self.capture.commit_soon()
        self.injection.commit_soon()
        pause_s = FORGETTING_S
        while any(writer.durable < end for writer, end in ends):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S)
        reached(Point.SESSION_FORGOTTEN)
        self.greeting.noted()

    def disconnected(self) -> None:
        """The broker is gone."""
        self.capture.disconnected()
        self.injection.disconnected()

    @property
    def is_storing(self) -> bool:
        """Whether retained publications of QoS 1 or 2 are pending."""
        return not self.injection.order.is_idle

    def hold_back(
        self, publications: Sequence[Plain | Publication]
    ) -> Sequence[Plain | Publication]:
        """Keep retained publications of QoS 0 that must not be stored before these."""
        return self.injection.order.hold_back(publications)

    def rest_of(self, publish: Publish) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did."""
        return self.capture.rest_of(publish)

    def received(self, batch: Sequence[tuple[Publish, bool]]) -> None:
        """Publications of QoS 1 and 2 came; of each, whether it is to be taken."""
        self.capture.receive(batch)

    def answered(self, batch: Sequence[Handshake]) -> None:
        """Steps of handshakes came, of one kind."""
        if isinstance(batch[0], PubRel):
            self.capture.released(step.packet_id for step in batch)
        else:
            self.injection.answered(batch)

    def dropped(self, reason: str, topic: str = "", qos: int = 0) -> None:
        """A publication that may be of QoS 1 or 2 will never be passed on; its topic and QoS are
        for the alarm, if they are known."""
        self.counters[f"dropped: {reason}"] += 1
        self._alarms.add_dropped(reason, topic, qos)

    def not_sent(self, batch: Sequence[Publish], reason: str) -> None:
        """These cannot be published at this broker."""
        self.injection.not_sent(batch, reason)

    # ------------------------------------------------------------ inspection

    def status(self) -> dict[str, object]:
        """Return where everything stands."""
        outbox = self._driver.node.custody.outbox
        epoch, position = outbox.position
        writer = self._keeping.writer
        return {
            "epoch": epoch,
            "position": position - 1,
            "first": writer.first_number,
            "settled": outbox.settled,
            "owed": {f"{node:016x}": d.safe - d.acknowledged for node, d in outbox.debts.items()},
            "unsynced_bytes": writer.end - writer.durable,
            "inbox": len(self._backlog.entries),
            "inbox_bytes": self._backlog.bytes,
            "inbox_waiting": self.injection.waiting,
            "gaps": [gap_page(each) for each in self._backlog.gaps],
        }

    def counts(self) -> Counter[str]:
        """Return all counters."""
        return self.counters + self.capture.counters + self.injection.counters


def _start(work: Coroutine[Any, Any, None], running: set[asyncio.Task[None]]) -> None:
    task = tasks.start(work)
    running.add(task)
    task.add_done_callback(running.discard)
