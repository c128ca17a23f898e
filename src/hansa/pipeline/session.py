"""Starts Spark, with settings that make it fast from Python.

    spark = session()                          # on this machine, on all cores
    spark = session("spark://host:7077")       # on a cluster

There is one JVM per process: a second call returns the running session. Spark logs to a file, not
to the terminal.
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
    # A local file system that starts no process per file, and checkpoints by plain rename.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    ),
    # Timestamps that all readers of Parquet understand.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Write the rows of a few days without sorting them by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # List files in the driver: for few files, a Spark job takes longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseSerialGC -Dlog4j2.configurationFile={LOGGING.as_uri()}"
    ),
}
"""Differences from Spark's defaults, locally and on a cluster."""


def session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> "SparkSession":
    """Return the Spark session of this process; start it if necessary.

    `settings` are Spark settings and override SETTINGS. `log` is Spark's log file, by default in
    the temporary directory.
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
    # It prints errors in SQL that the exception also contains.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        with _stderr_to(log):
            return builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"Spark did not start with master {master!r}: {reason}; see {log}"
        ) from error


def _require_pyspark() -> None:
    for package in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"this needs Spark, and the package {package} is not installed:"
                f" {install_extra('spark')}"
            )


def _prepare(environment: "os._Environ[str]", master: str) -> None:
    """Set the variables that Spark's start scripts read: Java, Python, local address."""
    environment["JAVA_HOME"] = str(java_home(environment))
    # By default, the workers would use the `python3` on PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _for_size(master: str) -> dict[str, str]:
    """Return settings for a single machine: for small data, 200 shuffle partitions and adaptive
    plans cost more than they save. A cluster keeps Spark's defaults."""
    if not master.startswith("local"):
        return {}
    return {
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.memory": "2g",
    }


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect stderr while the JVM starts: it inherits the redirected one and keeps it."""
    sys.stderr.flush()
    original = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(original, 2)
        os.close(original)
