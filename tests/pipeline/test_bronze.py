"""Streams of bronze tables that run at the same time."""

import pytest
from tests.pipeline.recordings import journal, many

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline.bronze import STREAM_VARIABLES, prepare_parallel_streams, worker_variables


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
