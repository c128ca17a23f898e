"""From the bytes of a feed to Arrow batches: a row per recorded message, or per telemetry record.

The columns of both tables are here, in the order that Spark sees them.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from hansa.errors import JournalDamaged
from hansa.journal.records import Block, Captured, Recorded, decode
from hansa.pipeline.feeds import Feed
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS, FIELDS, Type
from hansa.telemetry.reader import records_of

BATCH_ROWS = 16_384
"""Rows of an Arrow batch: enough to forget what a batch costs, few enough to hold."""

MESSAGES = "messages"
EVENTS = "events"

_SPARK_TYPES: dict[Type, str] = {
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


@lru_cache(maxsize=65_536)
def node_text(node: int) -> str:
    """Return a node's id as tables have it."""
    return f"{node:016x}"


def batches(
    feed: Feed, start: int, end: int, table: str, arrow: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what a feed says between two offsets."""
    read = _messages if table == MESSAGES else _events
    for columns in read(feed, start, end):
        yield _batch(columns, feed, arrow)


# ---------------------------------------------------------------- messages

Columns = dict[str, list[object]]


def _messages(feed: Feed, start: int, end: int) -> Iterator[Columns]:
    found: list[tuple[object, ...]] = []
    for offset, kind, body in feed.entries(start, end):
        if kind not in (Captured.KIND, Recorded.KIND):
            continue
        match _decoded(feed, offset, kind, body):
            case Captured(number, qos, topic, payload, retain, properties, _, _, time_ns, True):
                life = feed.epoch
            case Recorded(life, number, topic, payload, retain, properties, time_ns):
                qos = 0
            case _:
                continue
        found.append((life, number, qos, topic, payload, retain, properties, time_ns, offset))
        if len(found) >= BATCH_ROWS:
            yield _message_columns(feed, found)
            found = []
    if found:
        yield _message_columns(feed, found)


def _message_columns(feed: Feed, found: list[tuple[object, ...]]) -> Columns:
    names = ("life", "seq", "qos", "topic", "payload", "retain", "properties", "time_ns", "offset")
    columns: Columns = {
        name: list(values) for name, values in zip(names, zip(*found, strict=True), strict=True)
    }
    columns["origin"] = [node_text(feed.node)] * len(found)
    return columns


# ---------------------------------------------------------------- events

Gathered = dict[type[schema.Any], list[tuple[int, Block, int, schema.Any]]]


def _events(feed: Feed, start: int, end: int) -> Iterator[Columns]:
    """Rows of one kind go together: what a kind does not have is then empty for a whole batch."""
    gathered: Gathered = defaultdict(list)
    count = 0
    for offset, number, body in feed.entries(start, end):
        block = _decoded(feed, offset, number, body) if number == Block.KIND else None
        if not isinstance(block, Block):
            continue
        try:
            for row, record in records_of(block):
                gathered[type(record)].append((offset, block, row, record))
                count += 1
        except ValueError as error:
            raise _meaningless(feed, offset, error) from None
        if count >= BATCH_ROWS:
            yield from _event_columns(gathered)
            gathered.clear()
            count = 0
    yield from _event_columns(gathered)


def _event_columns(gathered: Gathered) -> Iterator[Columns]:
    for kind, rows in gathered.items():
        columns: Columns = {
            "node": [node_text(block.node) for _, block, _, _ in rows],
            "incarnation": [block.incarnation for _, block, _, _ in rows],
            "number": [number for _, _, number, _ in rows],
            "kind": [schema.NAMES[kind]] * len(rows),
            "offset": [offset for offset, _, _, _ in rows],
        }
        for name in kind.__struct_fields__:
            columns[name] = _shown(FIELDS[name][0], [getattr(row[3], name) for row in rows])
        yield columns


def _shown(kind: Type, values: list[object]) -> list[object]:
    match kind:
        case "node":
            return [node_text(value) if isinstance(value, int) else None for value in values]
        case "nodes":
            return [[node_text(node) for node in value] for value in values]  # type: ignore[attr-defined]
    return values


# ---------------------------------------------------------------- both


def _decoded(feed: Feed, offset: int, kind: int, body: bytes) -> object:
    try:
        return decode(kind, body)
    except ValueError as error:
        raise _meaningless(feed, offset, error) from None


def _meaningless(feed: Feed, offset: int, error: ValueError) -> JournalDamaged:
    return JournalDamaged(f"{feed.place}: the record at {offset} means nothing: {error}", offset)


def _batch(columns: Columns, feed: Feed, arrow: pa.Schema) -> pa.RecordBatch:
    times = pa.array(columns["time_ns"], pa.int64())
    count = len(times)
    ready = {
        "time_ns": times,
        "time": pa.compute.divide(times, 1_000).cast(arrow.field("time").type),
        "feed": pa.repeat(feed.name, count),
    }
    arrays = [
        ready[field.name]
        if field.name in ready
        else pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
