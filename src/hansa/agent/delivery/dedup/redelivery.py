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

from hansa.journal.records import CapturedRecord, RedeliverableRecord
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import without_expiry
from hansa.mqtt.types import PACKET_IDS_MAX

RECENT_MAX = 8_192
"""Publications, and copies, that are remembered although they were acknowledged: the broker may not
have got that. More than can be under way; far less than it takes to use a packet id again."""

ALREADY_DURABLE = -1
"""The offset of what need not be waited for."""

PACKET_ID_HALF_RANGE = PACKET_IDS_MAX // 2
"""A broker that counts packet ids upwards cannot have come around to one by then."""

RISES_MIN = 100
"""Packet ids in order until a broker is trusted to count them upwards."""

SETBACKS_MAX = 2
"""Packet ids out of order until it is not trusted any more: one that gives out free ids anew."""


def content_digest(publish: PublishPacket | CapturedRecord) -> bytes:
    """Return 16 bytes that tell publications apart; one that waited at the broker is the same."""
    state = blake2b(publish.payload, digest_size=16)
    topic = publish.topic.encode()
    state.update(b"%d,%d,%d," % (publish.qos, publish.retain, len(topic)))
    state.update(topic)
    state.update(without_expiry(publish.properties))
    return state.digest()


@dataclass(slots=True)
class RedeliveryCandidate:
    """A captured publication that the broker may send again."""

    packet_id: int
    qos: int
    digest: bytes
    sequence: int
    """Its position. If that is of an epoch that has ended, its packet id, negative: it has to have
    a number of its own by which it is settled."""
    offset: int = ALREADY_DURABLE
    """Where it is in the journal."""
    last_connection: int = 0
    """On which connection it came last; 0 for one of a former life."""
    received_index: int = 0
    """How many came before it in this life."""
    is_acknowledged: bool = False
    subscription: int = 0
    """The identifier of the filter that brought it; 0 if that is unknown."""
    newest_subscription: int = 0
    """The last identifier that had been given then."""

    def to_record(self) -> RedeliverableRecord:
        """Return what the journal says of it."""
        return RedeliverableRecord(
            self.sequence,
            self.packet_id,
            self.qos,
            self.digest,
            self.subscription,
            self.newest_subscription,
        )


def candidate_from_record(
    record: CapturedRecord | RedeliverableRecord, content: bytes
) -> RedeliveryCandidate:
    """Return what the journal says of one that a former life captured."""
    sequence, packet_id, qos = record.sequence, record.packet_id, record.qos
    return RedeliveryCandidate(
        packet_id,
        qos,
        content,
        sequence,
        subscription=record.subscription,
        newest_subscription=record.newest_subscription,
    )


class PacketIdOrder:
    """How a broker numbers what it sends for the first time: upwards, all ids around, or whichever
    is free. Of the latter kind nothing can be known by its id for long."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._last = 0
        self._rises = 0
        self._setbacks = 0

    def observe(self, packet_id: int) -> bool:
        """Take the next one; return whether the broker, against its habit, has gone back."""
        if packet_id == self._last + 1:  # as nearly always
            self._last = packet_id
            self._rises += 1
            return False
        is_rise = (
            not self._last or 0 < (packet_id - self._last) % PACKET_IDS_MAX < PACKET_ID_HALF_RANGE
        )
        self._last = packet_id
        self._rises += is_rise
        self._setbacks += not is_rise
        return not is_rise and self._rises >= RISES_MIN and self.is_ascending

    @property
    def is_ascending(self) -> bool:
        """Whether an id comes again only when all others were used."""
        return self._setbacks <= SETBACKS_MAX

    def reset(self) -> None:
        """Another session begins."""
        self._last = 0


class RedeliveryFilter:
    """The memory of one life, with what the journal tells of the former one."""

    def __init__(
        self, recovered: Iterable[RedeliveryCandidate], packet_id_order: PacketIdOrder
    ) -> None:
        """`found` is what a former life left to come again, `ids` how it saw packets numbered."""
        self._candidates = {seen.packet_id: seen for seen in recovered}
        """In the order of capture."""
        self._packet_id_order = packet_id_order
        self._connection = 0
        self._received_count = 0
        self._pruned_at = 0
        self._has_new_publication = False
        """Whether something has come on this connection for the first time, or nothing can come
        again: repeats come before it."""
        self.is_broker_state_older = False
        """Whether this connection's first new packet shows that the broker goes on from an earlier
        state."""

    def candidates(self) -> list[RedeliveryCandidate]:
        """Return the publications that may come again, as far as can be known, in the order of
        capture."""
        oldest, recent = (
            self._received_count - PACKET_ID_HALF_RANGE,
            self._received_count - RECENT_MAX,
        )
        return [
            seen
            for seen in self._candidates.values()
            if seen.qos > 1 or seen.received_index > (recent if seen.is_acknowledged else oldest)
        ]

    def on_connected(self, session_present: bool) -> None:
        """A connection begins; without the session of before nothing comes again."""
        self._connection += 1
        self._has_new_publication = not session_present
        if session_present:
            self._candidates = {seen.packet_id: seen for seen in self.candidates()}
        else:
            self._candidates.clear()
            self._packet_id_order.reset()

    def match_redelivery(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        """Count what comes; return what was captured before, if this is it again."""
        self._received_count += 1
        candidate = self._candidates.get(publish.packet_id)
        if candidate is not None and self._is_redelivery(publish, candidate):
            candidate.last_connection, candidate.received_index = (
                self._connection,
                self._received_count,
            )
            candidate.is_acknowledged = False
            return candidate
        if not publish.dup:
            self._on_new_publication(publish.packet_id)
        return None

    def _is_redelivery(self, publish: PublishPacket, candidate: RedeliveryCandidate) -> bool:
        """Whether what comes is what was captured under its packet id."""
        if candidate.last_connection == self._connection:
            return False  # on one connection nothing comes twice: the id is used again
        if publish.qos == 1:
            # Where free ids are used again at once, DUP may be another one's of the same content,
            # and nothing would tell: rather twice than never.
            is_possible = publish.dup and self._packet_id_order.is_ascending
        else:
            # An id of QoS 2 is in use until its handshake is over, so the broker need not say DUP;
            # but what follows something new was not under way before.
            is_possible = publish.dup or not self._has_new_publication
        return (
            is_possible
            and candidate.qos == publish.qos
            and candidate.digest == content_digest(publish)
        )

    def _on_new_publication(self, packet_id: int) -> None:
        has_gone_back = self._packet_id_order.observe(packet_id)
        if not self._has_new_publication:
            self._has_new_publication, self.is_broker_state_older = True, has_gone_back

    def add_captured(
        self, publish: PublishPacket, sequence: int, offset: int, subscriptions: tuple[int, int]
    ) -> RedeliveryCandidate:
        """It is captured; `by` names the subscription that brought it, and the newest one."""
        seen = RedeliveryCandidate(
            publish.packet_id,
            publish.qos,
            content_digest(publish),
            sequence,
            offset,
            self._connection,
            self._received_count,
            False,
            *subscriptions,
        )
        self._candidates.pop(publish.packet_id, None)
        self._candidates[publish.packet_id] = seen
        if self._received_count - self._pruned_at >= RECENT_MAX:
            self._pruned_at = self._received_count
            self._candidates = {each.packet_id: each for each in self.candidates()}
        return seen

    def on_pubrel(self, packet_id: int) -> RedeliveryCandidate | None:
        """The broker goes on with a handshake of QoS 2: what it belongs to does not come again."""
        return self._candidates.pop(packet_id, None)

    def reassign_sequences(self, new_sequences: Mapping[int, int]) -> list[int]:
        """Positions have changed, and all is durable; return those of what is not known here."""
        known = {
            seen.sequence: seen
            for seen in self._candidates.values()
            if seen.sequence in new_sequences
        }
        self._candidates = {seen.packet_id: seen for seen in known.values()}
        for position, seen in known.items():
            seen.sequence, seen.offset = new_sequences[position], ALREADY_DURABLE
        return [number for position, number in new_sequences.items() if position not in known]
