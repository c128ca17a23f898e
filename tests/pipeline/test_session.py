"""Starting Spark."""

import sys

import pytest

from hansa.errors import UsageError
from hansa.pipeline import session as module


def test_workers_use_this_python(spark):
    def which(batches):
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

    (row,) = spark.range(1).mapInArrow(which, "python string").collect()
    assert row.python == sys.executable


def test_second_call_returns_the_running_session(spark):
    assert module.session() is spark


def test_missing_extra_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        module.session()
    assert str(error.value) == (
        "this needs Spark, and the package pyspark is not installed: pip install '.[spark]' in a"
        " checkout of Hansa, or with its wheel, pip install"
        " './hansa-VERSION-py3-none-any.whl[spark]'"
    )
