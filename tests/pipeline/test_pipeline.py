"""The commands `hansa pipeline` and `hansa report`, in the shared Spark session."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tests.pipeline.recordings import captured, journal, many

from hansa.cli.main import main
from hansa.errors import TableBroken
from hansa.pipeline.lake import Lake
from hansa.protocol import topics
from hansa.simulator.papers import bevilaqua, machado, spohn

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql import functions as F

from hansa.pipeline import builder
from hansa.pipeline.quality import check_table
from hansa.pipeline.tables import TableLayer
from hansa.pipeline.topics import filter_matches

TIMEOUT_S = 240.0


def query(recording, sql, *more):
    return main(["pipeline", "query", "--lake", str(recording.lake), sql, *more])


def test_tables_are_listed_with_their_grain(recording, capsys):
    assert main(["pipeline", "tables", "--lake", str(recording.lake)]) == 0
    shown = capsys.readouterr().out
    assert "One row per run and number of hops." in shown
    assert "One row per recorded publication that matches plant/+/temp." in shown


def test_matching_json_payloads_become_columns(recording, capsys):
    sql = "select sequence, value, unit from temperatures order by sequence"
    assert query(recording, sql, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        {"sequence": 1, "value": 21.5, "unit": "C"},
        {"sequence": 2, "value": None, "unit": None},
        {"sequence": 3, "value": None, "unit": None},
    ]
    sql = "select sequence, json:value::double as value, hex(payload) as payload from messages"
    assert query(recording, sql + " where guaranteed order by sequence", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["value"] for row in rows] == [21.5, None, None]
    assert rows[2]["payload"] == "FFFE"


@pytest.mark.parametrize(
    "sql",
    [
        "select nonsense from delay",
        "selct 1",
        "drop table delay",
        "insert into delay select * from delay",
        "select * from nowhere",
    ],
)
def test_wrong_or_writing_sql_is_refused_in_one_sentence(recording, capsys, sql):
    before = sorted(recording.lake.rglob("*.parquet"))
    assert query(recording, sql) == 2
    progress, message = capsys.readouterr().err.splitlines()
    assert progress.endswith("starting Spark")
    assert message.startswith("hansa: ")
    assert sorted(recording.lake.rglob("*.parquet")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[t]\nfliter = 'a'\ncolumns = 'b int'", "[t] has no field 'fliter'; it has 'filter'"),
        ("[t]\nfilter = 'a/#/b'\ncolumns = 'b int'", "'a/#/b'"),
        ("[t]\nfilter = 'a'\ncolumns = 'b itn'", "[t] columns 'b itn'"),
        ("[delay]\nfilter = 'a'\ncolumns = 'b int'", "'delay' cannot be the name of a table"),
        ("[t]\nfilter = 'a'\ncolumns = 'Time int'", "column 'Time' twice, or every table has it"),
        ("[t]\nfilter = 'a'\ncolumns = 'b int, B int'", "column 'B' twice"),
        ("[events]\nfilter = 'a'\ncolumns = 'b int'", "'events' cannot be the name of a table"),
        ("[t", "cannot be read"),
    ],
)
def test_mistake_in_the_payload_declaration_is_one_sentence(
    recording, tmp_path, capsys, text, message
):
    (tmp_path / "p.toml").write_text(text)
    given = ["--lake", str(tmp_path / "new"), "--payloads", str(tmp_path / "p.toml")]
    assert main(["pipeline", "run", *given, str(recording.source)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert not (tmp_path / "new").exists()


def test_query_shows_values_without_interpreting_markup(recording, capsys):
    sql = "select distinct `group` as topic, X'ff00' as raw from memberships where run = 'live'"
    assert query(recording, sql) == 0
    assert re.search(r"\[red\]x\[/y\] +X'FF00'", capsys.readouterr().out)
    assert query(recording, sql, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "[red]x[/y]", "raw": "X'FF00'"}


def test_source_without_recordings_is_refused_and_no_lake_created(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    for command in (["pipeline", "run"], ["report"]):
        given = [*command, "--lake", str(tmp_path / "new"), str(tmp_path / "source")]
        assert main(given) == 2
        (message,) = capsys.readouterr().err.splitlines()
        assert message.startswith(f"hansa: nothing is recorded at {tmp_path / 'source'}: name the")
        assert not (tmp_path / "new").exists()


def test_unwritable_report_path_is_refused_before_work_starts(recording, tmp_path, capsys):
    given = ["report", "--lake", str(recording.lake), "--out"]
    for out, message in ((tmp_path, "it is a directory"), (tmp_path / "no" / "x", "no directory")):
        assert main([*given, str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"hansa: cannot write {out}: ") and message in line


def test_payload_tables_are_rebuilt_without_giving_the_file_again(recording, tmp_path, spark):
    lake = tmp_path / "lake"
    shutil.copytree(recording.lake, lake, symlinks=True)
    builder.build_tables(spark, Lake(lake))
    assert "temperatures" in [entry.name for entry in Lake(lake).tables()]


def test_missing_lake_or_source_is_reported_in_one_sentence(recording, tmp_path, capsys):
    assert main(["report", "--lake", str(tmp_path / "none")]) == 2
    assert "is not a lake" in capsys.readouterr().err
    before = (recording.lake / "tables").resolve()
    assert main(["pipeline", "run", "--lake", str(recording.lake), "/nowhere"]) == 2
    message = capsys.readouterr().err.splitlines()
    assert message[-1] == "hansa: there is no directory /nowhere to read from"
    assert main(["pipeline", "run", "--lake", str(recording.lake), "http://127.0.0.1:1"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("hansa: cannot read http://127.0.0.1:1/logs")
    assert (recording.lake / "tables").resolve() == before


@pytest.mark.long
def test_torn_segment_is_reported_and_can_be_skipped(recording, tmp_path, capsys):
    lake, torn = tmp_path / "lake", tmp_path / "torn"
    shutil.copytree(recording.lake, lake, symlinks=True)
    before, messages = (lake / "tables").resolve(), messages_in(lake)
    journal(torn, 9, many(1, 2_000))
    (segment,) = torn.glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    run = ["pipeline", "run", "--lake", str(lake), str(recording.source), str(torn)]
    assert main(run) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"hansa: {segment} is damaged at offset \d+; the next .*", message)
    assert ((lake / "tables").resolve(), messages_in(lake)) == (before, messages)
    assert main([*run, "--allow-loss"]) == 0
    assert messages < messages_in(lake) < messages + 2_000


def test_report_is_self_contained_and_escapes_names(recording, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", "--lake", str(recording.lake), "--out", str(out)]) == 0
    page = out.read_text()
    assert "Simulated: ring:3, mesh, seed 1" in page
    for question in (
        "How long does",
        "Which links are busy?",
        "How long do nodes take to agree again?",
    ):
        assert question in page
    assert "<script" not in page
    assert "http" not in page
    assert "<a&b>" not in page


@pytest.mark.long
def test_report_shows_the_reproduced_papers(recording, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", "--lake", str(recording.lake), "--papers", "--out", str(out)]) == 0
    page = out.read_text()
    for scenario in (*spohn.SCENARIOS, *machado.SCENARIOS, *bevilaqua.SCENARIOS):
        assert html.escape(scenario.title) in page
    assert page.count('class="good"') > 20
    assert 'class="bad"' not in page


@pytest.mark.long
@pytest.mark.timeout(600)
def test_stream_reads_new_data_until_interrupted(tmp_path):
    source, lake = tmp_path / "source", tmp_path / "lake"
    journal(source, 5, [captured(1)])
    command = [sys.executable, "-m", "hansa.cli", "pipeline", "run", "--lake", str(lake)]
    stream = subprocess.Popen(
        [*command, "--stream", "--every", "0.5", str(source)], stderr=subprocess.PIPE, text=True
    )
    try:
        for count in (1, 3):
            journal(source, 5, [captured(number) for number in range(2, count + 1)])
            deadline = time.monotonic() + TIMEOUT_S
            while messages_in(lake) < count:
                assert stream.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        stream.send_signal(signal.SIGINT)
        _, message = stream.communicate(timeout=TIMEOUT_S)
    finally:
        stream.kill()
    assert stream.returncode == 130, message
    assert "Traceback" not in message


def messages_in(lake):
    if not (lake / "tables").exists():
        return 0
    return {entry.name: entry.rows for entry in Lake(lake).tables()}["messages"]


def test_violated_key_or_rule_is_reported(spark):
    layer = TableLayer("silver")

    @layer.table("value > 0")
    def numbers(events):
        """One row per name. Key: name."""
        return events

    (table,) = layer.tables

    def frame(*rows):
        return spark.createDataFrame(rows, "name string, value int")

    assert check_table(table, frame(("a", 1), ("b", None))) == 2
    for rows, message in (
        ([("a", 1), ("a", 2)], "silver.numbers: 1 rows have the same key (name) as another"),
        ([("a", 1), (None, 2)], "silver.numbers: 1 rows without a key (name)"),
        ([("a", 0), ("b", 2)], "silver.numbers: 1 of 2 rows violate the rule `value > 0`"),
    ):
        with pytest.raises(TableBroken) as broken:
            check_table(table, frame(*rows))
        assert str(broken.value) == message


def test_table_without_grain_and_key_cannot_be_declared():
    with pytest.raises(TypeError, match="the docstring must begin with grain and key"):

        @TableLayer("gold").table()
        def nameless(events):
            """A table without grain."""
            return events


def test_filters_match_in_spark_as_in_the_protocol(spark):
    filters = ["a/b", "a/+", "a/#", "#", "+/+", "+", "a/+/c", "/+", "$SYS/#", "+/b/#", "a/b/#"]
    names = ["a/b", "a", "a/", "/b", "a/b/c", "$SYS/x", "$SYS", "/", "b", "a//c"]
    pairs = [(one, other) for one in filters for other in names]
    frame = spark.createDataFrame(pairs, "filter string, topic string")
    found = frame.select(
        "filter", "topic", filter_matches("filter", "topic").alias("fits")
    ).collect()
    assert {(row.filter, row.topic): row.fits for row in found} == {
        (one, other): topics.matches(one, other) for one, other in pairs
    }
    assert frame.where(filter_matches("'a/+'", "topic") & (F.col("topic") == "a/b")).count() > 0
