"""The pipeline: from what nodes recorded to bronze, from bronze to silver and gold.

Bronze is a stream, exactly once: a micro-batch is a directory named by its number, so one that is
done again after a crash is found done. Silver and gold are made anew from all of bronze: late and
repeated input gives the same tables as input in order, and a broken table stops the pipeline
before anybody sees it.
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
"""What Spark says when a machine is too busy to start Python within ten seconds, and when it sends
a map to its workers while the plan of another stream changes that. A stream that is started again
goes on where it was."""

INPUTS = ("bronze_messages", "events")
"""What silver is made from."""
OTHER_VIEW_NAMES = (*(f"bronze_{table}" for table in BRONZE), EXPERIMENTS)
"""What SQL knows besides silver and gold."""

PARALLEL_TABLES = 4
"""A table of few rows is mostly plans and waiting: while one is planned another is written."""

TRANSIENT_ERRORS = (*SPARK_STARTUP_ERRORS, AgentUnreachable.__name__)
"""What a stream may end with that goes on for ever: it is started again."""

WarningCallback = Callable[[str], None]
"""Hears of what does not go well but goes on."""

ProgressCallback = Callable[[str, str, int | None], None]
"""Hears of progress: layer, table, rows if they are known."""


def ignore_progress(_layer: str, _table: str, _count: int | None) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """What one pipeline does."""

    sources: Sequence[str]
    """Directories, or addresses of agents."""
    token: str = ""
    """For agents."""
    allow_loss: bool = False
    """Go on where retention or a disk lost what was not read."""
    batch_bytes: int | None = None
    """Of what was recorded, in one micro-batch; the source's own bound if left out."""
    payloads: Path | None = None
    """The user's file that says which payloads become columns; without one, the last given."""


def all_tables(mapping: Path | None = None) -> list[LakeTable]:
    """Return every table in the order in which they are made."""
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
    """Start the stream into one bronze table: of what there is now, or for ever."""
    kept = 0

    def keep(frame: DataFrame, number: int) -> None:
        nonlocal kept
        kept += _write_batch(lake, table, frame, number)
        on_progress("bronze", table, kept)

    options = {
        "paths": json.dumps([str(source) for source in job.sources]),
        "token": job.token,
        "table": table,
        "failOnLoss": str(not job.allow_loss).lower(),
        "into": str(lake.staging(f"{table}-files")),
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
        .foreachBatch(keep)
        .trigger(**trigger)
        .start()
    )


def _write_batch(lake: Lake, table: str, frame: DataFrame, number: int) -> int:
    """A batch with its name was whole when it got it, and the same offsets are the same rows.

    Its files are written when Spark asks which there are; return how many rows they have."""
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
    """Take into bronze what there is now, both tables at once."""
    with ThreadPoolExecutor(len(BRONZE)) as pool:
        for done in [
            pool.submit(_ingest, spark, lake, job, table, on_progress) for table in BRONZE
        ]:
            done.result()


def _ingest(
    spark: SparkSession, lake: Lake, job: PipelineJob, table: str, tell: ProgressCallback
) -> None:
    if not lake.checkpoint(table).exists() and not _has(job, table):
        return  # to start a stream for nothing takes seconds
    tell("bronze", table, None)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            start_stream(spark, lake, job, table, tell).awaitTermination()
            return
        except StreamingQueryException as error:
            if attempt == ATTEMPTS or not any(text in str(error) for text in SPARK_STARTUP_ERRORS):
                raise to_user_error(error) from error


def _has(job: PipelineJob, table: str) -> bool:
    return bool(feeds.find_feeds(job.sources, table == rows.EVENTS, job.token))


def read_bronze(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """Return a bronze table."""
    schema = f"{rows.ddl(table)}, batch int, day date"
    found = spark.read.schema(schema).parquet(str(lake.path / "bronze" / table))
    return found if lake.has_rows(table) else _empty(found)


def _empty(frame: DataFrame) -> DataFrame:
    """What is known to have no rows: then Spark plans hardly anything for what is made of it."""
    return frame.limit(0)


# ---------------------------------------------------------------- silver and gold


def build_tables(
    spark: SparkSession, lake: Lake, on_progress: ProgressCallback = ignore_progress
) -> list[TableEntry]:
    """Make silver and gold from all of bronze, check them, and let them be seen."""
    try:
        return _build(spark, lake, on_progress)
    except PySparkException as error:
        raise to_user_error(error) from error


def _build(spark: SparkSession, lake: Lake, tell: ProgressCallback) -> list[TableEntry]:
    staged = lake.staging("generation")
    recorded = (
        deduplicate(with_guaranteed(read_bronze(spark, lake, "messages")), MESSAGE_KEY),
        deduplicate(with_run(with_guaranteed(read_bronze(spark, lake, "events"))), RECORD_KEY),
    )
    inputs = dict(zip(INPUTS, recorded, strict=True))
    empty = {name for name in inputs if not lake.has_rows(name.removeprefix("bronze_"))}
    made: dict[str, Future[BuiltTable]] = {}

    def make(table: LakeTable) -> BuiltTable:
        """Wait for what it is made from: that was begun before, for tables are in order."""
        frames = {
            name: inputs[name] if name in inputs else made[name].result().frame
            for name in table.inputs
        }
        tell(table.layer, table.name, None)
        place = staged / table.layer / table.name
        if empty.issuperset(table.inputs):
            finished = _make_empty_table(spark, table, frames, place)
        else:
            finished = _make(spark, table, frames, place)
        if not finished.entry.rows:
            empty.add(table.name)
        tell(table.layer, table.name, finished.entry.rows)
        return finished

    with ThreadPoolExecutor(PARALLEL_TABLES) as pool:
        for table in all_tables(lake.payloads):
            made[table.name] = pool.submit(make, table)
        try:
            kept = [each.result().entry for each in made.values()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    publish_generation(lake, staged, kept)
    return kept


def _make(
    spark: SparkSession, table: LakeTable, frames: Mapping[str, DataFrame], place: Path
) -> "BuiltTable":
    frame = table.build_from(frames)
    frame.write.partitionBy(*table.partitions).parquet(str(place))
    written = spark.read.schema(frame.schema).parquet(str(place))
    count = check_table(table, written)
    kept = TableEntry(table.name, table.layer, table.grain, count, frame.schema.toDDL())
    return BuiltTable(written if count else _empty(written), kept)


def _make_empty_table(
    spark: SparkSession, table: LakeTable, frames: Mapping[str, DataFrame], place: Path
) -> "BuiltTable":
    """Tables without rows make one without rows: that needs no jobs of Spark, which take seconds
    where it is asked of thirty tables."""
    schema = table.build_from(frames).schema
    place.mkdir(parents=True)
    if not table.partitions:  # those have no files without rows
        nothing = to_arrow_schema(schema, timezone="UTC").empty_table()
        parquet.write_table(nothing, place / "part-0.parquet")
    kept = TableEntry(table.name, table.layer, table.grain, 0, schema.toDDL())
    return BuiltTable(_empty(spark.read.schema(schema).parquet(str(place))), kept)


@dataclass(frozen=True, slots=True)
class BuiltTable:
    """A table that was written and checked."""

    frame: DataFrame
    entry: TableEntry


def publish_generation(lake: Lake, staged: Path, kept: list[TableEntry]) -> None:
    """Let a generation be seen, by readers of the lake's format too."""
    log = open_table_log(lake)
    if log is None:
        lake.publish(staged, kept)
        return
    append_batches(lake, log)
    for table in kept:
        log.prepare_table(staged / table.layer / table.name)
    lake.publish(staged, kept)
    for table in kept:
        log.replace_table(table, lake.table_path(table))


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
    """Bring a lake up to what there is now."""
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
    """Follow what is recorded until interrupted; tables are made anew when there is more."""
    with _writing(lake, job), ThreadPoolExecutor(len(BRONZE)) as pool:
        ended = Event()
        streams = [
            pool.submit(_run_stream, spark, lake, job, table, every_s, ended) for table in BRONZE
        ]
        seen: list[int] = []
        silent_ones: set[str] = set()
        try:
            while not any(stream.done() for stream in streams):
                silent_ones = _warn_unreachable(job, silent_ones, warn)
                found = [lake.batch_count(table) for table in BRONZE]
                if found != seen:
                    build_tables(spark, lake, on_progress)
                    seen = found
                else:
                    time.sleep(every_s)
        finally:
            ended.set()
            while wait(streams, timeout=0.1).not_done:
                for query in spark.streams.active:
                    query.stop()
        for stream in streams:
            stream.result()


def _run_stream(
    spark: SparkSession, lake: Lake, job: PipelineJob, table: str, every_s: float, ended: Event
) -> None:
    """Keep a stream going, also while tables are made."""
    while not ended.is_set():
        try:
            start_stream(spark, lake, job, table, every_s=every_s).awaitTermination()
        except StreamingQueryException as error:
            if not any(word in str(error) for word in TRANSIENT_ERRORS):
                raise to_user_error(error) from error
            ended.wait(every_s)


def _warn_unreachable(job: PipelineJob, before: set[str], warn: WarningCallback) -> set[str]:
    """Return which agents do not answer now, and tell of those that did before."""
    now = feeds.find_unreachable_agents(job.sources, job.token)
    for agent in sorted(now - before):
        warn(f"{agent} does not answer; its news are taken in when it does")
    return now


# ---------------------------------------------------------------- reading


def create_views(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Return the tables of a lake, and make each a view of its name, for SQL."""
    found = {} if lake.is_only_experiments else _tables(spark, lake)
    if lake.experiments:
        simulations = spark.read.option("mergeSchema", "true").parquet(str(lake.experiments))
        # Two drivers at the same time may both have played a case.
        found[EXPERIMENTS] = simulations.dropDuplicates(["case", "hansa"])
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    return found


def _tables(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    return {kept.name: _read(spark, lake, kept) for kept in lake.tables()} | {
        f"bronze_{table}": read_bronze(spark, lake, table) for table in BRONZE
    }


def _read(spark: SparkSession, lake: Lake, kept: TableEntry) -> DataFrame:
    """With its columns known, nothing is read until somebody asks."""
    reader = spark.read.schema(kept.columns) if kept.columns else spark.read
    return reader.parquet(str(lake.table_path(kept)))
