"""The journal of publications that other nodes sent, until the broker has them.

Each publication has an index, from which its packet id follows; its InboxRecord holds it whole.
After a restart the journal restores the entries that are not completed, which of them the broker
accepted, the position reached per origin, and the last gaps. A corrupt journal is renamed and a new
one started, with an alarm.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from hansa.errors import JournalDamaged
from hansa.journal.records import (
    GapRecord,
    InboxRecord,
    InjectionAcceptedRecord,
    InjectionCompletedRecord,
    JournalRecord,
    OriginProgressRecord,
    seconds_since,
)
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.mqtt.properties import Property, encode_properties, with_reduced_expiry
from hansa.protocol.model import NodeId, Publication

PUBLISH_PACKET_IDS = 64_999
"""Packet ids 1 up to this are for publications, those above for subscriptions."""

REDELIVERED_PROPERTY = encode_properties(((Property.USER_PROPERTY, ("hansa-redelivered", "1")),))
"""Added to the properties of a publication that the broker may have received before."""

GAPS_MAX = 64
"""Number of recent gaps that are kept."""

ENTRY_OVERHEAD_BYTES = 200
"""Memory of an entry besides topic, payload and properties."""


@dataclass(slots=True, eq=False)
class InboxEntry:
    """A publication that the broker may not have."""

    record: InboxRecord
    offset: int
    """Offset of its InboxRecord."""
    accepted_offset: int | None = None
    """Offset of its InjectionAcceptedRecord; once set, PUBLISH is not sent again."""
    was_sent: bool = False
    """Whether the broker may have received it."""
    is_recovered: bool = False
    """Whether it was restored from the journal and not sent since."""
    was_redelivered: bool = False
    """Whether the last PUBLISH had the DUP flag."""

    @property
    def packet_id(self) -> int:
        return _packet_id(self.record.index)

    @property
    def properties(self) -> bytes:
        """MQTT 5 properties, with the expiry reduced by the time in the inbox."""
        raw = self.record.properties
        return (
            with_reduced_expiry(raw, seconds_since(self.record.time_ns, time.time_ns()))
            if raw
            else raw
        )

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        record = self.record
        content = len(record.topic) + len(record.payload) + len(record.properties)
        return ENTRY_OVERHEAD_BYTES + content


class InboxJournal:
    """The entries that are not completed, in order, and their journal."""

    def __init__(self, path: Path, node: NodeId, epoch: int, settings: JournalSettings) -> None:
        """Open the journal, or create one."""
        self.entries: dict[int, InboxEntry] = {}
        self._packet_ids: set[int] = set()
        """Packet ids of all entries: a later entry must not get one of them."""
        self.total_bytes = 0
        self.accepted: dict[NodeId, tuple[int, int]] = {}
        self.gaps: deque[GapRecord] = deque(maxlen=GAPS_MAX)
        self.damage_text = ""
        """Corruption found in this journal or a previous one, for an alarm."""
        self.next_index = 1
        self.on_retained_done: Callable[[str], None] = lambda topic: None
        """Called with the topic of a retained publication that is completed or lost its retain
        flag."""
        try:
            self.writer = JournalWriter(path, node, epoch, settings)
            self.damage_text = self.writer.damage
            for record in self.writer.replay_last_segment():
                self._apply_record(record)
        except JournalDamaged as error:
            moved = path.with_name(f"{path.name}-damaged-{epoch}")
            self.damage_text = f"{error}; moved to {moved.name}, publications may be lost"
            # The broker may still use packet ids of lost entries: start at another one.
            self.next_index = 1 + epoch % PUBLISH_PACKET_IDS
            self.entries, self.total_bytes = {}, 0
            self._packet_ids.clear()
            self.accepted.clear()
            self.gaps.clear()
            path.rename(moved)
            self.writer = JournalWriter(path, node, epoch, settings)
        self.writer.carried_state = self._carried_state

    def _apply_record(self, record: JournalRecord) -> None:
        match record:
            case OriginProgressRecord(origin, epoch, _, sequence):
                self._advance_accepted(origin, epoch, sequence)
            case InboxRecord(index, origin, epoch, sequence):
                self._advance_accepted(origin, epoch, sequence)
                self._add_entry(InboxEntry(record, -1, was_sent=True, is_recovered=True))
            case InjectionAcceptedRecord(index):
                if index in self.entries:
                    self.entries[index].accepted_offset = -1
            case InjectionCompletedRecord(index):
                self._remove_entry(index)
            case GapRecord():
                self._apply_gap(record)
            case _:
                return
        if not isinstance(record, OriginProgressRecord | GapRecord):
            self.next_index = max(self.next_index, record.index + 1)

    def _carried_state(self) -> Iterator[JournalRecord]:
        for origin, (epoch, sequence) in self.accepted.items():
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
            time.time_ns(),
        )
        entry = self._append_entry(record)
        self._advance_accepted(publication.origin, publication.epoch, publication.sequence)
        return entry

    def mark_redelivered(self, entry: InboxEntry) -> None:
        """Rewrite an entry with REDELIVERED_PROPERTY after a session loss: the broker may have
        delivered it. A retained value stays unmarked, because storing it twice makes no
        difference."""
        properties = entry.record.properties
        if not entry.record.retain:
            properties = properties.removesuffix(REDELIVERED_PROPERTY) + REDELIVERED_PROPERTY
        self._rewrite(entry, replace(entry.record, properties=properties))

    def clear_retain_flag(self, entry: InboxEntry) -> None:
        """Rewrite a retained entry without the flag: the broker has a newer value."""
        if entry.record.retain:
            self._rewrite(entry, replace(entry.record, retain=False))
            self.on_retained_done(entry.record.topic)

    def _rewrite(self, entry: InboxEntry, record: InboxRecord) -> None:
        """Replace an entry by one that the broker does not have. It keeps its index, so that
        recovery finds each publication once and in order, wherever a crash truncates the
        journal."""
        entry.offset = self.writer.append(record)
        self.total_bytes -= entry.size
        entry.record, entry.accepted_offset = record, None
        entry.was_sent = entry.is_recovered = False
        self.total_bytes += entry.size

    def skip_publication(self, publication: Publication) -> int:
        """Accept a publication that is not injected here; return the offset."""
        origin, epoch, sequence = publication.origin, publication.epoch, publication.sequence
        offset = self.writer.append(OriginProgressRecord(origin, epoch, 0, sequence))
        self._advance_accepted(origin, epoch, sequence)
        return offset

    def record_gap(self, origin: NodeId, epoch: int, first: int, last: int, reason: str) -> None:
        """Record lost publications of an origin, so that they are not requested again."""
        gap = GapRecord(origin, epoch, first, last, reason, time.time_ns())
        self.writer.append(gap)
        self._apply_gap(gap)

    def _apply_gap(self, gap: GapRecord) -> None:
        self.gaps.append(gap)
        self._advance_accepted(gap.origin, gap.epoch, gap.last)

    def mark_accepted(self, entry: InboxEntry) -> int:
        """Record PUBREC; PUBREL may be sent when the record at the returned offset is durable."""
        offset = self.writer.append(InjectionAcceptedRecord(entry.record.index))
        entry.accepted_offset = offset
        return offset

    def mark_completed(self, entry: InboxEntry) -> int:
        """Record PUBACK or PUBCOMP and remove the entry; return the offset."""
        offset = self.writer.append(InjectionCompletedRecord(entry.record.index))
        self._remove_entry(entry.record.index)
        return offset

    def _append_entry(self, record: InboxRecord) -> InboxEntry:
        entry = InboxEntry(record, self.writer.append(record))
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

    def _advance_accepted(self, origin: int, epoch: int, sequence: int) -> None:
        """Raise the position reached for an origin. Rewritten entries and requested retained
        values, whose sequence number is 0, change nothing."""
        if sequence:
            previous = self.accepted.get(NodeId(origin), (0, 0))
            self.accepted[NodeId(origin)] = max(previous, (epoch, sequence))


def _packet_id(index: int) -> int:
    return 1 + index % PUBLISH_PACKET_IDS


def gap_status(gap: GapRecord) -> dict[str, object]:
    """Return a gap as `/status` shows it."""
    return {
        "origin": f"{gap.origin:016x}",
        "epoch": gap.epoch,
        "first": gap.first,
        "last": gap.last,
        "reason": gap.reason,
        "time": datetime.fromtimestamp(gap.time_ns // 1_000_000_000, UTC).isoformat(),
    }
