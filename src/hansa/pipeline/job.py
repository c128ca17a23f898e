"""The pipeline: from what nodes recorded to bronze, from bronze to silver and gold.

Bronze is a stream, exactly once: a micro-batch is a directory named by its number, so one that is
done again after a crash is found done. Silver and gold are made anew from all of bronze: late and
repeated input gives the same tables as input in order, and a broken table stops the pipeline
before anybody sees it.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from hansa.pipeline import payloads, rows
from hansa.pipeline.gold import GOLD
from hansa.pipeline.lake import BRONZE, Kept, Lake
from hansa.pipeline.quality import count_checked
from hansa.pipeline.silver import SILVER, with_run
from hansa.pipeline.tables import Table
from hansa.pipeline.troubles import plain

ATTEMPTS = 5
BUSY = "Python worker failed to connect back"
"""What Spark says when a machine is too busy to start Python within ten seconds. A stream that is
started again goes on where it was."""

Tell = Callable[[str, str, int | None], None]
"""Hears of progress: layer, table, rows if they are known."""


def silent(_layer: str, _table: str, _count: int | None) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Job:
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
    """The user's file that says which payloads become columns."""


def all_tables(mapping: Path | None = None) -> list[Table]:
    """Return every table in the order in which they are made."""
    own = [*SILVER.tables, *GOLD.tables]
    mapped = payloads.tables(mapping, {table.name for table in own}) if mapping else []
    return [*SILVER.tables, *mapped, *GOLD.tables]


# ---------------------------------------------------------------- bronze


def follow(
    spark: SparkSession, lake: Lake, job: Job, table: str, every_s: float | None = None
) -> StreamingQuery:
    """Start the stream into one bronze table: of what there is now, or for ever."""
    options = {
        "paths": json.dumps([str(source) for source in job.sources]),
        "token": job.token,
        "table": table,
        "failOnLoss": str(not job.allow_loss).lower(),
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
        .withColumn("day", F.to_date("time"))
        .writeStream.queryName(table)
        .option("checkpointLocation", str(lake.checkpoint(table)))
        .foreachBatch(lambda frame, number: _keep(lake, table, frame, number))
        .trigger(**trigger)
        .start()
    )


def _keep(lake: Lake, table: str, frame: DataFrame, number: int) -> None:
    """A batch with its name was whole when it got it, and the same offsets are the same rows."""
    place = lake.batch(table, number)
    if place.exists():
        return
    staged = lake.staging(f"{table}-{number}")
    frame.write.partitionBy("day").parquet(str(staged))
    staged.rename(place)


def ingest(spark: SparkSession, lake: Lake, job: Job, tell: Tell = silent) -> None:
    """Take into bronze what there is now."""
    for table in BRONZE:
        tell("bronze", table, None)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _drain(follow(spark, lake, job, table), table, tell)
                break
            except StreamingQueryException as error:
                if attempt == ATTEMPTS or BUSY not in str(error):
                    raise plain(error) from error


def _drain(query: StreamingQuery, table: str, tell: Tell) -> None:
    told = 0
    while not query.awaitTermination(0.5):
        count = _count(query)
        if count > told:
            tell("bronze", table, count)
            told = count
    tell("bronze", table, _count(query))


def _count(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def bronze(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """Return a bronze table."""
    schema = f"{rows.ddl(table)}, batch int, day date"
    return spark.read.schema(schema).parquet(str(lake.path / "bronze" / table))


# ---------------------------------------------------------------- silver and gold


def build(spark: SparkSession, lake: Lake, job: Job, tell: Tell = silent) -> list[Kept]:
    """Make silver and gold from all of bronze, check them, and let them be seen."""
    frames = {
        "bronze_messages": bronze(spark, lake, "messages"),
        "events": with_run(bronze(spark, lake, "events")),
    }
    staged = lake.staging("generation")
    kept = []
    for table in all_tables(job.payloads):
        tell(table.layer, table.name, None)
        place = str(staged / table.layer / table.name)
        frame = table.made_from(frames)
        frame.write.parquet(place)
        frames[table.name] = spark.read.schema(frame.schema).parquet(place)
        count = count_checked(table, frames[table.name])
        kept.append(Kept(table.name, table.layer, table.grain, count))
        tell(table.layer, table.name, count)
    lake.publish(staged, kept)
    return kept


def run_once(spark: SparkSession, lake: Lake, job: Job, tell: Tell = silent) -> list[Kept]:
    """Bring a lake up to what there is now."""
    with lake.writing():
        ingest(spark, lake, job, tell)
        return build(spark, lake, job, tell)


def run_on(spark: SparkSession, lake: Lake, job: Job, every_s: float, tell: Tell = silent) -> None:
    """Follow what is recorded until interrupted; tables are made anew when there is more."""
    with lake.writing():
        queries = [follow(spark, lake, job, table, every_s) for table in BRONZE]
        seen: list[int] = []
        try:
            while all(query.isActive for query in queries):
                found = [lake.batches(table) for table in BRONZE]
                if found != seen:
                    build(spark, lake, job, tell)
                    seen = found
                else:
                    time.sleep(every_s)
            for query in queries:
                failed = query.exception()
                if failed is not None:
                    raise plain(failed) from failed
        finally:
            for query in queries:
                query.stop()


# ---------------------------------------------------------------- reading


def views(spark: SparkSession, lake: Lake) -> dict[str, DataFrame]:
    """Return the tables of a lake, and make each a view of its name, for SQL."""
    found = {kept.name: spark.read.parquet(str(lake.table(kept))) for kept in lake.tables()} | {
        f"bronze_{table}": bronze(spark, lake, table) for table in BRONZE
    }
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    return found
