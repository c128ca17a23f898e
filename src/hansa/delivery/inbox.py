"""The state of the inbox log: publications that other nodes sent, until the broker has them.

Each publication has an index, from which its packet id follows; its InboxRecord holds it whole.
After a restart the log restores the entries that are not completed, which of them the broker
accepted, the position reached per origin, and the last gaps.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from hansa.delivery.log import RecordLog
from hansa.journal.records import (
    GapRecord,
    InboxRecord,
    InjectionAcceptedRecord,
    InjectionCompletedRecord,
    JournalRecord,
    OriginProgressRecord,
    seconds_since,
)
from hansa.mqtt.properties import Property, encode_properties, with_reduced_expiry
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import NODES_MAX

PUBLISH_PACKET_IDS = 64_999
"""Packet ids 1 up to this are for publications, those above for subscriptions."""

REDELIVERED_PROPERTY = encode_properties(((Property.USER_PROPERTY, ("hansa-redelivered", "1")),))
"""Added to the properties of a publication that the broker may have received before."""

GAPS_MAX = 64
"""Number of recent gaps that are kept."""

ORIGINS_MAX = 2 * NODES_MAX
"""Origins whose positions are kept: more than a node can know at a time. Of an origin that is
dropped, this node has acknowledged everything long ago."""

ENTRY_OVERHEAD_BYTES = 200
"""Memory of an entry besides topic, payload and properties."""


@dataclass(slots=True, eq=False)
class InboxEntry:
    """A publication that the broker may not have."""

    record: InboxRecord
    offset: int
    """Offset of its InboxRecord."""
    accepted_offset: int | None = None
    """Offset of its InjectionAcceptedRecord; once set, PUBLISH is not sent again in this
    broker session."""
    was_sent: bool = False
    """Whether the broker may have received it."""
    is_recovered: bool = False
    """Whether it was restored from the journal and not sent since."""
    was_redelivered: bool = False
    """Whether the last PUBLISH had the DUP flag."""
    was_sent_retained: bool = False
    """Whether it lost the retain flag after it was sent with it. At QoS 2 the broker may still
    store the value when the handshake ends."""
    is_released: bool = False
    """Whether PUBREL was sent on this connection."""
    is_echo_expected: bool = False
    """Whether its echo is accounted for in this broker session; MQTT 3.1.1 only (`dedup.echo`)."""

    @property
    def packet_id(self) -> int:
        return _packet_id(self.record.index)

    def properties(self, wall_ns: int) -> bytes:
        """Return the MQTT 5 properties, with the expiry reduced by the time in the inbox."""
        raw = self.record.properties
        elapsed_s = seconds_since(self.record.time_ns, wall_ns) if raw else 0
        return with_reduced_expiry(raw, elapsed_s) if raw else raw

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        record = self.record
        content = len(record.topic) + len(record.payload) + len(record.properties)
        return ENTRY_OVERHEAD_BYTES + content


class InboxLog:
    """The entries that are not completed, in order, and their log."""

    def __init__(
        self,
        log: RecordLog,
        recovered: Iterable[JournalRecord],
        wall_ns: Callable[[], int],
        first_index: int = 1,
    ) -> None:
        """`recovered` are the records of the last segment. `first_index` is greater than 1 if an
        earlier log was lost: the broker may still use packet ids of its entries."""
        self._wall_ns = wall_ns
        self.log = log
        self.entries: dict[int, InboxEntry] = {}
        self._packet_ids: set[int] = set()
        """Packet ids of all entries: a later entry must not get one of them."""
        self.total_bytes = 0
        self.origin_progress: OrderedDict[NodeId, tuple[int, int]] = OrderedDict()
        """Epoch and position reached, by origin; the one that advanced last is the last."""
        self.gaps: deque[GapRecord] = deque(maxlen=GAPS_MAX)
        self.next_index = first_index
        self.on_retained_done: Callable[[str], None] = lambda topic: None
        """Called with the topic of a retained publication that is completed or lost its retain
        flag."""
        for record in recovered:
            self._apply_record(record)
        log.carried_state = self._carried_state

    def _apply_record(self, record: JournalRecord) -> None:
        match record:
            case OriginProgressRecord(origin, epoch, _, sequence):
                self._advance_progress(origin, epoch, sequence)
            case InboxRecord(index, origin, epoch, sequence):
                self._advance_progress(origin, epoch, sequence)
                self._add_entry(InboxEntry(record, -1, was_sent=True, is_recovered=True))
            case InjectionAcceptedRecord(index):
                self._apply_acceptance(index)
            case InjectionCompletedRecord(index):
                self._remove_entry(index)
            case GapRecord():
                self._apply_gap(record)
            case _:
                return
        if not isinstance(record, OriginProgressRecord | GapRecord):
            self.next_index = max(self.next_index, record.index + 1)

    def _apply_acceptance(self, index: int) -> None:
        if index in self.entries:
            self.entries[index].accepted_offset = -1

    def _carried_state(self) -> Iterator[JournalRecord]:
        for origin, (epoch, sequence) in self.origin_progress.items():
            yield OriginProgressRecord(origin, epoch, 0, sequence)
        yield from self.gaps
        yield InjectionCompletedRecord(self.next_index - 1)
        for entry in self.entries.values():
            yield entry.record
            if entry.accepted_offset is not None:
                yield InjectionAcceptedRecord(entry.record.index)

    def index_after(self, count: int) -> int:
        """Return an upper bound of the next index after `count` more entries. Indexes whose packet
        ids are in use are skipped."""
        return self.next_index + (count + len(self._packet_ids) if count else 0)

    # ------------------------------------------------------------ changes

    def add(self, publication: Publication) -> InboxEntry:
        """Append a publication; it may be sent to the broker when its record is durable. The caller
        ensures that a packet id is free."""
        while _packet_id(self.next_index) in self._packet_ids:
            self.next_index += 1
        record = InboxRecord(
            self.next_index,
            publication.origin,
            publication.epoch,
            publication.sequence,
            publication.qos,
            publication.topic,
            publication.payload,
            publication.retain,
            publication.properties,
            self._wall_ns(),
        )
        entry = self._append_entry(record)
        self._advance_progress(publication.origin, publication.epoch, publication.sequence)
        return entry

    def mark_redelivered(self, entry: InboxEntry) -> None:
        """Rewrite an entry with REDELIVERED_PROPERTY after a session loss: the broker may have
        delivered it. A retained value stays unmarked, because storing it twice makes no
        difference."""
        properties = entry.record.properties
        if not entry.record.retain:
            properties = properties.removesuffix(REDELIVERED_PROPERTY) + REDELIVERED_PROPERTY
        self._rewrite(entry, replace(entry.record, properties=properties))
        entry.accepted_offset = None
        entry.was_sent = entry.is_recovered = entry.was_sent_retained = False

    def clear_retain_flag(self, entry: InboxEntry) -> None:
        """Rewrite a retained entry without the flag: the broker has a newer value. The broker may
        have the entry, so it stays sent. An accepted entry changes in memory only: after a crash,
        its record must not come without the InjectionAcceptedRecord."""
        record = replace(entry.record, retain=False)
        entry.was_sent_retained = entry.was_sent
        if entry.accepted_offset is None:
            self._rewrite(entry, record)
        else:
            entry.record = record
        self.on_retained_done(record.topic)

    def _rewrite(self, entry: InboxEntry, record: InboxRecord) -> None:
        """Replace the record of an entry. It keeps its index, so that recovery finds each
        publication once and in order, wherever a crash truncates the journal."""
        entry.offset = self.log.append(record)
        self.total_bytes -= entry.size
        entry.record = record
        self.total_bytes += entry.size

    def skip_publication(self, publication: Publication) -> int:
        """Accept a publication that is not injected here; return the offset."""
        origin, epoch, sequence = publication.origin, publication.epoch, publication.sequence
        offset = self.log.append(OriginProgressRecord(origin, epoch, 0, sequence))
        self._advance_progress(origin, epoch, sequence)
        return offset

    def record_gap(self, origin: NodeId, epoch: int, first: int, last: int, reason: str) -> None:
        """Record lost publications of an origin, so that they are not requested again."""
        gap = GapRecord(origin, epoch, first, last, reason, self._wall_ns())
        self.log.append(gap)
        self._apply_gap(gap)

    def _apply_gap(self, gap: GapRecord) -> None:
        self.gaps.append(gap)
        self._advance_progress(gap.origin, gap.epoch, gap.last)

    def mark_pubrec_received(self, entry: InboxEntry) -> int:
        """Record PUBREC; PUBREL may be sent when the record at the returned offset is durable."""
        offset = self.log.append(InjectionAcceptedRecord(entry.record.index))
        entry.accepted_offset, entry.is_released = offset, False
        return offset

    def mark_completed(self, entry: InboxEntry) -> int:
        """Record PUBACK or PUBCOMP and remove the entry; return the offset."""
        offset = self.log.append(InjectionCompletedRecord(entry.record.index))
        self._remove_entry(entry.record.index)
        return offset

    def _append_entry(self, record: InboxRecord) -> InboxEntry:
        entry = InboxEntry(record, self.log.append(record))
        self.next_index += 1
        self._add_entry(entry)
        return entry

    def _add_entry(self, entry: InboxEntry) -> None:
        """Add an entry; a rewritten one keeps its place."""
        replaced = self.entries.get(entry.record.index)
        self.entries[entry.record.index] = entry
        self._packet_ids.add(entry.packet_id)
        self.total_bytes += entry.size - (replaced.size if replaced else 0)

    def _remove_entry(self, index: int) -> None:
        entry = self.entries.pop(index, None)
        if entry is not None:
            self._packet_ids.discard(entry.packet_id)
            self.total_bytes -= entry.size
            if entry.record.retain:
                self.on_retained_done(entry.record.topic)

    def _advance_progress(self, origin: int, epoch: int, sequence: int) -> None:
        """Raise the position reached for an origin. Rewritten entries and requested retained
        values, whose sequence number is 0, change nothing."""
        known, node = self.origin_progress, NodeId(origin)
        if sequence and (epoch, sequence) > known.get(node, (0, 0)):
            known[node] = epoch, sequence
            known.move_to_end(node)
            if len(known) > ORIGINS_MAX:
                known.popitem(last=False)


def _packet_id(index: int) -> int:
    return 1 + index % PUBLISH_PACKET_IDS
