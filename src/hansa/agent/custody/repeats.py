"""What the broker may send again, because it did not get our answer.

A captured publication is known again by its packet id and content. So is another copy of it, from a
filter that overlaps, which was acknowledged and not kept. Of such copies one more can be a rest:
answers reach the broker in order, so of what it sends on a new connection only the first can belong
to a publication whose other copy it knows to be captured. It had sent that one before; or not yet,
for want of room beside handshakes of QoS 2, with which it goes on first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from hansa.journal.records import Captured, Unsettled
from hansa.mqtt.packets import Publish
from hansa.mqtt.properties import ageless

RECENT = 8_192
"""Publications, and copies, that are remembered although they were acknowledged: the broker may not
have got that. More than can be under way; far less than it takes to use a packet id again."""

DURABLE = -1
"""The offset of what need not be waited for."""

AROUND = 32_768
"""Half of all packet ids. A broker that counts them upwards cannot have come around to one by then,
and what it sends again it sends first."""


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

    def unsettled(self) -> Unsettled:
        """Return what the journal says of it."""
        return Unsettled(self.number, self.packet_id, self.qos, self.digest)


class Repeats:
    """The memory of one life, with what the journal tells of the former one."""

    def __init__(self, found: Iterable[Seen], former: dict[bytes, int]) -> None:
        """`found` is what a former life left; `former` names the last that it captured, in order,
        by content: their packet ids."""
        self._seen = {seen.packet_id: seen for seen in found}
        self._others: dict[int, tuple[bytes, int]] = {}
        """Copies that were not kept because others were, by packet id: content and receipt."""
        self._former = former
        self._last: Seen | None = None
        self._last_before: Seen | None = None
        """The last that was captured before this connection, if that was in this life."""
        self._resumed: set[int] = set()
        """Handshakes of QoS 2 with which the broker went on before it sent anything."""
        self._connection = 0
        self._receipts = 0
        self._began = 0
        self._has_begun = False

    def remembered(self) -> list[Seen]:
        """Return the publications that may come again, as far as can be known."""
        oldest = self._receipts - RECENT
        return [
            seen
            for seen in self._seen.values()
            if seen.qos > 1 or not seen.acknowledged or seen.receipt > oldest
        ]

    def connected(self, session_present: bool) -> list[Seen]:
        """A connection begins; return what can no longer come again."""
        self._connection += 1
        self._began, self._has_begun = self._receipts, False
        self._last_before = self._last
        self._resumed.clear()
        if session_present:
            self._seen = {seen.packet_id: seen for seen in self.remembered()}
            return []
        gone = list(self._seen.values())
        self._seen.clear()
        self._others.clear()
        self._former, self._last_before = {}, None
        return gone

    def recognise(self, publish: Publish) -> Seen | None:
        """Count what comes; return what was captured before, if this is it again. At QoS 1 the
        broker has to say so, for it uses packet ids again without a word: rather twice than
        never."""
        self._has_begun = True
        self._receipts += 1
        if self._receipts - self._began >= AROUND:
            self._forget_former()
        seen = self._seen.get(publish.packet_id)
        if (
            seen is None
            or seen.connection == self._connection
            or seen.qos != publish.qos
            or (publish.qos == 1 and not publish.dup)
            or seen.digest != digest(publish)
        ):
            return None
        seen.connection, seen.receipt = self._connection, self._receipts
        seen.acknowledged = False
        return seen

    def _forget_former(self) -> None:
        """What a former connection brought and this one did not bring again was acknowledged."""
        self._began = self._receipts
        self._seen = {
            packet_id: seen
            for packet_id, seen in self._seen.items()
            if seen.qos > 1 or seen.connection == self._connection
        }

    def keep(self, publish: Publish, number: int, offset: int) -> Seen:
        """It is captured."""
        packet_id, receipt = publish.packet_id, self._receipts
        content, connection = digest(publish), self._connection
        seen = Seen(packet_id, publish.qos, content, number, offset, connection, receipt)
        self._seen[packet_id] = self._last = seen
        self._former = {}
        return seen

    def release(self, packet_id: int) -> Seen | None:
        """The broker goes on with a handshake of QoS 2: what it belongs to does not come again."""
        return self._seen.pop(packet_id, None)

    def resume(self, packet_ids: Iterable[int]) -> None:
        """The broker goes on with these handshakes, maybe from before this connection."""
        if not self._has_begun:
            self._resumed.update(packet_ids)

    def renumber(self, numbers: Mapping[int, int]) -> list[int]:
        """Positions have changed, and all is durable; return those of what is not known here."""
        known = {seen.number: seen for seen in self._seen.values() if seen.number in numbers}
        self._seen = {seen.packet_id: seen for seen in known.values()}
        for position, seen in known.items():
            seen.number, seen.offset = numbers[position], DURABLE
        return [number for position, number in numbers.items() if position not in known]

    # ------------------------------------------------------------ other copies

    def leave_out(self, publish: Publish) -> None:
        """It is not kept, because another copy of it was."""
        self._others.pop(publish.packet_id, None)
        self._others[publish.packet_id] = (digest(publish), self._receipts)
        if len(self._others) > RECENT:
            del self._others[next(iter(self._others))]

    def was_left_out(self, publish: Publish) -> bool:
        """Whether it came before, and was not kept because another copy was."""
        if not publish.dup or publish.packet_id not in self._others:
            return False
        content, receipt = self._others[publish.packet_id]
        return receipt > self._receipts - RECENT and content == digest(publish)

    def is_rest(self, publish: Publish) -> bool:
        """Whether another copy of what comes first on this connection was captured before it. What
        a former life captured is captured again at QoS 1: rather twice than never."""
        content, last = digest(publish), self._last_before
        if last is not None:
            was_sent = publish.dup or last.packet_id in self._resumed
            return was_sent and content == last.digest
        if publish.qos == 1 or content not in self._former:
            return False
        return publish.dup or self._former[content] in self._resumed
