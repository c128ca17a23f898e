"""Rows into Parquet files, by whoever reads them: then no row has to pass through the JVM.

A file has its name before all of its rows, so it is there whole or not at all; a task that is done
again makes the same file again.
"""

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

FILE_BYTES = 32 << 20
"""Of rows in memory, in one file: what a task holds."""

FILE_SCHEMA = pa.schema([("path", pa.string()), ("day", pa.date32()), ("rows", pa.int64())])
"""What is told of a file."""

FILE_DDL = "path string, day date, rows bigint"
"""The same in Spark's words."""


def write_files(
    batches: Iterable[pa.RecordBatch], place: Path, name: str
) -> Iterator[pa.RecordBatch]:
    """Write rows to files in a directory, each with those of one day; yield a row per file."""
    place.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(_gathered(batches)):
        for day, rows in _by_day(table):
            path = place / f"{name}-{number}-{day}.parquet"
            _write(rows, path)
            file_row = [[str(path)], [day], [len(rows)]]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(value, field.type)
                    for value, field in zip(file_row, FILE_SCHEMA, strict=True)
                ],
                schema=FILE_SCHEMA,
            )


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= FILE_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _by_day(table: pa.Table) -> Iterator[tuple[datetime.date, pa.Table]]:
    days = table["time"].cast(pa.date32())
    found = pc.unique(days).to_pylist()
    for day in found:
        yield day, table if len(found) == 1 else table.filter(pc.equal(days, pa.scalar(day)))


def _write(rows: pa.Table, path: Path) -> None:
    # Words come again and again; numbers and payloads do not, and trying it costs time.
    words = [field.name for field in rows.schema if field.type == pa.string()]
    new = path.with_suffix(".new")
    parquet.write_table(rows, new, use_dictionary=words)
    new.replace(path)
