"""Lakes as Delta or Iceberg tables: other programs read the same rows."""

import pytest
from tests.pipeline.recordings import captured, journal

from hansa.errors import UsageError, install_extra
from hansa.pipeline import formats
from hansa.pipeline.lake import Lake


def test_missing_package_is_reported_with_the_install_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    formats.require_package("parquet")
    for name, package in (("delta", "deltalake"), ("iceberg", "pyiceberg")):
        with pytest.raises(UsageError) as error:
            formats.require_package(name)
        assert str(error.value) == (
            f"a lake of format {name} needs the package {package}: {install_extra(name)}"
        )


def delta(lake, table):
    from deltalake import DeltaTable

    layer, _, name = table.partition(".")
    root = lake.path / ("bronze" if layer == "bronze" else f"tables/{layer}") / name
    return DeltaTable(str(root)).to_pyarrow_table()


def iceberg(lake, table):
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("hansa", uri=f"sqlite:///{lake.path / 'iceberg.db'}")
    return catalog.load_table(table).scan().to_arrow()


@pytest.mark.long
@pytest.mark.parametrize("read", [delta, iceberg])
def test_other_programs_read_the_same_rows_after_each_run(spark, tmp_path, read):
    from hansa.pipeline import bronze, runner

    name = read.__name__
    pytest.importorskip(formats.PACKAGES[name])
    lake = Lake.open_or_create(tmp_path / "lake", name)
    work = bronze.PipelineJob([str(tmp_path / "source")], batch_bytes=1_000)
    for first, last in ((1, 30), (31, 50)):
        records = [captured(number) for number in range(first, last + 1)]
        journal(tmp_path / "source", 5, records)
        runner.run_once(spark, lake, work)
        for table in ("bronze.messages", "silver.messages"):
            rows = read(lake, table).select(["sequence", "topic", "payload", "time"]).to_pylist()
            assert sorted(row["sequence"] for row in rows) == [*range(1, last + 1)]
            assert {(row["topic"], row["payload"]) for row in rows} == {("a/b", b"21.5")}
        (topic,) = read(lake, "gold.recorded_topics").to_pylist()
        assert (topic["topic"], topic["messages"]) == ("a/b", last)
        assert read(lake, "gold.delay").num_rows == 0
    assert lake.batch_count("messages") > 2

    log = formats.open_table_log(lake)
    assert log is not None
    formats.append_batches(lake, log)  # as after a kill behind the last entry
    assert read(lake, "bronze.messages").num_rows == 50
