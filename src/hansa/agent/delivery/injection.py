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

from hansa.agent.delivery.crash_points import Point
from hansa.agent.delivery.group_commit import Commits
from hansa.agent.delivery.inbox_journal import PUBLISH_IDS, Backlog, Entry
from hansa.agent.delivery.poison_quarantine import Suspicion
from hansa.agent.delivery.quota_backoff import Crowding
from hansa.agent.delivery.settings import DeliverySettings
from hansa.errors import JournalUnusable
from hansa.journal.crash import reached
from hansa.journal.records import Bound
from hansa.mqtt.limits import Limits
from hansa.mqtt.packets import Handshake, PubAck, PubComp, Publish, PubRec, PubRel
from hansa.mqtt.properties import expiry
from hansa.mqtt.types import Reason, describe
from hansa.protocol.effects import Gap
from hansa.protocol.events import Stored
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.write_order import RetainedOrder

NO_ROOM = (Reason.QUOTA_EXCEEDED, Reason.RECEIVE_MAXIMUM_EXCEEDED)
"""Why a broker does not take a publication now. The latter is EMQX's, when it holds as many of
QoS 2 as it can (`max_awaiting_rel`)."""


class InjectionPort(Protocol):
    """What injection asks of the broker's client."""

    def inject(self, batch: Sequence[Publish]) -> None:
        """Publish these."""

    def publish(self, publications: Sequence[Publication]) -> None:
        """Publish these at QoS 0."""

    def answer(self, batch: Sequence[Handshake]) -> None:
        """Write steps of handshakes."""

    def stays(self, topic: str) -> bool:
        """Whether publications to a topic never enter."""


class Injection:
    """Other nodes' publications on their way into the broker here."""

    def __init__(
        self,
        backlog: Backlog,
        port: InjectionPort,
        stored: Callable[[Stored], None],
        problem: Callable[[str], None],
        settings: DeliverySettings,
    ) -> None:
        """`stored` is told what is safe here, `problem` what is wrong with the disk."""
        self.backlog = backlog
        self.counters: Counter[str] = Counter()
        self.delivered: Callable[[Bound], None] = lambda bound: None
        """Told what the broker has."""
        self.dropped: Callable[[str, str, int], None] = self._count_dropped
        """Called with the reason, the topic and the QoS of what the broker will never have."""
        self.uncertain: Callable[[Sequence[str]], None] = lambda topics: None
        """Told for which topics the broker may store another value than the newest."""
        self._settings = settings
        self._port = port
        self._stored = stored
        self._problem = problem
        self._commits = Commits(backlog.writer, self._durable, problem)
        self._limits: Limits | None = None
        self._is_over = False
        self._waiting: deque[Publication | Gap] = deque()
        self._binding: deque[tuple[int, Entry | None, Stored | None]] = deque()
        self._ready: deque[Entry] = deque(backlog.entries.values())
        self._sent: dict[int, Entry] = {}
        self._accepted: deque[Entry] = deque()
        self.crowding = Crowding(backlog, self._try_again, self._wait_for_disk)
        self.suspicion = Suspicion(self._give_chance)
        self.order = RetainedOrder[Entry](port.publish)
        for entry in backlog.entries.values():
            if entry.bound.retain:
                self.order.enter(entry.bound.topic, version=0)
        backlog.retained_left = self.order.leave
        self._completed: deque[int] = deque()
        """Offsets of completions of QoS 1 that are not durable; they still count as under way, so
        that a crash makes no more duplicates than the window."""

    @property
    def waiting(self) -> int:
        """Publications for which there was no room; their origins have no receipt."""
        return len(self._waiting)

    @property
    def _is_full(self) -> bool:
        backlog = self.backlog
        return backlog.bytes > self._settings.inbox_bytes or len(backlog.entries) >= PUBLISH_IDS

    async def stop(self) -> None:
        """Publish nothing more, and close the journal."""
        self.crowding.forget()
        self.suspicion.stop()
        await self._commits.stop()

    def commit_soon(self) -> None:
        """Make durable what is noted."""
        self._commits.ask()

    # ------------------------------------------------------------ from the node

    def deliver(self, batch: Sequence[Publication | Gap]) -> None:
        """Take publications over, or let them wait until there is room. What will never come waits
        behind them: once it is noted, nothing before it is asked for again."""
        for each in batch:
            if isinstance(each, Publication) and each.retain:
                self.order.enter(each.topic, each.version)
        self._waiting.extend(batch)
        with self._disk():
            self._bind()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Stop for good if the journal can no longer be written: only a new life knows what it
        holds, and here nothing can be noted that the broker acknowledges."""
        try:
            yield
        except JournalUnusable as error:
            self._limits, self._is_over = None, True
            self._problem(str(error))

    def _bind(self) -> None:
        bound = False
        while self._waiting and not self._is_full:
            first = self._waiting[0]
            if isinstance(first, Gap):
                self.backlog.lose(first.origin, first.epoch, first.first, first.last, first.reason)
            elif first.topic.startswith("$") or self._port.stays(first.topic):
                self.counters["dropped: topic stays at its broker"] += 1
                self._binding.append((self.backlog.skip(first), None, _receipt(first)))
                if first.retain:
                    self.order.leave(first.topic)
            else:
                entry = self.backlog.bind(first)
                self._binding.append((entry.offset, entry, _receipt(first)))
            self._waiting.popleft()
            bound = True
        if bound:
            reached(Point.BOUND_APPENDED)
            self._commits.ask()

    # ------------------------------------------------------------ what the disk has

    def _durable(self) -> None:
        durable = self.backlog.writer.durable
        stored: dict[NodeId, Stored] = {}
        while self._binding and self._binding[0][0] < durable:
            _, entry, receipt = self._binding.popleft()
            if receipt is not None:
                stored[receipt.origin] = receipt
            if entry is not None:
                self._line_up(entry)
        if stored:
            reached(Point.BOUND_DURABLE)
        while self._completed and self._completed[0] < durable:
            self._completed.popleft()
        with self._disk():
            self._release()
            self._publish()
        for receipt in stored.values():
            self._stored(receipt)

    def _line_up(self, entry: Entry) -> None:
        """Let one be published in its turn, which is not the last one if it had to wait."""
        if not self._ready or self._ready[-1].bound.index < entry.bound.index:
            self._ready.append(entry)
        else:
            insort(self._ready, entry, key=lambda each: each.bound.index)

    def _release(self) -> None:
        """Send PUBREL for what is durably accepted, in order."""
        durable = self.backlog.writer.durable
        steps: list[Handshake] = []
        while self._accepted and self._limits is not None:
            entry = self._accepted[0]
            assert entry.accepted_at is not None
            if entry.accepted_at >= durable:
                break
            self._accepted.popleft()
            steps.append(PubRel(entry.packet_id))
        if steps:
            reached(Point.ACCEPTED_DURABLE)
            self._port.answer(steps)
            reached(Point.RELEASED)

    def _publish(self) -> None:
        """Publish what is ready, as far as the window lets it."""
        if self._limits is None:
            return
        window = self._window(self._limits)
        if self.crowding.room is not None:
            window = min(window, self.crowding.room)
        batch: list[Publish] = []
        while self._ready and len(self._sent) + len(self._completed) < window:
            entry = self._ready[0]
            if entry.packet_id in self._sent:
                break
            self._ready.popleft()
            if not entry.was_sent and expiry(entry.properties) == 0:
                self._drop(entry)
                self.counters["dropped: expired"] += 1  # as its publisher wanted
                continue
            assert entry.accepted_at is None and entry.offset < self.backlog.writer.durable
            if entry.bound.retain and self._must_wait(entry, self._limits):
                continue
            self.crowding.surpass(entry.bound)
            batch.append(self._packet(entry, self._limits))
            if batch[-1].qos:
                entry.was_repeated, entry.was_sent, entry.was_found = batch[-1].dup, True, False
                self._sent[entry.packet_id] = entry
            else:
                self.backlog.complete(entry)
                self.delivered(entry.bound)
        if batch:
            self.counters["injected"] += len(batch)
            self._port.inject(batch)
            reached(Point.PUBLISHED)

    def _packet(self, entry: Entry, limits: Limits) -> Publish:
        bound, qos = entry.bound, _qos(entry, limits)
        is_again = entry.was_sent and qos > 0
        packet_id = entry.packet_id if qos else 0
        return Publish(
            bound.topic, bound.payload, qos, bound.retain, is_again, packet_id, (), entry.properties
        )

    # ------------------------------------------------------------ what the broker says

    def connected(self, session_present: bool, limits: Limits) -> None:
        """The broker is there: end what was begun, begin again what it may not have."""
        if self._is_over:
            return
        self._limits = limits
        self.order.disconnected()
        self._doubt(each for each in self._bound() if each.was_sent)
        with self._disk():
            if not session_present:
                self._judge_uncertain(self._window(limits))
            self.crowding.forget()
            if self.suspicion.is_alert:
                self.crowding.room = 1
            known = [each for each in self._bound() if each not in self.suspicion]
            self._accepted = deque(each for each in known if each.accepted_at is not None)
            # Mosquitto counts what it has of an earlier connection, and refuses what is too much.
            self._sent = {each.packet_id: each for each in self._accepted}
            for entry in self._accepted:
                if entry.bound.retain:
                    self.order.note_in_flight(entry.bound.topic, entry.bound.index)
            self._ready = deque(each for each in known if each.accepted_at is None)
            self._release()
            self._publish()

    def disconnected(self) -> None:
        """What is under way will be resumed."""
        self._limits = None
        unanswered = [each for each in self._sent.values() if each.accepted_at is None]
        if unanswered and self.suspicion.note_ending(unanswered):
            self._set_aside(unanswered[0])
        self._sent.clear()

    def _set_aside(self, entry: Entry) -> None:
        """Let the others pass. A value must not replace a newer one when it comes after all, not
        even in another life."""
        self.counters["put off: the broker ends the connection"] += 1
        self._doubt((entry,))
        if entry.bound.retain:
            with self._disk():
                self.backlog.demote(entry)
                self._commits.ask()

    def _window(self, limits: Limits) -> int:
        return min(self._settings.window, limits.receive_maximum)

    def _judge_uncertain(self, window: int) -> None:
        """The session is gone: what the broker had accepted has to be published anew or given up,
        and so has what it may have seen. What a former life sent is unknown; it was no more than
        the window, the oldest first."""
        bound = self._bound()
        found = [each for each in bound if each.was_found and each.accepted_at is None]
        for entry in found[window:]:
            entry.was_sent = entry.was_found = False
        uncertain = [each for each in bound if each.was_sent]
        self.counters["inject_uncertain"] += len(uncertain)
        if not uncertain:
            return
        if self._settings.prefer == "no-dup":
            for entry in uncertain:
                self.suspicion.clear(entry)
                self.backlog.complete(entry)
        else:
            for entry in uncertain:
                self.backlog.rebind(entry)
            # Until that is durable the others wait behind them, or they would change their order.
            waiting = [(each.offset, each, None) for each in bound if each not in self.suspicion]
            self._binding = deque([*waiting, *self._binding])
        self._commits.ask()

    def _bound(self) -> list[Entry]:
        """Return what is durably bound and not completed, in order."""
        fresh = {id(entry) for _, entry, _ in self._binding}
        return [each for each in self.backlog.entries.values() if id(each) not in fresh]

    def answered(self, batch: Sequence[Handshake]) -> None:
        """PUBACK, PUBREC or PUBCOMP came: a batch is of one kind."""
        kind = type(batch[0])
        with self._disk():
            for step in batch:
                entry = self._sent.get(step.packet_id)
                if entry is not None:
                    self._take_step(entry, step)
            reached(Point.ACCEPTED_APPENDED if kind is PubRec else Point.COMPLETED)
            self._commits.ask()
            self._bind()
            self._publish()

    def _take_step(self, entry: Entry, step: Handshake) -> None:
        self.suspicion.clear(entry)
        if type(step) is PubRec and _has(entry, step):
            self.crowding.accept(entry)
            self.backlog.accept(entry)
            self._accepted.append(entry)
        else:
            self._complete(entry, step)

    def _complete(self, entry: Entry, step: Handshake) -> None:
        del self._sent[entry.packet_id]
        self._let_followers_go(entry)
        if step.reason in NO_ROOM and type(step) is not PubComp:
            self.counters["put off: the broker's quota is exceeded"] += 1
            self._doubt((entry,))
            self.crowding.refuse(entry, (*self._sent.values(), *self._accepted))
            return
        self.crowding.accept(entry)
        if step.refused and type(step) is not PubComp:
            reason = f"the broker refuses it ({describe(step.reason)})"
            self.dropped(reason, entry.bound.topic, entry.bound.qos)
            self._doubt((entry,))
        else:
            self.delivered(entry.bound)
        offset = self.backlog.complete(entry)
        if type(step) is PubAck:
            self._completed.append(offset)

    def _must_wait(self, entry: Entry, limits: Limits) -> bool:
        bound = entry.bound
        return self.order.must_wait(entry, bound.topic, bound.index, _qos(entry, limits))

    def _let_followers_go(self, entry: Entry) -> None:
        """One is no longer in flight: line up those that had to wait for it."""
        if entry.bound.retain:
            for follower in self.order.note_ended(entry.bound.topic, entry.bound.index):
                self._line_up(follower)

    def _doubt(self, entries: Iterable[Entry]) -> None:
        """Have it checked what the broker stores instead of these, if they are retained."""
        topics = dict.fromkeys(each.bound.topic for each in entries if each.bound.retain)
        if topics:
            self.uncertain(tuple(topics))

    def _wait_for_disk(self, entry: Entry) -> None:
        """Publish what was written anew when that is durable."""
        self._binding.append((entry.offset, entry, None))
        self._commits.ask()

    def _try_again(self, entry: Entry) -> None:
        """Give the broker what it had no room for."""
        self._line_up(entry)
        with self._disk():
            self._publish()

    def _give_chance(self, entry: Entry) -> None:
        """Try what was set aside."""
        if entry.offset < self.backlog.writer.durable:
            self._try_again(entry)
        else:  # it was written anew
            self._wait_for_disk(entry)

    def _drop(self, entry: Entry) -> None:
        self.crowding.drop(entry)
        self.suspicion.clear(entry)
        self.backlog.complete(entry)

    def _count_dropped(self, reason: str, topic: str, qos: int) -> None:
        self.counters[f"dropped: {reason}"] += 1

    def not_sent(self, batch: Sequence[Publish], reason: str) -> None:
        """These cannot be published at this broker, now or ever."""
        with self._disk():
            for publish in batch:
                entry = self._sent.pop(publish.packet_id, None)
                if entry is not None:
                    self._let_followers_go(entry)
                    self._doubt((entry,))
                    self._drop(entry)
                    self.dropped(reason, publish.topic, publish.qos)
            self._commits.ask()  # then those behind them get their turn


def _qos(entry: Entry, limits: Limits) -> int:
    return min(entry.bound.qos, limits.qos_max)


def _has(entry: Entry, answer: PubRec) -> bool:
    """Whether the broker has a publication of QoS 2. EMQX refuses one that it had before, as its
    packet id is taken."""
    is_taken = answer.reason == Reason.PACKET_IDENTIFIER_IN_USE
    return not answer.refused or (is_taken and entry.was_repeated)


def _receipt(publication: Publication) -> Stored | None:
    """Return what its origin waits for; nobody waits for a retained value that was asked for."""
    if not publication.number:
        return None
    return Stored(publication.origin, publication.life, publication.number)
