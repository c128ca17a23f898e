"""Looking after a lake: merging files, deleting for good, earlier versions, other readers."""

import shutil

import pytest
from tests.pipeline.recordings import captured, journal, telemetry

from hansa.cli.main import main
from hansa.cli.maintain import parse_time
from hansa.telemetry import schema

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql.types import StructType

from hansa.pipeline import maintenance, runner
from hansa.pipeline.bronze import PipelineJob
from hansa.pipeline.catalog import PLACES
from hansa.pipeline.lake import Lake, TablePlace
from hansa.pipeline.maintenance import ForgottenRows, forget, optimize, vacuum
from hansa.pipeline.session import ARRANGED_BYTES, CUBES
from hansa.pipeline.silver_update import append


@pytest.fixture
def copied(spark, recording, tmp_path):
    """A lake that a test may change."""
    shutil.copytree(recording.lake, tmp_path / "lake")
    return Lake(spark, str(tmp_path / "lake"))


def topics_on_disk(lake):
    """Return the topics in all files, also in those of earlier versions."""
    from pathlib import Path

    from pyarrow.parquet import ParquetFile

    found = set()
    for path in Path(lake.uri).rglob("*.parquet"):
        file = ParquetFile(path)
        if "topic" in file.schema_arrow.names and "_delta_log" not in path.parts:
            found |= set(file.read(["topic"])["topic"].to_pylist())
    return found


@pytest.mark.long
def test_forgotten_messages_are_in_no_table_and_no_file(copied, recording, tmp_path, capsys):
    recording_copy = tmp_path / "source"
    shutil.copytree(recording.source, recording_copy)
    assert "plant/1/temp" in topics_on_disk(copied)
    given = ["pipeline", "forget", "--lake", copied.uri, "--topic", "plant/+/temp"]
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert "temperatures" in shown and "payload_errors" in shown
    assert "plant/1/temp" not in topics_on_disk(copied)
    left = {row.topic for row in copied.read(PLACES["recorded_topics"]).collect()}
    assert left == {"plant/1/note", "a/c"}
    assert copied.read(PLACES["messages"]).count() == 8
    assert main(given) == 0
    assert "no rows match" in capsys.readouterr().out
    # The pipeline continues after it, and does not read the rows again.
    journal(recording_copy / "n5", 5, [captured(6, "plant/1/temp", b'{"value": 1}')])
    assert main(["pipeline", "run", "--lake", copied.uri, str(recording_copy)]) == 0
    assert copied.read(PLACES["messages"]).count() == 9
    temperatures = copied.spark.read.format("delta").load(f"{copied.uri}/silver/temperatures")
    assert [row.value for row in temperatures.collect()] == [1.0]


class Crash(Exception):
    """The process is killed here."""


def crash(*_args):
    raise Crash


@pytest.mark.long
def test_interrupted_deletion_is_completed_by_the_next(copied, capsys, monkeypatch):
    rows = ForgottenRows("plant/+/temp")
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(maintenance, "_remove_old_files", crash)
        forget(copied, rows)
    assert "plant/1/temp" in topics_on_disk(copied)
    assert forget(copied, rows) == {}
    assert "plant/1/temp" not in topics_on_disk(copied)


@pytest.mark.long
@pytest.mark.parametrize("step", ["run_silver", "update_gold"])
@pytest.mark.parametrize("command", ["forget", "vacuum"])
def test_interrupted_run_is_completed_before_files_are_removed(
    spark, tmp_path, monkeypatch, step, command
):
    """Otherwise the next run would bring forgotten rows back, or miss files that it needs."""
    source, lake = tmp_path / "source", Lake.open_or_create(spark, str(tmp_path / "lake"))
    job = PipelineJob([str(source)])
    people = [captured(n, f"people/{n}", b"x") for n in (1, 2)]
    delivered = schema.Delivered(3, 1, 7, 1, 1, "people/1", 1, 1)
    published = schema.Captured(2, 1, 7, 1, 1, "people/1", 1)
    journal(source / "1", 1, people)
    telemetry(source / "a", 1, [schema.NodeStarted(1, "a", "1"), published])
    telemetry(source / "c", 3, [schema.NodeStarted(1, "c", "1"), delivered])
    assert runner.run_once(lake, job)
    journal(source / "1", 1, [captured(3, "people/3", b"x"), captured(4, "other", b"x")])
    telemetry(source / "b", 2, [schema.NodeStarted(1, "b", "1"), delivered, delivered])
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(runner, step, crash)
        runner.run_once(lake, job)
    if command == "forget":
        forget(lake, ForgottenRows("people/#"))
    else:
        optimize(lake)
        with monkeypatch.context() as patch:
            patch.setattr(runner, "catch_up", crash)  # a stream may be running
            vacuum(lake, 1)
        vacuum(lake, 0)
    assert not runner.run_once(lake, job)
    left = {row.topic for row in lake.read(PLACES["messages"]).collect()}
    deliveries = lake.read(PLACES["delay"]).count()
    if command == "forget":
        assert (left, deliveries) == ({"other"}, 0)
        assert {topic for topic in topics_on_disk(lake) if topic} == {"other"}
    else:
        assert (left, deliveries) == ({"people/1", "people/2", "people/3", "other"}, 2)


def test_delivery_without_publication_is_forgotten_by_its_own_time(spark):
    frame = spark.sql(
        "select timestamp(published) as published_at, timestamp(delivered) as delivered_at"
        " from values (null, '2026-01-01'), ('2026-03-01', '2026-01-01') as t(published, delivered)"
    )
    condition = ForgottenRows(before="2026-02-01 00:00:00").condition(frame)
    assert [row.published_at for row in frame.where(condition).collect()] == [None]


def test_quote_in_a_filter_selects_no_other_topics(spark):
    topics = ["it's/a", "it\\s/a", "other/a"]
    frame = spark.createDataFrame([(each,) for each in topics], "topic string")
    filters = ["it's/+", "it\\s/+", "x') OR ('' = '"]
    conditions = [ForgottenRows(each).condition(frame) for each in filters]
    found = [[row.topic for row in frame.where(each).collect()] for each in conditions]
    assert found == [["it's/a"], ["it\\s/a"], []]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "forget needs --topic, --before or --node"),
        (["--topic", "a/#/b"], "a/#/b"),
        (["people/#", "--before", "2026-01-31"], "forget takes options only, not 'people/#'"),
        (["--before", "yesterday"], "'yesterday' is not a time; write 2026-01-31"),
        (["--node", "none"], "0 nodes have the name or id 'none'; there are <a&b>"),
    ],
)
def test_mistake_in_forget_is_one_sentence(recording, capsys, words, message):
    assert main(["pipeline", "forget", "--lake", str(recording.lake), *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.long
def test_small_files_are_merged_and_earlier_versions_stay_readable(copied, capsys):
    place = PLACES["counters"]
    before = copied.read(place).count()
    rows = copied.read(place).limit(1)
    for number in (1, 2, 3):
        moved = rows.selectExpr("* except (record_sequence)", f"{10**6 + number}L record_sequence")
        moved.select(*copied.read(place).columns).write.format("delta").mode("append").save(
            copied.location(place)
        )
    assert len(copied.read(place).inputFiles()) >= 4
    assert main(["pipeline", "optimize", "--lake", copied.uri]) == 0
    assert "small files were merged" in capsys.readouterr().out
    assert len(copied.read(place).inputFiles()) == 1
    first = copied.spark.read.format("delta").option("versionAsOf", 1).load(copied.location(place))
    assert (first.count(), copied.read(place).count()) == (before, before + 3)


def test_merging_rewrites_no_large_arranged_files(spark, tmp_path):
    """Otherwise each merge would cost as much as the table is large."""
    lake = Lake.open_or_create(spark, str(tmp_path / "lake"))
    place = TablePlace("times", "silver")
    lake.create(place, StructType.fromDDL("time timestamp"))

    def merged():
        for _ in range(2):
            append(lake, place, spark.range(5).selectExpr("timestamp_seconds(id) as time"))
        spark.sql(f"OPTIMIZE delta.`{lake.location(place)}`").collect()
        return set(lake.read(place).inputFiles())

    assert spark.conf.get(f"{CUBES}.threshold") == ARRANGED_BYTES
    spark.conf.set(f"{CUBES}.threshold", "1")  # one byte is large
    try:
        (first,) = merged()
        second = merged()
        assert first in second
        assert len(second) == 2
    finally:
        spark.conf.set(f"{CUBES}.threshold", ARRANGED_BYTES)
    assert len(merged()) == 1


def test_other_programs_read_the_tables_without_spark(spark, recording):
    deltalake = pytest.importorskip("deltalake")
    lake = Lake(spark, str(recording.lake))
    for name in ("messages", "deliveries", "nodes", "delivery", "recorded_topics"):
        table = deltalake.DeltaTable(lake.location(PLACES[name])).to_pyarrow_table()
        assert table.num_rows == lake.read(PLACES[name]).count() > 0
        assert set(table.column_names) == set(lake.read(PLACES[name]).columns)


def test_forget_by_client_is_refused_with_the_reason_and_the_alternative(tmp_path, capsys):
    given = ["pipeline", "forget", "--lake", str(tmp_path), "--client", "sensor-1"]
    assert main(given) == 2
    assert capsys.readouterr().err == (
        "hansa: forget cannot select rows by client: a broker does not send the id of the"
        " publishing client to subscribers, such as the agent; use --topic with the topics of that"
        " client, and --before or --node\n"
    )


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00", "2026-01-31 14:00+02:00"])
def test_time_without_zone_is_utc(text):
    assert parse_time(text) == "2026-01-31 12:00:00.000000"
