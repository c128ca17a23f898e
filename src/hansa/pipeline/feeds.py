"""Finds and reads feeds: the journals and telemetry logs of many nodes, in directories or at
agents.

A *feed* is one log with offsets. It is identified by the node and epoch in its header, not by its
location, so reading continues after a directory has moved or if an agent serves it. Independent of
Spark.
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
"""Directory of an agent's log of publications from other nodes, which is not a feed. Its header has
the same node and epoch as the journal."""

AUDIT = "audit"
"""Directory, and log of an agent, with security events. Its records are numbered like those of the
telemetry beside it, so it is a feed only if it is named as a source itself."""

TELEMETRY_NODE = 0
"""Node id in the header of a telemetry log, whose blocks name their nodes."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A log in a directory."""

    node: int
    epoch: int
    location: str
    """Directory, or address of the agent."""

    @property
    def name(self) -> str:
        """Node and epoch in hexadecimal digits, independent of the location."""
        return f"{self.node:016x}-{self.epoch:x}"

    @property
    def is_telemetry(self) -> bool:
        """Whether it is a telemetry log; else it is the journal of a node."""
        return self.node == TELEMETRY_NODE

    def bounds(self) -> OffsetBounds:
        """Return the range of offsets that can be read now."""
        return self._reader().bounds

    def end_offset(self) -> int:
        """Return the present end; 0 if there is another log, or none, at this location."""
        path = Path(self.location)
        header = _header(path) if path.is_dir() else None
        is_same = header is not None and (header.node, header.epoch) == (self.node, self.epoch)
        return self.bounds().end if is_same else 0

    def entries(self, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, kind and body of the records between two offsets."""
        return self._reader().raw_records(start, end)

    def boundary(self, start: int, target: int, end: int) -> int:
        """Return the start of a record: at or before `target` if that is after `start`, else the
        first one after it. If a corrupt part is in between, return the offset after it, so that
        the reader of the range reports it."""
        if target >= end:
            return end
        nearest_first = reversed(self._indexed_offsets(start, target))
        nearest = next((offset for offset in nearest_first if self._is_record_start(offset)), None)
        if nearest is not None:
            return nearest
        try:
            return self._search_boundary(start, target, end)
        except (JournalDamaged, JournalTrimmed) as loss:
            resume = resume_offset(loss)
            return end if resume is None else min(resume, end)

    def split(self, start: int, end: int, size: int) -> list[tuple[int, int]]:
        """Split a range into parts of about `size` bytes, as far as the index allows."""
        starts = [start]
        for offset in self._indexed_offsets(start, end):
            if offset - starts[-1] >= size and self._is_record_start(offset):
                starts.append(offset)
        return list(pairwise([*starts, end]))

    def _reader(self) -> JournalReader | RemoteJournalReader:
        return JournalReader(Path(self.location))

    def _search_boundary(self, start: int, target: int, end: int) -> int:
        last = start
        for offset, _, _ in self.entries(start, end):
            if offset > target:
                return last if last > start else offset
            last = offset
        return end

    def _indexed_offsets(self, start: int, end: int) -> list[int]:
        """Return the starts of records and segments in a range, according to the index."""
        path, found = Path(self.location), []
        for base in segment_bases(path):
            found += [base, *(offset for _, offset in index.read_index(path, base))]
        return [offset for offset in found if start < offset < end]

    def _is_record_start(self, offset: int) -> bool:
        # An index is only a hint and has to be verified.
        try:
            return next(self.entries(offset, self.bounds().end), None) is not None
        except JournalDamaged:
            return False


@dataclass(frozen=True, slots=True)
class RemoteFeed(Feed):
    """A log that an agent serves."""

    log: str
    token: str

    def end_offset(self) -> int:
        own = (self.log, self.node, self.epoch)
        logs = LogClient(self.location, self.token).list_logs()
        return next((log.end for log in logs if (log.name, log.node, log.epoch) == own), 0)

    def _reader(self) -> RemoteJournalReader:
        return RemoteJournalReader(LogClient(self.location, self.token), self.log)

    def _indexed_offsets(self, start: int, end: int) -> list[int]:
        return []

    def _search_boundary(self, start: int, target: int, end: int) -> int:
        """Request one range; the agent returns the start of the next."""
        size = min(target - start, RANGE_BYTES)
        query = {"start": start, "end": end, "bytes": size}
        _, following = LogClient(self.location, self.token).fetch(f"/logs/{self.log}", query)
        return int(following)


def resume_offset(loss: JournalDamaged | JournalTrimmed) -> int | None:
    """Return the offset after the lost part, if it is known."""
    return loss.resume if isinstance(loss, JournalDamaged) else loss.first


def find_feeds(
    sources: Iterable[str], telemetry: bool, token: str = "", skip_unreachable: bool = False
) -> dict[str, Feed]:
    """Return the telemetry logs or journals in directories and at agents; of two copies the longer.

    Raises AgentUnreachable, unless `skip_unreachable` is set."""
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
            if log.name == AUDIT:
                continue
            yield RemoteFeed(log.node, log.epoch, source, log.name, token)
    else:
        yield from _under(Path(source))


def _under(root: Path) -> Iterator[Feed]:
    if not root.is_dir():
        raise UsageError(f"there is no directory {root} to read from")
    for folder, _, files in os.walk(str(root)):
        name, is_root = Path(folder).name, Path(folder) == root
        is_skipped = name == INBOX or (name == AUDIT and not is_root)
        if not is_skipped and any(each.endswith(".log") for each in files):
            header = _header(Path(folder))
            if header is not None:
                # Executors on a cluster have other current directories.
                yield Feed(header.node, header.epoch, str(Path(folder).absolute()))


def _header(path: Path) -> SegmentHeader | None:
    """Return the header of the last segment: retention may remove older ones meanwhile."""
    while bases := segment_bases(path):
        try:
            return read_header(path, bases[-1])
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return None
