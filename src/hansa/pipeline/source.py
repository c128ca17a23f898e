"""`spark.read.format("hansa")` and `spark.readStream.format("hansa")`.

Reads journals and telemetry of many nodes by offset: a range of offsets gives the same rows for
ever, so a stream that is replayed after a crash gives what it gave before. Options:

    path                a directory, looked through at any depth: the state of agents, or a copy;
                        or the address of an agent, as http://host:port
    paths               several of them, as a list in JSON
    token               for agents: their `[admin] token`
    table               `messages` (default): publications, with payload; `events`: telemetry
    maxBytesPerBatch    of all feeds in one micro-batch, 256 MiB: what a crash has to do again
    failOnLoss          `true`: stop where retention dropped, or the disk lost, what was not read;
                        `false`: go on after it
    into                a directory: whoever reads rows writes them there as Parquet files, and
                        returns a row per file in their place; how bronze is made

An offset of the stream is JSON: per feed the first offset that the stream ever read there, and
the next one that it will read.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from hansa.errors import JournalDamaged, JournalTrimmed, UsageError
from hansa.pipeline import feeds, files, rows
from hansa.pipeline.feeds import Feed

BATCH_BYTES = 256 << 20
FEED_RANGE_BYTES = 8 << 20
"""What one task reads: several per core, so that none waits long for the last."""

Offsets = dict[str, dict[str, int]]


@dataclass
class FeedRange(InputPartition):
    """A range of one feed."""

    feed: Feed
    start: int
    end: int

    @property
    def name(self) -> str:
        """One that no other piece has."""
        return f"{self.feed.name}-{self.start}-{self.end}"


class SourceOptions:
    """What the user asked for, checked."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Read Spark's options, whose names are in lower case."""
        options = {name.lower(): value for name, value in given.items()}
        known = {"path", "paths", "token", "table", "maxbytesperbatch", "failonloss", "into"}
        unknown = sorted(options.keys() - known)
        if unknown:
            raise UsageError(
                f"format hansa has no option {unknown[0]!r}; there are path, paths, token,"
                " table, maxBytesPerBatch, failOnLoss, into"
            )
        self.sources = _paths(options)
        self.token = options.get("token", "")
        if not self.sources:
            raise UsageError('format hansa needs a directory: .load("path")')
        self.table = options.get("table", rows.MESSAGES)
        if self.table not in rows.TABLES:
            raise UsageError(
                f"format hansa has no table {self.table!r}; there are {', '.join(rows.TABLES)}"
            )
        size = options.get("maxbytesperbatch", str(BATCH_BYTES))
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"maxBytesPerBatch is {size!r}, it must be a whole number above 0")
        self.batch_bytes = int(size)
        self.fail_on_loss = options.get("failonloss", "true").lower() != "false"
        self.into = Path(options["into"]) if "into" in options else None

    def feeds(self, skip_unreachable: bool = False) -> dict[str, Feed]:
        """Return what there is to read now."""
        return feeds.find_feeds(
            self.sources, self.table == rows.EVENTS, self.token, skip_unreachable
        )


def _paths(options: Mapping[str, str]) -> list[str]:
    text = options.get("paths", "[]")
    try:
        several = json.loads(text)
    except ValueError:
        several = None
    if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
        raise UsageError(f'paths is {text!r}, it must be a list of texts in JSON, as ["a", "b"]')
    return [*several, *([options["path"]] if "path" in options else [])]


class HansaSource(DataSource):
    """What a federation recorded."""

    @classmethod
    def name(cls) -> str:
        """Return the word for `format`."""
        return "hansa"

    def schema(self) -> str:
        """Return the columns of the table that was asked for."""
        options = SourceOptions(self.options)
        return files.FILE_DDL if options.into else rows.ddl(options.table)

    def reader(self, schema: StructType) -> "FeedBatchReader":
        """Return what reads everything there is now."""
        return FeedBatchReader(SourceOptions(self.options), schema)

    def streamReader(self, schema: StructType) -> "FeedStreamReader":
        """Return what follows it."""
        return FeedStreamReader(SourceOptions(self.options), schema)


class _FeedRangeReader:
    """What both readers share: reading one piece, in a worker."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.arrow: pa.Schema = (
            rows.arrow_schema(options.table)
            if options.into
            else to_arrow_schema(schema, timezone="UTC")
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece, or what files they are in."""
        if not isinstance(partition, FeedRange):  # Spark's way to say that there is none
            return
        gc.freeze()  # Spark's worker collects garbage after every task; the imports are none
        found = self._rows(partition)
        into = self.options.into
        yield from files.write_files(found, into, partition.name) if into else found

    def _rows(self, piece: FeedRange) -> Iterator[pa.RecordBatch]:
        start, reach = piece.start, piece.feed.end_offset()
        if reach < piece.end and self.options.fail_on_loss:
            raise JournalDamaged(
                f"{piece.feed.place}: the feed {piece.feed.name} is to be read up to offset"
                f" {piece.end}, but reaches only {reach} there",
                reach,
            )
        while start < min(piece.end, reach):
            try:
                yield from rows.read_batches(
                    piece.feed, start, piece.end, self.options.table, self.arrow
                )
                return
            except (JournalDamaged, JournalTrimmed) as loss:
                start = self._after(loss)

    def _after(self, loss: JournalDamaged | JournalTrimmed) -> int:
        resume = feeds.resume_offset(loss)
        if self.options.fail_on_loss or resume is None:
            raise loss
        return resume

    def _cut(self, feed: Feed, start: int, end: int) -> list[FeedRange]:
        return [FeedRange(feed, *piece) for piece in feed.pieces(start, end, FEED_RANGE_BYTES)]


class FeedBatchReader(_FeedRangeReader, DataSourceReader):
    """Everything from the first offset of each feed to its last."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of feeds."""
        found: list[InputPartition] = []
        for feed in self.options.feeds().values():
            bounds = feed.bounds()
            if bounds.start < bounds.end:
                found += self._cut(feed, bounds.start, bounds.end)
        return found


class FeedStreamReader(_FeedRangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows every feed, and those that appear."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: dict[str, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what there is now, and then end."""
        found = self.options.feeds()
        self._target = {name: feed.bounds().end for name, feed in found.items()}

    def initialOffset(self) -> dict[str, Any]:
        """Return that nothing was read."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the bound of a batch."""
        return ReadMaxBytes(self.options.batch_bytes)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return how far the next batch goes: the bytes that it may have, spread over feeds."""
        found = self._waiting(start)
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        ends = dict(start)
        for number, (name, (feed, begin, end)) in enumerate(found.items()):
            if room is not None and begin < end:
                share = max(1, room // (len(found) - number))
                stop = feed.boundary(begin, begin + share, end)
                room = max(0, room - (stop - begin))
            else:
                stop = end
            ends[name] = {"first": start.get(name, {}).get("first", begin), "next": stop}
            if name in start and begin > start[name]["next"]:  # something was lost before it
                ends[name]["first"] = begin
        return dict(sorted(ends.items()))

    def _waiting(self, start: Offsets) -> dict[str, tuple[Feed, int, int]]:
        """Return the feeds that have something new, with where it begins and ends."""
        found = {}
        # While a stream goes on, an agent that does not answer has no news.
        for name, feed in self.options.feeds(skip_unreachable=self._target is None).items():
            bounds = feed.bounds()
            begin = start[name]["next"] if name in start else bounds.start
            end = bounds.end if self._target is None else self._target.get(name, begin)
            if begin < bounds.start:
                begin = self._after(
                    JournalTrimmed(
                        f"{feed.place}: what was recorded between the offsets {begin} and "
                        f"{bounds.start} was dropped by retention before it was read",
                        bounds.start,
                    )
                )
            if begin < end:
                found[name] = (feed, begin, end)
        return found

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the ranges of a batch; the same offsets give the same rows."""
        wanted = {}
        for name, reach in sorted(end.items()):
            begin = max(reach["first"], start[name]["next"] if name in start else 0)
            if begin < reach["next"]:
                wanted[name] = begin, reach["next"]
        found = self.options.feeds(skip_unreachable=True)
        if wanted.keys() - found.keys():
            found = self.options.feeds()  # what is at an agent that does not answer is not lost
        pieces: list[InputPartition] = []
        for name, (begin, stop) in wanted.items():
            if name in found:
                pieces += self._cut(found[name], begin, stop)
            elif self.options.fail_on_loss:
                places = ", ".join(self.options.sources)
                raise UsageError(
                    f"the feed {name} is to be read from offset {begin} on, but is no longer"
                    f" at {places}"
                )
        return pieces
