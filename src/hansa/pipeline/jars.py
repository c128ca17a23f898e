"""Finds the jars of Delta Lake; fetches them once with Spark's own Maven client.

`jars.lock` has their coordinates and checksums. They are kept in `.jars` of a checkout, or in the
user's cache. `--jars DIR` or the variable HANSA_JARS names a directory that has them already, for
machines that cannot reach Maven Central.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hansa.errors import UsageError

LOCK = Path(__file__).with_name("jars.lock")
DIRECTORY = "HANSA_JARS"
"""Environment variable: a directory of jars."""

IN_SPARK = (
    *("com.fasterxml.jackson.core:jackson-annotations", "com.fasterxml.jackson.core:jackson-core"),
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    *("com.github.luben:zstd-jni", "com.google.code.findbugs:jsr305"),
    *("commons-logging:commons-logging", "commons-pool:commons-pool", "io.airlift:aircompressor"),
    "javax.annotation:javax.annotation-api",
    *("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime"),
    *("org.apache.logging.log4j:log4j-api", "org.apache.logging.log4j:log4j-core"),
    *("org.apache.logging.log4j:log4j-slf4j2-impl", "org.apache.parquet:parquet-column"),
    *("org.apache.parquet:parquet-common", "org.apache.parquet:parquet-encoding"),
    *("org.apache.parquet:parquet-format-structures", "org.apache.parquet:parquet-hadoop"),
    *("org.apache.parquet:parquet-jackson", "org.locationtech.jts:jts-core"),
    *("org.roaringbitmap:RoaringBitmap", "org.roaringbitmap:shims", "org.slf4j:slf4j-api"),
    "org.xerial.snappy:snappy-java",
)
"""Dependencies of Delta that Spark has already, mostly in newer versions."""

RESOLVE = "from pyspark.java_gateway import launch_gateway; launch_gateway().shutdown()"
"""Starts Spark's submission program, which resolves `--packages`, without a Spark session."""
RESOLVE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar of the lock file."""

    coordinate: str
    """`group:artifact:version`."""
    sha256: str

    @property
    def file_name(self) -> str:
        """Name that Maven gives it."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def ivy_name(self) -> str:
        """Name that Spark's client gives it."""
        return f"{self.coordinate.split(':')[0]}_{self.file_name}"


def locked_jars() -> list[Jar]:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return [Jar(*line.split()) for line in lines if line and not line.startswith("#")]


def delta_jars(
    environment: Mapping[str, str], say: Callable[[str], None] = lambda _text: None
) -> list[Path]:
    """Return the jars; fetch them if they are not there; raise UsageError if that fails."""
    given = environment.get(DIRECTORY)
    if given:
        return _in_directory(Path(given))
    directory = jar_directory(environment)
    locked = locked_jars()
    if not all(_is_intact(directory / jar.file_name, jar) for jar in locked):
        _fetch(directory, locked, environment, say)
    return [directory / jar.file_name for jar in locked]


def jar_directory(environment: Mapping[str, str]) -> Path:
    """Return where fetched jars are kept."""
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".jars"
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hansa-jars"


def _in_directory(directory: Path) -> list[Path]:
    found = []
    for jar in locked_jars():
        candidates = [directory / jar.file_name, directory / jar.ivy_name]
        present = next((path for path in candidates if path.is_file()), None)
        if present is None:
            raise UsageError(
                f"{directory} has no {jar.file_name} ({jar.coordinate}), which Delta needs"
            )
        if not _is_intact(present, jar):
            raise UsageError(
                f"{present} is not {jar.coordinate}: its SHA-256 differs from jars.lock"
            )
        found.append(present)
    return found


def _is_intact(path: Path, jar: Jar) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256
    except OSError:
        return False


def _fetch(
    directory: Path,
    locked: list[Jar],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    say(f"fetching {locked[0].coordinate} from Maven Central, once: 13 MB into {directory}")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        arguments = [
            *("--packages", locked[0].coordinate, "--exclude-packages", ",".join(IN_SPARK)),
            *("--conf", f"spark.jars.ivy={work}", "pyspark-shell"),
        ]
        command = [sys.executable, "-c", RESOLVE]
        env = {**environment, "PYSPARK_SUBMIT_ARGS": " ".join(arguments)}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S
            )
            problem = _last_line(done.stderr)
        except subprocess.TimeoutExpired:
            problem = "no answer"
        for jar in locked:
            fetched = Path(work) / "jars" / jar.ivy_name
            if not _is_intact(fetched, jar):
                reason = "its SHA-256 differs from jars.lock" if fetched.exists() else problem
                raise UsageError(
                    f"cannot fetch {jar.coordinate} from Maven Central ({reason}); put the jars of"
                    f" {LOCK} into a directory and name it with --jars DIR or {DIRECTORY}"
                )
        for jar in locked:
            fetched = Path(work) / "jars" / jar.ivy_name
            part = directory / f"{jar.file_name}.{os.getpid()}"
            shutil.copy(fetched, part)
            part.replace(directory / jar.file_name)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def main() -> None:
    """Fetch the jars; `./run` calls it after it has installed Spark."""
    from hansa.pipeline.java import java_home

    environment = {**os.environ, "JAVA_HOME": str(java_home(os.environ))}
    try:
        delta_jars(environment, lambda text: print(f"hansa: {text}", file=sys.stderr))  # noqa: T201
    except UsageError as error:
        sys.exit(f"hansa: {error}")
