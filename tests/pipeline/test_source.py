"""The source `format("hansa")`: every recorded row once, also across crashes."""

import json
import shutil
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent.telemetry.test_endpoints import served
from tests.pipeline.recordings import START, captured, journal, many, recorded, telemetry

from hansa.agent.storage.state_directory import INBOX_DIRECTORY
from hansa.errors import AgentUnreachable, JournalDamaged, JournalTrimmed, UsageError
from hansa.journal.records import InboxRecord
from hansa.journal.settings import JournalSettings
from hansa.pipeline.feeds import INBOX, find_feeds, find_unreachable_agents
from hansa.telemetry import schema
from hansa.telemetry.columns import FIELD_COLUMNS
from hansa.telemetry.reader import read_rows as telemetry_rows

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from hansa.pipeline.source import FeedStreamReader, SourceOptions

UNREACHABLE_AGENT = "http://127.0.0.1:1"
SMALL = JournalSettings(segment_bytes=20_000)
SHORT = JournalSettings(segment_bytes=20_000, retention_bytes=40_000)


def read(spark, path, **options):
    return spark.read.format("hansa").options(**options).load(str(path))


def follow(spark, path, lake, **options):
    """Run a stream with `availableNow` into a table; return the size of each batch."""
    sizes = []

    def keep(frame, number):
        frame.write.mode("overwrite").parquet(str(lake / f"batch={number}"))
        sizes.append(frame.count())

    stream = spark.readStream.format("hansa").options(**options).load(str(path)).writeStream
    stream = stream.option("checkpointLocation", str(lake / "checkpoint")).foreachBatch(keep)
    stream.trigger(availableNow=True).start().awaitTermination()
    return sizes


def sequences(spark, lake):
    return sorted(
        row.sequence for row in spark.read.parquet(f"{lake}/batch=*").select("sequence").collect()
    )


def test_message_row_has_key_payload_and_offset(spark, tmp_path):
    merely_carried = replace(captured(2), recorded=False)
    journal(tmp_path / "n" / "journal", 5, [captured(1), merely_carried, recorded(9)])
    first, second = read(spark, tmp_path).orderBy("offset").collect()
    assert first.asDict() == {
        "origin_id": "0000000000000005",
        "epoch": 7,
        "sequence": 1,
        "qos": 1,
        "topic": "a/b",
        "payload": bytearray(b"21.5"),
        "retain": False,
        "properties": bytearray(b""),
        **dict.fromkeys(("content_type", "response_topic", "correlation_data", "expiry_seconds")),
        "user_properties": None,
        "time_ns": START + 1_000_000,
        "feed": "0000000000000005-7",
        "offset": 52,
        "time": first.time,
    }
    assert round(first.time.timestamp() * 1_000) * 1_000_000 == START + 1_000_000
    assert (second.epoch, second.sequence, second.qos, second.retain) == (3, 9, 0, True)


def test_telemetry_rows_equal_those_of_the_reader(spark, tmp_path):
    values: dict[str, Any] = {"node": 6, "nodes": (7, 8), "integer": 4, "real": 0.5, "text": "t"}
    records = [
        kind(*(values[FIELD_COLUMNS[name][0]] for name in kind.__struct_fields__))
        for kind in schema.RECORD_TYPES.values()
    ]
    telemetry(tmp_path / "log", 5, records)
    got = {
        row.record_sequence: row.asDict() for row in read(spark, tmp_path, table="events").collect()
    }
    for row in telemetry_rows(tmp_path / "log"):
        place = {name: got[row.record_sequence].pop(name) for name in ("feed", "offset", "time")}
        assert got[row.record_sequence] == row.columns()
        assert place["offset"] == row.offset
    assert len(got) == len(schema.RECORD_TYPES)


def test_stream_in_small_batches_reads_every_row_once_and_resumes(spark, tmp_path):
    source, lake = tmp_path / "nodes", tmp_path / "lake"
    for node in (1, 2):
        journal(source / str(node), node, many(1, 1_000), SMALL)
    sizes = follow(spark, source, lake, maxBytesPerBatch=60_000)
    assert len(sizes) > 1
    assert max(sizes) <= 60_000 // 40
    assert sequences(spark, lake) == sorted([*range(1, 1_001)] * 2)
    assert follow(spark, source, lake) == []
    written = (lake / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert list(json.loads(written)) == ["0000000000000001-7", "0000000000000002-7"]  # in order

    journal(source / "1", 1, many(1_001, 1_100), SMALL)
    journal(source / "3", 3, many(1, 10))  # a node that joins later
    assert sum(follow(spark, source, lake)) == 110
    (source / "2").rename(source / "moved")
    journal(source / "moved", 2, many(1_001, 1_005), SMALL)
    assert sum(follow(spark, source, lake)) == 5


def test_repeated_batch_has_the_same_rows(spark, tmp_path):
    """A checkpoint without its last commit is what a kill in the middle of a batch leaves."""
    source, lake = tmp_path / "nodes", tmp_path / "lake"
    journal(source / "1", 1, many(1, 500), SMALL)
    before = follow(spark, source, lake, maxBytesPerBatch=10_000)
    journal(source / "1", 1, many(501, 600), SMALL)
    commits = lake / "checkpoint" / "commits"
    last = max(
        (path for path in commits.iterdir() if path.name.isdecimal()), key=lambda p: int(p.name)
    )
    last.unlink()
    again = follow(spark, source, lake, maxBytesPerBatch=10_000)
    assert again[0] == before[-1]
    assert sequences(spark, lake) == [*range(1, 601)]


def test_two_copies_of_a_journal_are_read_as_one(spark, tmp_path):
    journal(tmp_path / "here", 1, many(1, 5))
    journal(tmp_path / "copy", 1, many(1, 3))
    assert read(spark, tmp_path).count() == 5


def test_inbox_is_not_read_as_a_copy_of_the_journal(tmp_path):
    journal(tmp_path / "journal" / "7", 1, many(1, 5))
    journal(
        tmp_path / INBOX, 1, [InboxRecord(n, 2, 3, n, 1, "a/b", b"x" * 100) for n in range(1, 50)]
    )
    (feed,) = find_feeds([str(tmp_path)], telemetry=False).values()
    assert feed.location == str(tmp_path / "journal" / "7")
    assert INBOX == INBOX_DIRECTORY


def reason(error):
    return str(error.value)


@pytest.mark.long
def test_unread_data_dropped_by_retention_stops_the_stream(spark, tmp_path):
    source, lake = tmp_path / "nodes", tmp_path / "lake"
    journal(source / "1", 1, many(1, 100), SHORT)
    assert sum(follow(spark, source, lake)) == 100
    journal(source / "1", 1, many(101, 3_000), SHORT)
    with pytest.raises(Exception, match="retention dropped the offsets from") as error:
        follow(spark, source, lake)
    assert JournalTrimmed.__name__ in reason(error)
    rest = follow(spark, source, lake, failOnLoss="false")
    assert 0 < sum(rest) < 2_900


def test_corrupt_segment_is_reported_or_skipped(spark, tmp_path):
    journal(tmp_path / "1", 1, many(1, 5_000))
    (segment,) = (tmp_path / "1").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) * 3 // 4] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(Exception, match=r"is damaged at offset \d+") as error:
        read(spark, tmp_path).count()
    assert JournalDamaged.__name__ in reason(error)
    # All rows before the corrupt part are read, even if they do not fill a batch.
    assert 3_700 < read(spark, tmp_path, failOnLoss="false").count() < 5_000


def test_copy_shorter_than_planned_is_an_error(spark, tmp_path):
    """This happens if a killed stream is restarted on an older copy."""
    source, lake = tmp_path / "nodes", tmp_path / "lake"
    journal(source / "1", 1, many(1, 200), SMALL)
    shutil.copytree(source, tmp_path / "copy")
    journal(source / "1", 1, many(201, 400), SMALL)
    assert sum(follow(spark, source, lake)) == 400
    (lake / "checkpoint" / "commits" / "0").unlink()
    with pytest.raises(Exception, match=r"is to be read up to offset \d+, but ends at \d+"):
        follow(spark, tmp_path / "copy", lake)
    assert sum(follow(spark, tmp_path / "copy", lake, failOnLoss="false")) == 200


def test_another_log_at_the_same_place_is_not_read(tmp_path):
    journal(tmp_path / "n", 1, many(1, 10))
    (feed,) = find_feeds([str(tmp_path)], telemetry=False).values()
    assert feed.end_offset() == feed.bounds().end
    shutil.rmtree(tmp_path / "n")
    assert feed.end_offset() == 0
    journal(tmp_path / "n", 2, many(1, 10))
    assert feed.end_offset() == 0


def test_batch_boundary_is_after_a_corrupt_part(tmp_path):
    telemetry(tmp_path / "1", 1, [schema.LinkUp(1, 2)] * 20_000)
    (segment,) = (tmp_path / "1").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 4] ^= 0xFF
    segment.write_bytes(data)
    (feed,) = find_feeds([str(tmp_path)], telemetry=True).values()
    bounds = feed.bounds()
    assert feed.boundary(bounds.start, bounds.end // 2, bounds.end) == bounds.end


def test_continuous_stream_skips_unreachable_agents(tmp_path):
    journal(tmp_path / "1", 1, many(1, 10))
    paths = json.dumps([str(tmp_path), UNREACHABLE_AGENT])
    reader = FeedStreamReader(SourceOptions({"paths": paths}), StructType())
    (feed,) = find_feeds([str(tmp_path)], telemetry=False).values()
    offsets = reader.latestOffset({}, ReadAllAvailable())
    assert offsets == {feed.name: {"first": 0, "next": feed.bounds().end}}
    assert len(reader.partitions({}, offsets)) == 1
    its_own = {"0000000000000009-7": {"first": 0, "next": 10}}  # only the agent has it
    with pytest.raises(AgentUnreachable):
        reader.partitions({}, its_own)
    with pytest.raises(AgentUnreachable):  # all feeds must be known
        reader.prepareForTriggerAvailableNow()
    assert find_unreachable_agents([str(tmp_path), UNREACHABLE_AGENT], "") == {UNREACHABLE_AGENT}


def test_unknown_records_of_a_newer_agent_are_skipped(spark, tmp_path):
    class Newer(schema.LinkUp, frozen=True, array_like=True, gc=False, tag=26):
        extra: str = "?"

    telemetry(tmp_path / "log", 5, [Newer(1, 2, "new"), schema.LinkUp(3, 4)])
    found = read(spark, tmp_path, table="events").select("time_ns", "peer_id").collect()
    assert sorted(map(tuple, found)) == [(1, f"{2:016x}"), (3, f"{4:016x}")]


def test_columns_may_be_selected_by_a_schema(spark, tmp_path):
    journal(tmp_path / "1", 1, many(1, 2))
    chosen = spark.read.format("hansa").schema("topic string, sequence bigint").load(str(tmp_path))
    assert sorted(map(tuple, chosen.collect())) == [("a/b", 1), ("a/b", 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "mesages"}, "format hansa has no table 'mesages'; there are messages, events"),
        ({"tables": "x"}, "format hansa has no option 'tables'"),
        ({"maxBytesPerBatch": "-1"}, "maxBytesPerBatch is '-1', it must be a whole number above 0"),
    ],
)
def test_wrong_options_are_reported(spark, tmp_path, options, message):
    with pytest.raises(Exception, match=message) as error:
        read(spark, tmp_path, **options).count()
    assert UsageError.__name__ in reason(error)


def test_paths_must_be_a_json_list():
    assert SourceOptions({"paths": '["a", "b"]'}).sources == ["a", "b"]
    for wrong in ("a,b", '"a"', "[1]"):
        with pytest.raises(UsageError, match="it must be a JSON list of strings"):
            SourceOptions({"paths": wrong})


def test_missing_directory_is_reported(spark, tmp_path):
    with pytest.raises(Exception, match="there is no directory /nowhere/at/all to read from"):
        read(spark, "/nowhere/at/all").count()


def test_reading_from_an_agent_equals_reading_its_files(spark, tmp_path):
    state = tmp_path / "state"
    journal(state / "journal" / f"{7:020d}", 1, many(1, 300), SMALL)
    telemetry(state / "telemetry", 1, [schema.LinkUp(5, 2)])
    with served(state, "secret") as url:
        sizes = follow(spark, url, tmp_path / "lake", token="secret", maxBytesPerBatch=10_000)
        assert len(sizes) > 1
        assert sequences(spark, tmp_path / "lake") == [*range(1, 301)]
        (row,) = read(spark, url, table="events", token="secret").collect()
        assert (row.kind, row.peer_id) == ("link_up", f"{2:016x}")
        with pytest.raises(Exception, match="the token is missing or wrong"):
            read(spark, url).count()
    journal(state / "journal" / f"{7:020d}", 1, many(301, 310), SMALL)
    assert sum(follow(spark, state, tmp_path / "lake")) == 10  # from the files, where it was


def test_unreachable_agent_is_reported(spark):
    with pytest.raises(Exception, match=r"cannot read http://127.0.0.1:1/logs"):
        read(spark, "http://127.0.0.1:1").count()


def test_feed_of_a_relative_directory_is_found_from_anywhere(tmp_path, monkeypatch):
    journal(tmp_path / "nodes" / "1", 1, many(1, 2))
    monkeypatch.chdir(tmp_path)
    (feed,) = find_feeds(["nodes"], telemetry=False).values()
    assert feed.location == str(tmp_path / "nodes" / "1")
