"""Starts Spark with Delta Lake, with settings that make it fast from Python and for small tables.

    spark = session()                          # on this machine, on all cores
    spark = session("spark://host:7077")       # on a cluster

There is one JVM per process: a second call returns the running session. Spark logs to a file, not
to the terminal.
"""

import hashlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hansa.errors import UsageError, install_extra
from hansa.pipeline.class_archive import CommandKind, archive_options
from hansa.pipeline.jars import delta_jars, jar_directory
from hansa.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
"""Spark inside this process's JVM, on all cores."""

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
CUBES = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize"
ARRANGED_BYTES = str(64 << 20)
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SPARK_DIRECTORIES = ("bin", "jars")
"""What Spark's start scripts need."""
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
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table's log is small: one task computes its state. The default is 50.
    "spark.databricks.delta.snapshotPartitions": "1",
    # Checksum files of commits without what nothing here reads: a histogram, and all files again.
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # OPTIMIZE leaves rows alone that it arranged before, if they are so many bytes together. By
    # default it would rewrite every table below 100 GB as a whole, after every 16 commits.
    f"{CUBES}.threshold": ARRANGED_BYTES,
    f"{CUBES}.targetCubeSize": ARRANGED_BYTES,
    # Timestamps that all readers of Parquet understand.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Write the rows of a few hours without sorting them by hour first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # List files in the driver: for few files, a Spark job takes longer.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # VACUUM starts so many tasks whatever the number of files. The default is 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # A stream of the present data needs no second, empty batch to end.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Keep the offsets of few batches: each is a file.
    "spark.sql.streaming.minBatchesToRetain": "10",
    JAVA_OPTIONS: (
        f"-XX:+UseSerialGC -Dlog4j2.configurationFile={LOGGING.as_uri()}"
        # Arrow would check its bounds at every value that comes from Python.
        " -Darrow.enable_unsafe_memory_access=true"
    ),
}
"""Differences from Spark's defaults, locally and on a cluster."""

OBJECT_STORE: Mapping[str, str] = {
    # The clients of object stores need Hadoop's own local file system for their buffers.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.LocalFs",
}
"""Further differences for a lake that is not in a local directory."""

BRIEF: Mapping[str, str] = {
    # Without the second compiler of Java, which pays off after minutes: the tables of the demo take
    # a third less time. Java then reserves 48 MB for compiled code. Spark and Delta exceed that:
    # Java would warn on the terminal and compile no more.
    JAVA_OPTIONS: (
        f"{SETTINGS[JAVA_OPTIONS]} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    ),
}
"""Further differences for a short run."""


def session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
    say: Callable[[str], None] = lambda _text: None,
    is_brief: bool = False,
    kind: CommandKind = CommandKind.QUERY,
) -> "SparkSession":
    """Return the Spark session of this process; start it if necessary.

    `settings` are Spark settings and override SETTINGS. `log` is Spark's log file, by default in
    the temporary directory. `say` reports that the jars of Delta are being fetched. `is_brief`:
    Java compiles fast rather than well, because it will run for a minute or two. `kind` selects
    the archive of classes.
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
    jars = delta_jars(os.environ, say)
    builder = SparkSession.builder.master(master).appName("hansa")
    chosen = {
        **SETTINGS,
        **_for_size(master),
        **(BRIEF if is_brief else {}),
        **_with_jars(master, jars),
        **_outside_the_current_directory(),
        **(settings or {}),
    }
    options = [chosen[JAVA_OPTIONS], *_class_archive(jars, kind, is_brief)]
    for name, value in {**chosen, JAVA_OPTIONS: " ".join(options)}.items():
        builder = builder.config(name, value)
    log = log or _new_log()
    # It prints errors in SQL that the exception also contains.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        with _output_to(log):
            return builder.getOrCreate()
    except (PySparkException, Py4JError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"Spark did not start with master {master!r}: {reason}; see {log}"
        ) from error


def plan_for_size(spark: "SparkSession", is_large: bool) -> None:
    """Set how much Spark and Delta plan ahead, for the data of the next queries.

    For little data, the compilation of about a hundred plans to Java code takes most of the time.
    Delta finds out which files a LIMIT needs with one more Spark job."""
    spark.conf.set("spark.databricks.delta.stats.limitPushdown.enabled", str(is_large).lower())
    spark.conf.set("spark.sql.codegen.wholeStage", str(is_large).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if is_large else "NO_CODEGEN")


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
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark's start scripts would start Python to find it.
        home = spark_home(jar_directory(environment), environment)
        environment.setdefault("SPARK_HOME", str(home))
    # By default, the workers would use the `python3` on PATH.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def spark_home(directory: Path, environment: Mapping[str, str]) -> Path:
    """Return where Spark's programs are: links to them in a directory, without PySpark's zip file.

    Workers would import PySpark from that file and compile it at every start, because Python stores
    no bytecode for zip files: 1.3 s of CPU time instead of 0.4 s. A run starts several, and
    Spark waits at most ten seconds for each. Another Python than this one may need the file.
    """
    import pyspark

    package = Path(pyspark.__file__).parent
    if "PYSPARK_PYTHON" in environment:
        return package
    home = directory / f"spark-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in SPARK_DIRECTORIES:
            with suppress(FileExistsError):
                (home / name).symlink_to(package / name)
    except OSError:  # a read-only directory
        return package
    return home


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


def _with_jars(master: str, jars: list[Path]) -> dict[str, str]:
    """Return the settings that load Delta: locally without copying the jars to executors."""
    settings = {"spark.driver.extraClassPath": os.pathsep.join(map(str, jars))}
    if not master.startswith("local"):
        settings["spark.jars"] = ",".join(jar.as_uri() for jar in jars)
    return settings


def _class_archive(jars: list[Path], kind: CommandKind, may_create: bool) -> list[str]:
    """Return Java's options for the archive of Spark's classes, which is kept beside the jars that
    Hansa fetched."""
    home = Path(os.environ["JAVA_HOME"])
    return archive_options(jar_directory(os.environ), home, jars, kind, may_create)


def _outside_the_current_directory() -> dict[str, str]:
    """Return directories for files that Spark would create where the command was started."""
    place = Path(tempfile.gettempdir()) / f"hansa-spark-{os.getuid()}"
    return {"spark.sql.warehouse.dir": (place / "warehouse").as_uri()}


def _new_log() -> Path:
    """Create a log file under a name that another user cannot know before."""
    file, name = tempfile.mkstemp(prefix="hansa-spark-", suffix=".log")
    os.close(file)
    return Path(name)


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect stdout and stderr while the JVM starts: it inherits the redirected ones and keeps
    them. A program that reads the output of a command then does not wait for the end of its JVM."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = {number: os.dup(number) for number in (1, 2)}
    try:
        with log.open("ab") as file:
            for number in originals:
                os.dup2(file.fileno(), number)
            yield
    finally:
        for number, original in originals.items():
            os.dup2(original, number)
            os.close(original)
