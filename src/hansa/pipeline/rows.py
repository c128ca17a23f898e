"""Converts the records of a feed to Arrow batches: one row per message, or per telemetry record.

Defines the columns of both tables, in the order in which Spark sees them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from hansa.errors import BrokerMisbehaved, JournalDamaged, JournalTrimmed
from hansa.journal.records import CapturedRecord, RecordedPublication, TelemetryBlock, decode_record
from hansa.mqtt.properties import Property, decode_properties
from hansa.pipeline.feeds import Feed
from hansa.pipeline.packed_records import PackedRecords, UnexpectedLayout
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS, FIELD_COLUMNS, ColumnType
from hansa.telemetry.reader import decode_block

BATCH_ROWS = 16_384
BATCH_BYTES = 32 << 20
"""Most rows of an Arrow batch, and bytes after which it ends: enough to make the cost per batch
negligible, few enough for memory, and for Arrow, whose arrays of texts hold 2 GiB."""

MESSAGES = "messages"
EVENTS = "events"

_SPARK_TYPES: dict[ColumnType, str] = {
    "node": "string",
    "nodes": "array<string>",
    "integer": "bigint",
    "real": "double",
    "text": "string",
}
_SOURCE_COLUMNS = {"feed": "string", "offset": "bigint", "time": "timestamp"}

TABLES: dict[str, dict[str, str]] = {
    MESSAGES: {
        "origin_id": "string",
        "epoch": "bigint",
        "sequence": "bigint",
        "qos": "bigint",
        "topic": "string",
        "payload": "binary",
        "retain": "boolean",
        "properties": "binary",
        "content_type": "string",
        "response_topic": "string",
        "correlation_data": "binary",
        "expiry_seconds": "bigint",
        "user_properties": "map<string,string>",
        "time_ns": "bigint",
        **_SOURCE_COLUMNS,
    },
    EVENTS: {
        **{name: _SPARK_TYPES[kind] for name, (kind, _) in COLUMNS.items()},
        **_SOURCE_COLUMNS,
    },
}
"""Columns and Spark types of the source. `feed` and `offset` say where a row was recorded; `time`
is `time_ns` in microseconds. docs/reference/records.md describes the other columns."""


REQUIRED: dict[str, frozenset[str]] = {
    MESSAGES: frozenset(
        (
            *("origin_id", "epoch", "sequence", "qos", "topic", "payload", "retain", "properties"),
            *("time_ns", *_SOURCE_COLUMNS),
        )
    ),
    EVENTS: frozenset(
        ("node_id", "incarnation", "record_sequence", "kind", "time_ns", *_SOURCE_COLUMNS)
    ),
}
"""Columns that every row has: Spark then does not ask each row whether they are empty."""


def ddl(table: str) -> str:
    """Return a table's columns as Spark DDL."""
    return ", ".join(
        f"`{name}` {kind}{' NOT NULL' if name in REQUIRED[table] else ''}"
        for name, kind in TABLES[table].items()
    )


_ARROW_TYPES = {
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(table: str) -> pa.Schema:
    """Return a table's columns as an Arrow schema."""
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in TABLES[table].items()])


@lru_cache(maxsize=65_536)
def node_text(node: int) -> str:
    return f"{node:016x}"


def read_batches(
    feed: Feed, start: int, end: int, table: str, arrow: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a feed between two offsets.

    If part of the range is lost, all rows before it are yielded before JournalDamaged or
    JournalTrimmed is raised."""
    read = _messages if table == MESSAGES else _events
    for columns in read(feed, start, end):
        yield _batch(columns, feed, arrow)


Columns = dict[str, Any]
"""Per column name a list of values, or an Arrow array if that is cheaper."""

# ---------------------------------------------------------------- messages


def _messages(feed: Feed, start: int, end: int) -> Iterator[Columns]:
    # Work per record dominates the cost, so a batch of records is split into columns at once. Until
    # then there are no objects that Python's garbage collection looks at.
    gathered: dict[int, tuple[list[int], list[bytes]]] = {
        kind.KIND: ([], []) for kind in (CapturedRecord, RecordedPublication)
    }
    entries, size = _EntriesBeforeLoss(feed, start, end), 0
    for offset, kind, body in entries:
        if kind not in gathered:
            continue
        offsets, bodies = gathered[kind]
        offsets.append(offset)
        bodies.append(body)
        size += len(body)
        if len(bodies) == BATCH_ROWS or size >= BATCH_BYTES:
            yield from _message_batches(feed, gathered)
            size = 0
    yield from _message_batches(feed, gathered)
    entries.end()


def _message_batches(
    feed: Feed, gathered: dict[int, tuple[list[int], list[bytes]]]
) -> Iterator[Columns]:
    for kind, (offsets, bodies) in gathered.items():
        if bodies:
            yield message_columns(feed, kind, offsets, bodies)
        gathered[kind] = [], []


def message_columns(
    feed: Feed, kind: int, offsets: Sequence[int], bodies: Sequence[bytes]
) -> Columns:
    try:
        columns = packed_columns(kind, offsets, bodies)
    except UnexpectedLayout:
        columns = decoded_columns(feed, kind, offsets, bodies)
    count = len(columns["offset"])
    properties = columns["properties"]
    return {
        "origin_id": pa.repeat(node_text(feed.node), count),
        "epoch": pa.repeat(pa.scalar(feed.epoch, pa.int64()), count),
        "qos": pa.repeat(pa.scalar(0, pa.int64()), count),
        **columns,
        **_property_columns(properties),
    }


def packed_columns(kind: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> Columns:
    """Decode records all at once, field by field."""
    records, columns = PackedRecords(bodies), dict[str, Any]()
    is_captured = kind == CapturedRecord.KIND
    fields = (CapturedRecord if is_captured else RecordedPublication).__struct_fields__
    records.begin(len(fields))
    first, second = records.integers(), records.integers()
    topic, payload = records.texts(), records.byte_strings()
    retain, properties = records.booleans(), records.byte_strings()
    if is_captured:
        records.skip_pairs()  # the receivers
        records.integers()  # the packet id
        columns |= {"sequence": first, "qos": second}
    else:
        columns |= {"epoch": first, "sequence": second}
    columns |= {"retain": retain, "time_ns": records.integers(), "offset": np.array(offsets)}
    chosen = records.booleans() if is_captured else np.full(len(bodies), True)
    for _ in fields[fields.index("recorded") + 1 :] if is_captured else ():
        records.integers()  # the version and the subscriptions
    records.end()
    return {
        **{name: pa.array(values[chosen]) for name, values in columns.items()},
        "topic": records.array(topic, chosen, pa.string()),
        "payload": records.array(payload, chosen, pa.binary()),
        "properties": records.array(properties, chosen, pa.binary()),
    }


def decoded_columns(
    feed: Feed, kind: int, offsets: Sequence[int], bodies: Sequence[bytes]
) -> Columns:
    """Decode records one by one."""
    rows: list[tuple[int, Any]] = []
    for offset, body in zip(offsets, bodies, strict=True):
        try:
            record: Any = decode_record(kind, body)
        except ValueError as error:
            raise _undecodable(feed, offset, error) from None
        if kind == RecordedPublication.KIND or record.recorded:
            rows.append((offset, record))
    records = [record for _, record in rows]
    if kind == CapturedRecord.KIND:
        own = {"qos": [record.qos for record in records]}
    else:
        own = {"epoch": [record.incarnation for record in records]}
    return {
        **own,
        "sequence": [record.sequence for record in records],
        "topic": [record.topic for record in records],
        "payload": [record.payload for record in records],
        "retain": [record.retain for record in records],
        "properties": pa.array([record.properties for record in records], pa.binary()),
        "time_ns": [record.time_ns for record in records],
        "offset": [offset for offset, _ in rows],
    }


PROPERTY_COLUMNS = {
    Property.CONTENT_TYPE: "content_type",
    Property.RESPONSE_TOPIC: "response_topic",
    Property.CORRELATION_DATA: "correlation_data",
    Property.MESSAGE_EXPIRY_INTERVAL: "expiry_seconds",
}


def _property_columns(encoded: pa.Array) -> Columns:
    """Return the columns of the MQTT 5 properties; most publications have none."""
    if not pa.compute.max(pa.compute.binary_length(encoded)).as_py():
        return {}
    decoded = [_properties(raw) for raw in encoded.to_pylist()]
    return {name: [row.get(name) for row in decoded] for name in _PROPERTY_NAMES}


_PROPERTY_NAMES = (*PROPERTY_COLUMNS.values(), "user_properties")


@lru_cache(maxsize=4_096)
def _properties(raw: bytes) -> dict[str, Any]:
    """Return the properties by column; none if they are malformed. Of several user properties with
    one name, the last counts; `properties` has all."""
    try:
        found = decode_properties(raw)
    except BrokerMisbehaved:
        return {}
    row: dict[str, Any] = {
        PROPERTY_COLUMNS[name]: value for name, value in found if name in PROPERTY_COLUMNS
    }
    pairs = dict(value for name, value in found if name is Property.USER_PROPERTY)  # type: ignore[misc]
    return {**row, "user_properties": list(pairs.items())} if pairs else row


# ---------------------------------------------------------------- events

Gathered = dict[type[schema.AnyRecord], list[tuple[int, TelemetryBlock, int, schema.AnyRecord]]]


def _events(feed: Feed, start: int, end: int) -> Iterator[Columns]:
    # A batch has rows of one kind, so columns that the kind does not have are empty as a whole.
    gathered: Gathered = defaultdict(list)
    count = 0
    entries = _EntriesBeforeLoss(feed, start, end)
    for offset, kind, body in entries:
        block = _decoded(feed, offset, kind, body) if kind == TelemetryBlock.KIND else None
        if not isinstance(block, TelemetryBlock):
            continue
        try:
            for sequence, record in decode_block(block):
                gathered[type(record)].append((offset, block, sequence, record))
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
            "node_id": [node_text(block.node) for _, block, _, _ in rows],
            "incarnation": [block.incarnation for _, block, _, _ in rows],
            "record_sequence": [sequence for _, _, sequence, _ in rows],
            "kind": [schema.KIND_NAMES[kind]] * len(rows),
            "offset": [offset for offset, _, _, _ in rows],
        }
        for name in kind.__struct_fields__:
            values = [getattr(row[3], name) for row in rows]
            columns[name] = _table_values(FIELD_COLUMNS[name][0], values)
        yield columns


def _table_values(kind: ColumnType, values: list[object]) -> list[object]:
    match kind:
        case "node":
            return [node_text(value) if isinstance(value, int) else None for value in values]
        case "nodes":
            return [[node_text(node) for node in value] for value in values]  # type: ignore[attr-defined]
    return values


# ---------------------------------------------------------------- both tables


class _EntriesBeforeLoss:
    """The entries of a feed up to a lost part; `end` raises the error after the caller has used
    them."""

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
    text = f"{feed.location}: the record at {offset} cannot be decoded: {error}"
    return JournalDamaged(text, offset)


def _batch(columns: Columns, feed: Feed, arrow: pa.Schema) -> pa.RecordBatch:
    times = pa.array(columns["time_ns"], pa.int64())
    count = len(times)
    ready: Columns = {
        **columns,
        "time_ns": times,
        "time": pa.compute.divide(times, 1_000).cast(_ARROW_TYPES["timestamp"]),
        "feed": pa.repeat(feed.name, count),
    }
    return pa.RecordBatch.from_arrays(
        [_array(ready.get(field.name), field.type, count) for field in arrow], schema=arrow
    )


def _array(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    if values is None:
        return pa.nulls(count, kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
