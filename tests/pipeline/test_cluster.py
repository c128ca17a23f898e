"""The same command on a Spark of several processes, as a cluster is."""

import subprocess
import sys

import pytest
from tests.pipeline.recordings import journal, many, telemetry

from hansa.pipeline.lake import Lake
from hansa.telemetry import schema

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_source_and_tables_on_two_workers_with_executors_of_their_own(tmp_path):
    for node in (1, 2, 3):
        journal(tmp_path / "nodes" / str(node) / "journal", node, many(1, 500))
        told: list[schema.Any] = [schema.Started(1, f"n{node}", "1")]
        told.append(schema.LinkUp(2, node % 3 + 1))
        telemetry(tmp_path / "nodes" / str(node) / "telemetry", node, told)
    command = [sys.executable, "-m", "hansa.cli", "pipeline", "run", "--lake", tmp_path / "lake"]
    master = ["--master", "local-cluster[2,1,1024]"]
    subprocess.run([*command, *master, tmp_path / "nodes"], check=True)
    counts = {kept.name: kept.rows for kept in Lake(tmp_path / "lake").tables()}
    assert counts["messages"] == 1_500
    assert (counts["nodes"], counts["links"], counts["runs"]) == (3, 3, 1)
