"""A journal of a new epoch in place of an old copy: built beside it, and put in place in one step.

It holds what receivers have not acknowledged, in the old order, at new positions; and which packets
the broker may send again. Until the rename the old journal is the journal, afterwards the new one:
a crash leaves one or the other, whole.

    copy (any number of commits) → durable → rename → the old one goes
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from hansa.agent.delivery import clone_detection
from hansa.agent.delivery.crash_points import Point
from hansa.errors import JournalUnusable
from hansa.journal.crash import reached
from hansa.journal.disk import sync_directory
from hansa.journal.records import Captured, Chained, Record, SessionBegun, Settled, Unsettled
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import Writer
from hansa.protocol.model import NodeId

PIECE_BYTES = 1 << 18
"""Copied between two commits: what a renewal holds in memory, however much is owed."""

ASIDE = ".new"
"""Ends the name of a journal that is not in place yet."""


@dataclass(slots=True)
class Renewal:
    """What is to be copied, and what has become of it."""

    epoch: int
    owed_before: Mapping[NodeId, int]
    acknowledged: Mapping[NodeId, int]
    """Per receiver, what it was owed last in the old journal, and up to where it has all of it."""
    repeatable: Mapping[int, Unsettled]
    """By old position, what the broker may send again."""
    owed: dict[NodeId, int] = field(default_factory=dict)
    """Per receiver, the last new position."""
    moved: dict[int, int] = field(default_factory=dict)
    """New positions by old ones, of what the broker may send again."""
    is_abandoned: bool = False
    """Whether the agent stops meanwhile."""

    @property
    def first(self) -> int:
        """The first old position that somebody may not have."""
        last = max(self.owed_before.values(), default=0)
        has = (
            self.acknowledged.get(node, 0)
            for node, owed in self.owed_before.items()
            if owed > self.acknowledged.get(node, 0)
        )
        return 1 + min(has, default=last)

    def build(
        self, path: Path, node: NodeId, settings: JournalSettings, source: Iterable[Captured]
    ) -> None:
        """Make the journal and put it in place; for a thread of its own. May be tried again."""
        aside = path.with_name(path.name + ASIDE)
        try:
            if not path.is_dir():
                self._build_aside(aside, node, settings, source)
                reached(Point.RENEWAL_DURABLE)
                os.rename(aside, path)
            sync_directory(path.parent)
        except OSError as error:
            raise JournalUnusable(f"cannot put {path} in place: {error.strerror}") from error
        reached(Point.RENEWAL_IN_PLACE)

    def _build_aside(
        self, aside: Path, node: NodeId, settings: JournalSettings, source: Iterable[Captured]
    ) -> None:
        """Copy everything; leave nothing behind if the disk does not take it."""
        shutil.rmtree(aside, ignore_errors=True)
        self.owed.clear()
        self.moved.clear()
        try:
            with Writer(aside, node, self.epoch, settings) as writer:
                writer.carry = self._carry
                self._copy(source, writer)
        except JournalUnusable:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        clone_detection.sign(aside)

    def _copy(self, source: Iterable[Captured], writer: Writer) -> None:
        reached(Point.RENEWAL_BEGUN)
        for record in source:
            if self.is_abandoned:
                raise JournalUnusable("the agent stops before its new epoch has begun")
            self._copy_one(record, writer)
            if writer.end - writer.durable >= PIECE_BYTES:
                writer.commit()
                reached(Point.RENEWAL_COPIED)
        # What was copied may be of former sessions: only this may come again.
        writer.append(SessionBegun(time.time_ns()))
        for position, unsettled in self.repeatable.items():
            number = self.moved.get(position, -unsettled.packet_id)
            writer.append(replace(unsettled, number=number))
        writer.commit()

    def _copy_one(self, record: Captured, writer: Writer) -> None:
        unpaid = [
            NodeId(node)
            for node, _ in record.previous
            if NodeId(node) in self.owed_before  # else its lease has ended
            if record.number > self.acknowledged.get(NodeId(node), 0)
        ]
        if not unpaid:
            return
        number = writer.next_number
        previous = tuple((node, self.owed.get(node, 0)) for node in unpaid)
        writer.append(replace(record, number=number, previous=previous))
        self.owed.update(dict.fromkeys(unpaid, number))
        if record.number in self.repeatable:
            self.moved[record.number] = number
        else:
            writer.append(Settled(number))

    def _carry(self) -> Iterator[Record]:
        yield Chained(tuple(self.owed.items()))
        for position, number in self.moved.items():
            yield replace(self.repeatable[position], number=number)


def remove_remains(directory: Path) -> None:
    """Delete what a crash in the middle left: it is no journal yet."""
    for path in directory.glob(f"*{ASIDE}"):
        shutil.rmtree(path, ignore_errors=True)
