"""Starting Spark."""

import sys
from pathlib import Path

import pytest

from hansa.errors import UsageError
from hansa.pipeline import session as module


def test_workers_use_this_python_and_import_pyspark_from_where_it_stores_bytecode(spark):
    import pyspark

    def which(batches):
        import pyarrow
        import pyspark

        for _ in batches:
            row = {"python": [sys.executable], "pyspark": [pyspark.__file__]}
            yield pyarrow.RecordBatch.from_pydict(row)

    (row,) = spark.range(1).mapInArrow(which, "python string, pyspark string").collect()
    assert (row.python, row.pyspark) == (sys.executable, pyspark.__file__)


def test_home_of_spark_has_no_python_code(tmp_path):
    pyspark = pytest.importorskip("pyspark")
    package = Path(pyspark.__file__).parent
    for _ in range(2):  # the second time it is there
        home = module.spark_home(tmp_path, {})
        assert {path.name: path.resolve() for path in home.iterdir()} == {
            name: package / name for name in ("bin", "jars")
        }


def test_home_of_spark_is_the_package_if_workers_may_need_its_python_code(tmp_path):
    pyspark = pytest.importorskip("pyspark")
    package = Path(pyspark.__file__).parent
    assert module.spark_home(tmp_path, {"PYSPARK_PYTHON": "python3"}) == package
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("")
    assert module.spark_home(tmp_path / "file", {}) == package  # it cannot be created


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
