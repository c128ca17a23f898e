"""What the broker may send again, because it did not get our answer.

A *repeat* is a publication that was captured and comes once more, under its packet id, on a later
connection: it is answered and not captured. What was acknowledged is remembered for a while, too,
as the answer may have got lost. Brokers use packet ids again, so there is more to it than the id:
the content, what the broker says (DUP), and how it numbers what it sends.

    PUBLISH 7 "x"        is captured; PUBACK 7, which gets lost
    (another connection)
    PUBLISH 7 "x" DUP    a repeat: PUBACK 7, and nothing else
    PUBLISH 7 "y" DUP    not it: the id was used again

Other copies of what was captured, which overlapping filters bring, are the business of `rests`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from hansa.journal.records import Captured, Unsettled
from hansa.mqtt.packets import Publish
from hansa.mqtt.properties import ageless
from hansa.mqtt.types import PACKET_IDS_MAX

RECENT = 8_192
"""Publications, and copies, that are remembered although they were acknowledged: the broker may not
have got that. More than can be under way; far less than it takes to use a packet id again."""

DURABLE = -1
"""The offset of what need not be waited for."""

AROUND = PACKET_IDS_MAX // 2
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
    """How a broker numbers what it sends for the first time: upwards, all ids around, or whichever
    is free. Of the latter kind nothing can be known by its id for long."""

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
        is_rise = not self._newest or 0 < (packet_id - self._newest) % PACKET_IDS_MAX < AROUND
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


class Repeats:
    """The memory of one life, with what the journal tells of the former one."""

    def __init__(self, found: Iterable[Seen], ids: PacketIds) -> None:
        """`found` is what a former life left to come again, `ids` how it saw packets numbered."""
        self._seen = {seen.packet_id: seen for seen in found}
        """In the order of capture."""
        self._ids = ids
        self._connection = 0
        self._receipts = 0
        self._cleaned = 0
        self._has_news = False
        """Whether something has come on this connection for the first time, or nothing can come
        again: repeats come before it."""
        self.has_gone_back = False
        """Whether this connection's first new packet shows that the broker goes on from an earlier
        state."""

    def remembered(self) -> list[Seen]:
        """Return the publications that may come again, as far as can be known, in the order of
        capture."""
        oldest, recent = self._receipts - AROUND, self._receipts - RECENT
        return [
            seen
            for seen in self._seen.values()
            if seen.qos > 1 or seen.receipt > (recent if seen.acknowledged else oldest)
        ]

    def connected(self, session_present: bool) -> None:
        """A connection begins; without the session of before nothing comes again."""
        self._connection += 1
        self._has_news = not session_present
        if session_present:
            self._seen = {seen.packet_id: seen for seen in self.remembered()}
        else:
            self._seen.clear()
            self._ids.start_over()

    def recognise(self, publish: Publish) -> Seen | None:
        """Count what comes; return what was captured before, if this is it again."""
        self._receipts += 1
        seen = self._seen.get(publish.packet_id)
        if seen is not None and self._is_repeat(publish, seen):
            seen.connection, seen.receipt = self._connection, self._receipts
            seen.acknowledged = False
            return seen
        if not publish.dup:
            self._note_news(publish.packet_id)
        return None

    def _is_repeat(self, publish: Publish, seen: Seen) -> bool:
        """Whether what comes is what was captured under its packet id."""
        if seen.connection == self._connection:
            return False  # on one connection nothing comes twice: the id is used again
        if publish.qos == 1:
            # Where free ids are used again at once, DUP may be another one's of the same content,
            # and nothing would tell: rather twice than never.
            may_be = publish.dup and self._ids.are_in_order
        else:
            # An id of QoS 2 is in use until its handshake is over, so the broker need not say DUP;
            # but what follows something new was not under way before.
            may_be = publish.dup or not self._has_news
        return may_be and seen.qos == publish.qos and seen.digest == digest(publish)

    def _note_news(self, packet_id: int) -> None:
        has_gone_back = self._ids.note(packet_id)
        if not self._has_news:
            self._has_news, self.has_gone_back = True, has_gone_back

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
        self._seen[publish.packet_id] = seen
        if self._receipts - self._cleaned >= RECENT:
            self._cleaned = self._receipts
            self._seen = {each.packet_id: each for each in self.remembered()}
        return seen

    def release(self, packet_id: int) -> Seen | None:
        """The broker goes on with a handshake of QoS 2: what it belongs to does not come again."""
        return self._seen.pop(packet_id, None)

    def renumber(self, numbers: Mapping[int, int]) -> list[int]:
        """Positions have changed, and all is durable; return those of what is not known here."""
        known = {seen.number: seen for seen in self._seen.values() if seen.number in numbers}
        self._seen = {seen.packet_id: seen for seen in known.values()}
        for position, seen in known.items():
            seen.number, seen.offset = numbers[position], DURABLE
        return [number for position, number in numbers.items() if position not in known]
