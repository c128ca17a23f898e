"""Retention: old rows of some tables are deleted, and gold keeps what was computed from them."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs
from tests.pipeline.recordings import SECOND, captured, journal, telemetry

from hansa.cli.main import main
from hansa.telemetry import schema

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline import retention, runner
from hansa.pipeline.bronze import PipelineJob, ignore_progress
from hansa.pipeline.catalog import PLACES
from hansa.pipeline.gold import GOLD
from hansa.pipeline.lake import BRONZE_PLACES, Lake
from hansa.pipeline.maintenance import ForgottenRows, forget
from hansa.pipeline.retention import remove_old_rows

NOW = datetime.now(UTC)
DAY_NS = 86_400 * SECOND
NEW = int(NOW.timestamp()) * SECOND - DAY_NS // 4
OLD = NEW - 40 * DAY_NS
PUBLISHED = (OLD, OLD + 1, NEW)
"""Times of the publications 1, 2 and 3."""


class Crash(Exception):
    """The process is killed here."""


def crash(*_args):
    raise Crash


def record(source):
    """Node 1 publishes, two of three times long ago; node 3 has had interest since then."""
    messages = [captured(n, f"a/{n}", b"x") for n in (1, 2, 3)]
    timed = zip(messages, PUBLISHED, strict=True)
    journal(source / "1", 1, [structs.replace(each, time_ns=time_ns) for each, time_ns in timed])
    every = [(number, time_ns) for number, time_ns in enumerate(PUBLISHED, 1)]
    published = [schema.Captured(at, 1, 7, n, 1, f"a/{n}", 1) for n, at in every]
    delivered = [schema.Delivered(at + SECOND, 1, 7, n, 1, f"a/{n}", 1, 1) for n, at in every]
    interest = schema.InterestAdded(OLD - SECOND, "a/#")
    telemetry(source / "a", 1, [schema.NodeStarted(OLD - SECOND, "a", "1"), *published])
    telemetry(source / "c", 3, [schema.NodeStarted(OLD - SECOND, "c", "1"), interest, *delivered])


def numbers(lake, name):
    return sorted(row.sequence for row in lake.read(PLACES[name]).collect())


def gold_rows(lake, before=""):
    """Return the rows of all gold tables; with `before`, those of earlier hours."""
    found = {}
    for table in GOLD.tables:
        rows = lake.read(PLACES[table.name])
        rows = rows.where(f"hour < TIMESTAMP'{before}'") if before else rows
        found[table.name] = sorted(map(repr, rows.collect()))
    return found


@pytest.mark.long
def test_old_rows_are_deleted_and_gold_keeps_what_was_computed_from_them(
    spark, tmp_path, monkeypatch, capsys
):
    source, lake = tmp_path / "source", Lake.open_or_create(spark, str(tmp_path / "lake"))
    job = PipelineJob([str(source)])
    record(source)
    assert runner.run_once(lake, job)
    gold = gold_rows(lake)
    for words in (["silver", "30"], ["bronze_events", "7"], ["alarms", "forever"]):
        assert main(["pipeline", "retain", "--lake", lake.uri, *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "publications" in shown[0] and "nodes" not in shown[0]
    assert shown[1:] == ["retention of bronze_events: 7 days", "retention of alarms: forever"]
    # A run that is killed after the first table is completed by the next.
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(retention, "_delete", crash)
        runner.run_once(lake, job)
    assert numbers(lake, "deliveries") == [1, 2, 3]
    assert runner.run_once(lake, job)
    assert not runner.run_once(lake, job)
    for name in ("messages", "publications", "deliveries"):
        assert numbers(lake, name) == [3]
    assert lake.read(BRONZE_PLACES["events"]).count() == 2
    assert lake.read(BRONZE_PLACES["messages"]).count() == 3
    assert gold_rows(lake) == gold
    assert main(["pipeline", "describe", "--lake", lake.uri, "deliveries"]) == 0
    assert main(["pipeline", "tables", "--lake", lake.uri]) == 0
    shown = capsys.readouterr().out
    assert "retention: 30 days" in shown and "days" in shown

    # An agent that was out of reach for weeks: its old records change no hour of gold without rows
    # in silver, its interest counts in the others.
    interest = schema.InterestAdded(OLD - SECOND, "a/#")
    late = schema.Delivered(OLD + SECOND, 1, 7, 1, 1, "a/1", 1, 1)
    telemetry(source / "d", 4, [schema.NodeStarted(OLD - SECOND, "d", "1"), interest, late])
    assert runner.run_once(lake, job)
    middle = (NOW - timedelta(20)).strftime("%Y-%m-%d %H:%M:%S")
    old = gold_rows(lake, middle)
    assert all(set(rows) <= set(gold[name]) for name, rows in old.items())
    pairs = "node_id = '0000000000000004' AND expected = 1 AND lost = 1"
    assert lake.read(PLACES["delivery"]).where(pairs).count() == 1
    assert numbers(lake, "deliveries") == [1, 3]
    assert remove_old_rows(lake, ignore_progress, NOW + timedelta(1))
    assert numbers(lake, "deliveries") == [3]

    # Topics in such hours of gold are forgotten, too.
    assert forget(lake, ForgottenRows("a/1"))["hot_topics"] == 1
    for name in ("hot_topics", "recorded_topics"):
        assert {row.topic for row in lake.read(PLACES[name]).collect()} == {"a/2", "a/3"}
    # Records of interest that still lasts are kept.
    forget(lake, ForgottenRows(before=NOW.strftime("%Y-%m-%d %H:%M:%S")))
    assert {row.kind for row in lake.read(PLACES["control_events"]).collect()} == {"interest_added"}
    assert lake.read(PLACES["memberships"]).count() == 2
    assert not any(gold_rows(lake).values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["silver"], "retain needs TABLE DAYS, such as `retain silver 30`, or TABLE forever"),
        (["silver", "0"], "0 must be from 1 to 36500 days, or forever"),
        (["slver", "30"], "has no table or layer 'slver'; there are bronze, silver, gold, alarms"),
        (["nodes", "30"], "the rows of nodes have no time: it is a state, and stays small"),
    ],
)
def test_mistake_in_retain_is_one_sentence(recording, capsys, words, message):
    assert main(["pipeline", "retain", "--lake", str(recording.lake), *words]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
