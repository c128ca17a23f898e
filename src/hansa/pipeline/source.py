"""The Spark data source: `spark.read.format("hansa")` and `spark.readStream.format("hansa")`.

Reads journals and telemetry of many nodes by offset. A range of offsets always gives the same rows,
so a stream that is replayed after a crash gives the same result. Options:

    path                a directory, searched at any depth: the state of agents, or a copy; or the
                        address of an agent, such as http://host:port
    paths               several of them, as a JSON list
    token               the `[admin] token` of the agents
    table               `messages` (default): publications, with payload; `events`: telemetry
    maxBytesPerBatch    of all feeds in one micro-batch, 256 MiB; a crash repeats at most this much
    failOnLoss          `true`: fail if retention dropped, or the disk lost, data that was not read;
                        `false`: continue after it
    skipUnreachable     `true`: treat an agent that does not answer as one without new data

An offset of the stream is JSON: per feed the first offset that the stream ever read, and the next
one that it will read.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from hansa.pipeline import feeds, rows
from hansa.pipeline.feeds import Feed

BATCH_BYTES = 256 << 20
FEED_RANGE_BYTES = 32 << 20
"""Bytes per task: each becomes a file of a bronze table and costs its own plan of the rows."""

OPTION_NAMES = (
    "path",
    "paths",
    "token",
    "table",
    "maxBytesPerBatch",
    "failOnLoss",
    "skipUnreachable",
)

Offsets = dict[str, dict[str, int]]


@dataclass
class FeedRange(InputPartition):
    """A range of one feed."""

    feed: Feed
    start: int
    end: int


class SourceOptions:
    """The validated options of the source."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = {name.lower(): value for name, value in given.items()}  # as Spark passes them
        unknown = sorted(options.keys() - {name.lower() for name in OPTION_NAMES})
        if unknown:
            raise UsageError(
                f"format hansa has no option {unknown[0]!r}; there are {', '.join(OPTION_NAMES)}"
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
        self.skip_unreachable = options.get("skipunreachable", "false").lower() == "true"

    def feeds(self, skip_unreachable: bool = False) -> dict[str, Feed]:
        """Return the feeds that can be read now."""
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
        raise UsageError(f'paths is {text!r}, it must be a JSON list of strings: ["a", "b"]')
    return [*several, *([options["path"]] if "path" in options else [])]


class HansaSource(DataSource):
    """The data source for `format("hansa")`."""

    @classmethod
    def name(cls) -> str:
        return "hansa"

    def schema(self) -> str:
        return rows.ddl(SourceOptions(self.options).table)

    def reader(self, schema: StructType) -> "FeedBatchReader":
        return FeedBatchReader(SourceOptions(self.options), schema)

    def streamReader(self, schema: StructType) -> "FeedStreamReader":
        return FeedStreamReader(SourceOptions(self.options), schema)


class _FeedRangeReader:
    """Reads one range of a feed, in a worker; shared by both readers."""

    def __init__(self, options: SourceOptions, schema: StructType | None) -> None:
        self.options = options
        self.arrow: pa.Schema = (
            rows.arrow_schema(options.table)
            if schema is None
            else to_arrow_schema(schema, timezone="UTC")
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        if not isinstance(partition, FeedRange):  # an empty read has a placeholder of Spark
            return
        # Spark's worker collects garbage after every task: exclude the imported modules.
        gc.freeze()
        yield from self._rows(partition)

    def _rows(self, part: FeedRange) -> Iterator[pa.RecordBatch]:
        start, feed_end = part.start, part.feed.end_offset()
        if feed_end < part.end and self.options.fail_on_loss:
            raise JournalDamaged(
                f"{part.feed.location}: the feed {part.feed.name} is to be read up to offset"
                f" {part.end}, but ends at {feed_end}",
                feed_end,
            )
        while start < min(part.end, feed_end):
            try:
                yield from rows.read_batches(
                    part.feed, start, part.end, self.options.table, self.arrow
                )
                return
            except (JournalDamaged, JournalTrimmed) as loss:
                start = self._resume_after(loss)

    def _resume_after(self, loss: JournalDamaged | JournalTrimmed) -> int:
        resume = feeds.resume_offset(loss)
        if self.options.fail_on_loss or resume is None:
            raise loss
        return resume

    def _split(self, feed: Feed, start: int, end: int) -> list[FeedRange]:
        return [FeedRange(feed, *part) for part in feed.split(start, end, FEED_RANGE_BYTES)]


class FeedBatchReader(_FeedRangeReader, DataSourceReader):
    """Reads each feed from its first to its last offset."""

    def partitions(self) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        for feed in self.options.feeds().values():
            bounds = feed.bounds()
            if bounds.start < bounds.end:
                found += self._split(feed, bounds.start, bounds.end)
        return found


class FeedStreamReader(_FeedRangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows all feeds, also new ones."""

    def __init__(self, options: SourceOptions, schema: StructType | None) -> None:
        super().__init__(options, schema)
        self._target: dict[str, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the present ends of the feeds, at which the stream will stop."""
        found = self.options.feeds(self.options.skip_unreachable)
        self._target = {name: feed.bounds().end for name, feed in found.items()}

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self.options.batch_bytes)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch; its bytes are divided among the feeds."""
        unread = self.unread(start)
        bytes_left = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        ends = dict(start)
        for number, (name, (feed, begin, end)) in enumerate(unread.items()):
            if bytes_left is not None and begin < end:
                share = max(1, bytes_left // (len(unread) - number))
                stop = feed.boundary(begin, begin + share, end)
                bytes_left = max(0, bytes_left - (stop - begin))
            else:
                stop = end
            ends[name] = {"first": start.get(name, {}).get("first", begin), "next": stop}
            if name in start and begin > start[name]["next"]:  # data before it was lost
                ends[name]["first"] = begin
        return dict(sorted(ends.items()))

    def unread(self, start: Offsets) -> dict[str, tuple[Feed, int, int]]:
        """Return the feeds that have unread data, with its first offset and its end."""
        found = {}
        # A continuous stream treats an agent that does not answer as one without new data.
        skip = self._target is None or self.options.skip_unreachable
        for name, feed in self.options.feeds(skip).items():
            bounds = feed.bounds()
            begin = start[name]["next"] if name in start else bounds.start
            end = bounds.end if self._target is None else self._target.get(name, begin)
            if begin < bounds.start:
                begin = self._resume_after(
                    JournalTrimmed(
                        f"{feed.location}: retention dropped the offsets from {begin} to"
                        f" {bounds.start} before they were read",
                        bounds.start,
                    )
                )
            if begin < end:
                found[name] = (feed, begin, end)
        return found

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the ranges of a batch; the same offsets give the same rows."""
        ranges = {}
        for name, feed_end in sorted(end.items()):
            begin = max(feed_end["first"], start[name]["next"] if name in start else 0)
            if begin < feed_end["next"]:
                ranges[name] = begin, feed_end["next"]
        found = self.options.feeds(skip_unreachable=True)
        if ranges.keys() - found.keys():
            found = self.options.feeds()  # raise AgentUnreachable: the data is not lost
        parts: list[InputPartition] = []
        for name, (begin, stop) in ranges.items():
            if name in found:
                parts += self._split(found[name], begin, stop)
            elif self.options.fail_on_loss:
                sources = ", ".join(self.options.sources)
                raise UsageError(
                    f"the feed {name} is to be read from offset {begin}, but is no longer at"
                    f" {sources}"
                )
        return parts
