"""The frames that a compromised member has seen, as material for forgeries."""

from collections import deque
from collections.abc import Iterable

from hansa.protocol.membership.records import (
    KIND_OF,
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.unicast import ANY_UNICASTS, AnyUnicast
from hansa.protocol.wire.frames import (
    CoreAnnouncement,
    InterestAck,
    InterestAcks,
    SealedUnicast,
    SequencedFrame,
    Update,
)

KEPT = 200
"""Old records, publications and unicast frames that are kept for replays."""


LARGE = 1 << 48
"""Greater numbers cannot be honest: a corpus with them would make forgeries easy to refuse."""


class Corpus:
    def __init__(self) -> None:
        self.records: deque[Record] = deque(maxlen=KEPT)
        self.newest: dict[tuple[RecordKind, NodeId], Record] = {}
        self.publications: deque[Publication] = deque(maxlen=KEPT)
        self.positions: dict[tuple[NodeId, NodeId], Publication] = {}
        """Per origin and receiver, the newest publication of QoS 1 or 2."""
        self.unicasts: deque[AnyUnicast] = deque(maxlen=KEPT)
        self.sealed: dict[tuple[NodeId, NodeId], SealedUnicast] = {}
        """Per source and destination, the newest sealed frame."""
        self.acks: deque[InterestAck] = deque(maxlen=KEPT)
        self.announcements: dict[NodeId, CoreAnnouncement] = {}
        """Per core, the newest one."""

    def add(self, frame: object) -> None:
        if isinstance(frame, SequencedFrame):
            frame = frame.frame
        if isinstance(frame, Publication):
            self._add_publication(frame)
        elif isinstance(frame, Update):
            self._add_records(frame.records)
        elif isinstance(frame, CoreAnnouncement):
            self._add_announcement(frame)
        elif isinstance(frame, InterestAcks):
            self.acks += frame.entries
        elif isinstance(frame, ANY_UNICASTS):
            self.unicasts.append(frame)
            if isinstance(frame, SealedUnicast):
                self.sealed[frame.source, frame.destination] = frame

    def _add_records(self, records: Iterable[Record]) -> None:
        for record in records:
            if max(_stamp(record)) >= LARGE:
                continue  # of another attacker
            row = (KIND_OF[type(record)], record.node)
            known = self.newest.get(row)
            if record != known:
                self.records.append(record)
            if known is None or _stamp(record) > _stamp(known):
                self.newest[row] = record

    def _add_publication(self, publication: Publication) -> None:
        if max(_position(publication)) >= LARGE:
            return
        self.publications.append(publication)
        for receiver, _ in publication.receivers if publication.qos else ():
            pair = (publication.origin, receiver)
            known = self.positions.get(pair)
            if known is None or _position(publication) > _position(known):
                self.positions[pair] = publication

    def _add_announcement(self, frame: CoreAnnouncement) -> None:
        known = self.announcements.get(frame.core)
        number = (frame.incarnation, frame.sequence)
        if max(number) >= LARGE:
            return
        if known is None or number >= (known.incarnation, known.sequence):
            self.announcements[frame.core] = frame
        if frame.claims is not None:
            self._add_records((frame.claims,))

    # ------------------------------------------------------------ what exists in the run

    @property
    def nodes(self) -> list[NodeId]:
        return [node for kind, node in self.newest if kind is RecordKind.NODE]

    def node_record(self, node: NodeId) -> NodeRecord | None:
        found = self.newest.get((RecordKind.NODE, node))
        return found if isinstance(found, NodeRecord) else None

    @property
    def names(self) -> list[str]:
        """Filters and groups, in the order in which they were first seen."""
        sets = (r for r in self.records if isinstance(r, InterestRecord | ClaimsRecord))
        return list(dict.fromkeys(name for record in sets for name in record.added))

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(each.topic for each in self.publications))


def _stamp(record: Record) -> tuple[int, int]:
    return record.incarnation, record.version


def _position(publication: Publication) -> tuple[int, int]:
    return publication.epoch, publication.sequence
