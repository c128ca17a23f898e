"""`hansa pipeline` and `hansa report` as a user meets them, in the Spark of all tests."""

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

from hansa.pipeline import runner
from hansa.pipeline.quality import check_table
from hansa.pipeline.tables import TableLayer
from hansa.pipeline.topics import filter_matches

PATIENCE_S = 240.0


def query(recording, sql, *more):
    return main(["pipeline", "query", "--lake", str(recording.lake), sql, *more])


def test_tables_are_listed_with_their_grain(recording, capsys):
    assert main(["pipeline", "tables", "--lake", str(recording.lake)]) == 0
    shown = capsys.readouterr().out
    assert "One row per run and number of hops." in shown
    assert "One row per recorded publication that plant/+/temp matches." in shown


def test_payloads_are_columns_where_they_are_what_was_said_and_bytes_always(recording, capsys):
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
def test_wrong_sql_and_all_that_writes_is_one_sentence_and_harms_nothing(recording, capsys, sql):
    before = sorted(recording.lake.rglob("*.parquet"))
    assert query(recording, sql) == 2
    progress, said = capsys.readouterr().err.splitlines()
    assert progress.endswith("starting Spark")
    assert said.startswith("hansa: ")
    assert sorted(recording.lake.rglob("*.parquet")) == before


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_a_mistake_in_the_payloads_is_one_sentence(recording, tmp_path, capsys, text, said):
    (tmp_path / "p.toml").write_text(text)
    given = ["--lake", str(tmp_path / "new"), "--payloads", str(tmp_path / "p.toml")]
    assert main(["pipeline", "run", *given, str(recording.source)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error
    assert not (tmp_path / "new").exists()


def test_what_is_shown_is_what_was_recorded(recording, capsys):
    sql = "select distinct `group` as topic, X'ff00' as raw from memberships where run = 'live'"
    assert query(recording, sql) == 0
    assert re.search(r"\[red\]x\[/y\] +X'FF00'", capsys.readouterr().out)
    assert query(recording, sql, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "[red]x[/y]", "raw": "X'FF00'"}


def test_where_nothing_is_recorded_it_says_so_and_makes_no_lake(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    for command in (["pipeline", "run"], ["report"]):
        given = [*command, "--lake", str(tmp_path / "new"), str(tmp_path / "source")]
        assert main(given) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"hansa: nothing is recorded at {tmp_path / 'source'}: name the")
        assert not (tmp_path / "new").exists()


def test_a_page_that_cannot_be_written_is_told_before_the_work(recording, tmp_path, capsys):
    given = ["report", "--lake", str(recording.lake), "--out"]
    for out, said in ((tmp_path, "it is a directory"), (tmp_path / "no" / "x", "no directory")):
        assert main([*given, str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"hansa: cannot write {out}: ") and said in line


def test_payload_tables_stay_when_the_file_is_not_given_again(recording, tmp_path, spark):
    lake = tmp_path / "lake"
    shutil.copytree(recording.lake, lake, symlinks=True)
    runner.build_tables(spark, Lake(lake))
    assert "temperatures" in [kept.name for kept in Lake(lake).tables()]


def test_a_missing_lake_and_a_missing_source_are_one_sentence(recording, tmp_path, capsys):
    assert main(["report", "--lake", str(tmp_path / "none")]) == 2
    assert "is no lake" in capsys.readouterr().err
    before = (recording.lake / "tables").resolve()
    assert main(["pipeline", "run", "--lake", str(recording.lake), "/nowhere"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "hansa: there is no directory /nowhere to read from"
    assert main(["pipeline", "run", "--lake", str(recording.lake), "http://127.0.0.1:1"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("hansa: cannot read http://127.0.0.1:1/logs")
    assert (recording.lake / "tables").resolve() == before


@pytest.mark.long
def test_a_half_written_segment_is_one_sentence_and_can_be_passed_over(recording, tmp_path, capsys):
    lake, torn = tmp_path / "lake", tmp_path / "torn"
    shutil.copytree(recording.lake, lake, symlinks=True)
    before, messages = (lake / "tables").resolve(), messages_in(lake)
    journal(torn, 9, many(1, 2_000))
    (segment,) = torn.glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    run = ["pipeline", "run", "--lake", str(lake), str(recording.source), str(torn)]
    assert main(run) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"hansa: {segment} is damaged at offset \d+; the next .*", said)
    assert ((lake / "tables").resolve(), messages_in(lake)) == (before, messages)
    assert main([*run, "--allow-loss"]) == 0
    assert messages < messages_in(lake) < messages + 2_000


def test_the_report_is_one_page_that_loads_nothing_and_escapes_what_it_shows(
    recording, tmp_path, capsys
):
    out = tmp_path / "report.html"
    assert main(["report", "--lake", str(recording.lake), "--out", str(out)]) == 0
    page = out.read_text()
    assert "Simulated: ring:3, mesh, seed 1" in page
    for question in (
        "How long does",
        "Which links work?",
        "How long do nodes take to agree again?",
    ):
        assert question in page
    assert "<script" not in page
    assert "http" not in page
    assert "<a&b>" not in page


@pytest.mark.long
def test_the_papers_stand_beside_ours_on_the_page(recording, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", "--lake", str(recording.lake), "--papers", "--out", str(out)]) == 0
    page = out.read_text()
    for scenario in (*spohn.SCENARIOS, *machado.SCENARIOS, *bevilaqua.SCENARIOS):
        assert html.escape(scenario.title) in page
    assert page.count('class="good"') > 20
    assert 'class="bad"' not in page


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_stream_goes_on_with_what_comes_until_ctrl_c(tmp_path):
    source, lake = tmp_path / "source", tmp_path / "lake"
    journal(source, 5, [captured(1)])
    command = [sys.executable, "-m", "hansa.cli", "pipeline", "run", "--lake", str(lake)]
    stream = subprocess.Popen(
        [*command, "--stream", "--every", "0.5", str(source)], stderr=subprocess.PIPE, text=True
    )
    try:
        for count in (1, 3):
            journal(source, 5, [captured(number) for number in range(2, count + 1)])
            deadline = time.monotonic() + PATIENCE_S
            while messages_in(lake) < count:
                assert stream.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        stream.send_signal(signal.SIGINT)
        _, said = stream.communicate(timeout=PATIENCE_S)
    finally:
        stream.kill()
    assert stream.returncode == 130, said
    assert "Traceback" not in said


def messages_in(lake):
    if not (lake / "tables").exists():
        return 0
    return {kept.name: kept.rows for kept in Lake(lake).tables()}["messages"]


def test_a_table_that_breaks_its_key_or_a_rule_is_told(spark):
    layer = TableLayer("silver")

    @layer.table("value > 0")
    def numbers(events):
        """One row per name. Key: name."""
        return events

    (table,) = layer.tables

    def frame(*rows):
        return spark.createDataFrame(rows, "name string, value int")

    assert check_table(table, frame(("a", 1), ("b", None))) == 2
    for rows, said in (
        ([("a", 1), ("a", 2)], "silver.numbers: 1 rows have the same key (name) as another"),
        ([("a", 1), (None, 2)], "silver.numbers: 1 rows without a key (name)"),
        ([("a", 0), ("b", 2)], "silver.numbers: 1 of 2 rows violate the rule `value > 0`"),
    ):
        with pytest.raises(TableBroken) as broken:
            check_table(table, frame(*rows))
        assert str(broken.value) == said


def test_a_table_without_grain_and_key_cannot_be_declared():
    with pytest.raises(TypeError, match="its docstring must begin with grain and key"):

        @TableLayer("gold").table()
        def nameless(events):
            """What it is is not said."""
            return events


def test_filters_match_in_spark_as_they_do_in_the_protocol(spark):
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
