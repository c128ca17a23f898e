"""Recognises redeliveries: publications that the broker sends again under the same packet id,
because it did not get our acknowledgement. They are acknowledged and not captured again.

Acknowledged publications stay candidates for a while, as the acknowledgement may have been lost. A
candidate matches by packet id, content, DUP flag and the order of packet ids; see `dedup`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from hansa.journal.records import CapturedRecord, RedeliverableRecord
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.properties import without_expiry
from hansa.mqtt.types import PACKET_IDS_MAX

RECENT_MAX = 8_192
"""Acknowledged publications, and overlap copies, that are remembered in case the acknowledgement
was lost: more than can be in flight, and far fewer than all packet ids."""

ALREADY_DURABLE = -1
"""Journal offset of a record that was durable before this incarnation or epoch."""

PACKET_ID_HALF_RANGE = PACKET_IDS_MAX // 2
"""A broker with ascending packet ids cannot reuse one within this many publications."""

RISES_MIN = 100
"""Ascending packet ids before a step back counts as a broker rollback."""

SETBACKS_MAX = 2
"""Steps back after which the broker is known to reuse free packet ids at once."""


def content_digest(publish: PublishPacket | CapturedRecord) -> bytes:
    """Return a digest of topic, payload, QoS, retain flag and properties without the expiry, which
    shrinks while a publication waits at the broker."""
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
    """Sequence number in the journal; the negated packet id if it belongs to an ended epoch, so
    that `CaptureCompletedRecord` can still refer to it."""
    offset: int = ALREADY_DURABLE
    """Offset of its record in the journal."""
    last_connection: int = 0
    """Number of the connection on which it last arrived; 0 for a previous incarnation."""
    received_index: int = 0
    """Count of received publications when it last arrived; at a previous incarnation, the least
    that its records show (`history`)."""
    is_acknowledged: bool = False
    subscription: int = 0
    """Identifier of the subscription that matched; 0 if unknown."""
    newest_subscription: int = 0
    """Newest subscription identifier that the broker had confirmed when it arrived."""

    def to_record(self) -> RedeliverableRecord:
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
    """Return the candidate that a record of a previous incarnation describes."""
    return RedeliveryCandidate(
        record.packet_id,
        record.qos,
        content,
        record.sequence,
        subscription=record.subscription,
        newest_subscription=record.newest_subscription,
    )


def remember_completed(
    completed: OrderedDict[int, RedeliveryCandidate], candidate: RedeliveryCandidate
) -> None:
    """Store a publication by its packet id; drop the oldest one beyond RECENT_MAX."""
    completed[candidate.packet_id] = candidate
    if len(completed) > RECENT_MAX:
        completed.popitem(last=False)


class PacketIdOrder:
    """Whether a broker assigns packet ids in ascending order or reuses free ones at once. In the
    second case a packet id says little about which publication it belongs to."""

    def __init__(self) -> None:
        self._last = 0
        self._rises = 0
        self._setbacks = 0

    def observe(self, packet_id: int) -> bool:
        """Note the packet id of a new publication. Return whether the order of an otherwise
        ascending broker stepped back, which means that the broker restored an older state."""
        if packet_id == self._last + 1:  # fast path
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
        """Whether the broker reuses a packet id only after all others."""
        return self._setbacks <= SETBACKS_MAX

    def reset(self) -> None:
        """Start a new session."""
        self._last = 0


class RedeliveryFilter:
    """Candidates for redelivery: those of this incarnation and those recovered from the journal."""

    def __init__(
        self,
        recovered: Iterable[RedeliveryCandidate],
        packet_id_order: PacketIdOrder,
        completed: Mapping[int, RedeliveryCandidate],
        received_count: int = 0,
    ) -> None:
        """`received_count` continues the count of the previous incarnation."""
        self._candidates = {candidate.packet_id: candidate for candidate in recovered}
        """In the order of capture."""
        self._completed: OrderedDict[int, RedeliveryCandidate] = OrderedDict(completed)
        """Publications of QoS 2 whose PUBREL arrived, by packet id. A Mosquitto that restarts can
        forget that it sent PUBREL, and sends PUBLISH again."""
        self._packet_id_order = packet_id_order
        self._connection = 0
        self._received_count = self._pruned_at = received_count
        self._has_new_publication = False
        """Whether redeliveries have ended on this connection: a new publication has arrived, or the
        broker had no session."""
        self.is_broker_state_older = False
        """Whether the first new packet id of this connection shows that the broker restored an
        older state."""

    def candidates(self) -> list[RedeliveryCandidate]:
        """Return the publications that the broker may redeliver, in the order of capture."""
        oldest = self._received_count - PACKET_ID_HALF_RANGE
        recent = self._received_count - RECENT_MAX
        return [
            candidate
            for candidate in self._candidates.values()
            if candidate.qos > 1
            or candidate.received_index > (recent if candidate.is_acknowledged else oldest)
        ]

    def on_connected(self, session_present: bool) -> None:
        """Start a connection. Without a session the broker redelivers nothing."""
        self._connection += 1
        self._has_new_publication = not session_present
        if session_present:
            self._candidates = {candidate.packet_id: candidate for candidate in self.candidates()}
        else:
            self._candidates.clear()
            self._completed.clear()
            self._packet_id_order.reset()

    def match_redelivery(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        """Count a publication and return the candidate that it redelivers, None if it is new."""
        self._received_count += 1
        candidate = self.find_redelivered(publish)
        if candidate is not None:
            candidate.last_connection = self._connection
            candidate.received_index = self._received_count
            candidate.is_acknowledged = False
            return candidate
        if not publish.dup:
            self._on_new_publication(publish.packet_id)
        return None

    def find_redelivered(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        """Return the candidate that a publication redelivers, None if it is new."""
        candidate = self._candidates.get(publish.packet_id) or self._find_completed(publish)
        is_known = candidate is not None and self._is_redelivery(publish, candidate)
        return candidate if is_known else None

    def _find_completed(self, publish: PublishPacket) -> RedeliveryCandidate | None:
        """Return the completed publication that the broker may send again. If it reuses free packet
        ids at once, this may be another publication with equal content, so there is none."""
        completed = self._completed.get(publish.packet_id)
        if completed is None or not publish.dup or not self._packet_id_order.is_ascending:
            return None
        is_recent = self._received_count - completed.received_index < PACKET_ID_HALF_RANGE
        return completed if is_recent else None

    def _is_redelivery(self, publish: PublishPacket, candidate: RedeliveryCandidate) -> bool:
        if candidate.last_connection == self._connection:
            return False  # brokers redeliver only after a reconnect: the packet id was reused
        if publish.qos == 1:
            # If the broker reuses free packet ids at once, this may be another publication with
            # equal content. A duplicate is allowed at QoS 1, a loss is not.
            is_possible = publish.dup and self._packet_id_order.is_ascending
        else:
            # A QoS 2 packet id is not reused before its handshake ends, so DUP is not required; but
            # redeliveries precede new publications.
            is_possible = publish.dup or not self._has_new_publication
        return is_possible and candidate.digest == content_digest(publish)  # it covers the QoS

    def _on_new_publication(self, packet_id: int) -> None:
        is_rollback = self._packet_id_order.observe(packet_id)
        if not self._has_new_publication:
            self._has_new_publication, self.is_broker_state_older = True, is_rollback

    def add_captured(
        self, publish: PublishPacket, sequence: int, offset: int, subscriptions: tuple[int, int]
    ) -> RedeliveryCandidate:
        """Add a captured publication; `subscriptions` are the identifiers of the subscription that
        matched and of the newest one."""
        candidate = RedeliveryCandidate(
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
        self._completed.pop(publish.packet_id, None)
        self._candidates[publish.packet_id] = candidate
        if self._received_count - self._pruned_at >= RECENT_MAX:
            self._pruned_at = self._received_count
            self._candidates = {each.packet_id: each for each in self.candidates()}
        return candidate

    def on_pubrel(self, packet_id: int) -> RedeliveryCandidate | None:
        """Return the candidate that PUBREL belongs to, the first time: a broker in order does not
        redeliver it any more."""
        candidate = self._candidates.pop(packet_id, None)
        if candidate is not None:
            remember_completed(self._completed, candidate)
        return candidate

    def reassign_sequences(self, new_sequences: Mapping[int, int]) -> list[int]:
        """Replace sequence numbers after an epoch rollover, which made all candidates durable.
        Return the new numbers that belong to no candidate."""
        known = {
            candidate.sequence: candidate
            for candidate in self._candidates.values()
            if candidate.sequence in new_sequences
        }
        self._candidates = {candidate.packet_id: candidate for candidate in known.values()}
        for old, candidate in known.items():
            candidate.sequence, candidate.offset = new_sequences[old], ALREADY_DURABLE
        for completed in self._completed.values():
            completed.offset = ALREADY_DURABLE
        return [new for old, new in new_sequences.items() if old not in known]
