"""What can be read under a directory: the journals and telemetry logs of many nodes.

A *feed* is one log with offsets, known by what its files say of themselves and not by where they
are, so a moved directory goes on where it was. Knows nothing of Spark.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hansa.errors import JournalDamaged, UsageError
from hansa.journal import index
from hansa.journal.reader import Bounds, Reader
from hansa.journal.segment import Header, bases, read_header

NO_NODE = 0
"""In the header of a log of telemetry, whose blocks say whose they are."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One log, in one directory."""

    name: str
    """The same wherever the directory is: node and epoch in hexadecimal digits."""
    path: Path
    node: int
    epoch: int

    @property
    def telemetry(self) -> bool:
        """Whether it holds telemetry, else it is the journal of a node."""
        return self.node == NO_NODE

    def bounds(self) -> Bounds:
        """Return the offsets between which it can be read now."""
        return Reader(self.path).bounds

    def entries(self, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, kind and body of what is between two offsets."""
        return Reader(self.path).entries(start, end)

    def boundary(self, start: int, target: int, end: int) -> int:
        """Return where a record begins, at or before `target` if that is after `start`."""
        if target >= end:
            return end
        near = [place for place in self._marks(start, target) if self._begins(place)]
        if near:
            return near[-1]
        last = start
        for offset, _, _ in self.entries(start, end):
            if offset > target and last > start:
                return last
            last = offset
            if offset > target:
                return offset
        return end

    def pieces(self, start: int, end: int, size: int) -> list[tuple[int, int]]:
        """Cut a range into pieces of about this many bytes, where that needs no reading."""
        cuts = [start]
        for place in self._marks(start, end):
            if place - cuts[-1] >= size and self._begins(place):
                cuts.append(place)
        return list(pairwise([*cuts, end]))

    def _marks(self, start: int, end: int) -> list[int]:
        """Offsets between two others at which a record or a segment begins, says the index."""
        found: list[int] = []
        for base in bases(self.path):
            found += [base, *(offset for _, offset in index.read(self.path, base))]
        return [offset for offset in found if start < offset < end]

    def _begins(self, offset: int) -> bool:
        """An index is a hint: whoever uses it looks."""
        try:
            return next(self.entries(offset, self.bounds().end), None) is not None
        except JournalDamaged:
            return False


def find(roots: Iterable[Path], telemetry: bool) -> dict[str, Feed]:
    """Return the feeds of one sort under some directories; of two copies the longer one."""
    found: dict[str, Feed] = {}
    for feed in (feed for root in roots for feed in _under(root)):
        if feed.telemetry is telemetry:
            other = found.get(feed.name)
            if other is None or other.bounds().end < feed.bounds().end:
                found[feed.name] = feed
    return dict(sorted(found.items()))


def _under(root: Path) -> Iterator[Feed]:
    if not root.is_dir():
        raise UsageError(f"there is no directory {root} to read from")
    for folder, _, files in os.walk(root):
        if any(name.endswith(".log") for name in files):
            feed = _feed(Path(folder))
            if feed is not None:
                yield feed


def _feed(path: Path) -> Feed | None:
    header = _header(path)
    if header is None:
        return None
    return Feed(f"{header.node:016x}-{header.epoch:x}", path, header.node, header.epoch)


def _header(path: Path) -> Header | None:
    """Of the last segment: older ones may go while we look."""
    while places := bases(path):
        try:
            return read_header(path, places[-1])
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return None
