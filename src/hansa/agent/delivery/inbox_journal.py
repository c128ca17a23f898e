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
from hansa.journal.records import Accepted, Bound, Completed, Gap, Progress, Record, waited_s
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import Writer
from hansa.mqtt.properties import Property, aged, encode
from hansa.protocol.model import NodeId, Publication

PUBLISH_IDS = 64_999
"""Ids for publications: 1 up to this one. Those above it are for subscriptions."""

REDELIVERED = encode(((Property.USER_PROPERTY, ("hansa-redelivered", "1")),))
"""What is added to the properties of a publication that its broker may have had before."""

GAPS_MAX = 64
"""Gaps that are remembered, the last ones."""

ENTRY_BYTES = 200
"""What an entry costs in memory besides what it holds."""


@dataclass(slots=True, eq=False)
class Entry:
    """A publication on its way into the broker."""

    bound: Bound
    offset: int
    """Where it is in the journal."""
    accepted_at: int | None = None
    """Where the journal says that the broker has accepted it; then it is never published again."""
    was_sent: bool = False
    """Whether the broker may have seen it."""
    was_found: bool = False
    """Whether a former life left it, and since then nothing is known of it."""
    was_repeated: bool = False
    """Whether the broker may have had it before it was last published."""

    @property
    def packet_id(self) -> int:
        """Its packet id, which follows from its index."""
        return _packet_id(self.bound.index)

    @property
    def properties(self) -> bytes:
        """Its MQTT 5 properties, older by the time that it has waited here."""
        raw = self.bound.properties
        return aged(raw, waited_s(self.bound.time_ns, time.time_ns())) if raw else raw

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        bound = self.bound
        return ENTRY_BYTES + len(bound.topic) + len(bound.payload) + len(bound.properties)


class Backlog:
    """What is not yet completed, in order, and its journal."""

    def __init__(self, path: Path, node: NodeId, epoch: int, settings: JournalSettings) -> None:
        """Open the journal, or make one."""
        self.entries: dict[int, Entry] = {}
        self._packet_ids: set[int] = set()
        """Theirs: one that waits for long must not share its own with a later one."""
        self.bytes = 0
        self.taken: dict[NodeId, tuple[int, int]] = {}
        self.gaps: deque[Gap] = deque(maxlen=GAPS_MAX)
        """What was owed here and will never come."""
        self.damage = ""
        """What of this journal, or of a former one, is lost."""
        self.next_index = 1
        """The place of the next one."""
        self.retained_left: Callable[[str], None] = lambda topic: None
        """Called with the topic of a retained publication that is completed, or is not to be stored
        any more."""
        try:
            self.writer = Writer(path, node, epoch, settings)
            self.damage = self.writer.damage
            for record in self.writer.replay():
                self._recover(record)
        except JournalDamaged as error:
            aside = path.with_name(f"{path.name}-damaged-{epoch}")
            self.damage = f"{error}; it is set aside as {aside.name}, publications may be lost"
            # The broker may still hold packet ids of the lost ones, and would take the first of
            # ours for them.
            self.next_index = 1 + epoch % PUBLISH_IDS
            self.entries, self.bytes = {}, 0
            self._packet_ids.clear()
            self.taken.clear()
            self.gaps.clear()
            path.rename(aside)
            self.writer = Writer(path, node, epoch, settings)
        self.writer.carry = self._carry

    def _recover(self, record: Record) -> None:
        match record:
            case Progress(origin, epoch, _, number):
                self._take(origin, epoch, number)
            case Bound(index, origin, epoch, number):
                self._take(origin, epoch, number)
                self._add(Entry(record, -1, was_sent=True, was_found=True))
            case Accepted(index):
                if index in self.entries:
                    self.entries[index].accepted_at = -1
            case Completed(index):
                self._remove(index)
            case Gap():
                self._note_gap(record)
            case _:
                return
        if not isinstance(record, Progress | Gap):
            self.next_index = max(self.next_index, record.index + 1)

    def _carry(self) -> Iterator[Record]:
        for origin, (epoch, number) in self.taken.items():
            yield Progress(origin, epoch, 0, number)
        yield from self.gaps
        yield Completed(self.next_index - 1)
        for entry in self.entries.values():
            yield entry.bound
            if entry.accepted_at is not None:
                yield Accepted(entry.bound.index)

    def index_after(self, count: int) -> int:
        """Return the place of the next one after so many more, at most: those whose packet ids are
        in use are passed over."""
        return self.next_index + (count + len(self._packet_ids) if count else 0)

    # ------------------------------------------------------------ writing

    def bind(self, publication: Publication) -> Entry:
        """Take a publication over; it may be published when this is durable. There has to be room:
        fewer entries than packet ids."""
        while _packet_id(self.next_index) in self._packet_ids:
            self.next_index += 1
        bound = Bound(
            self.next_index,
            publication.origin,
            publication.life,
            publication.number,
            publication.qos,
            publication.topic,
            publication.payload,
            publication.retain,
            publication.properties,
            time.time_ns(),
        )
        entry = self._write(bound)
        self._take(publication.origin, publication.life, publication.number)
        return entry

    def rebind(self, entry: Entry) -> None:
        """The broker has forgotten what it was told of a publication, and may have passed it on:
        mark it. A value that the broker stores is not marked, it is the same."""
        properties = entry.bound.properties
        if not entry.bound.retain:
            properties = properties.removesuffix(REDELIVERED) + REDELIVERED
        self._rewrite(entry, replace(entry.bound, properties=properties))

    def demote(self, entry: Entry) -> None:
        """Let a retained value be one that is not to be stored: the broker has a newer one."""
        if entry.bound.retain:
            self._rewrite(entry, replace(entry.bound, retain=False))
            self.retained_left(entry.bound.topic)

    def _rewrite(self, entry: Entry, bound: Bound) -> None:
        """Write a publication anew, as one that the broker does not have. It keeps its index, so
        that each record stands for itself: wherever a crash cuts them off, the next life finds
        every publication once and in its place."""
        entry.offset = self.writer.append(bound)
        self.bytes -= entry.size
        entry.bound, entry.accepted_at, entry.was_sent, entry.was_found = bound, None, False, False
        self.bytes += entry.size

    def skip(self, publication: Publication) -> int:
        """Take a publication over that must not be published here; return the offset."""
        origin, epoch, number = publication.origin, publication.life, publication.number
        offset = self.writer.append(Progress(origin, epoch, 0, number))
        self._take(origin, epoch, number)
        return offset

    def lose(self, origin: NodeId, epoch: int, first: int, last: int, reason: str) -> None:
        """Write that some of an origin's publications will never come; the next life will not ask
        for them again."""
        gap = Gap(origin, epoch, first, last, reason, time.time_ns())
        self.writer.append(gap)
        self._note_gap(gap)

    def _note_gap(self, gap: Gap) -> None:
        self.gaps.append(gap)
        self._take(gap.origin, gap.epoch, gap.last)

    def accept(self, entry: Entry) -> int:
        """The broker has a publication of QoS 2; it may be released when this is durable."""
        offset = self.writer.append(Accepted(entry.bound.index))
        entry.accepted_at = offset
        return offset

    def complete(self, entry: Entry) -> int:
        """The broker has a publication for good."""
        offset = self.writer.append(Completed(entry.bound.index))
        self._remove(entry.bound.index)
        return offset

    def _write(self, bound: Bound) -> Entry:
        entry = Entry(bound, self.writer.append(bound))
        self.next_index += 1
        self._add(entry)
        return entry

    def _add(self, entry: Entry) -> None:
        """One that is written anew stays in its place."""
        before = self.entries.get(entry.bound.index)
        self.entries[entry.bound.index] = entry
        self._packet_ids.add(entry.packet_id)
        self.bytes += entry.size - (before.size if before else 0)

    def _remove(self, index: int) -> None:
        entry = self.entries.pop(index, None)
        if entry is not None:
            self._packet_ids.discard(entry.packet_id)
            self.bytes -= entry.size
            if entry.bound.retain:
                self.retained_left(entry.bound.topic)

    def _take(self, origin: int, epoch: int, number: int) -> None:
        """Positions only grow; a publication that is bound again changes nothing, nor does a
        retained value, which has no position."""
        if not number:
            return
        before = self.taken.get(NodeId(origin), (0, 0))
        self.taken[NodeId(origin)] = max(before, (epoch, number))


def _packet_id(index: int) -> int:
    return 1 + index % PUBLISH_IDS


def gap_page(gap: Gap) -> dict[str, object]:
    """Return what `/status` says of a gap."""
    return {
        "origin": f"{gap.origin:016x}",
        "epoch": gap.epoch,
        "first": gap.first,
        "last": gap.last,
        "reason": gap.reason,
        "time": datetime.fromtimestamp(gap.time_ns // 1_000_000_000, UTC).isoformat(),
    }
