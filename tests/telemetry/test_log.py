"""Telemetry written and read: numbers, ranges, later versions, what a crash and retention leave."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hansa.errors import JournalDamaged, JournalTrimmed
from hansa.journal.records import TelemetryBlock
from hansa.journal.settings import JournalSettings
from hansa.telemetry import log as logs
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS
from hansa.telemetry.log import NodeRecorder, TelemetryLog
from hansa.telemetry.reader import decode_block, read_blocks, read_bounds, read_rows

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


def test_what_is_written_is_read_with_its_key(tmp_path):
    write(tmp_path, *ups(1, 2))
    write(tmp_path, *ups(3), incarnation=8)
    assert [
        (row.node, row.incarnation, row.record_sequence, row.record) for row in read_rows(tmp_path)
    ] == [
        (NODE, 7, 1, schema.LinkUp(1001, 1)),
        (NODE, 7, 2, schema.LinkUp(1002, 2)),
        (NODE, 8, 1, schema.LinkUp(1003, 3)),
    ]


def test_a_row_has_every_column(tmp_path):
    write(tmp_path, schema.ParentsChanged(5, 1, 2, 1, (3,), (3,), ()))
    (row,) = read_rows(tmp_path)
    found = row.columns()
    assert list(found) == list(COLUMNS)
    assert {name: value for name, value in found.items() if value is not None} == {
        "node": "fffffffffffffffe",
        "incarnation": 7,
        "number": 1,
        "kind": "parents",
        "time_ns": 5,
        "core": "0000000000000001",
        "seq": 2,
        "distance": 1,
        "parents": ["0000000000000003"],
        "gained": ["0000000000000003"],
        "lost": [],
    }


def test_rows_wait_for_a_full_block_or_a_flush_and_for_a_commit(tmp_path):
    log = TelemetryLog(tmp_path)
    recorder = NodeRecorder(log, NODE, 7)
    for record in ups(*range(logs.BLOCK_ROWS + 1)):
        recorder.put(record)
    assert list(read_rows(tmp_path)) == []
    log.commit()
    assert len(list(read_rows(tmp_path))) == logs.BLOCK_ROWS
    recorder.flush()
    log.close()
    assert [row.record_sequence for row in read_rows(tmp_path)] == list(
        range(1, logs.BLOCK_ROWS + 2)
    )


def test_a_range_gives_the_same_rows_while_the_log_goes_on(tmp_path):
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


def test_another_process_reads_while_this_one_writes(tmp_path):
    log = TelemetryLog(tmp_path)
    recorder = NodeRecorder(log, NODE, 7)
    recorder.put(schema.LinkUp(1, 1))
    recorder.flush()
    log.commit()
    code = (
        "import sys; from pathlib import Path; from hansa.telemetry.reader import rows\n"
        "sys.stdout.write(str([row.number for row in rows(Path(sys.argv[1]))]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    log.close()
    assert found.stdout == "[1]"


def test_long_topics_are_divided_over_several_blocks(tmp_path):
    topic = "t" * 65_535
    write(tmp_path, *(schema.Captured(1, NODE, 7, seq, 0, topic, 9) for seq in range(100)))
    found = list(read_rows(tmp_path))
    assert [row.record_sequence for row in found] == list(range(1, 101))
    assert [
        row.record.sequence for row in found if isinstance(row.record, schema.Captured)
    ] == list(range(100))
    assert len(list(read_blocks(tmp_path))) > 3


def block(*rows: list[object]) -> TelemetryBlock:
    return TelemetryBlock(NODE, 7, 1, msgspec.Raw(msgspec.msgpack.encode(rows)))


def test_fields_and_kinds_of_a_later_version_are_left_out_but_numbered():
    link_up, stopped = 26, 32
    found = block([link_up, 5, 1, "new"], [9_999, 6, {"any": "thing"}], [stopped, 7], [])
    assert list(decode_block(found)) == [
        (1, schema.LinkUp(5, 1)),
        (3, schema.NodeStopped(7)),
    ]


def test_a_block_that_means_nothing_is_damage_with_its_place(tmp_path):
    log = TelemetryLog(tmp_path)
    log.append(block([26, "no time", 1]), 1)
    log.close()
    with pytest.raises(JournalDamaged, match="the block at 52 means nothing"):
        list(read_rows(tmp_path))


def test_a_half_written_tail_is_no_row_and_the_next_life_writes_on(tmp_path):
    write(tmp_path, *ups(1))
    (segment,) = tmp_path.glob("*.log")
    whole = segment.read_bytes()
    write(tmp_path, *ups(2), incarnation=8)
    torn = segment.read_bytes()[len(whole) : -3]
    segment.write_bytes(whole + torn)
    (tmp_path / "durable").unlink()  # what a power failure may leave
    write(tmp_path, *ups(3), incarnation=9)
    assert [row.incarnation for row in read_rows(tmp_path)] == [7, 9]


def test_the_oldest_go_when_there_is_too_much(tmp_path):
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


def test_what_the_disk_cannot_take_in_time_is_counted_and_leaves_a_hole(tmp_path):
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
