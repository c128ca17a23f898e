"""From the bytes of a feed to Arrow batches: a row per recorded message, or per telemetry record.

The columns of both tables are here, in the order that Spark sees them.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from hansa.errors import JournalDamaged, JournalTrimmed
from hansa.journal.records import CapturedRecord, RecordedPublication, TelemetryBlock, decode_record
from hansa.pipeline.inputs import Feed
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS, FIELD_COLUMNS, ColumnType
from hansa.telemetry.reader import decode_block

BATCH_ROWS = 16_384
"""Rows of an Arrow batch: enough to forget what a batch costs, few enough to hold."""

MESSAGES = "messages"
EVENTS = "events"

_SPARK_TYPES: dict[ColumnType, str] = {
    "node": "string",
    "nodes": "array<string>",
    "integer": "bigint",
    "real": "double",
    "text": "string",
}
_PLACE = {"feed": "string", "offset": "bigint", "time": "timestamp"}

TABLES: dict[str, dict[str, str]] = {
    MESSAGES: {
        "origin": "string",
        "life": "bigint",
        "seq": "bigint",
        "qos": "bigint",
        "topic": "string",
        "payload": "binary",
        "retain": "boolean",
        "properties": "binary",
        "time_ns": "bigint",
        **_PLACE,
    },
    EVENTS: {**{name: _SPARK_TYPES[kind] for name, (kind, _) in COLUMNS.items()}, **_PLACE},
}
"""Columns and Spark types of what the source returns. `feed` and `offset` say where a row was
recorded; `time` is `time_ns` to the microsecond. The rest is as in docs/reference/records.md."""


def ddl(table: str) -> str:
    """Return a table's columns in Spark's words."""
    return ", ".join(f"`{name}` {kind}" for name, kind in TABLES[table].items())


_ARROW_TYPES = {
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_schema(table: str) -> pa.Schema:
    """Return the same in Arrow's."""
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in TABLES[table].items()])


@lru_cache(maxsize=65_536)
def node_text(node: int) -> str:
    """Return a node's id as tables have it."""
    return f"{node:016x}"


def read_batches(
    feed: Feed, start: int, end: int, table: str, arrow: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what a feed says between two offsets."""
    read = _messages if table == MESSAGES else _events
    for columns in read(feed, start, end):
        yield _batch(columns, feed, arrow)


Columns = dict[str, Any]
"""By name, a list of values, or an array of Arrow's where that is less work."""

# ---------------------------------------------------------------- messages


def _messages(feed: Feed, start: int, end: int) -> Iterator[Columns]:
    """Records stay whole until a batch of them is taken apart by columns: what is done per record
    decides how fast all of this is."""
    gathered: dict[int, tuple[list[object], list[Any]]] = {
        kind.KIND: ([], []) for kind in (CapturedRecord, RecordedPublication)
    }
    entries = _EntriesBeforeLoss(feed, start, end)
    for offset, kind, body in entries:
        if kind not in gathered:
            continue
        try:
            record: Any = decode_record(kind, body)
        except ValueError as error:
            raise _undecodable(feed, offset, error) from None
        if kind == CapturedRecord.KIND and not record.recorded:
            continue
        offsets, records = gathered[kind]
        offsets.append(offset)
        records.append(record)
        if len(records) >= BATCH_ROWS:
            yield _message_columns(feed, kind, offsets, records)
            gathered[kind] = [], []
    for kind, (offsets, records) in gathered.items():
        if records:
            yield _message_columns(feed, kind, offsets, records)
    entries.end()


def _message_columns(feed: Feed, kind: int, offsets: list[object], records: list[Any]) -> Columns:
    count = len(records)
    if kind == CapturedRecord.KIND:
        lives = pa.repeat(pa.scalar(feed.epoch, pa.int64()), count)
        qualities = [record.qos for record in records]
    else:
        lives = [record.incarnation for record in records]
        qualities = pa.repeat(pa.scalar(0, pa.int64()), count)
    return {
        "origin": pa.repeat(node_text(feed.node), count),
        "life": lives,
        "seq": [record.number for record in records],
        "qos": qualities,
        "topic": [record.topic for record in records],
        "payload": [record.payload for record in records],
        "retain": [record.retain for record in records],
        "properties": [record.properties for record in records],
        "time_ns": [record.time_ns for record in records],
        "offset": offsets,
    }


# ---------------------------------------------------------------- events

Gathered = dict[type[schema.AnyRecord], list[tuple[int, TelemetryBlock, int, schema.AnyRecord]]]


def _events(feed: Feed, start: int, end: int) -> Iterator[Columns]:
    """Rows of one kind go together: what a kind does not have is then empty for a whole batch."""
    gathered: Gathered = defaultdict(list)
    count = 0
    entries = _EntriesBeforeLoss(feed, start, end)
    for offset, number, body in entries:
        block = _decoded(feed, offset, number, body) if number == TelemetryBlock.KIND else None
        if not isinstance(block, TelemetryBlock):
            continue
        try:
            for row, record in decode_block(block):
                gathered[type(record)].append((offset, block, row, record))
                count += 1
        except ValueError as error:
            raise _undecodable(feed, offset, error) from None
        if count >= BATCH_ROWS:
            yield from _event_columns(gathered)
            gathered.clear()
            count = 0
    yield from _event_columns(gathered)
    entries.end()


def _event_columns(gathered: Gathered) -> Iterator[Columns]:
    for kind, rows in gathered.items():
        columns: Columns = {
            "node": [node_text(block.node) for _, block, _, _ in rows],
            "incarnation": [block.incarnation for _, block, _, _ in rows],
            "number": [number for _, _, number, _ in rows],
            "kind": [schema.KIND_NAMES[kind]] * len(rows),
            "offset": [offset for offset, _, _, _ in rows],
        }
        for name in kind.__struct_fields__:
            columns[name] = _shown(FIELD_COLUMNS[name][0], [getattr(row[3], name) for row in rows])
        yield columns


def _shown(kind: ColumnType, values: list[object]) -> list[object]:
    match kind:
        case "node":
            return [node_text(value) if isinstance(value, int) else None for value in values]
        case "nodes":
            return [[node_text(node) for node in value] for value in values]  # type: ignore[attr-defined]
    return values


# ---------------------------------------------------------------- both


class _EntriesBeforeLoss:
    """What a feed has up to where something is lost: that is told only after the rows before it."""

    def __init__(self, feed: Feed, start: int, end: int) -> None:
        self._entries = feed.entries(start, end)
        self._loss: JournalDamaged | JournalTrimmed | None = None

    def __iter__(self) -> Iterator[tuple[int, int, bytes]]:
        try:
            yield from self._entries
        except (JournalDamaged, JournalTrimmed) as loss:
            self._loss = loss

    def end(self) -> None:
        if self._loss is not None:
            raise self._loss


def _decoded(feed: Feed, offset: int, kind: int, body: bytes) -> object:
    try:
        return decode_record(kind, body)
    except ValueError as error:
        raise _undecodable(feed, offset, error) from None


def _undecodable(feed: Feed, offset: int, error: ValueError) -> JournalDamaged:
    return JournalDamaged(f"{feed.place}: the record at {offset} means nothing: {error}", offset)


def _batch(columns: Columns, feed: Feed, arrow: pa.Schema) -> pa.RecordBatch:
    times = pa.array(columns["time_ns"], pa.int64())
    count = len(times)
    ready: Columns = {
        **columns,
        "time_ns": times,
        "time": pa.compute.divide(times, 1_000).cast(arrow.field("time").type),
        "feed": pa.repeat(feed.name, count),
    }
    return pa.RecordBatch.from_arrays(
        [_array(ready.get(field.name), field.type, count) for field in arrow], schema=arrow
    )


def _array(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
