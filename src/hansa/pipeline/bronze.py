"""Streams recorded data into the bronze tables of a lake, exactly once.

A micro-batch is a directory named by its number, so a batch that is repeated after a crash is found
complete. Transient errors of Spark, and of agents in a continuous stream, restart the stream.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hansa.errors import AgentUnreachable
from hansa.pipeline import feeds, rows
from hansa.pipeline.errors import to_user_error
from hansa.pipeline.lake import BRONZE, Lake

ATTEMPTS = 5
SPARK_STARTUP_ERRORS = ("Python worker failed to connect back", "of collection, expected ")
"""Errors of Spark if the machine is too busy to start Python within ten seconds, and if Spark sends
a map to its workers while the plan of another stream changes it. A restarted stream continues where
it was."""

TRANSIENT_ERRORS = (*SPARK_STARTUP_ERRORS, AgentUnreachable.__name__)
"""Errors after which a continuous stream is restarted."""

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
    directory = lake.batch_path(table, number)
    if directory.exists():
        return 0
    staged = lake.staging(f"{table}-{number}")
    staged.mkdir()
    files = frame.collect()
    for file in files:
        folder = staged / f"day={file.day}"
        folder.mkdir(exist_ok=True)
        Path(file.path).rename(folder / Path(file.path).name)
    staged.rename(directory)
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
    return found if lake.has_rows(table) else mark_empty(found)


def mark_empty(frame: DataFrame) -> DataFrame:
    """Mark a table as empty, so that Spark plans almost nothing for tables built from it."""
    return frame.limit(0)


def run_stream(
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
