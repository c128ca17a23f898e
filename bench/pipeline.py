"""Cost of the pipeline: a million recorded messages into a lake, compared with plain Parquet."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.console import say
from bench.cost import Cost, cost_of
from hansa.journal.records import CapturedRecord
from hansa.journal.writer import JournalWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 1_000_000
WARM_UP = 20_000
NODES = 4
PAYLOAD = b"x" * 100
TOPICS = 100
BATCH_ROWS = 50_000
TITLES = {
    "plain": "plain Parquet, read and written",
    "bronze": "bronze",
    "whole": "bronze, silver and gold",
}


def measure() -> dict[str, object]:
    """A million messages of 100 B from journals into bronze and all tables, beside Parquet."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-pipeline-") as directory:
        return _measure(Path(directory))


def _measure(path: Path) -> dict[str, object]:
    from hansa.pipeline.session import session

    spark = session()
    _costs(
        spark, path / "warm", WARM_UP
    )  # the first run would include the start of Java and Python
    bronze, whole, plain = _costs(spark, path / "measured", MESSAGES)
    spark.stop()
    answers: dict[str, object] = {}
    for name, cost in (("plain", plain), ("bronze", bronze), ("whole", whole)):
        rate, ratio, cpu_ratio = MESSAGES / cost[0], plain[0] / cost[0], plain[1] / cost[1]
        say(
            TITLES[name],
            f"{rate:9,.0f} rows/s  {ratio:5.2f} of plain  CPU {cost[1]:5.1f} s  {cpu_ratio:5.2f}",
        )
        answers |= {
            f"{name}_rows_per_s": round(rate),
            f"{name}_cpu_s": round(cost[1], 1),
            f"{name}_of_plain": round(ratio, 2),
            f"{name}_cpu_of_plain": round(cpu_ratio, 2),
        }
    return answers


def _costs(spark: "SparkSession", path: Path, messages: int) -> list[Cost]:
    """Return what bronze, all tables of another lake, and plain Parquet take."""
    from hansa.pipeline import bronze, runner
    from hansa.pipeline.catalog import PLACES, create_tables
    from hansa.pipeline.lake import Lake
    from hansa.pipeline.session import plan_for_size

    _record(path / "source", messages)
    work = bronze.PipelineJob([str(path / "source")])
    lake = Lake.open_or_create(spark, str(path / "lake"))
    create_tables(lake)
    plan_for_size(spark, is_large=True)  # as `run_once` does for so many messages
    ingested = cost_of(lambda: bronze.ingest(lake, work, "messages"))
    whole_lake = Lake.open_or_create(spark, str(path / "whole"))
    built = cost_of(lambda: runner.run_once(whole_lake, work))
    found = whole_lake.read(PLACES["messages"]).count()
    assert found == messages, found
    plan_for_size(spark, is_large=True)
    return [ingested, built, cost_of(lambda: _plain(spark, path))]


def _record(path: Path, messages: int) -> None:
    """Write the journals of several nodes, as agents do."""
    for node in range(1, NODES + 1):
        with JournalWriter(path / str(node), node, 1) as writer:
            for number in range(1, messages // NODES + 1):
                topic = f"plant/{number % TOPICS}/temp"
                writer.append(
                    CapturedRecord(
                        number, 1, topic, PAYLOAD, False, b"", (), 1, number * 1_000_000, True
                    )
                )
                if number % BATCH_ROWS == 0:
                    writer.commit()
            writer.commit()


def _plain(spark: "SparkSession", path: Path) -> None:
    """The same rows, by Spark's own stream from Parquet files to Parquet files."""
    source = str(path / "lake" / "bronze" / "messages" / "*.parquet")
    stream = spark.readStream.schema(spark.read.parquet(source).schema).parquet(source)
    (
        stream.writeStream.format("parquet")
        .option("path", str(path / "plain"))
        .option("checkpointLocation", str(path / "plain-checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
