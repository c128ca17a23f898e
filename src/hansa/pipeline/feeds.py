"""What can be read: the journals and telemetry logs of many nodes, in directories or from agents.

A *feed* is one log with offsets, known by what it says of itself and not by where it is, so a moved
directory, or an agent in its place, goes on where it was. Knows nothing of Spark.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hansa.errors import AgentUnreachable, JournalDamaged, JournalTrimmed, UsageError
from hansa.journal import index
from hansa.journal.ranges import RANGE_BYTES
from hansa.journal.reader import JournalReader, OffsetBounds
from hansa.journal.remote import LogClient, RemoteJournalReader
from hansa.journal.segment import SegmentHeader, read_header, segment_bases

INBOX = "inbox"
"""The directory of an agent's log of what others published. It says the same node and epoch as the
journal, and is no record of this node's clients."""

TELEMETRY_NODE = 0
"""What a log of telemetry says of its node: its blocks say whose they are."""


@dataclass(frozen=True, slots=True)
class Feed:
    """One log, in a directory."""

    node: int
    epoch: int
    place: str
    """Its directory; for a log of an agent, the agent's address."""

    @property
    def name(self) -> str:
        """The same wherever it is: node and epoch in hexadecimal digits."""
        return f"{self.node:016x}-{self.epoch:x}"

    @property
    def is_telemetry(self) -> bool:
        """Whether it holds telemetry, else it is the journal of a node."""
        return self.node == TELEMETRY_NODE

    def bounds(self) -> OffsetBounds:
        """Return the offsets between which it can be read now."""
        return self._reader().bounds

    def end_offset(self) -> int:
        """Return where it ends now; 0 if another log, or none, is in its place."""
        path = Path(self.place)
        header = _header(path) if path.is_dir() else None
        ours = header is not None and (header.node, header.epoch) == (self.node, self.epoch)
        return self.bounds().end if ours else 0

    def entries(self, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, kind and body of what is between two offsets."""
        return self._reader().raw_records(start, end)

    def boundary(self, start: int, target: int, end: int) -> int:
        """Return where a record begins, at or before `target` if that is after `start`; what cannot
        be read on the way is left to whoever reads it, so it is behind that."""
        if target >= end:
            return end
        nearest_first = reversed(self._indexed_offsets(start, target))
        near = next((place for place in nearest_first if self._is_record_start(place)), None)
        if near is not None:
            return near
        try:
            return self._search_boundary(start, target, end)
        except (JournalDamaged, JournalTrimmed) as loss:
            resume = resume_offset(loss)
            return end if resume is None else min(resume, end)

    def pieces(self, start: int, end: int, size: int) -> list[tuple[int, int]]:
        """Cut a range into pieces of about this many bytes, where that needs no reading."""
        cuts = [start]
        for place in self._indexed_offsets(start, end):
            if place - cuts[-1] >= size and self._is_record_start(place):
                cuts.append(place)
        return list(pairwise([*cuts, end]))

    def _reader(self) -> JournalReader | RemoteJournalReader:
        return JournalReader(Path(self.place))

    def _search_boundary(self, start: int, target: int, end: int) -> int:
        last = start
        for offset, _, _ in self.entries(start, end):
            if offset > target:
                return last if last > start else offset
            last = offset
        return end

    def _indexed_offsets(self, start: int, end: int) -> list[int]:
        """Offsets between two others at which a record or a segment begins, says the index."""
        path, found = Path(self.place), []
        for base in segment_bases(path):
            found += [base, *(offset for _, offset in index.read_index(path, base))]
        return [offset for offset in found if start < offset < end]

    def _is_record_start(self, offset: int) -> bool:
        """An index is a hint: whoever uses it looks."""
        try:
            return next(self.entries(offset, self.bounds().end), None) is not None
        except JournalDamaged:
            return False


@dataclass(frozen=True, slots=True)
class RemoteFeed(Feed):
    """One log that an agent serves."""

    log: str
    token: str

    def end_offset(self) -> int:
        """As the agent says."""
        ours = (self.log, self.node, self.epoch)
        logs = LogClient(self.place, self.token).list_logs()
        return next((log.end for log in logs if (log.name, log.node, log.epoch) == ours), 0)

    def _reader(self) -> RemoteJournalReader:
        return RemoteJournalReader(LogClient(self.place, self.token), self.log)

    def _indexed_offsets(self, start: int, end: int) -> list[int]:
        return []

    def _search_boundary(self, start: int, target: int, end: int) -> int:
        """One range of the agent's; it says where the next begins."""
        size = min(target - start, RANGE_BYTES)
        query = {"start": start, "end": end, "bytes": size}
        _, following = LogClient(self.place, self.token).fetch(f"/logs/{self.log}", query)
        return int(following)


def resume_offset(loss: JournalDamaged | JournalTrimmed) -> int | None:
    """Return from which offset on one can read again, if that is known."""
    return loss.resume if isinstance(loss, JournalDamaged) else loss.first


def find_feeds(
    sources: Iterable[str], telemetry: bool, token: str = "", skip_unreachable: bool = False
) -> dict[str, Feed]:
    """Return the feeds of one sort in directories and at agents; of two copies the longer one.

    Whoever is patient gets what others have while an agent does not answer."""
    found: dict[str, Feed] = {}
    for source in sources:
        try:
            _add(found, source, telemetry, token)
        except AgentUnreachable:
            if not skip_unreachable:
                raise
    return dict(sorted(found.items()))


def _add(found: dict[str, Feed], source: str, telemetry: bool, token: str) -> None:
    for feed in _at(source, token):
        if feed.is_telemetry is telemetry:
            other = found.get(feed.name)
            if other is None or other.bounds().end < feed.bounds().end:
                found[feed.name] = feed


def find_unreachable_agents(sources: Iterable[str], token: str) -> set[str]:
    """Return the agents among the sources that do not answer now."""
    found = set()
    for source in sources:
        try:
            if _is_agent(source):
                LogClient(source, token).list_logs()
        except AgentUnreachable:
            found.add(source)
    return found


def _is_agent(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _at(source: str, token: str) -> Iterator[Feed]:
    if _is_agent(source):
        for log in LogClient(source, token).list_logs():
            yield RemoteFeed(log.node, log.epoch, source, log.name, token)
    else:
        yield from _under(Path(source))


def _under(root: Path) -> Iterator[Feed]:
    if not root.is_dir():
        raise UsageError(f"there is no directory {root} to read from")
    for folder, _, files in os.walk(root):
        if Path(folder).name != INBOX and any(name.endswith(".log") for name in files):
            header = _header(Path(folder))
            if header is not None:
                yield Feed(header.node, header.epoch, folder)


def _header(path: Path) -> SegmentHeader | None:
    """Of the last segment: older ones may go while we look."""
    while places := segment_bases(path):
        try:
            return read_header(path, places[-1])
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return None
