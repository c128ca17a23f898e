"""Reads and writes small files on any storage that Spark can reach, through Hadoop's file systems.

A lake may be a local path, `s3a://bucket/prefix`, `abfss://…` or `hdfs://…`. A file is written as a
whole, by Delta's own log store for that storage: a reader, or the next run after a crash, sees the
old or the new content.
"""

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from hansa.errors import UsageError


class Storage:
    """A directory on any storage."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri
        context: Any = spark.sparkContext
        self._jvm = context._jvm  # noqa: SLF001 - PySpark has no other access to Hadoop
        self._spark: Any = spark
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
        try:
            self._files = self._path("").getFileSystem(self._configuration)
        except Py4JJavaError as error:
            raise storage_error(uri, error) from None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)

    def exists(self, name: str = "") -> bool:
        try:
            return bool(self._files.exists(self._path(name)))
        except Py4JJavaError as error:
            raise storage_error(self.uri, error) from None

    def names(self, name: str = "") -> list[str]:
        """Return the sorted names in a directory; none if it does not exist."""
        try:
            if not self._files.exists(self._path(name)):
                return []
            found = self._files.listStatus(self._path(name))
            return sorted(status.getPath().getName() for status in found)
        except Py4JJavaError as error:
            raise storage_error(self.uri, error) from None

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it does not exist."""
        if not self.exists(name):
            return None
        try:
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise storage_error(self.uri, error) from None

    def write(self, name: str, text: str, replace: bool = True) -> None:
        """Write a file; without `replace`, raise an error if it exists."""
        lines = self._jvm.java.util.ArrayList()
        lines.extend(text.splitlines())
        actions = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
        log_stores = self._jvm.org.apache.spark.sql.delta.storage.LogStore
        try:
            path = self._path(name)
            self._files.mkdirs(path.getParent())
            store = log_stores.apply(self._spark._jsparkSession)  # noqa: SLF001
            store.write(path, actions, replace, self._configuration)
        except Py4JJavaError as error:
            raise storage_error(self.uri, error) from None


def storage_error(uri: str, error: Py4JJavaError) -> UsageError:
    """Return a storage's exception as one sentence."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    reason = str(cause.getMessage() or cause.getClass().getSimpleName()).strip().splitlines()[0]
    return UsageError(f"cannot access {uri}: {reason}")
