"""The journal of what other nodes owe this one: taken over, and on its way into the broker.

Each publication has an index, by which it gets its packet id; the record that binds it holds it
whole. After a restart the journal tells what was not completed, what the broker had accepted, up to
which position each origin's publications were taken, and which of them will never come.
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
"""Ids for publications: 1 up to this one. Those above it are for subscriptions."""

REDELIVERED_PROPERTY = encode_properties(((Property.USER_PROPERTY, ("hansa-redelivered", "1")),))
"""What is added to the properties of a publication that its broker may have had before."""

GAPS_MAX = 64
"""Gaps that are remembered, the last ones."""

ENTRY_OVERHEAD_BYTES = 200
"""What an entry costs in memory besides what it holds."""


@dataclass(slots=True, eq=False)
class InboxEntry:
    """A publication on its way into the broker."""

    record: InboxRecord
    offset: int
    """Where it is in the journal."""
    accepted_offset: int | None = None
    """Where the journal says that the broker has accepted it; then it is never published again."""
    was_sent: bool = False
    """Whether the broker may have seen it."""
    is_recovered: bool = False
    """Whether a former life left it, and since then nothing is known of it."""
    was_redelivered: bool = False
    """Whether the broker may have had it before it was last published."""

    @property
    def packet_id(self) -> int:
        """Its packet id, which follows from its index."""
        return _packet_id(self.record.index)

    @property
    def properties(self) -> bytes:
        """Its MQTT 5 properties, older by the time that it has waited here."""
        raw = self.record.properties
        return (
            with_reduced_expiry(raw, seconds_since(self.record.time_ns, time.time_ns()))
            if raw
            else raw
        )

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        bound = self.record
        return ENTRY_OVERHEAD_BYTES + len(bound.topic) + len(bound.payload) + len(bound.properties)


class InboxJournal:
    """What is not yet completed, in order, and its journal."""

    def __init__(self, path: Path, node: NodeId, epoch: int, settings: JournalSettings) -> None:
        """Open the journal, or make one."""
        self.entries: dict[int, InboxEntry] = {}
        self._packet_ids: set[int] = set()
        """Theirs: one that waits for long must not share its own with a later one."""
        self.total_bytes = 0
        self.accepted: dict[NodeId, tuple[int, int]] = {}
        self.gaps: deque[GapRecord] = deque(maxlen=GAPS_MAX)
        """What was owed here and will never come."""
        self.damage_text = ""
        """What of this journal, or of a former one, is lost."""
        self.next_index = 1
        """The place of the next one."""
        self.on_retained_done: Callable[[str], None] = lambda topic: None
        """Called with the topic of a retained publication that is completed, or is not to be stored
        any more."""
        try:
            self.writer = JournalWriter(path, node, epoch, settings)
            self.damage_text = self.writer.damage
            for record in self.writer.replay_last_segment():
                self._apply_record(record)
        except JournalDamaged as error:
            aside = path.with_name(f"{path.name}-damaged-{epoch}")
            self.damage_text = f"{error}; it is set aside as {aside.name}, publications may be lost"
            # The broker may still hold packet ids of the lost ones, and would take the first of
            # ours for them.
            self.next_index = 1 + epoch % PUBLISH_PACKET_IDS
            self.entries, self.total_bytes = {}, 0
            self._packet_ids.clear()
            self.accepted.clear()
            self.gaps.clear()
            path.rename(aside)
            self.writer = JournalWriter(path, node, epoch, settings)
        self.writer.carried_state = self._carried_state

    def _apply_record(self, record: JournalRecord) -> None:
        match record:
            case OriginProgressRecord(origin, epoch, _, number):
                self._advance_accepted(origin, epoch, number)
            case InboxRecord(index, origin, epoch, number):
                self._advance_accepted(origin, epoch, number)
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
        for origin, (epoch, number) in self.accepted.items():
            yield OriginProgressRecord(origin, epoch, 0, number)
        yield from self.gaps
        yield InjectionCompletedRecord(self.next_index - 1)
        for entry in self.entries.values():
            yield entry.record
            if entry.accepted_offset is not None:
                yield InjectionAcceptedRecord(entry.record.index)

    def index_after(self, count: int) -> int:
        """Return the place of the next one after so many more, at most: those whose packet ids are
        in use are passed over."""
        return self.next_index + (count + len(self._packet_ids) if count else 0)

    # ------------------------------------------------------------ writing

    def add(self, publication: Publication) -> InboxEntry:
        """Take a publication over; it may be published when this is durable. There has to be room:
        fewer entries than packet ids."""
        while _packet_id(self.next_index) in self._packet_ids:
            self.next_index += 1
        bound = InboxRecord(
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
        entry = self._append_entry(bound)
        self._advance_accepted(publication.origin, publication.epoch, publication.sequence)
        return entry

    def mark_redelivered(self, entry: InboxEntry) -> None:
        """The broker has forgotten what it was told of a publication, and may have passed it on:
        mark it. A value that the broker stores is not marked, it is the same."""
        properties = entry.record.properties
        if not entry.record.retain:
            properties = properties.removesuffix(REDELIVERED_PROPERTY) + REDELIVERED_PROPERTY
        self._rewrite(entry, replace(entry.record, properties=properties))

    def clear_retain_flag(self, entry: InboxEntry) -> None:
        """Let a retained value be one that is not to be stored: the broker has a newer one."""
        if entry.record.retain:
            self._rewrite(entry, replace(entry.record, retain=False))
            self.on_retained_done(entry.record.topic)

    def _rewrite(self, entry: InboxEntry, bound: InboxRecord) -> None:
        """Write a publication anew, as one that the broker does not have. It keeps its index, so
        that each record stands for itself: wherever a crash cuts them off, the next life finds
        every publication once and in its place."""
        entry.offset = self.writer.append(bound)
        self.total_bytes -= entry.size
        entry.record, entry.accepted_offset, entry.was_sent, entry.is_recovered = (
            bound,
            None,
            False,
            False,
        )
        self.total_bytes += entry.size

    def skip_publication(self, publication: Publication) -> int:
        """Take a publication over that must not be published here; return the offset."""
        origin, epoch, number = publication.origin, publication.epoch, publication.sequence
        offset = self.writer.append(OriginProgressRecord(origin, epoch, 0, number))
        self._advance_accepted(origin, epoch, number)
        return offset

    def record_gap(self, origin: NodeId, epoch: int, first: int, last: int, reason: str) -> None:
        """Write that some of an origin's publications will never come; the next life will not ask
        for them again."""
        gap = GapRecord(origin, epoch, first, last, reason, time.time_ns())
        self.writer.append(gap)
        self._apply_gap(gap)

    def _apply_gap(self, gap: GapRecord) -> None:
        self.gaps.append(gap)
        self._advance_accepted(gap.origin, gap.epoch, gap.last)

    def mark_accepted(self, entry: InboxEntry) -> int:
        """The broker has a publication of QoS 2; it may be released when this is durable."""
        offset = self.writer.append(InjectionAcceptedRecord(entry.record.index))
        entry.accepted_offset = offset
        return offset

    def mark_completed(self, entry: InboxEntry) -> int:
        """The broker has a publication for good."""
        offset = self.writer.append(InjectionCompletedRecord(entry.record.index))
        self._remove_entry(entry.record.index)
        return offset

    def _append_entry(self, bound: InboxRecord) -> InboxEntry:
        entry = InboxEntry(bound, self.writer.append(bound))
        self.next_index += 1
        self._add_entry(entry)
        return entry

    def _add_entry(self, entry: InboxEntry) -> None:
        """One that is written anew stays in its place."""
        before = self.entries.get(entry.record.index)
        self.entries[entry.record.index] = entry
        self._packet_ids.add(entry.packet_id)
        self.total_bytes += entry.size - (before.size if before else 0)

    def _remove_entry(self, index: int) -> None:
        entry = self.entries.pop(index, None)
        if entry is not None:
            self._packet_ids.discard(entry.packet_id)
            self.total_bytes -= entry.size
            if entry.record.retain:
                self.on_retained_done(entry.record.topic)

    def _advance_accepted(self, origin: int, epoch: int, number: int) -> None:
        """Positions only grow; a publication that is bound again changes nothing, nor does a
        retained value, which has no position."""
        if not number:
            return
        before = self.accepted.get(NodeId(origin), (0, 0))
        self.accepted[NodeId(origin)] = max(before, (epoch, number))


def _packet_id(index: int) -> int:
    return 1 + index % PUBLISH_PACKET_IDS


def gap_status(gap: GapRecord) -> dict[str, object]:
    """Return what `/status` says of a gap."""
    return {
        "origin": f"{gap.origin:016x}",
        "epoch": gap.epoch,
        "first": gap.first,
        "last": gap.last,
        "reason": gap.reason,
        "time": datetime.fromtimestamp(gap.time_ns // 1_000_000_000, UTC).isoformat(),
    }
