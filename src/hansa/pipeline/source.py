"""`spark.read.format("hansa")` and `spark.readStream.format("hansa")`.

Reads journals and telemetry of many nodes by offset: a range of offsets gives the same rows for
ever, so a stream that is replayed after a crash gives what it gave before. Options:

    path, paths         directories, looked through at any depth: the state of agents, or a copy;
                        or addresses of agents, as http://host:port
    token               for agents: their `[admin] token`
    table               `messages` (default): publications, with payload; `events`: telemetry
    maxBytesPerBatch    of a feed's bytes in one micro-batch, 64 MiB; bounds what a batch holds
    failOnLoss          `true`: stop where retention dropped, or the disk lost, what was not read;
                        `false`: go on after it

An offset of the stream is JSON: per feed the first offset that the stream ever read there, and
the next one that it will read.
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

BATCH_BYTES = 64 << 20
PIECE_BYTES = 8 << 20
"""What one task reads: several per core, so that none waits long for the last."""

Offsets = dict[str, dict[str, int]]


@dataclass
class Piece(InputPartition):
    """A range of one feed."""

    feed: Feed
    start: int
    end: int


class Options:
    """What the user asked for, checked."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Read Spark's options, whose names are in lower case."""
        options = {name.lower(): value for name, value in given.items()}
        known = {"path", "paths", "token", "table", "maxbytesperbatch", "failonloss"}
        unknown = sorted(options.keys() - known)
        if unknown:
            raise UsageError(
                f"format hansa has no option {unknown[0]!r}; there are path, paths, token,"
                " table, maxBytesPerBatch, failOnLoss"
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

    def feeds(self) -> dict[str, Feed]:
        """Return what there is to read now."""
        return feeds.find(self.sources, self.table == rows.EVENTS, self.token)


def _paths(options: Mapping[str, str]) -> list[str]:
    several = json.loads(options["paths"]) if "paths" in options else []
    return [*several, *([options["path"]] if "path" in options else [])]


class HansaSource(DataSource):
    """What a federation recorded."""

    @classmethod
    def name(cls) -> str:
        """Return the word for `format`."""
        return "hansa"

    def schema(self) -> str:
        """Return the columns of the table that was asked for."""
        return rows.ddl(Options(self.options).table)

    def reader(self, schema: StructType) -> "BatchReader":
        """Return what reads everything there is now."""
        return BatchReader(Options(self.options), schema)

    def streamReader(self, schema: StructType) -> "StreamReader":
        """Return what follows it."""
        return StreamReader(Options(self.options), schema)


class _Reading:
    """What both readers share: reading one piece, in a worker."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece."""
        if not isinstance(partition, Piece):  # Spark's way to say that there is none
            return
        gc.freeze()  # Spark's worker collects garbage after every task; the imports are none
        start = partition.start
        while start < partition.end:
            try:
                yield from rows.batches(
                    partition.feed, start, partition.end, self.options.table, self.arrow
                )
                return
            except (JournalDamaged, JournalTrimmed) as loss:
                start = self._after(loss)

    def _after(self, loss: JournalDamaged | JournalTrimmed) -> int:
        resume = loss.resume if isinstance(loss, JournalDamaged) else loss.first
        if self.options.fail_on_loss or resume is None:
            raise loss
        return resume

    def _cut(self, feed: Feed, start: int, end: int) -> list[Piece]:
        return [Piece(feed, *piece) for piece in feed.pieces(start, end, PIECE_BYTES)]


class BatchReader(_Reading, DataSourceReader):
    """Everything from the first offset of each feed to its last."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return ranges of feeds."""
        found: list[InputPartition] = []
        for feed in self.options.feeds().values():
            bounds = feed.bounds()
            if bounds.start < bounds.end:
                found += self._cut(feed, bounds.start, bounds.end)
        return found


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows every feed, and those that appear."""

    def __init__(self, options: Options, schema: StructType) -> None:
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
        for name, feed in self.options.feeds().items():
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
        found = self.options.feeds()
        pieces: list[InputPartition] = []
        for name, reach in sorted(end.items()):
            begin = max(reach["first"], start[name]["next"] if name in start else 0)
            if begin >= reach["next"]:
                continue
            if name not in found and not self.options.fail_on_loss:
                continue
            if name not in found:
                places = ", ".join(self.options.sources)
                raise UsageError(
                    f"the feed {name} is to be read from offset {begin} on, but is no longer"
                    f" at {places}"
                )
            pieces += self._cut(found[name], begin, reach["next"])
        return pieces
