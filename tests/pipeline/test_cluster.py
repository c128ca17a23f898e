"""The commands on a Spark cluster: a master and two workers as separate processes.

Hansa is installed where the executors run, as docs/pipeline.md requires.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.pipeline.recordings import journal, many, telemetry

from hansa.pipeline.java import java_home
from hansa.pipeline.lake import Lake
from hansa.telemetry import schema
from hansa.testbed.mosquitto import free_port

pyspark = pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

START_S = 120.0
SWEEP = """
topology = ["ring:3", "line:3"]
seeds = 4
duration = 2
"""


@contextmanager
def spark_class(log: Path, pattern: str, *words: str) -> Iterator[None]:
    """Run a process of Spark; it is ready when its log matches `pattern`."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home(os.environ)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as out:
        process = subprocess.Popen([program, *words], env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_S
        while not re.search(pattern, log.read_text()):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def master(tmp_path):
    """A master with two workers of one core each."""
    port = str(free_port())
    deploy = "org.apache.spark.deploy"
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as cluster:
        given = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", port]
        log = tmp_path / "master.log"
        cluster.enter_context(spark_class(log, "New state: ALIVE", *given, "--webui-port", "0"))
        for number in (1, 2):
            given = [f"{deploy}.worker.Worker", url, "--cores", "1", "--memory", "1g"]
            given += ["--host", "127.0.0.1", "--webui-port", "0"]
            given += ["--work-dir", str(tmp_path / f"work-{number}")]
            log = tmp_path / f"worker-{number}.log"
            cluster.enter_context(spark_class(log, "Successfully registered with master", *given))
        yield url


def hansa(*words: object) -> str:
    command = [sys.executable, "-m", "hansa.cli", *map(str, words)]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        command, check=True, env=environment, stdout=subprocess.PIPE
    ).stdout.decode()


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_source_tables_and_a_sweep_on_two_workers(master, tmp_path):
    source, lake = tmp_path / "nodes", tmp_path / "lake"
    for node in (1, 2, 3):
        journal(source / str(node) / "journal", node, many(1, 500))
        records: list[schema.AnyRecord] = [schema.NodeStarted(1, f"n{node}", "1")]
        records.append(schema.LinkUp(2, node % 3 + 1))
        telemetry(source / str(node) / "telemetry", node, records)
    hansa("pipeline", "run", "--lake", lake, "--master", master, source)
    counts = {entry.name: entry.rows for entry in Lake(lake).tables()}
    assert counts["messages"] == 1_500
    assert (counts["nodes"], counts["links"], counts["runs"]) == (3, 3, 1)

    (tmp_path / "sweep.toml").write_text(SWEEP)
    sweep = ("experiment", "run", tmp_path / "sweep.toml", "--lake", lake, "--master", master)
    summary = json.loads(hansa(*sweep, "--json"))
    assert [(row["topology"], row["cases"]) for row in summary] == [("line:3", 4), ("ring:3", 4)]

    sql = "select count(*) as n from messages"
    answer = hansa("pipeline", "query", "--lake", lake, "--master", master, sql, "--json")
    assert json.loads(answer) == {"n": 1_500}
    for number in (1, 2):  # both workers ran executors
        assert list((tmp_path / f"work-{number}").glob("app-*"))
