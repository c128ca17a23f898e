"""A lake: what it refuses, contracts, and what a crash or late input must not change."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.pipeline.recordings import captured, journal, recorded, telemetry

from hansa.errors import UsageError
from hansa.pipeline.location import require_lake, require_place
from hansa.telemetry import schema
from hansa.testbed.demo.delta_files import read_delta

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql import functions as F

from hansa.pipeline import runner
from hansa.pipeline.bronze import PipelineJob
from hansa.pipeline.catalog import DECLARED, PLACES, create_tables
from hansa.pipeline.errors import SPARK_EXCEPTIONS, to_user_error
from hansa.pipeline.gold_update import source_versions, update_gold
from hansa.pipeline.lake import BRONZE_PLACES, Lake
from hansa.pipeline.silver_update import TRANSACTION, EventBatch, finish_silver
from hansa.pipeline.storage import Storage

SECOND = 1_000_000_000
HOUR = 3_600 * SECOND
LONG = pytest.mark.long


def test_other_directory_is_not_opened_as_lake(spark, tmp_path):
    (tmp_path / "something").write_text("")
    for attempt in (
        lambda: Lake.open_or_create(spark, str(tmp_path)),
        lambda: require_lake(str(tmp_path)),
        lambda: require_place(str(tmp_path)),
    ):
        with pytest.raises(UsageError, match="is not a lake; use another location for one"):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_lake_of_another_version_is_refused(spark, tmp_path):
    (tmp_path / "_hansa").mkdir()
    (tmp_path / "_hansa" / "lake.json").write_text('{"version": 1}')
    with pytest.raises(UsageError, match="is a lake of version 1, this Hansa has version 3"):
        Lake(spark, str(tmp_path))
    (tmp_path / "_hansa" / "lake.json").write_text('{"ver')
    with pytest.raises(UsageError, match=r"lake\.json is corrupt"):
        Lake(spark, str(tmp_path))


def test_unknown_storage_is_reported_in_one_sentence(spark):
    with pytest.raises(UsageError, match="cannot access nosuch://bucket/lake: .*nosuch") as error:
        Lake(spark, "nosuch://bucket/lake")
    assert "\n" not in str(error.value)


def rows_of(lake, name):
    """Return the rows of a table as comparable texts, read without Spark. The last digits of a mean
    depend on the order in which its values are added."""
    rows = read_delta(Path(lake.uri) / PLACES[name].path)
    return Counter(
        str({key: f"{x:.10g}" if isinstance(x, float) else x for key, x in sorted(row.items())})
        for row in rows
    )


def assert_same_tables(one, other):
    for name in PLACES:
        assert rows_of(one, name) == rows_of(other, name), name


def announcement(at):
    return schema.ControlFrameSent(at, "CoreAnnouncement", 30, 2, 1, 1, 0, 1)


LIFE: list[schema.AnyRecord] = [
    schema.NodeStarted(1 * SECOND, "a", "1"),
    schema.LinkUp(2 * SECOND, 2),
    schema.Captured(3 * SECOND, 1, 1, 1, 0, "t/1", 4),
    schema.CopySent(3 * SECOND + 1_000, 1, 1, 1, 0, "t/1", 4, 40, 1, 2),
    schema.Captured(HOUR + SECOND, 1, 7, 1, 1, "t/1", 4),
    schema.AlarmRaised(HOUR + 2 * SECOND, "state not saved", "disk full"),
    schema.AlarmCleared(HOUR + 4 * SECOND, "state not saved"),
    # An announcement in two hours, the second time over a link that has just come up again.
    announcement(4 * SECOND),
    schema.LinkDown(HOUR - SECOND // 2, 2, "closed"),
    schema.LinkUp(HOUR + SECOND // 5, 2),
    announcement(HOUR + SECOND),
    schema.RoundTrip(HOUR + 2 * SECOND, 2, 1.5),
    schema.Counter(HOUR + 10 * SECOND, "publications", 2.0),
    # While the other node has no interest any more, and while it has again.
    schema.Captured(2 * HOUR + 5 * SECOND, 1, 7, 2, 1, "t/2", 4),
    schema.Captured(6 * HOUR, 1, 7, 3, 1, "t/3", 4),
]
OTHER: list[schema.AnyRecord] = [
    schema.NodeStarted(1 * SECOND, "b", "1"),
    schema.InterestAdded(2 * SECOND, "t/#"),
    schema.CopyReceived(3 * SECOND + 2_000, 1, 1, 1, 0, "t/1", 4, 40, 1, 1),
    schema.Delivered(3 * SECOND + 5_000_000, 1, 1, 1, 0, "t/1", 4, 1),
    # Two hours after its publication, and twice.
    schema.Delivered(3 * HOUR, 1, 7, 1, 1, "t/1", 4, None),
    schema.Delivered(4 * HOUR, 1, 7, 1, 1, "t/1", 4, None),
    schema.Duplicate(3 * SECOND + 3_000, 1, 1, 1, 0, 1),
    schema.MeshJoined(2 * SECOND, "t/#"),
    schema.InterestRemoved(2 * HOUR + SECOND, "t/#"),
    schema.Gap(4 * HOUR + SECOND, 1, 7, 2, 2, "retention"),
]
RESTARTED: list[schema.AnyRecord] = [
    schema.NodeStarted(5 * HOUR, "b", "1"),
    schema.InterestAdded(5 * HOUR + SECOND, "t/#"),
]
FAULTS: list[schema.AnyRecord] = [
    schema.FaultInjected(HOUR - SECOND, "kill agent 0", 1),
    schema.Converged(HOUR - SECOND, "kill agent 0", 1.5),
    schema.ClientDeliveriesCounted(HOUR, "kill agent 0", 1, 2, 10, 9, 1, 0.5),
    schema.FaultInjected(2 * HOUR, "cut link", 1, 2),
]


@pytest.fixture(scope="module")
def whole(spark, tmp_path_factory):
    """The lake of one run over everything."""
    root = tmp_path_factory.mktemp("whole")
    telemetry(root / "source" / "a", 1, LIFE)
    telemetry(root / "source" / "b", 2, OTHER)
    telemetry(root / "source" / "c", 2, RESTARTED, incarnation=2)
    telemetry(root / "source" / "f", schema.FAULT_INJECTOR, FAULTS)
    journal(root / "source" / "j", 1, [captured(1), recorded(1)])
    lake = Lake.open_or_create(spark, str(root / "lake"))
    assert runner.run_once(lake, PipelineJob([str(root / "source")]))
    return lake


def test_no_table_to_compare_with_is_empty(whole):
    empty = {name for name in PLACES if not rows_of(whole, name)}
    assert empty == {"payload_errors"}


def test_deliveries_are_in_the_hour_of_their_publication(whole):
    found = {
        (row.sequence, row.guaranteed): (row.delivery_count, row.delay_ms, row.hour == row.h)
        for row in whole.read(PLACES["deliveries"])
        .withColumn("h", F.date_trunc("hour", "published_at"))
        .collect()
    }
    assert found == {(1, False): (1, 5.0, True), (1, True): (2, 7_199_000.0, True)}


def test_alarms_are_a_table(whole):
    rows = whole.read(PLACES["alarms"]).orderBy("record_sequence").collect()
    assert [(row.kind, row.alarm, row.reason, row.recorded_at.second) for row in rows] == [
        ("alarm_raised", "state not saved", "disk full", 2),
        ("alarm_cleared", "state not saved", None, 4),
    ]


def test_run_without_new_data_does_nothing(whole):
    versions = {name: whole.version(place) for name, place in PLACES.items()}
    assert not runner.run_once(whole, PipelineJob([f"{whole.uri}/../source"]))
    assert versions == {name: whole.version(place) for name, place in PLACES.items()}


class Crash(Exception):
    """The process is killed here."""


def crash(*_args):
    raise Crash


def write_batch(lake, frame, number):
    """Bring a batch into silver and gold as the stream does; repeating it changes nothing."""
    conf = lake.spark.conf
    conf.set(f"{TRANSACTION}AppId", "hansa-silver-events")
    conf.set(f"{TRANSACTION}Version", str(number))
    try:
        EventBatch(lake, frame).write()
    finally:
        conf.unset(f"{TRANSACTION}AppId")
        conf.unset(f"{TRANSACTION}Version")


@pytest.mark.parametrize(
    ("seed", "batches"), [(7, 2), *(pytest.param(seed, 4, marks=LONG) for seed in range(8))]
)
def test_late_input_in_random_order_gives_the_same_tables(
    spark, whole, tmp_path, monkeypatch, seed, batches
):
    """Batches of records in an order that no clock has; one is interrupted and repeated."""
    chosen = random.Random(seed)
    records = whole.read(BRONZE_PLACES["events"]).collect()
    chosen.shuffle(records)
    lake = Lake.open_or_create(spark, str(tmp_path / "lake"))
    create_tables(lake)
    columns = whole.read(BRONZE_PLACES["events"]).schema
    progress: dict[str, int] = {}
    cuts = sorted(chosen.sample(range(1, len(records)), batches - 1))
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(records)], strict=True)):
        frame = spark.createDataFrame(records[begin:end], columns)
        if number == 1:  # some tables have the batch, others not
            with monkeypatch.context() as patch, pytest.raises(Crash):
                patch.setattr(EventBatch, "_replace_memberships", crash)
                write_batch(lake, frame, number)
        write_batch(lake, frame, number)
        finish_silver(lake)
        sources = source_versions(lake)
        update_gold(lake, progress, lambda *_: None)
        progress = sources
    for name in PLACES:
        if "bronze_messages" in DECLARED[name].inputs or "messages" in DECLARED[name].inputs:
            continue
        assert rows_of(lake, name) == rows_of(whole, name), name


@pytest.mark.long
@pytest.mark.parametrize("point", ["silver", "after silver", "gold", "progress"])
def test_crash_at_any_step_changes_nothing_in_the_end(spark, whole, tmp_path, monkeypatch, point):
    lake = Lake.open_or_create(spark, str(tmp_path / "lake"))
    job = PipelineJob([f"{whole.uri}/../source"])
    with monkeypatch.context() as patch:
        if point == "silver":  # in the middle of a batch: some tables have it, others not
            patch.setattr(EventBatch, "_merge_deliveries", crash)
        elif point == "after silver":
            patch.setattr(runner, "finish_silver", crash)
        elif point == "gold":
            patch.setattr(runner, "update_gold", crash)
        else:
            patch.setattr(Lake, "save_progress", crash)
        with pytest.raises((Crash, UsageError)):
            runner.run_once(lake, job)
    assert runner.run_once(lake, job)
    assert_same_tables(lake, whole)


def test_table_whose_creation_was_interrupted_is_created(spark, tmp_path):
    lake = Lake.open_or_create(spark, str(tmp_path / "lake"))
    (tmp_path / "lake" / "silver" / "messages" / "_delta_log").mkdir(parents=True)
    create_tables(lake)
    assert {lake.version(place) for place in PLACES.values()} == {0}


def test_small_file_is_replaced_as_a_whole(spark, tmp_path):
    storage = Storage(spark, str(tmp_path))
    storage.write("state/progress.json", '{"a": 1}')
    before = tmp_path / "before"
    before.hardlink_to(tmp_path / "state" / "progress.json")
    storage.write("state/progress.json", '{"a": 2}')
    assert storage.read("state/progress.json") == '{"a": 2}\n'
    assert before.read_text() == '{"a": 1}\n'  # not overwritten: a new file took its name
    assert storage.names("state") == ["progress.json"]
    with pytest.raises(UsageError, match="progress.json"):
        storage.write("state/progress.json", "", replace=False)


@pytest.mark.parametrize(
    ("stream", "table"),
    [
        ("bronze_messages", "bronze/messages"),
        ("silver_messages", "silver/messages"),
        ("silver_events", "silver/runs"),
    ],
)
def test_missing_checkpoint_is_refused_before_anything_is_read_twice(
    spark, whole, tmp_path, stream, table
):
    shutil.copytree(whole.uri, tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "_hansa" / "checkpoints" / stream)
    lake = Lake(spark, str(tmp_path / "lake"))
    lake.save_progress({})  # as if the last run was interrupted
    with pytest.raises(UsageError, match=f"{table} has rows, but its checkpoint is missing"):
        runner.run_once(lake, PipelineJob([f"{whole.uri}/../source"]))


def test_table_that_has_not_changed_since_a_time_is_read_as_it_is(whole):
    place = PLACES["deliveries"]
    assert whole.read(place, "2100-01-01 00:00:00").count() == whole.read(place).count() == 2
    assert whole.read(place, "2100-01-01 00:00:00.000000").count() == 2
    with pytest.raises(SPARK_EXCEPTIONS) as error:
        whole.read(place, "2000-01-01 00:00:00")
    assert "2000-01-01" in str(to_user_error(error.value))


def test_description_of_a_table_is_in_its_log(whole):
    (log,) = (json.loads(line) for line in _first_commit(whole, "deliveries") if "metaData" in line)
    assert log["metaData"]["description"].startswith("One row per publication and other node")
    assert log["metaData"]["configuration"]["delta.enableChangeDataFeed"] == "true"


def _first_commit(lake, name):
    return lake.storage.read(f"{PLACES[name].path}/_delta_log/{0:020d}.json").splitlines()
