"""Runs the pipeline: recorded data to bronze, bronze to silver and gold.

Bronze is streamed exactly once: a micro-batch is a directory named by its number, so a batch that
is repeated after a crash is found complete. Silver and gold are rebuilt from all of bronze: late
and repeated input gives the same tables as input in order. A table that violates its rules stops
the pipeline before it is published.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pyarrow import parquet
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from hansa.errors import AgentUnreachable
from hansa.pipeline import feeds, payloads, rows
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

ATTEMPTS = 5
SPARK_STARTUP_ERRORS = ("Python worker failed to connect back", "of collection, expected ")
"""Errors of Spark if the machine is too busy to start Python within ten seconds, and if Spark sends
a map to its workers while the plan of another stream changes it. A restarted stream continues where
it was."""

INPUTS = ("bronze_messages", "events")
"""Inputs of silver."""
OTHER_VIEW_NAMES = (*(f"bronze_{table}" for table in BRONZE), EXPERIMENTS)
"""Views in SQL besides silver and gold."""

PARALLEL_TABLES = 4
"""Small tables spend most of their time in planning: while one is planned, another is written."""

TRANSIENT_ERRORS = (*SPARK_STARTUP_ERRORS, AgentUnreachable.__name__)
"""Errors after which a continuous stream is restarted."""

WarningCallback = Callable[[str], None]

ProgressCallback = Callable[[str, str, int | None], None]
"""Called with layer, table, and the number of rows if it is known."""


def ignore_progress(_layer: str, _table: str, _count: int | None) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """The options of a pipeline run."""

    sources: Sequence[str]
    """Directories, or addresses of agents."""
    token: str = ""
    """Token of the agents."""
    allow_loss: bool = False
    """Continue after data that retention or a disk lost before it was read."""
    batch_bytes: int | None = None
    """Recorded bytes per micro-batch; None for the default of the source."""
    payloads: Path | None = None
    """File that declares tables for JSON payloads; None for the one given last."""


def all_tables(mapping: Path | None = None) -> list[LakeTable]:
    """Return all tables in the order in which they are built."""
    own = {table.name for table in (*SILVER.tables, *GOLD.tables)}
    mapped = (
        payloads.read_payload_tables(mapping, own | {*INPUTS, *OTHER_VIEW_NAMES}) if mapping else []
    )
    return [*SILVER.tables, *mapped, *GOLD.tables]


# ---------------------------------------------------------------- bronze


def start_stream(
    spark: SparkSession,
    lake: Lake,
    job: PipelineJob,
    table: str,
    on_progress: ProgressCallback = ignore_progress,
    every_s: float | None = None,
) -> StreamingQuery:
    """Start the stream into one bronze table: of the present data, or continuously."""
    row_count = 0

    def write_batch(frame: DataFrame, number: int) -> None:
        nonlocal row_count
        row_count += _write_batch(lake, table, frame, number)
        on_progress("bronze", table, row_count)

    options = {
        "paths": json.dumps([str(source) for source in job.sources]),
        "token": job.token,
        "table": table,
        "failOnLoss": str(not job.allow_loss).lower(),
        "writeFilesTo": str(lake.staging(f"{table}-files")),
    }
    if job.batch_bytes is not None:
        options["maxBytesPerBatch"] = str(job.batch_bytes)
    trigger = (
        {"availableNow": True} if every_s is None else {"processingTime": f"{every_s} seconds"}
    )
    return (
        spark.readStream.format("hansa")
        .options(**options)
        .load()
        .writeStream.queryName(table)
        .option("checkpointLocation", str(lake.checkpoint(table)))
        .foreachBatch(write_batch)
        .trigger(**trigger)
        .start()
    )


def _write_batch(lake: Lake, table: str, frame: DataFrame, number: int) -> int:
    """Write a micro-batch and return its number of rows; 0 if it was already written.

    A batch gets its name only when it is complete, and the same offsets give the same rows. The
    source writes the files while Spark collects their list."""
    place = lake.batch_path(table, number)
    if place.exists():
        return 0
    staged = lake.staging(f"{table}-{number}")
    staged.mkdir()
    files = frame.collect()
    for file in files:
        folder = staged / f"day={file.day}"
        folder.mkdir(exist_ok=True)
        Path(file.path).rename(folder / Path(file.path).name)
    staged.rename(place)
    return sum(file.rows for file in files)


def ingest(
    spark: SparkSession,
    lake: Lake,
    job: PipelineJob,
    on_progress: ProgressCallback = ignore_progress,
) -> None:
    """Read the present data into bronze, both tables in parallel."""
    with ThreadPoolExecutor(len(BRONZE)) as pool:
        for done in [
            pool.submit(_ingest, spark, lake, job, table, on_progress) for table in BRONZE
        ]:
            done.result()


def _ingest(
    spark: SparkSession, lake: Lake, job: PipelineJob, table: str, on_progress: ProgressCallback
) -> None:
    if not lake.checkpoint(table).exists() and not _has_feeds(job, table):
        return  # starting a stream takes seconds
    on_progress("bronze", table, None)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            start_stream(spark, lake, job, table, on_progress).awaitTermination()
            return
        except StreamingQueryException as error:
            if attempt == ATTEMPTS or not any(text in str(error) for text in SPARK_STARTUP_ERRORS):
                raise to_user_error(error) from error


def _has_feeds(job: PipelineJob, table: str) -> bool:
    return bool(feeds.find_feeds(job.sources, table == rows.EVENTS, job.token))


def read_bronze(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    schema = f"{rows.ddl(table)}, batch int, day date"
    found = spark.read.schema(schema).parquet(str(lake.path / "bronze" / table))
    return found if lake.has_rows(table) else _empty(found)


def _empty(frame: DataFrame) -> DataFrame:
    """Mark a table as empty, so that Spark plans almost nothing for tables built from it."""
    return frame.limit(0)


# ---------------------------------------------------------------- silver and gold


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
        place = staged / table.layer / table.name
        if empty.issuperset(table.inputs):
            result = _build_empty_table(spark, table, frames, place)
        else:
            result = _build_table(spark, table, frames, place)
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
    spark: SparkSession, table: LakeTable, frames: Mapping[str, DataFrame], place: Path
) -> "BuiltTable":
    frame = table.build_from(frames)
    frame.write.partitionBy(*table.partitions).parquet(str(place))
    written = spark.read.schema(frame.schema).parquet(str(place))
    count = check_table(table, written)
    entry = TableEntry(table.name, table.layer, table.grain, count, frame.schema.toDDL())
    return BuiltTable(written if count else _empty(written), entry)


def _build_empty_table(
    spark: SparkSession, table: LakeTable, frames: Mapping[str, DataFrame], place: Path
) -> "BuiltTable":
    """Write a table without rows. With about thirty tables, avoiding Spark jobs saves seconds."""
    schema = table.build_from(frames).schema
    place.mkdir(parents=True)
    if not table.partitions:  # a partitioned table without rows has no files
        no_rows = to_arrow_schema(schema, timezone="UTC").empty_table()
        parquet.write_table(no_rows, place / "part-0.parquet")
    entry = TableEntry(table.name, table.layer, table.grain, 0, schema.toDDL())
    return BuiltTable(_empty(spark.read.schema(schema).parquet(str(place))), entry)


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


@contextmanager
def _writing(lake: Lake, job: PipelineJob) -> Iterator[None]:
    with lake.write_lock():
        if job.payloads:
            lake.save_payloads(job.payloads)
        yield


def run_once(
    spark: SparkSession,
    lake: Lake,
    job: PipelineJob,
    on_progress: ProgressCallback = ignore_progress,
) -> list[TableEntry]:
    """Read the present data into a lake and rebuild its tables."""
    with _writing(lake, job):
        ingest(spark, lake, job, on_progress)
        return build_tables(spark, lake, on_progress)


def run_continuously(
    spark: SparkSession,
    lake: Lake,
    job: PipelineJob,
    every_s: float,
    on_progress: ProgressCallback,
    warn: WarningCallback,
) -> None:
    """Read new data until interrupted, and rebuild the tables whenever there is some."""
    with _writing(lake, job), ThreadPoolExecutor(len(BRONZE)) as pool:
        stopping = Event()
        streams = [
            pool.submit(_run_stream, spark, lake, job, table, every_s, stopping) for table in BRONZE
        ]
        built_counts: list[int] = []
        unreachable: set[str] = set()
        try:
            while not any(stream.done() for stream in streams):
                unreachable = _warn_unreachable(job, unreachable, warn)
                counts = [lake.batch_count(table) for table in BRONZE]
                if counts != built_counts:
                    build_tables(spark, lake, on_progress)
                    built_counts = counts
                else:
                    time.sleep(every_s)
        finally:
            stopping.set()
            while wait(streams, timeout=0.1).not_done:
                for query in spark.streams.active:
                    query.stop()
        for stream in streams:
            stream.result()


def _run_stream(
    spark: SparkSession, lake: Lake, job: PipelineJob, table: str, every_s: float, stopping: Event
) -> None:
    """Run a stream and restart it after transient errors."""
    while not stopping.is_set():
        try:
            start_stream(spark, lake, job, table, every_s=every_s).awaitTermination()
        except StreamingQueryException as error:
            if not any(text in str(error) for text in TRANSIENT_ERRORS):
                raise to_user_error(error) from error
            stopping.wait(every_s)


def _warn_unreachable(job: PipelineJob, before: set[str], warn: WarningCallback) -> set[str]:
    """Return the agents that do not answer now; warn about those that answered before."""
    unreachable = feeds.find_unreachable_agents(job.sources, job.token)
    for agent in sorted(unreachable - before):
        warn(f"{agent} does not answer; its data is read when it does")
    return unreachable


# ---------------------------------------------------------------- reading


def create_views(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Return the tables of a lake, and create a view of each for SQL."""
    tables = {} if lake.is_only_experiments else _tables(spark, lake)
    if lake.experiments:
        simulations = spark.read.option("mergeSchema", "true").parquet(str(lake.experiments))
        # Two drivers may have run the same case at the same time.
        tables[EXPERIMENTS] = simulations.dropDuplicates(["case", "hansa"])
    for name, frame in tables.items():
        frame.createOrReplaceTempView(name)
    return tables


def _tables(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    return {entry.name: _read(spark, lake, entry) for entry in lake.tables()} | {
        f"bronze_{table}": read_bronze(spark, lake, table) for table in BRONZE
    }


def _read(spark: SparkSession, lake: Lake, entry: TableEntry) -> DataFrame:
    # With a given schema, Spark reads no file before the first query.
    reader = spark.read.schema(entry.columns) if entry.columns else spark.read
    return reader.parquet(str(lake.table_path(entry)))
