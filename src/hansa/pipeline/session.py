"""The one place that starts Spark, with the settings that make it quick from Python.

    spark = session()                          # here, on all cores
    spark = session("spark://host:7077")       # the same on a cluster

One JVM per process: a second call returns the session that is there. What Spark itself has to say
goes to a log file, so that the terminal stays the user's.
"""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.errors import UsageError, install_extra
from hansa.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
"""Spark inside this process's JVM, on all cores."""

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
LOGGING = Path(__file__).with_name("log4j2.properties")

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Between JVM and Python workers: a socket without the TCP stack.
    "spark.python.unix.domain.socket.enabled": "true",
    # A local file system that forks no process per file, and checkpoints by plain rename.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
    # Times as all readers of Parquet know them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows of a few days are written as they come, without sorting them by day before.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Files of a table are listed by the driver: ours are few, and a job for it takes longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseSerialGC -Dlog4j2.configurationFile={LOGGING.as_uri()}"
    ),
}
"""What differs from Spark's own defaults, wherever it runs."""


def session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> "SparkSession":
    """Return the process's Spark session, started if there is none.

    `settings` are Spark's own and win over ours; `log` is the file for what Spark says, one in
    the temporary directory if left out.
    """
    _require_pyspark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    master = master or os.environ.get("SPARK_MASTER") or LOCAL
    _prepare(os.environ, master)
    builder = SparkSession.builder.master(master).appName("hansa")
    for name, value in {**SETTINGS, **_for_size(master), **(settings or {})}.items():
        builder = builder.config(name, value)
    log = log or Path(tempfile.gettempdir()) / f"hansa-spark-{os.getpid()}.log"
    # What it would print about wrong SQL, the exception says too.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        with _stderr_to(log):
            return builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        why = str(error).strip().splitlines()[0]
        raise UsageError(f"Spark did not start with master {master!r}: {why}; see {log}") from error


def _require_pyspark() -> None:
    for package in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"this needs Spark, and the package {package} is not installed:"
                f" {install_extra('spark')}"
            )


def _prepare(environment: "os._Environ[str]", master: str) -> None:
    """Set what Spark's start scripts read: which Java, which Python, which address."""
    environment["JAVA_HOME"] = str(java_home(environment))
    # Without it the workers are whatever `python3` is on PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _for_size(master: str) -> dict[str, str]:
    """A small machine needs neither 200 shuffle partitions nor plans that are made anew after every
    stage: for few rows they cost more than they save. A cluster keeps Spark's own."""
    if not master.startswith("local"):
        return {}
    return {
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.memory": "2g",
    }


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """The JVM inherits our stderr as it is when it starts, and keeps it."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
