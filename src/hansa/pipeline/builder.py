"""Builds silver and gold from all of bronze, checks and publishes them.

Late and repeated input gives the same tables as input in order. A table that violates its rules
stops the build, and the previous generation stays current.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from hansa.pipeline import payloads
from hansa.pipeline.bronze import ProgressCallback, ignore_progress, mark_empty, read_bronze
from hansa.pipeline.errors import to_user_error
from hansa.pipeline.formats import append_batches, open_table_log
from hansa.pipeline.gold import GOLD
from hansa.pipeline.lake import BRONZE, EXPERIMENTS, Lake, TableEntry
from hansa.pipeline.quality import check_table
from hansa.pipeline.silver import (
    MESSAGE_KEY,
    RECORD_KEY,
    SILVER,
    deduplicate,
    with_guaranteed,
    with_run,
)
from hansa.pipeline.tables import LakeTable

INPUTS = ("bronze_messages", "events")
"""Inputs of silver."""
OTHER_VIEW_NAMES = (*(f"bronze_{table}" for table in BRONZE), EXPERIMENTS)
"""Views in SQL besides silver and gold."""

PARALLEL_TABLES = 4
"""Small tables spend most of their time in planning: while one is planned, another is written."""


def all_tables(mapping: Path | None = None) -> list[LakeTable]:
    """Return all tables in the order in which they are built."""
    own = {table.name for table in (*SILVER.tables, *GOLD.tables)}
    mapped = (
        payloads.read_payload_tables(mapping, own | {*INPUTS, *OTHER_VIEW_NAMES}) if mapping else []
    )
    return [*SILVER.tables, *mapped, *GOLD.tables]


def build_tables(
    spark: SparkSession, lake: Lake, on_progress: ProgressCallback = ignore_progress
) -> list[TableEntry]:
    """Build silver and gold from all of bronze, check and publish them."""
    try:
        return _build(spark, lake, on_progress)
    except PySparkException as error:
        raise to_user_error(error) from error


def _build(spark: SparkSession, lake: Lake, on_progress: ProgressCallback) -> list[TableEntry]:
    staged = lake.staging("generation")
    recorded = (
        deduplicate(with_guaranteed(read_bronze(spark, lake, "messages")), MESSAGE_KEY),
        deduplicate(with_run(with_guaranteed(read_bronze(spark, lake, "events"))), RECORD_KEY),
    )
    inputs = dict(zip(INPUTS, recorded, strict=True))
    empty = {name for name in inputs if not lake.has_rows(name.removeprefix("bronze_"))}
    built: dict[str, Future[BuiltTable]] = {}

    def build(table: LakeTable) -> BuiltTable:
        # Tables are submitted in order, so the inputs are already being built.
        frames = {
            name: inputs[name] if name in inputs else built[name].result().frame
            for name in table.inputs
        }
        on_progress(table.layer, table.name, None)
        directory = staged / table.layer / table.name
        if empty.issuperset(table.inputs):
            result = _build_empty_table(spark, table, frames, directory)
        else:
            result = _build_table(spark, table, frames, directory)
        if not result.entry.rows:
            empty.add(table.name)
        on_progress(table.layer, table.name, result.entry.rows)
        return result

    with ThreadPoolExecutor(PARALLEL_TABLES) as pool:
        for table in all_tables(lake.payloads):
            built[table.name] = pool.submit(build, table)
        try:
            entries = [each.result().entry for each in built.values()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    publish_generation(lake, staged, entries)
    return entries


def _build_table(
    spark: SparkSession, table: LakeTable, frames: Mapping[str, DataFrame], directory: Path
) -> "BuiltTable":
    frame = table.build_from(frames)
    frame.write.partitionBy(*table.partitions).parquet(str(directory))
    written = spark.read.schema(frame.schema).parquet(str(directory))
    count = check_table(table, written)
    entry = TableEntry(table.name, table.layer, table.grain, count, frame.schema.toDDL())
    return BuiltTable(written if count else mark_empty(written), entry)


def _build_empty_table(
    spark: SparkSession, table: LakeTable, frames: Mapping[str, DataFrame], directory: Path
) -> "BuiltTable":
    """Write a table without rows. With about thirty tables, avoiding Spark jobs saves seconds."""
    schema = table.build_from(frames).schema
    directory.mkdir(parents=True)
    if not table.partitions:  # a partitioned table without rows has no files
        no_rows = to_arrow_schema(schema, timezone="UTC").empty_table()
        parquet.write_table(no_rows, directory / "part-0.parquet")
    entry = TableEntry(table.name, table.layer, table.grain, 0, schema.toDDL())
    return BuiltTable(mark_empty(spark.read.schema(schema).parquet(str(directory))), entry)


@dataclass(frozen=True, slots=True)
class BuiltTable:
    """A written and checked table."""

    frame: DataFrame
    entry: TableEntry


def publish_generation(lake: Lake, staged: Path, entries: list[TableEntry]) -> None:
    """Publish a generation, also in the table format of the lake."""
    log = open_table_log(lake)
    if log is None:
        lake.publish(staged, entries)
        return
    append_batches(lake, log)
    for entry in entries:
        log.prepare_table(staged / entry.layer / entry.name)
    lake.publish(staged, entries)
    for entry in entries:
        log.replace_table(entry, lake.table_path(entry))
