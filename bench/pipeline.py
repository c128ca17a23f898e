"""What exactly once costs: a million recorded messages into a lake, beside plain Parquet."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import say
from hansa.journal.records import Captured
from hansa.journal.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 1_000_000
NODES = 4
PAYLOAD = b"x" * 100
TOPICS = 100
BATCH_ROWS = 50_000


def measure() -> dict[str, object]:
    """A million messages of 100 B from journals into bronze and all tables, beside Parquet."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-pipeline-") as directory:
        return _measure(Path(directory))


def _measure(path: Path) -> dict[str, object]:
    from hansa.pipeline import job
    from hansa.pipeline.lake import Lake
    from hansa.pipeline.session import session

    _record(path / "source")
    spark = session()
    spark.range(1_000).write.parquet(str(path / "warm"))
    work = job.Job([str(path / "source")])
    lake = Lake.made(path / "lake")
    with lake.writing():
        bronze_s = _timed(lambda: job.ingest(spark, lake, work))
        tables_s = _timed(lambda: job.build(spark, lake, work))
    found = job.bronze(spark, lake, "messages").count()
    assert found == MESSAGES, found
    plain_s = _timed(lambda: _plain(spark, path))
    answers: dict[str, object] = {
        "bronze_rows_per_s": round(MESSAGES / bronze_s),
        "whole_rows_per_s": round(MESSAGES / (bronze_s + tables_s)),
        "plain_rows_per_s": round(MESSAGES / plain_s),
        "bronze_of_plain": round(plain_s / bronze_s, 2),
        "whole_of_plain": round(plain_s / (bronze_s + tables_s), 2),
    }
    say("plain Parquet, read and written", f"{MESSAGES / plain_s:9,.0f} rows/s")
    say("bronze", f"{MESSAGES / bronze_s:9,.0f} rows/s  {plain_s / bronze_s:5.2f} of that")
    whole = bronze_s + tables_s
    say("bronze, silver and gold", f"{MESSAGES / whole:9,.0f} rows/s  {plain_s / whole:5.2f}")
    spark.stop()
    return answers


def _record(path: Path) -> None:
    """As agents leave it: journals of several nodes."""
    for node in range(1, NODES + 1):
        with Writer(path / str(node), node, 1) as writer:
            for number in range(1, MESSAGES // NODES + 1):
                topic = f"plant/{number % TOPICS}/temp"
                writer.append(
                    Captured(number, 1, topic, PAYLOAD, False, b"", (), 1, number * 1_000_000, True)
                )
                if number % BATCH_ROWS == 0:
                    writer.commit()
            writer.commit()


def _plain(spark: "SparkSession", path: Path) -> None:
    """The same rows, by Spark's own stream of Parquet files into Parquet files."""
    source = str(path / "lake" / "bronze" / "messages" / "batch=*" / "day=*")
    stream = spark.readStream.schema(spark.read.parquet(source).schema).parquet(source)
    (
        stream.writeStream.format("parquet")
        .option("path", str(path / "plain"))
        .option("checkpointLocation", str(path / "plain-checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
