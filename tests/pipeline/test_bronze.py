"""Streams of bronze tables that run at the same time."""

import pytest
from tests.pipeline.recordings import journal, many

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.cli.main import main
from hansa.pipeline import runner
from hansa.pipeline.bronze import STREAM_VARIABLES, prepare_parallel_streams, worker_variables


def table_length(variables):
    """Return the length of the hash table in Scala's map, by reflection."""
    found = []
    for field in variables.getClass().getDeclaredFields():
        if "nderlying" in field.getName():
            field.setAccessible(True)
            scala = field.get(variables)
            for part in scala.getClass().getDeclaredFields():
                if part.getType().isArray():
                    part.setAccessible(True)
                    found.append(len(part.get(scala)))
    (length,) = found
    return length


def test_streams_do_not_enlarge_the_prepared_map(spark):
    """Scala enlarges it before it looks for the key. In a new session preparation does it."""
    prepare_parallel_streams(spark)
    variables = worker_variables(spark)
    before = table_length(variables)
    for name in STREAM_VARIABLES:
        variables[name] = variables[name]
    assert table_length(variables) == before


def test_streams_add_no_variable_that_is_not_prepared(spark, tmp_path):
    """Spark's map is not safe against additions of two streams at once."""
    journal(tmp_path / "nodes" / "1", 1, many(1, 3))
    prepare_parallel_streams(spark)
    prepared = set(worker_variables(spark))
    assert prepared > set(STREAM_VARIABLES)
    stream = spark.readStream.format("hansa").load(str(tmp_path / "nodes")).writeStream
    stream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert set(worker_variables(spark)) == prepared
    added = {name for name in prepared if name.startswith("SPARK_")}
    assert added == set(STREAM_VARIABLES)


def test_preparation_keeps_values_that_a_stream_has_set(spark):
    prepare_parallel_streams(spark)
    variables = worker_variables(spark)
    variables["SPARK_BUFFER_SIZE"] = "4096"
    prepare_parallel_streams(spark)
    assert variables["SPARK_BUFFER_SIZE"] == "4096"
    assert len(variables) == len(set(variables))


def test_streams_of_a_run_are_prepared_before_they_start(spark, tmp_path, monkeypatch):
    journal(tmp_path / "nodes" / "1", 1, many(1, 3))
    calls = []
    for name in ("prepare_parallel_streams", "ingest"):
        original = getattr(runner, name)

        def record(*arguments, name=name, original=original):
            calls.append(name)
            original(*arguments)

        monkeypatch.setattr(runner, name, record)
    assert main(["pipeline", "run", "--lake", str(tmp_path / "lake"), str(tmp_path / "nodes")]) == 0
    assert calls == ["prepare_parallel_streams", "ingest"]
