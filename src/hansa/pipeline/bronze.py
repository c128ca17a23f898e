"""Streams recorded data into the bronze tables, exactly once.

Delta's streaming sink records the number of each micro-batch in the commit, so a batch that is
repeated after a crash is not written again; the same offsets give the same rows.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hansa.errors import UsageError
from hansa.pipeline.errors import WORKER_IS_LATE, to_user_error
from hansa.pipeline.lake import BRONZE_PLACES, Lake, TablePlace
from hansa.pipeline.source import FeedStreamReader, SourceOptions

ATTEMPTS = 20
"""For a stream whose Python process is late. A restarted stream continues where it was."""

STREAM_VARIABLES = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Environment variables that Spark sets for the Python process of a stream, with values to start
with."""

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
    skip_unreachable: bool = False
    """Treat agents that do not answer as agents without new data."""
    batch_bytes: int | None = None
    """Recorded bytes per micro-batch; None for the default of the source."""
    payloads: Path | None = None
    """File with payload contracts; None for those given last."""

    def source_options(self, table: str) -> dict[str, str]:
        """Return the options of `format("hansa")`."""
        options = {
            "paths": json.dumps([str(source) for source in self.sources]),
            "token": self.token,
            "table": table,
            "failOnLoss": str(not self.allow_loss).lower(),
            "skipUnreachable": str(self.skip_unreachable).lower(),
        }
        if self.batch_bytes is not None:
            options["maxBytesPerBatch"] = str(self.batch_bytes)
        return options


def unread_bytes(lake: Lake, job: PipelineJob, table: str) -> int:
    """Return how much recorded data bronze does not have yet, without starting a stream."""
    reader = FeedStreamReader(SourceOptions(job.source_options(table)), None)
    reader.prepareForTriggerAvailableNow()
    unread = reader.unread(_committed_offsets(lake, table))
    return sum(end - begin for _, begin, end in unread.values())


def _committed_offsets(lake: Lake, table: str) -> dict[str, dict[str, int]]:
    """Return the offsets up to which bronze is complete, from the checkpoint of its stream."""
    checkpoint = lake.checkpoint(f"bronze_{table}")
    numbers = [
        int(name) for name in lake.storage.names(f"{checkpoint}/commits") if name.isdecimal()
    ]
    if not numbers:
        require_checkpoint(lake, f"bronze_{table}", BRONZE_PLACES[table])
        return {}
    text = lake.storage.read(f"{checkpoint}/offsets/{max(numbers)}") or ""
    offsets: dict[str, dict[str, int]] = json.loads(text.splitlines()[-1])
    return offsets


def require_checkpoint(lake: Lake, stream: str, place: TablePlace) -> None:
    """Raise UsageError if a table has rows and its stream would begin anew: rows would be read
    twice, or taken for a batch that is written already."""
    # A run that was killed in its first batch leaves offsets: Spark then repeats that batch.
    has_offsets = bool(lake.storage.names(f"{lake.checkpoint(stream)}/offsets"))
    if not has_offsets and lake.version(place) > 0:
        raise UsageError(
            f"{lake.uri}: the table {place.path} has rows, but its checkpoint is missing;"
            " restore both together, or create a new lake"
        )


def worker_variables(spark: SparkSession) -> Any:
    """Return the environment variables of the source's Python processes: a map of Spark's that all
    streams of the session share."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
    return sources.lookupDataSource("hansa").dataSourceCls().envVars()


def prepare_parallel_streams(spark: SparkSession) -> None:
    """Set the variables that streams will set, before several streams start.

    Spark 4.2 lets each stream set them in the shared map without a lock. Two streams that start at
    the same time can destroy the map, and then no task with this source can be sent to a worker any
    more ("Illegal size 5 of collection, expected 6"). Scala's map grows before it looks for the
    key: so each variable is set twice here, and a stream only replaces values."""
    variables = worker_variables(spark)
    for _ in range(2):
        for name, value in STREAM_VARIABLES.items():
            variables[name] = variables[name] if name in variables else value
    start_callback_server(spark)


def start_callback_server(spark: SparkSession) -> None:
    """Start Py4J's server for `foreachBatch`: it would start at the first use, without a lock."""
    ensure_callback_server_started(spark._sc._gateway)  # noqa: SLF001


def ingest(
    lake: Lake, job: PipelineJob, table: str, on_progress: ProgressCallback = ignore_progress
) -> None:
    """Read the present data into a bronze table."""
    on_progress("bronze", table, None)
    stream = (
        lake.spark.readStream.format("hansa")
        .options(**job.source_options(table))
        .load()
        .writeStream.queryName(f"bronze_{table}")
        .format("delta")
        .outputMode("append")
        # A newer version of Hansa adds columns.
        .option("mergeSchema", "true")
    )
    query = run_stream(
        lambda: (
            stream.option("checkpointLocation", f"{lake.uri}/{lake.checkpoint(f'bronze_{table}')}")
            .trigger(availableNow=True)
            .start(lake.location(BRONZE_PLACES[table]))
        )
    )
    on_progress("bronze", table, sum(each.numInputRows for each in query.recentProgress))


def run_stream(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a stream of the present data to its end; repeat it after errors of a busy machine."""
    for attempt in range(1, ATTEMPTS + 1):
        query = start()
        try:
            query.awaitTermination()
            return query
        except StreamingQueryException as error:
            if attempt == ATTEMPTS or WORKER_IS_LATE not in str(error):
                raise to_user_error(error) from error
        except BaseException:
            query.stop()
            raise
    raise AssertionError("unreachable")
