"""Silver tables that no gold table is made from."""

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline import silver


def test_a_life_knows_how_many_of_its_records_are_missing(spark):
    told = [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("a", 2, 5), (silver.OBSERVER, 1, 9)]
    rows = [("live", node, life, number, number * 10) for node, life, number in told]
    columns = "run string, node string, incarnation bigint, number bigint, time_ns bigint"
    found = silver.lives(spark.createDataFrame(rows, columns)).orderBy("incarnation").collect()
    assert [tuple(row) for row in found] == [
        ("live", "a", 1, 2, 0, 10, 20),
        ("live", "a", 2, 2, 3, 10, 50),
    ]
