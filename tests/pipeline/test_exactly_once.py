"""Bronze has every recorded message once, although the pipeline is killed repeatedly."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.pipeline.recordings import journal, many

from hansa.journal.settings import JournalSettings
from hansa.testbed.demo.delta_files import read_delta

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

TIMEOUT_S = 1_200.0
"""Of one command; a busy machine needs minutes to start Spark."""

RUN = """
import sys
from pathlib import Path
from hansa.pipeline.session import session
spark = session(log=Path(sys.argv[3]))
from hansa.pipeline.bronze import PipelineJob
from hansa.pipeline.lake import Lake
from hansa.pipeline.runner import run_once
run_once(Lake.open_or_create(spark, sys.argv[1]), PipelineJob([sys.argv[2]], batch_bytes=20_000))
"""
"""`hansa pipeline run` in small batches, so that it can be killed between two of them. The last run
of the test is the command itself."""


def without_java(tmp_path: Path) -> dict[str, str]:
    """Return an environment without Java, except the one of the Python package."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            place = tools / program.name
            if not program.name.startswith("java") and not place.is_symlink():
                place.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**environment, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_message_is_stored_once_although_the_pipeline_is_killed(tmp_path):
    source, path = tmp_path / "nodes", tmp_path / "lake"
    small = JournalSettings(segment_bytes=50_000)
    for node in (1, 2, 3):
        journal(source / str(node), node, many(1, 2_000), small)
    environment = without_java(tmp_path)
    started = [sys.executable, "-c", RUN, path, source, tmp_path / "spark.log"]
    for kill in (1, 2):
        process = subprocess.Popen(started, env=environment)
        deadline = time.monotonic() + TIMEOUT_S
        before = batches(path)
        while batches(path) < before + kill:  # it is in the middle of the next one, or behind it
            assert process.poll() is None, (tmp_path / "spark.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
    whole = [sys.executable, "-m", "hansa.cli", "pipeline", "run", "--lake", path, source]
    subprocess.run(whole, env=environment, check=True, timeout=TIMEOUT_S)
    assert list((tmp_path / "cache").glob("hansa-java-*"))  # it was that Java
    expected = [(f"{node:016x}", number) for node in (1, 2, 3) for number in range(1, 2_001)]
    assert counted(path, "bronze") == Counter(expected)
    assert counted(path, "silver") == Counter(expected)


def batches(lake: Path) -> int:
    return len(list(lake.glob("bronze/messages/_delta_log/*.json")))


def counted(lake: Path, layer: str) -> Counter[tuple[str, int]]:
    """What a reader of Delta without Spark finds."""
    found: Counter[tuple[str, int]] = Counter()
    for row in read_delta(lake / layer / "messages"):
        found[row["origin_id"], row["sequence"]] += 1
    return found
