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
from hansa.agent.delivery.crash_points import Point
from hansa.agent.delivery.epoch_rollover import Renewal
from hansa.agent.delivery.group_commit import Commits, written
from hansa.agent.delivery.outbox_journal import Keeping
from hansa.agent.delivery.overlap_dedup import Rests
from hansa.agent.delivery.redelivery import DURABLE, Repeats, Seen
from hansa.errors import JournalUnusable
from hansa.journal.crash import reached
from hansa.journal.records import Recorded
from hansa.journal.writer import Writer
from hansa.mqtt.packets import Handshake, PubAck, PubComp, Publish, PubRec
from hansa.protocol.events import Heard, Kept, Reopened
from hansa.protocol.model import NodeId, Publication

PATIENCE_S = 0.1
"""Seconds between two looks whether a new epoch may begin."""

GONE_BACK = (
    "it has gone back to a state that it saved before it was killed: publications that it had "
    "acknowledged may be lost"
)


class Receipt(NamedTuple):
    """An answer that waits for the disk."""

    offset: int
    answer: Handshake
    seen: Seen | None = None


class Capture:
    """One node's publications on their way into its journal."""

    def __init__(
        self,
        keeping: Keeping,
        start: Callable[[Publish], Publication | None],
        answer: Callable[[Sequence[Handshake]], None],
        tell: Callable[[Kept | Heard | Reopened], None],
        problem: Callable[[str], None],
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        """`start` gives a publication its position, None if nobody is owed it; `answer` writes to
        the broker; `tell` tells the node what the journal has; `problem` is told what is wrong with
        the disk, `committed` of every commit."""
        self.keeping = keeping
        self.counters: Counter[str] = Counter()
        self.newest_subscription: Callable[[], int] = lambda: 0
        """Returns the last identifier of a subscription that can have brought something."""
        self.distrust: Callable[[str], None] = lambda text: None
        """Told what is wrong with the broker."""
        self._start = start
        self._answer = answer
        self._tell = tell
        self._problem = problem
        self._committed = committed
        self._wanted = 0
        """The epoch that is to begin next."""
        self._due = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._renewal: Renewal | None = None
        self._is_new_session = False
        """Whether the broker has begun another session since then."""
        self._forgotten: list[NodeId] = []
        """Who was forgotten since then."""
        self._holds = False
        self._held: list[Callable[[], None]] = []
        """What the broker sends until then: no more than the window."""
        self._broken = False
        self._repeats = Repeats(keeping.found, keeping.packet_ids)
        self._rests = Rests(keeping.former)
        self._settled_at = DURABLE  # where the last settlement is
        self._waiting: deque[Receipt] = deque()
        self._unsafe: deque[tuple[int, Publication]] = deque()
        self._heard: deque[tuple[int, NodeId]] = deque()
        keeping.remembered = self._repeats.remembered
        keeping.carried = lambda: self._rests.carried(self._repeats.remembered())
        self._commits = Commits(keeping.writer, self._durable, problem)

    # ------------------------------------------------------------ the connection

    def connected(self, session_present: bool) -> None:
        """The broker is there; if it has forgotten us, nothing comes again."""
        self._held.clear()
        self._waiting.clear()
        self._repeats.connected(session_present)
        self._rests.connected(session_present)
        if not session_present:
            self._begin_session()

    def _begin_session(self) -> None:
        """Or a later life would take what the new session sends for what is known."""
        self._is_new_session = self._renewal is not None
        self._write(self.keeping.begin_session)

    def disconnected(self) -> None:
        """What was not answered will come again."""
        self._waiting.clear()
        self._held.clear()

    def rest_of(self, publish: Publish) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did."""
        other = self._rests.rest_of(publish)
        self.counters["copies of what was captured before"] += other > 0
        return other

    def offer(self, record: Recorded) -> bool:
        """Write down a publication of QoS 0, unless the disk is behind; nobody waits for it."""
        return self.keeping.writer.offer(record)

    def commit_soon(self) -> None:
        """Make durable what was offered."""
        self._commits.ask()

    async def stop(self) -> None:
        """Acknowledge nothing more, and close the journal."""
        if self._renewal is not None:
            self._renewal.is_abandoned = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._commits.stop()

    # ------------------------------------------------------------ what the broker sends

    def receive(self, batch: Iterable[tuple[Publish, bool]]) -> None:
        """Publications came, in order; of each, whether it is one to take and not another copy."""
        if self._holds:
            self._held.append(partial(self.receive, list(batch)))
            return
        for publish, is_taken in batch:
            self._rests.begin()
            seen = self._repeats.recognise(publish)
            if seen is not None:
                self.counters["captured before"] += 1
            elif not is_taken:
                self._rests.leave_out(publish)
            elif self._broken:
                continue  # without an answer it stays with the broker, and comes again
            else:
                seen = self._capture(publish)
            kind = PubAck if publish.qos == 1 else PubRec
            offset = seen.offset if seen else DURABLE
            self._waiting.append(Receipt(offset, kind(publish.packet_id), seen))
        if self._repeats.has_gone_back:
            self.distrust(GONE_BACK)
        reached(Point.CAPTURE_APPENDED)
        if self._unsafe:
            self._commits.ask()
        self._acknowledge()

    def released(self, packet_ids: Iterable[int]) -> None:
        """PUBREL came: the broker has our PUBREC, and may use these ids again after PUBCOMP."""
        released = list(packet_ids)
        self._rests.resume(released)
        if self._holds:
            self._held.append(partial(self.released, released))
            return
        for packet_id in released:
            seen = self._repeats.release(packet_id)
            if seen:
                self._rests.settle(seen)
                self._settled_at = self._append_settled(seen.number)
            # A PUBREL that is repeated waits like the first: its record may not be durable yet.
            offset = self._settled_at
            self._waiting.append(Receipt(offset, PubComp(packet_id)))
        reached(Point.SETTLED_APPENDED)
        self._commits.ask()
        self._acknowledge()

    def _capture(self, publish: Publish) -> Seen | None:
        publication = self._start(publish)
        if publication is None:
            return None
        by = (publish.subscriptions[0] if publish.subscriptions else 0, self.newest_subscription())
        try:
            offset = self.keeping.keep(publication, publish.packet_id, by)
        except JournalUnusable as error:
            self._break(error)
            offset = self.keeping.writer.end  # never durable
        else:
            self._unsafe.append((offset, publication))
            self.counters["kept"] += 1
        seen = self._repeats.keep(publish, publication.number, offset, by)
        self._rests.keep(seen)
        return seen

    def _append_settled(self, number: int) -> int:
        try:
            return self.keeping.settle(number)
        except JournalUnusable as error:
            self._break(error)
            return self.keeping.writer.end

    # ------------------------------------------------------------ what the disk has

    def _durable(self) -> None:
        durable = self.keeping.writer.durable
        last: Publication | None = None
        while self._unsafe and self._unsafe[0][0] < durable:
            _, last = self._unsafe.popleft()
        if last is not None:
            reached(Point.CAPTURE_DURABLE)
        self._acknowledge()
        if last is not None:
            self._tell(Kept(last.life, last.number))
        while self._heard and self._heard[0][0] < durable:
            self._tell(Heard(self._heard.popleft()[1]))
        self._committed()

    def _acknowledge(self) -> None:
        """Answer what is durable, up to the first that is not."""
        durable, waiting = self.keeping.writer.durable, self._waiting
        answers: list[Handshake] = []
        while waiting and waiting[0].offset < durable:
            receipt = waiting.popleft()
            answers.append(receipt.answer)
            if receipt.seen is not None:
                receipt.seen.acknowledged = True
        if answers:
            settled = any(isinstance(each, PubComp) for each in answers)
            if settled:
                reached(Point.SETTLED_DURABLE)
            self._answer(answers)
            reached(Point.SETTLED_TOLD if settled else Point.CAPTURE_ACKNOWLEDGED)

    # ------------------------------------------------------------ another epoch

    def acknowledged(self, by: Mapping[NodeId, int]) -> None:
        """Note up to where receivers have what they were owed; nobody waits for it."""
        self._note(partial(self.keeping.acknowledge, by))

    def hear(self, node: NodeId) -> None:
        """Note that a receiver has said in this life what it has; `Heard` is told then."""

        self._note(lambda: self._heard.append((self.keeping.hear(node), node)))

    def forget(self, node: NodeId) -> None:
        """Note that a node is owed nothing any more; nobody waits for it."""
        if self._renewal is None:
            self._write(partial(self.keeping.forget, node))
        else:
            self._forgotten.append(node)

    def _note(self, write: Callable[[], bool | None]) -> None:
        """Write what nobody waits for, or only while this journal lasts."""
        if self._renewal is None:
            self._write(write)

    def _write(self, write: Callable[[], bool | None]) -> None:
        """Write and commit, unless it turns out that there is nothing to write."""
        if self._broken:
            return
        try:
            if write() is not False:
                self._commits.ask()
        except JournalUnusable as error:
            self._break(error)

    def renew(self, epoch: int, delay_s: float = 0.0) -> None:
        """Begin a new epoch with what is not acknowledged; what the broker sends waits for it."""
        self._wanted = max(self._wanted, epoch)
        due = asyncio.get_running_loop().time() + delay_s
        self._due = min(self._due, due) if self._holds else due
        if not self._holds and not self._broken:
            self._holds = True
            self._renewing = tasks.start(self._renew())

    async def _renew(self) -> None:
        while (left_s := self._due - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, PATIENCE_S))  # it may be wanted sooner meanwhile
        renewal = self._renewal = self.keeping.renewal(self._wanted)
        made: list[Writer] = []
        while not await written(lambda: made.append(self.keeping.renew(renewal)), self._problem):
            pass
        former = self._commits
        self._adopt(renewal, made[0])
        await former.stop()
        await asyncio.to_thread(self.keeping.drop_former)
        reached(Point.RENEWAL_OVER)

    def _adopt(self, renewal: Renewal, writer: Writer) -> None:
        """Go on with the new journal, which holds all that was appended to the old one."""
        self._renewal, self._holds = None, False
        self.keeping.adopt(renewal, writer)
        self._commits = Commits(writer, self._durable, self._problem)
        self._unsafe.clear()
        self._heard.clear()
        self._settled_at = DURABLE
        self._waiting = deque(each._replace(offset=DURABLE) for each in self._waiting)
        numbers = {
            position: renewal.moved.get(position, -unsettled.packet_id)
            for position, unsettled in renewal.repeatable.items()
        }
        self._rests.renumber(numbers)
        for number in self._repeats.renumber(numbers):  # whose session is lost meanwhile
            self._append_settled(number)
        self._write(self.keeping.carry_on)
        if self._is_new_session:
            self._begin_session()
        while self._forgotten:
            self.forget(self._forgotten.pop())
        self._commits.ask()
        self._tell(Reopened(writer.epoch, writer.next_number, tuple(renewal.owed.items())))
        self._acknowledge()
        held, self._held = self._held, []
        for step in held:
            step()

    def _break(self, error: JournalUnusable) -> None:
        """Take nothing more: only a new life knows what the journal holds."""
        self._broken = True
        self._problem(str(error))
