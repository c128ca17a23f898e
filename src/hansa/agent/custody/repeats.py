"""What the broker may send again, because it did not get our answer.

A captured publication is known again by its packet id and content.

On a new connection the broker first goes on with what was under way, in order. So of the copies
that it sends only the first can be a rest, of a publication whose other copy it knows to be
captured. It had sent that one before; or not yet, for want of room beside handshakes of QoS 2, with
which it goes on first. No other copy of a publication can be a rest if the broker has gone on with
one that was captured later.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from hansa.agent.brokers.copies import content_of
from hansa.journal.records import Captured, Settled, Unsettled
from hansa.mqtt.packets import Publish
from hansa.mqtt.properties import ageless

RECENT = 8_192
"""Publications, and copies, that are remembered although they were acknowledged: the broker may not
have got that. More than can be under way; far less than it takes to use a packet id again."""

DURABLE = -1
"""The offset of what need not be waited for."""

PACKET_IDS = 65_535
AROUND = PACKET_IDS // 2
"""A broker that counts packet ids upwards cannot have come around to one by then."""

RISES_TRUSTED = 100
"""Packet ids in order until a broker is trusted to count them upwards."""

SETBACKS_MAX = 2
"""Packet ids out of order until it is not trusted any more: one that gives out free ids anew."""


def digest(publish: Publish | Captured) -> bytes:
    """Return 16 bytes that tell publications apart; one that waited at the broker is the same."""
    state = blake2b(publish.payload, digest_size=16)
    topic = publish.topic.encode()
    state.update(b"%d,%d,%d," % (publish.qos, publish.retain, len(topic)))
    state.update(topic)
    state.update(ageless(publish.properties))
    return state.digest()


@dataclass(slots=True)
class Seen:
    """A captured publication that the broker may send again."""

    packet_id: int
    qos: int
    digest: bytes
    number: int
    """Its position. If that is of an epoch that has ended, its packet id, negative: it has to have
    a number of its own by which it is settled."""
    offset: int = DURABLE
    """Where it is in the journal."""
    connection: int = 0
    """On which connection it came last; 0 for one of a former life."""
    receipt: int = 0
    """How many came before it in this life."""
    acknowledged: bool = False
    subscription: int = 0
    """The identifier of the filter that brought it; 0 if that is unknown."""
    newest: int = 0
    """The last identifier that had been given then."""

    def unsettled(self) -> Unsettled:
        """Return what the journal says of it."""
        return Unsettled(
            self.number, self.packet_id, self.qos, self.digest, self.subscription, self.newest
        )


def found(record: Captured | Unsettled, content: bytes) -> Seen:
    """Return what the journal says of one that a former life captured."""
    number, packet_id, qos = record.number, record.packet_id, record.qos
    return Seen(
        packet_id, qos, content, number, subscription=record.subscription, newest=record.newest
    )


class PacketIds:
    """How a broker numbers what it sends for the first time."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._newest = 0
        self._rises = 0
        self._setbacks = 0

    def note(self, packet_id: int) -> bool:
        """Take the next one; return whether the broker, against its habit, has gone back."""
        if packet_id == self._newest + 1:  # as nearly always
            self._newest = packet_id
            self._rises += 1
            return False
        is_rise = not self._newest or 0 < (packet_id - self._newest) % PACKET_IDS < AROUND
        self._newest = packet_id
        self._rises += is_rise
        self._setbacks += not is_rise
        return not is_rise and self._rises >= RISES_TRUSTED and self.are_in_order

    @property
    def are_in_order(self) -> bool:
        """Whether an id comes again only when all others were used."""
        return self._setbacks <= SETBACKS_MAX

    def start_over(self) -> None:
        """Another session begins."""
        self._newest = 0


class Former:
    """What the journal tells of the life before."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.ids = PacketIds()
        self.captured: OrderedDict[bytes, Seen] = OrderedDict()
        """The last that it captured, by content, back to the last that is settled: the broker had
        got all answers before that one's."""

        self.last: Seen | None = None
        """The very last of them."""
        self.settled: Seen | None = None
        """The last that is settled."""

    def note(self, seen: Seen) -> None:
        """Take the next that it captured."""
        self.last = seen
        self.captured[seen.digest] = seen
        self.captured.move_to_end(seen.digest)
        if len(self.captured) > RECENT:
            self.captured.popitem(last=False)

    def settle(self, seen: Seen) -> None:
        """The broker has gone on with one of them."""
        seen.acknowledged = True
        self.settled = seen
        while self.captured and next(iter(self.captured.values())).number < seen.number:
            self.captured.popitem(last=False)


def carried(
    remembered: Sequence[Seen], last: Seen | None, settled: Seen | None
) -> Iterator[Unsettled | Settled]:
    """Yield what a segment begins with, for the next life: what may come again, the last that was
    captured and the last that is settled. In the order of capture: the last that it reads is the
    last for it."""
    if settled is not None and settled is not last:
        yield from (settled.unsettled(), Settled(settled.number))
    for seen in remembered:
        yield seen.unsettled()
    if last is not None and (not remembered or remembered[-1] is not last):
        yield from (last.unsettled(), Settled(last.number))


class Repeats:
    """The memory of one life, with what the journal tells of the former one."""

    def __init__(self, found: Iterable[Seen], former: Former) -> None:
        """`found` is what a former life left to come again."""
        self._seen = {seen.packet_id: seen for seen in found}
        """In the order of capture."""
        self._others: OrderedDict[int, int] = OrderedDict()
        """Copies that were not kept because others were: content by packet id."""
        self._ids = former.ids
        self._former = former
        self._settled = former.settled
        self._last: Seen | None = None
        self._last_before: Seen | None = None
        """The last that was captured before this connection, if that was in this life."""
        self._resumed: set[int] = set()
        """Handshakes of QoS 2 with which the broker went on before it sent anything, maybe on more
        than one connection."""
        self._connection = 0
        self._receipts = 0
        self._cleaned = 0
        self._has_begun = False
        self._has_news = False
        self.has_gone_back = False
        """Whether this connection's first new packet shows that the broker goes on from an earlier
        state."""

    def remembered(self) -> list[Seen]:
        """Return the publications that may come again, as far as can be known."""
        oldest, recent = self._receipts - AROUND, self._receipts - RECENT
        return [
            seen
            for seen in self._seen.values()
            if seen.qos > 1 or seen.receipt > (recent if seen.acknowledged else oldest)
        ]

    def carried(self) -> Iterator[Unsettled | Settled]:
        """Yield what a new segment begins with."""
        settled = self._settled
        if settled is not None and settled.receipt <= self._receipts - RECENT:
            settled = None
        return carried(self.remembered(), self._last or self._former.last, settled)

    def connected(self, session_present: bool) -> None:
        """A connection begins; without the session of before nothing comes again."""
        self._connection += 1
        if self._has_begun:
            self._resumed.clear()
        self._has_begun, self._has_news = False, not session_present
        self._last_before = self._last
        if session_present:
            self._seen = {seen.packet_id: seen for seen in self.remembered()}
            return
        self._seen.clear()
        self._others.clear()
        self._resumed.clear()
        self._former, self._last, self._last_before = Former(), None, None
        self._settled = None
        self._ids.start_over()

    def recognise(self, publish: Publish) -> Seen | None:
        """Count what comes; return what was captured before, if this is it again. The broker has to
        say so; at QoS 2 it need not as long as nothing new has come. If it uses packet ids again
        without a word, QoS 1 is never known again: rather twice than never."""
        self._has_begun = True
        self._receipts += 1
        seen = self._seen.get(publish.packet_id)
        if (
            seen is None
            or seen.connection == self._connection
            or seen.qos != publish.qos
            or not (publish.dup if publish.qos == 1 else publish.dup or not self._has_news)
            or (publish.qos == 1 and not self._ids.are_in_order)
            or seen.digest != digest(publish)
        ):
            if not publish.dup:
                has_gone_back = self._ids.note(publish.packet_id)
                if not self._has_news:
                    self._has_news, self.has_gone_back = True, has_gone_back
            return None
        seen.connection, seen.receipt = self._connection, self._receipts
        seen.acknowledged = False
        return seen

    def keep(self, publish: Publish, number: int, offset: int, by: tuple[int, int]) -> Seen:
        """It is captured; `by` names the subscription that brought it, and the newest one."""
        seen = Seen(
            publish.packet_id,
            publish.qos,
            digest(publish),
            number,
            offset,
            self._connection,
            self._receipts,
            False,
            *by,
        )
        self._seen.pop(publish.packet_id, None)
        self._seen[publish.packet_id] = self._last = seen
        if self._former.last is not None:
            self._former = Former()
        if self._receipts - self._cleaned >= RECENT:
            self._cleaned = self._receipts
            self._seen = {each.packet_id: each for each in self.remembered()}
        return seen

    def release(self, packet_id: int) -> Seen | None:
        """The broker goes on with a handshake of QoS 2: what it belongs to does not come again."""
        seen = self._seen.pop(packet_id, None)
        self._settled = seen or self._settled
        return seen

    def resume(self, packet_ids: Iterable[int]) -> None:
        """The broker goes on with these handshakes, maybe from before this connection."""
        if not self._has_begun:
            self._resumed.update(packet_ids)

    def renumber(self, numbers: Mapping[int, int]) -> list[int]:
        """Positions have changed, and all is durable; return those of what is not known here."""
        known = {seen.number: seen for seen in self._seen.values() if seen.number in numbers}
        self._seen = {seen.packet_id: seen for seen in known.values()}
        for ended in (self._last or self._former.last, self._settled):
            if ended is not None:
                ended.number = -ended.packet_id
        for position, seen in known.items():
            seen.number, seen.offset = numbers[position], DURABLE
        return [number for position, number in numbers.items() if position not in known]

    # ------------------------------------------------------------ other copies

    def leave_out(self, publish: Publish) -> None:
        """It is not kept, because another copy of it was."""
        self._others[publish.packet_id] = content_of(publish)
        self._others.move_to_end(publish.packet_id)
        if len(self._others) > RECENT:
            self._others.popitem(last=False)

    def rest_of(self, publish: Publish) -> int:
        """Return which subscription brought a copy, which was captured before, of what comes first
        on this connection; 0 if none did. What a former life captured is captured again at QoS 1:
        rather twice than never."""
        content, captured = digest(publish), self._last_before
        if captured is None and publish.qos == 2:
            captured = self._former.captured.get(content)
        is_rest = (
            captured is not None
            and captured.digest == content
            and captured.subscription not in publish.subscriptions
            and max(publish.subscriptions, default=0) <= captured.newest
            and self._is_next(publish, captured)
        )
        return captured.subscription if is_rest and captured is not None else 0

    def _is_next(self, publish: Publish, captured: Seen) -> bool:
        """Whether what the broker sends first can come next after what was captured."""
        last, resumed = self._last_before or self._former.last, self._resumed
        if captured.packet_id in resumed:
            return True
        if publish.dup:
            return captured is last or captured.acknowledged
        return captured is last and self._has_resumed_other(publish)

    def _has_resumed_other(self, publish: Publish) -> bool:
        """Whether the broker went on with another copy of it, which was not kept."""
        if self._last_before is None:  # then it is one that the journal does not know
            return not self._resumed <= {each.packet_id for each in self._former.captured.values()}
        others = (self._others[each] for each in self._resumed if each in self._others)
        return content_of(publish) in others
