"""The commands `hansa pipeline` and `hansa report`, in the shared Spark session."""

import html
import io
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
from hansa.cli.pipeline import check_sources
from hansa.errors import TableBroken
from hansa.protocol import topics
from hansa.simulator.papers import bevilaqua, machado, spohn

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hansa.pipeline.columns import COMMENTS, describe_columns
from hansa.pipeline.errors import SPARK_EXCEPTIONS, to_user_error
from hansa.pipeline.lake import Lake, TablePlace
from hansa.pipeline.silver_update import append
from hansa.pipeline.tables import TableLayer
from hansa.pipeline.topics import filter_matches

TIMEOUT_S = 240.0


def query(recording, sql, *more):
    return main(["pipeline", "query", "--lake", str(recording.lake), sql, *more])


def test_tables_are_listed_with_their_grain(recording, capsys):
    assert main(["pipeline", "tables", "--lake", str(recording.lake)]) == 0
    shown = capsys.readouterr().out
    assert "One row per run, hour and number of hops." in shown
    assert "One row per message that matches plant/+/temp and fulfils its contract." in shown


def rows_of(recording, capsys, sql):
    assert query(recording, sql, "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_payloads_that_fulfil_the_contract_become_columns(recording, capsys):
    sql = "select sequence, value, unit from temperatures order by sequence"
    assert rows_of(recording, capsys, sql) == [{"sequence": 1, "value": 21.5, "unit": "C"}]
    sql = "select sequence, contract, reason from payload_errors order by sequence"
    assert rows_of(recording, capsys, sql) == [
        {"sequence": n, "contract": "temperatures", "reason": reason}
        for n, reason in (
            (2, "the payload is not a JSON object"),
            (3, "the payload is not UTF-8"),
            (4, "field 'value' is not double"),
        )
    ]


def test_payload_is_bytes_text_and_variant(recording, capsys):
    sql = (
        "select try_variant_get(payload_json, '$.value', 'double') as value,"
        " hex(payload) as payload, payload_text, topic_levels from messages"
        " where guaranteed order by sequence"
    )
    rows = rows_of(recording, capsys, sql)
    assert [row["value"] for row in rows[:3]] == [21.5, None, None]
    assert (rows[2]["payload"], rows[2]["payload_text"]) == ("FFFE", None)
    assert rows[0]["topic_levels"] == ["plant", "1", "temp"]


def test_properties_are_columns(recording, capsys):
    sql = "select content_type, expiry_seconds, user_properties from messages where qos = 2"
    assert rows_of(recording, capsys, sql) == [
        {"content_type": "text/plain", "expiry_seconds": 60, "user_properties": {"unit": "C"}}
    ]


def test_node_names_are_beside_their_ids(recording, capsys):
    sql = "select distinct node_name from control_frames where run = 'live'"
    assert rows_of(recording, capsys, sql) == [{"node_name": "<a&b>"}]


@pytest.mark.parametrize(
    ("option", "text"),
    [("--csv", "a,b\n1,\n"), ("--vertical", "a: 1\nb: \n\n"), ("--json", '{"a": 1, "b": null}\n')],
)
def test_query_prints_for_programs(recording, capsys, option, text):
    assert query(recording, "select 1 as a, null as b", option) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        (
            "select 1.5, percentile(id, 0.5) from range(3)",
            '1.5,"percentile(id, 0.5, 1)"\n1.5,1.0\n',
        ),
        ("select 1 as a, 2 as a", "a,a\n1,2\n"),
        ("select array('x', null) as a, map('k', 1) as b", 'a,b\n"[""x"", null]","{""k"": 1}"\n'),
    ],
)
def test_columns_may_have_any_name_and_type(recording, capsys, sql, text):
    assert query(recording, sql, "--csv") == 0
    assert capsys.readouterr().out == text


def test_decimals_are_numbers_in_json(recording, capsys):
    assert rows_of(recording, capsys, "select 1.5 as a, null as b") == [{"a": 1.5, "b": None}]


def test_programs_get_all_rows_and_people_the_first(recording, capsys):
    sql = "select id from range(1234) order by id"
    for option, lines in (("--csv", 1_235), ("--json", 1_234)):
        assert query(recording, sql, option) == 0
        shown, messages = capsys.readouterr()
        assert len(shown.splitlines()) == lines
        assert "only the first" not in messages
    assert query(recording, sql, "--vertical") == 0
    shown, messages = capsys.readouterr()
    assert len(shown.split()) == 2_000
    assert messages.endswith("only the first 1,000 rows are shown; --csv and --json print all\n")


def test_times_are_in_utc_in_every_time_zone(recording, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        sql = "select timestamp'2026-01-31 12:00:00' as at"
        assert rows_of(recording, capsys, sql) == [{"at": "2026-01-31 12:00:00"}]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_shell_answers_each_line_and_continues_after_a_mistake(recording, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 1 as a\n\nselct 1\nselect 2 as a;\n"))
    assert main(["pipeline", "shell", "--lake", str(recording.lake), "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == '{"a": 1}\n{"a": 2}\n'
    (message,) = [line for line in err.splitlines() if line.startswith("hansa: ")]
    assert "Syntax error" in message


def test_tables_and_columns_are_shown_in_sql_and_by_command(recording, capsys):
    assert {"tableName": "deliveries"} in rows_of(recording, capsys, "show tables")
    described = rows_of(recording, capsys, "describe delay_by_hops")
    assert {"col_name": "hops", "data_type": "bigint", "comment": COMMENTS["hops"]} in described
    assert main(["pipeline", "describe", "--lake", str(recording.lake), "delay_by_hops"]) == 0
    shown = capsys.readouterr().out
    assert "key: run, hour, hops" in shown
    assert "rule: measured <= deliveries" in shown
    assert main(["pipeline", "history", "--lake", str(recording.lake), "delay_by_hops"]) == 0
    assert "WRITE" in capsys.readouterr().out
    assert main(["pipeline", "describe", "--lake", str(recording.lake), "dealy"]) == 2
    assert "has no table 'dealy'; there are alarms, announcements, " in capsys.readouterr().err


@pytest.mark.parametrize(
    "sql",
    [
        "select nonsense from delay",
        "selct 1",
        "drop table delay",
        "insert into delay select * from delay",
        "select * from nowhere",
        "select assert_true(false)",
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
        ("[t]\nfilter = 'a'\ncolumns = 'Topic int'", "column 'Topic' twice, or every table has it"),
        ("[t]\nfilter = 'a'\nschema = 'none.json'", "none.json cannot be read: No such file"),
        ("[t]\nfilter = 'a'", "[t] needs either 'columns' or 'schema'"),
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


def test_missing_lake_or_source_is_reported_in_one_sentence(recording, tmp_path, capsys):
    assert main(["report", "--lake", str(tmp_path / "none")]) == 2
    assert "is not a lake" in capsys.readouterr().err
    assert main(["pipeline", "run", "--lake", str(recording.lake), "/nowhere"]) == 2
    message = capsys.readouterr().err.splitlines()
    assert message[-1] == "hansa: there is no directory /nowhere to read from"
    assert main(["pipeline", "run", "--lake", str(recording.lake), "http://127.0.0.1:1"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("hansa: cannot read http://127.0.0.1:1/logs")


def test_stream_waits_for_an_agent_that_does_not_answer_at_its_start(tmp_path, capsys):
    journal(tmp_path / "source", 5, [captured(1)])
    unreachable = "http://127.0.0.1:1"
    check_sources([str(tmp_path / "source"), unreachable], may_be_empty=True)
    assert capsys.readouterr().err == ""
    check_sources([unreachable], may_be_empty=True)
    assert capsys.readouterr().err.endswith("; waiting\n")


@pytest.mark.long
def test_torn_segment_is_reported_and_can_be_skipped(spark, recording, tmp_path, capsys):
    lake, torn = tmp_path / "lake", tmp_path / "torn"
    shutil.copytree(recording.lake, lake)
    messages = messages_in(spark, lake)
    journal(torn, 9, many(1, 2_000))
    (segment,) = torn.glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    run = ["pipeline", "run", "--lake", str(lake), str(recording.source), str(torn)]
    assert main(run) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"hansa: {segment} is damaged at offset \d+; the next .*", message)
    assert messages_in(spark, lake) == messages
    assert main([*run, "--allow-loss"]) == 0
    assert messages < messages_in(spark, lake) < messages + 2_000


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
def test_stream_reads_new_data_until_interrupted(spark, tmp_path):
    source, lake = tmp_path / "source", tmp_path / "lake"
    journal(source, 5, [captured(1)])
    command = [sys.executable, "-m", "hansa.cli", "pipeline", "stream", "--lake", str(lake)]
    stream = subprocess.Popen(
        [*command, "--every", "0.5", str(source)], stderr=subprocess.PIPE, text=True
    )
    try:
        for count in (1, 3):
            journal(source, 5, [captured(number) for number in range(2, count + 1)])
            deadline = time.monotonic() + TIMEOUT_S
            while messages_in(spark, lake) < count:
                assert stream.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        stream.send_signal(signal.SIGINT)
        _, message = stream.communicate(timeout=TIMEOUT_S)
    finally:
        stream.kill()
    assert stream.returncode == 130, message
    assert "Traceback" not in message


def messages_in(spark, lake):
    path = lake / "silver" / "messages"
    if not (path / "_delta_log").exists():
        return 0
    return spark.read.format("delta").load(str(path)).count()


def test_row_that_breaks_a_rule_or_has_no_key_stops_the_write_and_is_named(spark, tmp_path):
    layer = TableLayer("silver")

    @layer.table("value > 0")
    def numbers(events):
        """One row per name. Key: name."""
        return events

    lake = Lake.open_or_create(spark, str(tmp_path))
    place = TablePlace("numbers", "silver", layer["numbers"].grain)
    schema = describe_columns(StructType.fromDDL("name string, value int"), ("name",))
    lake.create(place, schema, layer["numbers"])

    def write(*rows):
        frame = spark.createDataFrame(rows, "name string, value int")
        append(lake, place, frame)

    write(("a", 1), ("b", None))
    for rows, message in (
        ([("c", 1), (None, 2)], "silver/numbers: a row has no value in the key column `name`"),
        ([("c", 0)], "silver/numbers: a row breaks the rule `value > 0`: value : 0"),
    ):
        with pytest.raises(SPARK_EXCEPTIONS) as error:
            write(*rows)
        broken = to_user_error(error.value)
        assert isinstance(broken, TableBroken)
        assert str(broken) == message.removeprefix("silver/numbers: ")
    assert lake.read(place).count() == 2
    assert lake.version(place) == 1


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
