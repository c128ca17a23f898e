"""Writes rows to Parquet files in the Python workers, so that no row passes through the JVM.

Files are written atomically. A repeated task writes the same files again.
"""

import datetime
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

FILE_BYTES = 32 << 20
"""Size of the rows of one file in memory, which bounds the memory of a task."""

FILE_SCHEMA = pa.schema([("path", pa.string()), ("day", pa.date32()), ("rows", pa.int64())])
"""The row that describes a file."""

FILE_DDL = "path string, day date, rows bigint"


def write_files(
    batches: Iterable[pa.RecordBatch], directory: Path, name: str
) -> Iterator[pa.RecordBatch]:
    """Write rows to files in a directory, one day per file; yield a row per file."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(_combine(batches)):
        for day, rows in _by_day(table):
            path = directory / f"{name}-{number}-{day}.parquet"
            _write(rows, path)
            file_row = [[str(path)], [day], [len(rows)]]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(value, field.type)
                    for value, field in zip(file_row, FILE_SCHEMA, strict=True)
                ],
                schema=FILE_SCHEMA,
            )


def _combine(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
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
    # Dictionary encoding pays off only for strings; numbers and payloads rarely repeat.
    strings = [field.name for field in rows.schema if field.type == pa.string()]
    new = path.with_suffix(".new")
    parquet.write_table(rows, new, use_dictionary=strings)
    new.replace(path)
