"""Cost of the pipeline: a million recorded messages into a lake, compared with plain Parquet."""

import statistics
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
ROUNDS = 3
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
    # The first run would include the start of Java and Python.
    _record(path / "warm-source", WARM_UP)
    _round(spark, path, "warm")
    _record(path / "source", MESSAGES)
    rounds = [_round(spark, path, str(number)) for number in range(ROUNDS)]
    wall_s = {name: min(costs[name][0] for costs in rounds) for name in TITLES}
    cpu_s = {name: min(costs[name][1] for costs in rounds) for name in TITLES}
    spark.stop()
    answers: dict[str, object] = {}
    for name, title in TITLES.items():
        of_plain = cpu_s["plain"] / cpu_s[name]
        median = statistics.median(costs["plain"][1] / costs[name][1] for costs in rounds)
        say(
            title,
            f"{MESSAGES / wall_s[name]:9,.0f} rows/s  CPU {cpu_s[name]:5.1f} s"
            f"  {of_plain:5.2f} of plain, median of the rounds {median:.2f}",
        )
        answers |= {
            f"{name}_rows_per_s": round(MESSAGES / wall_s[name]),
            f"{name}_cpu_s": [round(costs[name][1], 1) for costs in rounds],
            f"{name}_of_plain": round(wall_s["plain"] / wall_s[name], 2),
            f"{name}_cpu_of_plain": round(of_plain, 2),
        }
    return answers


def _round(spark: "SparkSession", path: Path, name: str) -> dict[str, Cost]:
    """Return what bronze, all tables of another lake, and plain Parquet take: by turns, because
    Java becomes faster with every run."""
    from hansa.pipeline import bronze, runner
    from hansa.pipeline.catalog import PLACES, create_tables
    from hansa.pipeline.lake import Lake
    from hansa.pipeline.session import plan_for_size

    source = path / ("warm-source" if name == "warm" else "source")
    job = bronze.PipelineJob([str(source)])
    lake = Lake.open_or_create(spark, str(path / name / "lake"))
    create_tables(lake)
    plan_for_size(spark, is_large=True)  # as `run_once` does for so many messages
    costs = {
        "bronze": cost_of(lambda: bronze.ingest(lake, job, "messages")),
        "plain": cost_of(lambda: _plain(spark, path / name)),
    }
    whole_lake = Lake.open_or_create(spark, str(path / name / "whole"))
    costs["whole"] = cost_of(lambda: runner.run_once(whole_lake, job))
    assert name == "warm" or whole_lake.read(PLACES["messages"]).count() == MESSAGES
    return costs


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
