"""The replicated database: the records of all nodes, held by every node.

A change floods: it goes to every neighbour that is not known to have it. On a new link both sides
compare stamps and send the rows that the other lacks. Heartbeats carry a digest, so a missing row
is detected later as well. Rows of unreachable nodes stay until their lease ends.

In a federation with certificates a set counts only with its owner's signature over the digest of
the whole set (`authentication`). Every holder keeps the signature of the version that it holds, so
it can send the set to others, whole or in parts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hansa.protocol.membership.authentication import RecordAuthentication
from hansa.protocol.membership.changes import (
    FetchRequired,
    MergeResult,
    RecordChange,
    RecordForged,
    SetChange,
)
from hansa.protocol.membership.records import (
    KIND_OF,
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
    Row,
    SetRecord,
    Stamp,
)
from hansa.protocol.membership.rows import (
    encoded_bytes,
    estimate_bytes,
    fingerprint,
    split_names,
)
from hansa.protocol.membership.set_digest import SetDigest
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.frames import Summary, Update

PART_BYTES = 65_536
"""A set that is sent whole is split into records of about this size."""

UPDATE_BYTES = 262_144
"""An update frame is closed when it holds about this many bytes."""

_DIGEST_MASK = (1 << 64) - 1

ASSEMBLIES_MAX = 4
"""Neighbours from which parts of one set are collected at the same time; beyond
that, the oldest is dropped."""


@dataclass(slots=True)
class Assembly:
    """The parts of a set that have arrived from one neighbour. Parts of two neighbours are not
    mixed: one that sends false parts must not spoil those of another."""

    stamp: Stamp
    parts: dict[int, tuple[str, ...]] = field(default_factory=dict)
    arrived: int = 0
    """Number of names in these parts."""


@dataclass(slots=True)
class NameSet:
    """The set of names of one node, with parts of a newer set that is still arriving."""

    digest: SetDigest
    names: dict[str, None] = field(default_factory=dict)
    signature: bytes = b""
    """Of the owner, over the digest at the stamp of the row."""
    incoming: dict[LinkId | None, Assembly] = field(default_factory=dict)

    @property
    def arrived(self) -> int:
        return sum(assembly.arrived for assembly in self.incoming.values())


@dataclass(slots=True)
class _QueuedRecord:
    """A record queued for the neighbours, and the links whose other side has it."""

    record: Record
    size: int
    """Estimated bytes in a frame."""
    known_by: list[LinkId]


class Database:
    """The rows of one node's database, and the queue of records for its neighbours."""

    __slots__ = ("_flood_queue", "authentication", "digest", "nodes", "sets", "stamps")

    def __init__(self, authentication: RecordAuthentication) -> None:
        self.authentication = authentication
        self.stamps: dict[Row, Stamp] = {}
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.sets: dict[RecordKind, dict[NodeId, NameSet]] = {
            RecordKind.INTEREST: {},
            RecordKind.CLAIMS: {},
        }
        self.digest = 0
        self._flood_queue: dict[Row | tuple[RecordKind, NodeId, int, int], _QueuedRecord] = {}

    # ------------------------------------------------------------ reading

    def stamp(self, kind: RecordKind, node: NodeId) -> Stamp:
        """Return the stamp of a row, (0, 0) if there is none."""
        return self.stamps.get((kind, node), (0, 0))

    def names(self, kind: RecordKind, node: NodeId) -> dict[str, None]:
        """Return a node's set of names; callers must not change it."""
        row = self.sets[kind].get(node)
        return row.names if row else {}

    def size_after(
        self, record: InterestRecord | ClaimsRecord, source: LinkId | None = None
    ) -> int:
        """Return an upper bound of the number of names in a set after this record."""
        row = self._set_of((KIND_OF[type(record)], record.node))
        if record.base < record.version:
            gone = sum(name in row.names for name in record.removed)
            return len(row.names) - gone + len(record.added)
        assembly = row.incoming.get(source)
        if assembly is None or assembly.stamp != (record.incarnation, record.version):
            return len(record.added)
        return assembly.arrived - len(assembly.parts.get(record.part, ())) + len(record.added)

    def size(self, kind: RecordKind, node: NodeId) -> int:
        """Return the number of names held for a row, including parts of a newer set."""
        row = self.sets[kind].get(node)
        return len(row.names) + row.arrived if row else 0

    def growth(self, record: InterestRecord | ClaimsRecord) -> int:
        """Return by how many names a set would grow with this record."""
        if record.parts > 1:
            return len(record.added)  # the old set stays until all parts have arrived
        return self.size_after(record) - len(self.names(KIND_OF[type(record)], record.node))

    def row_records(self, row: Row) -> list[Record]:
        """Return the records of a whole row; none if it is not here."""
        kind, node = row
        if row not in self.stamps:
            return []
        if kind is RecordKind.NODE:
            return [self.nodes[node]]
        incarnation, version = self.stamps[row]
        make = InterestRecord if kind is RecordKind.INTEREST else ClaimsRecord
        held = self.sets[kind][node]
        parts = split_names(held.names, PART_BYTES)
        return [
            make(node, incarnation, version, version, names, (), part, len(parts), held.signature)
            for part, names in enumerate(parts)
        ]

    def summary(self) -> Summary:
        """Return the stamps of all rows."""
        return Summary(tuple((kind, node, *stamp) for (kind, node), stamp in self.stamps.items()))

    def missing_from(self, summary: Summary) -> Iterator[list[Record]]:
        """Yield the rows that a neighbour with this summary lacks, each as its records. Claims come
        last: how many a node may have depends on the interest of all nodes."""
        theirs = {(kind, node): (inc, version) for kind, node, inc, version in summary.rows}
        rows = sorted(self.stamps.items(), key=lambda item: item[0][0] is RecordKind.CLAIMS)
        for row, stamp in rows:
            if theirs.get(row, (-1, 0)) < stamp:
                yield self.row_records(row)

    def is_behind(self, summary: Summary) -> bool:
        """Whether a neighbour with this summary has something newer."""
        return any(
            (incarnation, version) > self.stamps.get((kind, node), (-1, 0))
            for kind, node, incarnation, version in summary.rows
        )

    # ------------------------------------------------------------ writing

    def is_known(self, record: Record, source: LinkId | None) -> bool:
        """Whether a record is not newer than the row here; its sender then has it as well. Every
        record arrives over several links, so this is the most frequent call."""
        row = (KIND_OF[type(record)], record.node)
        if row[0] is RecordKind.CLAIMS and self._is_void(record):
            return True
        have = self.stamps.get(row)
        if have is None:
            return False
        stamp = (record.incarnation, record.version)
        if stamp > have or (stamp == have and self._is_of_earlier_start(record)):
            return False
        if source is not None and self._flood_queue:
            self._mark_known_by(row, record, source)
        return True

    def merge(self, record: Record, source: LinkId | None, flood: bool = True) -> MergeResult:
        """Store a record if it is newer; return what changed. The caller has checked the signature
        of a node record; that of a set is checked here, because it covers the result.

        It floods to all links but its source. Claims in announcements (`flood=False`) do not: the
        announcement spreads them.
        """
        return None if self.is_known(record, source) else self.merge_unknown(record, source, flood)

    def merge_unknown(
        self, record: Record, source: LinkId | None, flood: bool = True
    ) -> MergeResult:
        """Store a record that is not known; otherwise as `merge`."""
        row = (KIND_OF[type(record)], record.node)
        change: MergeResult
        if isinstance(record, NodeRecord):
            change = self._replace_node_record(row, record)
        else:
            change = self._merge_set(row, record, source)
        if change is None or isinstance(change, (FetchRequired, RecordForged)):
            return change
        self._restamp(row, (record.incarnation, record.version))
        if flood:
            self._enqueue_row(row, record)
            if source is not None:
                self._mark_known_by(row, record, source)
        return change

    def _is_void(self, claims: Record) -> bool:
        """Whether the node has restarted since it made these claims."""
        owner = self.nodes.get(claims.node)
        return owner is not None and claims.incarnation < owner.incarnation

    def _is_of_earlier_start(self, record: Record) -> bool:
        """Two copies of a node wrote the same stamp: all nodes keep the record of the copy that
        started first."""
        return (
            isinstance(record, NodeRecord)
            and record.first_incarnation < self.nodes[record.node].first_incarnation
        )

    def change_set(
        self, kind: RecordKind, node: NodeId, incarnation: int, change: tuple[list[str], list[str]]
    ) -> list[Record]:
        """Change this node's own set; return the records of the change, split to a fitting size."""
        make = InterestRecord if kind is RecordKind.INTEREST else ClaimsRecord
        added, removed = (split_names(names, PART_BYTES) for names in change)
        version = self.stamp(kind, node)[1]
        if kind is RecordKind.INTEREST and not version and len(added) > 1:
            # Send it whole: until all parts have arrived, others keep the set of the earlier
            # incarnation.
            names = dict.fromkeys(change[0])
            digest = self.authentication.empty_digest.changed(names, ())
            self.sets[kind][node] = NameSet(digest, names)
            return self.restamp_own_set(kind, node, incarnation)
        pieces: list[tuple[tuple[str, ...], tuple[str, ...]]] = [(added[0], removed[0])]
        if len(added) > 1 or len(removed) > 1:
            # Removals first, because others refuse a set that is too large.
            pieces = [((), part) for part in removed] + [(part, ()) for part in added]
        made: list[Record] = []
        for more, fewer in pieces:
            if not more and not fewer:
                continue
            digest = self._set_of((kind, node)).digest.changed(more, fewer)
            stamp = (incarnation, version + 1)
            signature = self.authentication.sign_set(kind, node, stamp, digest)
            record = make(node, *stamp, version, more, fewer, signature=signature)
            self.merge(record, None, flood=kind is RecordKind.INTEREST)
            made.append(record)
            version += 1
        return made

    def restamp_own_set(self, kind: RecordKind, node: NodeId, incarnation: int) -> list[Record]:
        """Give this node's own set a stamp of a new incarnation and flood it; return its
        records."""
        row = (kind, node)
        own, stamp = self._set_of(row), (incarnation, self.stamp(kind, node)[1] + 1)
        own.signature = self.authentication.sign_set(kind, node, stamp, own.digest)
        self.sets[kind][node] = own
        self._restamp(row, stamp)
        records = self.row_records(row)
        for record in records:
            self._enqueue(row, record)
        return records

    def remove_set(self, kind: RecordKind, node: NodeId) -> None:
        """Drop the set of a node."""
        self._remove_stamp((kind, node))
        self.sets[kind].pop(node, None)

    def expire_node(self, node: NodeId) -> None:
        """Drop all rows of a node whose lease has ended."""
        for kind in self.sets:
            self.remove_set(kind, node)
        self._remove_stamp((RecordKind.NODE, node))
        self.nodes.pop(node, None)

    def _remove_stamp(self, row: Row) -> None:
        if row in self.stamps:
            self.digest = (self.digest - fingerprint(*row, self.stamps.pop(row))) & _DIGEST_MASK

    def drain_updates(self, links: Iterable[LinkId]) -> list[tuple[LinkId, Update]]:
        """Return the update frames to send to each neighbour now."""
        pending = list(self._flood_queue.values())
        self._flood_queue = {}
        if len(pending) == 1:  # the usual case
            update = Update((pending[0].record,))
            return [(link, update) for link in links if link not in pending[0].known_by]
        sends: list[tuple[LinkId, Update]] = []
        packed: dict[tuple[int, ...], list[Update]] = {}  # most links lack the same records
        for link in links:
            lacks = tuple([n for n, item in enumerate(pending) if link not in item.known_by])
            if lacks not in packed:
                packed[lacks] = _pack([(pending[n].record, pending[n].size) for n in lacks])
            sends += [(link, update) for update in packed[lacks]]
        return sends

    def _enqueue_row(self, row: Row, record: Record) -> None:
        """Queue a record for all links; a set in parts once all parts have arrived."""
        if isinstance(record, NodeRecord) or record.parts == 1:
            self._enqueue(row, record)
            return
        for piece in self.row_records(row):
            self._enqueue(row, piece)

    def _enqueue(self, row: Row, record: Record) -> None:
        """Newer whole records replace queued ones; changes of a set queue up."""
        is_set = not isinstance(record, NodeRecord)
        key = (*row, record.version, record.part) if is_set else row  # type: ignore[union-attr]
        self._flood_queue[key] = _QueuedRecord(record, estimate_bytes(record), [])

    def _mark_known_by(self, row: Row, record: Record, source: LinkId) -> None:
        """The other side of a link has this version and does not need it."""
        if isinstance(record, NodeRecord):
            pending = self._flood_queue.get(row)
            # Two copies of a node can have the same stamp.
            is_same = pending and (pending.record is record or pending.record == record)
            if pending and is_same and source not in pending.known_by:
                pending.known_by.append(source)
            return
        part = 0
        while pending := self._flood_queue.get((*row, record.version, part)):
            if pending.record.incarnation == record.incarnation and source not in pending.known_by:
                pending.known_by.append(source)
            part += 1

    def _restamp(self, row: Row, stamp: Stamp) -> None:
        before = self.stamps.get(row)
        change = fingerprint(*row, stamp) - (fingerprint(*row, before) if before else 0)
        self.digest = (self.digest + change) & _DIGEST_MASK
        self.stamps[row] = stamp

    def _replace_node_record(self, row: Row, record: NodeRecord) -> RecordChange:
        self.nodes[row[1]] = record
        return RecordChange(record)

    def _set_of(self, row: Row) -> NameSet:
        return self.sets[row[0]].get(row[1]) or NameSet(self.authentication.empty_digest)

    def _merge_set(
        self, row: Row, record: InterestRecord | ClaimsRecord, source: LinkId | None
    ) -> SetChange | FetchRequired | RecordForged | None:
        stamp = (record.incarnation, record.version)
        if record.base == record.version:
            names = self._assemble(row, record, source)
            return None if names is None else self._replace_set(row, record, names)
        have = self.stamps.get(row, (-1, 0))
        if have == (record.incarnation, record.base):
            held = self._set_of(row)
            digest = held.digest.changed(record.added, record.removed)
            if not self._is_genuine(row, record, digest):
                return RecordForged()
            held.digest, held.signature, current = digest, record.signature, held.names
            removed = tuple(name for name in record.removed if name in current)
            for name in removed:
                del current[name]
            added = tuple(name for name in record.added if name not in current)
            current.update(dict.fromkeys(added))
            return SetChange(*row, stamp, added, removed)
        if record.base == 0 and have[0] < record.incarnation:
            return self._replace_set(row, record, dict.fromkeys(record.added))
        return FetchRequired(row)

    def _assemble(
        self, row: Row, record: InterestRecord | ClaimsRecord, source: LinkId | None
    ) -> dict[str, None] | None:
        """Collect the parts of a whole set; return the set once it is complete."""
        if record.parts == 1:
            return dict.fromkeys(record.added)
        held = self.sets[row[0]].setdefault(row[1], self._set_of(row))
        stamp = (record.incarnation, record.version)
        assembly = held.incoming.pop(source, None)
        if assembly is None or assembly.stamp != stamp:
            assembly = Assembly(stamp)
        held.incoming[source] = assembly
        if len(held.incoming) > ASSEMBLIES_MAX:
            del held.incoming[next(iter(held.incoming))]
        assembly.arrived += len(record.added) - len(assembly.parts.get(record.part, ()))
        assembly.parts[record.part] = record.added
        if len(assembly.parts) < record.parts:
            return None
        del held.incoming[source]
        return {name: None for part in sorted(assembly.parts) for name in assembly.parts[part]}

    def _replace_set(
        self, row: Row, record: InterestRecord | ClaimsRecord, names: dict[str, None]
    ) -> SetChange | RecordForged:
        digest = self.authentication.empty_digest.changed(names, ())
        if not self._is_genuine(row, record, digest):
            return RecordForged()
        held = self.sets[row[0]].setdefault(row[1], self._set_of(row))
        before, stamp = held.names, (record.incarnation, record.version)
        held.names, held.digest, held.signature = names, digest, record.signature
        held.incoming = {
            link: assembly for link, assembly in held.incoming.items() if assembly.stamp > stamp
        }
        added = tuple(name for name in names if name not in before)
        return SetChange(*row, stamp, added, tuple(name for name in before if name not in names))

    def _is_genuine(self, row: Row, record: SetRecord, digest: SetDigest) -> bool:
        owner, stamp = self.nodes.get(row[1]), (record.incarnation, record.version)
        proof = (owner.key if owner else b"", record.signature)
        return self.authentication.is_genuine_set(row, stamp, digest, proof)


def is_new_incarnation(record: Record, known: NodeRecord | None) -> bool:
    """Whether this is the first known record of a node's present incarnation."""
    if not isinstance(record, NodeRecord):
        return False
    return known is None or known.incarnation < record.incarnation


def sum_bytes(records: Iterable[Record]) -> int:
    """Return approximately how many bytes records take in frames."""
    return sum(map(encoded_bytes, records))


def pack_updates(records: list[Record]) -> list[Update]:
    """Pack records into as few frames as their size allows."""
    return _pack([(record, estimate_bytes(record)) for record in records])


def _pack(records: list[tuple[Record, int]]) -> list[Update]:
    """Pack records, each with its size."""
    frames: list[Update] = []
    batch: list[Record] = []
    size = 0
    for record, cost in records:
        if batch and size + cost > UPDATE_BYTES:
            frames.append(Update(tuple(batch)))
            batch, size = [], 0
        batch.append(record)
        size += cost
    if batch:
        frames.append(Update(tuple(batch)))
    return frames
