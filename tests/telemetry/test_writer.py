"""Writing and reading telemetry: keys, ranges, newer versions, crashes and retention."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hansa.errors import JournalDamaged, JournalTrimmed
from hansa.journal.records import TelemetryBlock
from hansa.journal.settings import JournalSettings
from hansa.telemetry import schema, writer
from hansa.telemetry.columns import COLUMNS
from hansa.telemetry.reader import decode_block, read_blocks, read_bounds, read_rows
from hansa.telemetry.writer import NodeRecorder, TelemetryLog

NODE = 2**64 - 2


def ups(*peers: int) -> list[schema.AnyRecord]:
    return [schema.LinkUp(1000 + peer, peer) for peer in peers]


def write(path: Path, *records: schema.AnyRecord, incarnation: int = 7) -> None:
    log = TelemetryLog(path)
    recorder = NodeRecorder(log, NODE, incarnation)
    for record in records:
        recorder.put(record)
    recorder.flush()
    log.close()


def test_written_records_are_read_with_their_keys(tmp_path):
    write(tmp_path, *ups(1, 2))
    write(tmp_path, *ups(3), incarnation=8)
    assert [
        (row.node_id, row.incarnation, row.record_sequence, row.record)
        for row in read_rows(tmp_path)
    ] == [
        (NODE, 7, 1, schema.LinkUp(1001, 1)),
        (NODE, 7, 2, schema.LinkUp(1002, 2)),
        (NODE, 8, 1, schema.LinkUp(1003, 3)),
    ]


def test_row_has_every_column(tmp_path):
    write(tmp_path, schema.ParentsChanged(5, 1, 2, 1, (3,), (3,), ()))
    (row,) = read_rows(tmp_path)
    found = row.columns()
    assert list(found) == list(COLUMNS)
    assert {name: value for name, value in found.items() if value is not None} == {
        "node_id": "fffffffffffffffe",
        "incarnation": 7,
        "record_sequence": 1,
        "kind": "parents_changed",
        "time_ns": 5,
        "core_id": "0000000000000001",
        "announcement_sequence": 2,
        "distance": 1,
        "parent_ids": ["0000000000000003"],
        "gained_parent_ids": ["0000000000000003"],
        "lost_parent_ids": [],
    }


def test_rows_are_readable_after_a_full_block_or_flush_and_a_commit(tmp_path):
    log = TelemetryLog(tmp_path)
    recorder = NodeRecorder(log, NODE, 7)
    for record in ups(*range(writer.BLOCK_ROWS + 1)):
        recorder.put(record)
    assert list(read_rows(tmp_path)) == []
    log.commit()
    assert len(list(read_rows(tmp_path))) == writer.BLOCK_ROWS
    recorder.flush()
    log.close()
    assert [row.record_sequence for row in read_rows(tmp_path)] == list(
        range(1, writer.BLOCK_ROWS + 2)
    )


def test_range_gives_the_same_rows_while_the_log_grows(tmp_path):
    log = TelemetryLog(tmp_path)
    recorder = NodeRecorder(log, NODE, 7)
    ends = [read_bounds(tmp_path).end]
    for peer in range(3):
        recorder.put(schema.LinkUp(peer, peer))
        recorder.flush()
        log.commit()
        ends.append(read_bounds(tmp_path).end)
    log.close()
    ranges = list(zip(ends, ends[1:], strict=False))
    assert [[row.record_sequence for row in read_rows(tmp_path, *each)] for each in ranges] == [
        [1],
        [2],
        [3],
    ]
    assert read_bounds(tmp_path).end == ends[-1]


def test_another_process_can_read_during_writing(tmp_path):
    log = TelemetryLog(tmp_path)
    recorder = NodeRecorder(log, NODE, 7)
    recorder.put(schema.LinkUp(1, 1))
    recorder.flush()
    log.commit()
    code = (
        "import sys; from pathlib import Path; from hansa.telemetry.reader import read_rows\n"
        "sys.stdout.write(str([row.record_sequence for row in read_rows(Path(sys.argv[1]))]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    log.close()
    assert found.stdout == "[1]"


def test_records_with_long_topics_are_split_into_several_blocks(tmp_path):
    topic = "t" * 65_535
    write(
        tmp_path, *(schema.Captured(1, NODE, 7, sequence, 0, topic, 9) for sequence in range(100))
    )
    found = list(read_rows(tmp_path))
    assert [row.record_sequence for row in found] == list(range(1, 101))
    assert [
        row.record.sequence for row in found if isinstance(row.record, schema.Captured)
    ] == list(range(100))
    assert len(list(read_blocks(tmp_path))) > 3


def block(*rows: list[object]) -> TelemetryBlock:
    return TelemetryBlock(NODE, 7, 1, msgspec.Raw(msgspec.msgpack.encode(rows)))


def test_unknown_kinds_and_fields_are_skipped_but_keep_their_sequence():
    link_up, stopped = 26, 32
    found = block([link_up, 5, 1, "new"], [9_999, 6, {"any": "thing"}], [stopped, 7], [])
    assert list(decode_block(found)) == [
        (1, schema.LinkUp(5, 1)),
        (3, schema.NodeStopped(7)),
    ]


def test_undecodable_block_is_reported_with_its_offset(tmp_path):
    log = TelemetryLog(tmp_path)
    log.append(block([26, "no time", 1]), 1)
    log.close()
    with pytest.raises(JournalDamaged, match="the block at 52 cannot be decoded"):
        list(read_rows(tmp_path))


def test_torn_tail_is_skipped_and_the_next_incarnation_appends(tmp_path):
    write(tmp_path, *ups(1))
    (segment,) = tmp_path.glob("*.log")
    whole = segment.read_bytes()
    write(tmp_path, *ups(2), incarnation=8)
    torn = segment.read_bytes()[len(whole) : -3]
    segment.write_bytes(whole + torn)
    (tmp_path / "durable").unlink()  # a power failure may leave this
    write(tmp_path, *ups(3), incarnation=9)
    assert [row.incarnation for row in read_rows(tmp_path)] == [7, 9]


def test_retention_drops_the_oldest_records(tmp_path):
    log = TelemetryLog(tmp_path, JournalSettings(segment_bytes=100, retention_bytes=500))
    recorder = NodeRecorder(log, NODE, 7)
    for peer in range(100):
        recorder.put(schema.LinkUp(peer, peer))
        recorder.flush()
        log.commit()
    log.close()
    numbers = [row.record_sequence for row in read_rows(tmp_path)]
    assert 1 < len(numbers) < 20
    assert numbers[-1] == 100
    with pytest.raises(JournalTrimmed):
        list(read_rows(tmp_path, 0))


def test_records_dropped_by_a_slow_disk_are_counted_and_missing(tmp_path):
    log = TelemetryLog(tmp_path, JournalSettings(unsynced_bytes_max=20))
    recorder = NodeRecorder(log, NODE, 7)
    for peer in range(3):
        recorder.put(schema.LinkUp(peer, peer))
        recorder.flush()
        if peer == 1:
            log.commit()
    log.close()
    assert log.dropped == 1
    assert [row.record_sequence for row in read_rows(tmp_path)] == [1, 3]
